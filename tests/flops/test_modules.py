"""A count split over modules, against closed forms: forward and backward each."""

from __future__ import annotations

import contextlib
import gc
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from module_split import UNIT, B, Block, D, H, split, step, x
from torch import nn
from torch.utils.checkpoint import checkpoint

from mfu_torch.flops import modules
from mfu_torch.flops.modules import NOT_KNOWN, OUTSIDE, ModuleScope, count_by_module


def test_every_module_has_what_runs_in_it_and_in_no_child() -> None:
    model = nn.Sequential(Block(), nn.Linear(D, H))
    assert split(model, lambda: model(x()).sum().backward()) == {
        "0.up": (1, 1, 0),  # the first layer's input needs no gradient
        "0": (1, 2, 0),
        "0.back": (1, 2, 0),
        "0.down": (1, 2, 0),
        "1": (1, 2, 0),
    }


def test_an_input_with_a_gradient_and_a_keyword_call_change_nothing_but_the_count() -> None:
    model = Block()
    units = split(model, lambda: model(x=x(grad=True)).sum().backward())
    assert units == {"up": (1, 2, 0), "": (1, 2, 0), "back": (1, 2, 0), "down": (1, 2, 0)}


def test_what_runs_outside_of_the_model_is_told_apart() -> None:
    model, weight = nn.Linear(D, H), torch.randn(D, H, requires_grad=True)
    units = split(model, lambda: F.linear(model(x()), weight).sum().backward())
    assert units == {"": (1, 1, 0), OUTSIDE: (1, 2, 0)}


def test_a_shared_module_called_twice_has_both_calls() -> None:
    block = Block()
    model = nn.Sequential(block, nn.ReLU(), block)
    units = split(model, lambda: model(x()).sum().backward())
    assert units == {"0.up": (2, 3, 0), "0": (2, 4, 0), "0.back": (2, 4, 0), "0.down": (2, 4, 0)}


def test_two_forwards_and_one_backward() -> None:
    model = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, D))
    units = split(model, lambda: (model(x()) + model(x())).sum().backward())
    assert units == {"0": (2, 2, 0), "2": (2, 4, 0)}


def test_two_forwards_and_their_backwards_in_reverse_order() -> None:
    model = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, D))

    def fn() -> None:
        first, second = model(x(grad=True)), model(x())
        second.sum().backward()
        first.sum().backward()

    assert split(model, fn) == {"0": (2, 3, 0), "2": (2, 4, 0)}


def test_a_tied_weight_is_counted_where_it_is_used() -> None:
    model = nn.Sequential(nn.Linear(D, H, bias=False), nn.Linear(H, D, bias=False))
    used_again = nn.Linear(D, H, bias=False)
    used_again.weight = model[0].weight
    model.append(used_again)
    units = split(model, lambda: model(x()).sum().backward())
    assert units == {"0": (1, 1, 0), "1": (1, 2, 0), "2": (1, 2, 0)}


def test_frozen_layers() -> None:
    model = nn.Sequential(nn.Linear(D, H), nn.Linear(H, D).requires_grad_(False), nn.Linear(D, H))
    units = split(model, lambda: model(x()).sum().backward())
    assert units == {"0": (1, 1, 0), "1": (1, 1, 0), "2": (1, 2, 0)}


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a @ b

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return grad @ b.T, a.T @ grad


class OwnLinear(nn.Module):
    def __init__(self, fan_in: int, fan_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(fan_in, fan_out))

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        torch.arange(3)  # makes no node
        return Product.apply(h, self.weight)


def test_a_custom_function_belongs_to_the_module_that_applies_it() -> None:
    model = nn.Sequential(OwnLinear(D, H), nn.ReLU(), OwnLinear(H, D))
    units = split(model, lambda: model(x(grad=True)).sum().backward())
    assert units == {"0": (1, 2, 0), "2": (1, 2, 0)}


def test_ops_without_a_node_do_not_take_over_the_node_before_them() -> None:
    class Quiet(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            torch.ones(D, D) @ torch.ones(D, H)  # a product that needs no gradient
            return h

    model = nn.Sequential(nn.Linear(D, H), Quiet())
    counts = count_by_module(model, lambda: model(x(grad=True)).sum().backward())
    assert counts.modules["0"].backward == 2 * UNIT
    assert counts.modules["1"].backward == 0
    assert counts.modules["1"].forward == 2 * D * D * H


def test_a_write_into_a_view_belongs_to_the_module_that_writes() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(H, D))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            out = torch.zeros(2, B, D)
            out[0].addmm_(h, self.weight)  # its node is inside one for the copy of the slice
            return out

    model = nn.Sequential(nn.Linear(D, H), Writes(), nn.Flatten(), nn.Linear(B * D, 1))
    counts = count_by_module(model, lambda: model(x()).sum().backward())
    assert counts.modules["0"].backward == UNIT
    assert counts.modules["1"].backward == 2 * UNIT


def test_a_gradient_of_a_gradient() -> None:
    model = nn.Sequential(nn.Linear(D, H, bias=False), nn.Tanh(), nn.Linear(H, D, bias=False))

    def fn() -> None:
        inputs = x(grad=True)
        (grad,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
        grad.square().sum().backward()

    units = split(model, fn)
    assert set(units) == {"0", "2"}
    # dX in the first backward. In the second: both gradients of that product, and both of the
    # forward's, to which the tanh leads back. The last layer's input gradient starts at a constant,
    # so only its weight has a gradient through it.
    assert units["0"] == (1, 1 + 2 + 2, 0)
    assert units["2"] == (1, 1 + 1, 0)


def test_a_backward_inside_a_forward() -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(D, H)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            out = self.net(h)
            (grad,) = torch.autograd.grad(out.sum(), h, retain_graph=True)
            return out.sum() + grad.sum()

    model = Penalty()
    units = split(model, lambda: model(x(grad=True)).backward())
    assert units == {"net": (1, 1 + 2, 0)}


def test_no_grad_and_inference_mode() -> None:
    model = Block()
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            units = split(model, lambda: model(x()))
        assert units == {"up": (1, 0, 0), "": (1, 0, 0), "back": (1, 0, 0), "down": (1, 0, 0)}


def test_the_meta_device() -> None:
    with torch.device("meta"):
        model = nn.Sequential(Block(), nn.Linear(D, H))
        inputs = torch.randn(B, D)
    units = split(model, lambda: model(inputs).sum().backward())
    assert units["0.up"] == (1, 1, 0)
    assert units["1"] == (1, 2, 0)


def test_an_optimizer_that_multiplies_is_outside_of_the_model() -> None:
    model = nn.Linear(D, D, bias=False)
    optimizer = torch.optim.Muon(model.parameters()) if hasattr(torch.optim, "Muon") else None
    if optimizer is None:
        pytest.skip("this torch has no Muon")
    model.weight.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    counts = count_by_module(model, step(model))
    assert counts.modules[OUTSIDE].optimizer == counts.total.optimizer > 0
    assert counts.modules[""].optimizer == 0


def test_a_graph_from_before_the_count_is_not_given_to_anyone() -> None:
    model = nn.Linear(D, H)
    loss = model(x(grad=True)).sum()
    assert split(model, loss.backward) == {NOT_KNOWN: (0, 2, 0)}


def test_ranges_are_kept_within_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, D))
    scopes = []

    class Watched(ModuleScope):
        def __init__(self, model: nn.Module) -> None:
            super().__init__(model, limit=20)
            scopes.append(self)

    monkeypatch.setattr(modules, "ModuleScope", Watched)

    def fn() -> None:
        for _ in range(100):  # micro-batches
            model(x()).sum().backward()
        thread = scopes[0]._thread()
        assert len(thread.starts) == len(thread.labels) <= 20

    assert split(model, fn) == {"0": (100, 100, 0), "2": (100, 200, 0)}


def test_a_graph_that_was_forgotten_is_not_given_to_anyone() -> None:
    model = nn.Sequential(nn.Linear(D, H), nn.ReLU(), nn.Linear(H, D))
    with ModuleScope(model, limit=4) as scope:
        number = torch.autograd._get_sequence_nr()
        model(x())
        assert scope._thread().made_at(number) == "0"
        for _ in range(3):
            model(x())
        assert scope._thread().made_at(number) == NOT_KNOWN


def test_numbers_of_another_thread_are_kept_apart() -> None:
    model = nn.Linear(D, H)
    with ModuleScope(model) as scope:
        model(x())
        here = list(scope._thread().starts)
        other = threading.Thread(target=lambda: [model(x()) for _ in range(3)])
        other.start()
        other.join()
        assert scope._thread().starts == here
        assert len(scope._threads) == 2


def test_nothing_is_left_behind_also_after_an_exception() -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = Block()

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, h, use_reentrant=False)

    model = Checkpointed()
    engine = (torch.autograd._engine_run_backward, torch.autograd.graph._engine_run_backward)
    begin = torch.utils.checkpoint._CheckpointFrame.__init__

    def fails() -> None:
        step(model)()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        count_by_module(model, fails)
    assert (
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
    ) == engine
    assert torch.utils.checkpoint._CheckpointFrame.__init__ is begin
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
        assert not module._forward_hooks_always_called


def test_no_graph_is_kept_alive() -> None:
    model = nn.Linear(D, H)
    nodes: list[int] = []

    class Freed:
        def __del__(self) -> None:
            nodes.append(1)

    def fn() -> None:
        for _ in range(3):
            out = model(x())
            out.grad_fn.metadata["freed"] = Freed()
            out.sum().backward()
            del out
        gc.collect()
        assert len(nodes) == 3

    count_by_module(model, fn)


def test_a_module_that_fails_and_is_caught_leaves_the_stack_in_order() -> None:
    class Fails(nn.Module):
        def forward(self, h: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fails, self.head = Fails(), nn.Linear(D, H)
            self.weight = nn.Parameter(torch.randn(H, D))

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(ValueError):
                h = self.fails(h)
            return self.head(h) @ self.weight

    model = Model()
    assert split(model, step(model)) == {"head": (1, 1, 0), "": (1, 2, 0)}


def test_attention_scores_belong_to_the_module_that_calls_the_kernel() -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(64, 64)

        def forward(self, h: torch.Tensor) -> torch.Tensor:
            q = self.q(h).unflatten(-1, (4, 16)).transpose(1, 2)
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    model = Attention()
    counts = count_by_module(model, lambda: model(torch.randn(2, 32, 64)).sum().backward())
    pairs = 2 * 4 * 32 * 32
    own = counts.modules[""]
    assert (own.forward, own.backward) == (2 * 2 * 16 * pairs, 4 * 2 * 16 * pairs)
    assert own.kernel_recompute == 2 * 16 * pairs
    assert own.model_causal == 6 * 2 * 16 * 2 * 4 * (32 * 33 // 2)
    assert counts.modules["q"].forward == 2 * 2 * 32 * 64 * 64
