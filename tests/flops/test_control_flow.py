"""Higher-order ops are counted inside, and compute with the counter what they do without it.

Sizes: x, w and v are 4 x 4, so a product is 128 FLOPs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from mfu_torch import Meter
from mfu_torch.flops import counter as counter_module
from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.shadow import ShadowError, shadow_count
from mfu_torch.records import FlopCount

_map = pytest.importorskip("torch._higher_order_ops.map").map
_scan = pytest.importorskip("torch._higher_order_ops.scan").scan
_while_loop = pytest.importorskip("torch._higher_order_ops.while_loop").while_loop
_flex = pytest.importorskip("torch.nn.attention.flex_attention")
_rng = pytest.importorskip("torch._prims.rng_prims")

PRODUCT = 2 * 4 * 4 * 4
Tensor = torch.Tensor
Op = Callable[[Tensor, Tensor, Tensor], Tensor]

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def cond(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x, w: x @ w, lambda x, w: x @ w * 2, (x, w))


def cond_with_captured_weights(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x @ v, (x,)) @ w


def cond_whose_operand_wants_nothing(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x @ v, (x.detach(),))


def cond_of_composite_ops(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    def outer(x: Tensor) -> Tensor:
        return torch.einsum("ij,jk->ik", x, w)

    return torch.cond(x.sum() > 0, outer, outer, (x,))


def mapped(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return _map(lambda row: row @ w, x)


def mapped_over_constants(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return _map(lambda row: row @ w, x.detach())


def scanned(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    def step(carry: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
        carry = carry @ w + row
        return carry, carry.clone()

    return _scan(step, torch.ones(4), x)[1]


def looped(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    go = torch.tensor(0)
    return _while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x @ w), (go, x))[1]


def looped_without_gradients(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        return looped(x, w, v)


def flex_with_a_learned_bias(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    q = x.detach().reshape(1, 1, 4, 4)
    return _flex.flex_attention(q, q, q, score_mod=lambda s, b, h, i, j: s + w[i, j])


def random_state_kept(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    with torch.no_grad():
        state, y = _rng.run_and_save_rng_state(torch.ops.aten.mm.default, x, w)
        return y + _rng.run_with_rng_state(state, torch.ops.aten.mm.default, x, w)


@torch.compiler.nested_compile_region
def region(x: Tensor, w: Tensor) -> Tensor:
    return x @ w


def nested_region(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return region(region(x, w), w)


# Forward and backward in products. The backward of torch's control flow repeats the forward.
CASES: dict[Op, tuple[float, float]] = {
    cond: (1, 1 + 2),
    cond_with_captured_weights: (2, 2 + 1 + 2),
    cond_whose_operand_wants_nothing: (1, 1 + 1),
    cond_of_composite_ops: (1, 1 + 2),
    mapped: (1, 1 + 2),
    mapped_over_constants: (1, 1 + 1),
    scanned: (1, 2),
    looped: (3, 3 + 6),
    looped_without_gradients: (3, 0),
    random_state_kept: (2, 0),
    nested_region: (2, 4),
}


def trained(op: Op, *, counted: bool) -> tuple[list[Any], FlopCount | None]:
    """The output, whether it wants gradients, the gradients and the random state afterwards."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    x, w, v = (torch.randn(4, 4, requires_grad=True) for _ in range(3))
    outputs: list[Tensor] = []

    def step() -> None:
        outputs.append(op(x, w, v))
        if outputs[0].requires_grad:
            outputs[0].square().sum().backward()

    count = count_flops(step) if counted else step()
    y = outputs[0]
    return [y, y.requires_grad, x.grad, w.grad, v.grad, torch.get_rng_state()], count


def equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(
        torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a is b
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("op", [*CASES, flex_with_a_learned_bias], ids=lambda op: op.__name__)
def test_gradients_and_results_are_those_without_the_counter(op: Op) -> None:
    plain, _ = trained(op, counted=False)
    counted, _ = trained(op, counted=True)
    assert equal(plain, counted)


@pytest.mark.parametrize("op", CASES, ids=lambda op: op.__name__)
def test_what_the_functions_of_an_op_multiply_is_counted(op: Op) -> None:
    _, count = trained(op, counted=True)
    assert count is not None and not count.uncounted
    forward = (count.forward + count.forward_no_grad) / PRODUCT
    assert (forward, count.backward / PRODUCT, count.recompute) == (*CASES[op], 0)


def test_a_backward_that_repeats_its_forward_in_one_graph_says_so() -> None:
    _, count = trained(cond_whose_operand_wants_nothing, counted=True)
    assert count is not None
    assert ["CondAutogradOp" in note for note in count.notes] == [True]


def test_compiled_code_is_eager_again_after_an_op_compiled_itself() -> None:
    eval_frame = pytest.importorskip("torch._dynamo.eval_frame")
    before, seen = eval_frame._stance, []

    def step() -> None:
        seen.append(eval_frame._stance.stance)
        cond(torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4))
        seen.append(eval_frame._stance.stance)

    count_flops(step)
    assert seen == ["force_eager", "force_eager"]
    assert eval_frame._stance is before


def test_what_is_wrapped_for_it_is_put_back() -> None:
    utils = sys.modules["torch._higher_order_ops.utils"]
    before = utils._set_compilation_env
    inside = []
    count_flops(lambda: inside.append(utils._set_compilation_env))
    assert inside[0] is not before
    assert utils._set_compilation_env is before


def test_a_torch_that_cannot_compile_beside_a_mode_runs_the_op_uncounted_and_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counter_module, "CAN_WATCH", False)
    monkeypatch.setattr(
        counter_module.CountingMode, "ignore_compile_internals", classmethod(lambda _: False)
    )
    plain, _ = trained(cond_with_captured_weights, counted=False)
    counted, count = trained(cond_with_captured_weights, counted=True)
    assert equal(plain, counted)
    assert count is not None and count.uncounted == {"torch.cond": 1}
    assert count.forward == PRODUCT  # what follows is counted again


class Model(nn.Module):
    def __init__(self, op: Op) -> None:
        super().__init__()
        self.op = op
        self.w, self.v = (nn.Parameter(torch.randn(4, 4)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.op(x, self.w, self.v)


@pytest.mark.parametrize("op", [cond, mapped, scanned, looped], ids=lambda op: op.__name__)
def test_there_is_no_shadow_of_what_depends_on_data(op: Op) -> None:
    with pytest.raises(ShadowError, match="cannot be told from fake tensors"):
        shadow_count(Model(op), (torch.randn(4, 4),), {})


def test_flex_attention_has_a_shadow() -> None:
    def attend(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
        with torch.no_grad():  # a backward of it needs a GPU
            q = x.reshape(1, 1, 4, 4)
            return _flex.flex_attention(q, q, q)

    count = shadow_count(Model(attend), (torch.randn(4, 4),), {})
    assert (count.hardware, count.uncounted) == (2 * PRODUCT, {})


# --- graphs of the compiler, run as they are -----------------------------------------------------


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grad @ w.T, x.T @ grad


def checkpointed(x: Tensor, w: Tensor) -> Tensor:
    return checkpoint(lambda x: torch.tanh(x @ w), x, use_reentrant=False)


def of_a_function(x: Tensor, w: Tensor) -> Tensor:
    return Product.apply(x, w)


def without_gradients(x: Tensor, w: Tensor) -> Tensor:
    with torch.no_grad():
        y = x @ w
    return x @ w + y


@pytest.mark.parametrize(
    ("fn", "op", "forward", "recompute"),
    [
        (checkpointed, "tag_activation_checkpoint", 1, 1),
        (of_a_function, "autograd_function_apply", 1, 0),
        (without_gradients, "", 2, 0),
    ],
)
def test_a_graph_of_the_compiler_is_counted_as_the_code_that_it_was_made_of(
    fn: Callable[[Tensor, Tensor], Tensor], op: str, forward: int, recompute: int
) -> None:
    torch._dynamo.reset()
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def leaves() -> tuple[Tensor, Tensor]:
        torch.manual_seed(0)
        x, w = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
        return x, w

    torch.compile(fn, backend=keep, fullgraph=True)(*leaves())
    (graph,) = graphs
    assert op in graph.code
    results: list[list[Any]] = []

    def step() -> None:
        x, w = leaves()
        (y,) = graph(x, w)
        y.square().sum().backward()
        results.append([y, x.grad, w.grad])

    step()
    count = count_flops(step)
    assert equal(*results)
    seen = count.forward + count.forward_no_grad, count.backward, count.recompute
    assert seen == (forward * PRODUCT, 2 * PRODUCT, recompute * PRODUCT)
    assert not count.uncounted


# --- the live count ------------------------------------------------------------------------------


def test_a_metered_training_run_with_cond_is_bit_equal() -> None:
    def run(metered: bool) -> list[Tensor]:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = Model(cond_with_captured_weights)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, weight_decay=0.1)
        meter = Meter(model, peak=1e12, sinks=[], log_dir="") if metered else None
        with meter or contextlib.nullcontext():
            for _ in range(3):
                with meter.step() if meter else contextlib.nullcontext():
                    optimizer.zero_grad()
                    model(torch.randn(4, 4)).square().sum().backward()
                    optimizer.step()
        if meter:
            count = meter.run.count_of(list(meter.run.steps)[-1])
            assert count.forward == 2 * PRODUCT
            assert not count.uncounted
        return [torch.get_rng_state(), *(p.detach() for p in model.parameters())]

    assert equal(run(False), run(True))


def test_a_region_that_is_called_where_it_cannot_be_seen_is_named() -> None:
    graphs: list[Any] = []

    def keep(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    x = torch.randn(4, 4)
    torch._dynamo.reset()
    torch.compile(lambda x: region(region(x, x), x), backend=keep)(x)
    count = count_flops(graphs[0], x)
    assert count.uncounted == {"invoke_subgraph": 2}
