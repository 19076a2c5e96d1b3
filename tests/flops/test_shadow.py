from __future__ import annotations

import contextlib
import functools
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint

from mfu_torch import Meter
from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.shadow import RECOMPUTED, ShadowError, shadow_count, unwrapped

X = torch.ones(8, 16)
UNIT = 2 * 8 * 16 * 16  # one Linear(16, 16) on 8 rows


class Lazy(nn.Module):
    """Stores things on itself in its forward, as real models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.register_buffer("seen", torch.zeros(()))
        self.mask: torch.Tensor | None = None
        self.cache: dict[Any, torch.Tensor] = {}
        self.history: list[torch.Tensor] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones(x.shape)
        self.cache[x.shape] = x
        self.history.append(x.sum())
        self.calls += 1
        self.seen += 1
        return self.layer(x * self.mask)


def test_forward_and_backward_are_counted_without_running_anything() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16))
    count = shadow_count(model, (X,), {})
    assert (count.forward, count.backward) == (2 * UNIT, 3 * UNIT)  # no dX for the first layer
    assert "shadow" in count.method


def test_without_gradients_only_the_forward_is_counted() -> None:
    with torch.no_grad():
        count = shadow_count(nn.Linear(16, 16), (X,), {})
    assert (count.forward_no_grad, count.backward) == (UNIT, 0)


def test_what_a_forward_stores_on_its_module_never_reaches_the_real_model() -> None:
    model = Lazy()
    shadow_count(model, (X,), {})
    assert model.mask is None
    assert model.cache == {} and model.history == []
    assert model.calls == 0
    assert model.seen.item() == 0
    assert all(p.grad is None for p in model.parameters())


def test_a_model_that_has_run_before_keeps_its_own_state() -> None:
    model = Lazy()
    model(X)
    mask, history = model.mask, list(model.history)
    shadow_count(model, (X,), {})
    assert model.mask is mask and model.history == history and model.calls == 1
    assert type(model.cache[X.shape]) is torch.Tensor


def test_random_number_generators_are_where_they_were() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.manual_seed(random.randrange(99) + np.random.randint(99))
            return nn.functional.dropout(self.layer(x), 0.5) + torch.rand(x.shape)

    model = Noisy()
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    shadow_count(model, (X,), {})
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


_module_cache: dict[Any, torch.Tensor] = {}


@functools.lru_cache
def _cached_mask(rows: int) -> torch.Tensor:
    return torch.ones(rows, 1)


class Caching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape not in _module_cache:
            _module_cache[x.shape] = torch.zeros(x.shape)
        return self.layer(x * _cached_mask(len(x)) + _module_cache[x.shape])


def test_caches_outside_of_the_model_hold_no_fake_tensor_afterwards() -> None:
    model = Caching()
    assert shadow_count(model, (X,), {}).forward == UNIT
    assert type(_cached_mask(8)) is torch.Tensor
    assert not any(isinstance(value, FakeTensor) for value in _module_cache.values())
    assert type(model(X)) is torch.Tensor


def test_what_a_forward_appends_to_a_list_outside_of_it_is_taken_out_again() -> None:
    kept = [torch.zeros(8, 16)]

    class Hoarder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept.append(super().forward(x))
            return kept[-1]

    assert shadow_count(Hoarder(16, 16), (X,), {}).forward == UNIT
    assert len(kept) == 1 and type(kept[0]) is torch.Tensor


def test_a_place_that_cannot_be_cleaned_makes_the_shadow_fail_by_name() -> None:
    kept: list[Any] = []

    class Hoarder(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            kept.append((1, y))
            return y

    with pytest.raises(ShadowError, match="kept a fake tensor of the shadow in a tuple"):
        shadow_count(Hoarder(16, 16), (X,), {})


def test_hooks_for_saved_tensors_around_the_model_never_see_the_shadows() -> None:
    packed = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(type(tensor))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert shadow_count(nn.Linear(16, 16), (X,), {}).forward == UNIT
    assert packed == []


@pytest.mark.parametrize("kind", ["dispatch", "function", "global hook"])
def test_what_sees_every_op_or_module_is_never_shown_the_shadow(kind: str) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    class Function(TorchFunctionMode):
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    model = nn.Linear(16, 16)
    with contextlib.ExitStack() as stack:
        if kind == "global hook":
            hook = torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
            stack.callback(hook.remove)
        else:
            stack.enter_context(Dispatch() if kind == "dispatch" else Function())
        with pytest.raises(ShadowError, match="would see fake tensors"):
            shadow_count(model, (X,), {})
    with torch.device("cpu"):  # a function mode of torch's own, which a model may rely on
        assert shadow_count(model, (X,), {}).forward == UNIT


def test_a_compiled_model_inside_a_checkpoint_trains_as_without_the_meter(tmp_path: Path) -> None:
    grads = []
    for metered in (False, True):
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
        called = torch.compile(model, backend="aot_eager")
        meter = Meter(called, peak=1e12, sinks=[], log_dir=tmp_path) if metered else None
        for _ in range(2):
            with meter.step() if meter else contextlib.nullcontext():
                checkpoint(called, X, use_reentrant=False).sum().backward()
        grads.append(model[0].weight.grad)
        if meter:
            meter.close()
    assert torch.equal(grads[0], grads[1])


def test_tied_weights_stay_tied_and_frozen_ones_frozen() -> None:
    model = nn.Sequential(nn.Linear(16, 16, bias=False), nn.Linear(16, 16, bias=False))
    model[1].weight = model[0].weight
    assert shadow_count(model, (X,), {}).backward == 3 * UNIT
    frozen = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 16))
    frozen[0].requires_grad_(False)
    assert shadow_count(frozen, (X,), {}).backward == UNIT  # dW of the second alone


@pytest.mark.parametrize("reentrant", [True, False])
def test_recompute_in_the_shadow_is_what_it_is_in_the_real_step(reentrant: bool) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(16, 16)
            self.block = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.block, self.first(x), use_reentrant=reentrant)

    model = Checkpointed()
    shadow = shadow_count(model, (X,), {})
    real = count_flops(lambda: model(X).sum().backward())
    # Reentrant recomputes both layers; the other kind stops before the last one.
    assert shadow.recompute == real.recompute == (2 if reentrant else 1) * UNIT
    assert shadow.terms == real.terms
    assert RECOMPUTED in shadow.notes  # what a compiler makes of it is not seen


def test_compiled_and_wrapped_models_are_seen_through() -> None:
    inner = nn.Linear(16, 16)
    compiled = torch.compile(inner, backend="eager")
    assert unwrapped(compiled) is inner
    assert shadow_count(compiled, (X,), {}).forward == UNIT
    regional = nn.Sequential(torch.compile(nn.Linear(16, 16), backend="eager"), nn.Linear(16, 16))
    assert shadow_count(regional, (X,), {}).forward == 2 * UNIT
    in_place = nn.Linear(16, 16)
    in_place.compile(backend="eager")
    assert shadow_count(in_place, (X,), {}).forward == UNIT


@pytest.mark.parametrize(
    ("pack", "backward"),
    [
        (lambda a, b: a.sum(), 1),  # a loss
        (lambda a, b: {"loss": a.sum(), "logits": b}, 1),
        (lambda a, b: (a.sum(), b), 1),
        (lambda a, b: (a, b), 2),  # no loss: every output
        (lambda a, b: [a, {"more": b}], 2),
    ],
)
def test_the_backward_starts_where_the_loss_is(pack: Any, backward: int) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> Any:
            return pack(self.a(x), self.b(x))

    assert shadow_count(Two(), (X,), {}).backward == backward * UNIT


@pytest.mark.parametrize(
    "kind", ["forward_pre_hook", "forward_hook", "full_backward_pre_hook", "full_backward_hook"]
)
def test_a_hook_of_the_user_is_never_called_with_fake_tensors(kind: str) -> None:
    model, called = nn.Sequential(nn.Linear(16, 16)), []
    getattr(model[0], f"register_{kind}")(lambda *_: called.append(1))
    with pytest.raises(ShadowError, match="0 \\(Linear\\) has a hook"):
        shadow_count(model, (X,), {})
    assert called == []


def test_a_model_whose_shapes_depend_on_data_has_no_shadow() -> None:
    class Routed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x[x.sum(1) > 0]) if x.sum().item() else x

    model = Routed(16, 16)
    with pytest.raises(ShadowError, match="does not run on fake tensors"):
        shadow_count(model, (X,), {})
    assert type(model(X)) is torch.Tensor


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_a_transformer_has_the_same_terms_in_the_shadow_as_in_the_real_step(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    if family == "gpt2":
        config = transformers.GPT2Config(vocab_size=97, n_layer=2, n_embd=32, n_head=2)
        model = transformers.GPT2LMHeadModel(config)
    elif family == "llama":
        config = transformers.LlamaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
            num_attention_heads=4,
        )  # fmt: skip
        model = transformers.BertForMaskedLM(config)
    ids = torch.randint(0, 97, (2, 24))
    shadow = shadow_count(model, (), {"input_ids": ids, "labels": ids})
    real = count_flops(lambda: model(input_ids=ids, labels=ids).loss.backward())
    assert set(shadow.terms) == set(real.terms)
    assert shadow.model > 0
