"""What the shadow must leave alone, and what it must refuse rather than count otherwise."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.shadow import ShadowError, shadow_count

X = torch.ones(8, 16)
UNIT = 2 * 8 * 16 * 16  # one Linear(16, 16) on 8 rows


class Layer(nn.Linear):
    """A linear layer of 16 x 16, to be given another forward."""

    def __init__(self) -> None:
        super().__init__(16, 16)


def fakes() -> int:
    gc.collect()
    return sum(type(thing) is FakeTensor for thing in gc.get_objects())


# --- nothing stays --------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [torch.exp, torch.tanh, lambda x: x.softmax(1)])
def test_a_forward_that_fails_half_way_leaves_no_fake_tensor_alive(op: Any) -> None:
    class Failing(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            op(super().forward(x))  # autograd saves the result of these
            raise ValueError("half way")

    before = fakes()
    with pytest.raises(ShadowError, match="half way"):
        shadow_count(Failing(), (X,), {})
    assert fakes() <= before  # other tests leave some, which can go in between


def test_an_output_that_the_loss_does_not_need_leaves_no_fake_tensor_alive() -> None:
    class Two(Layer):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            y = super().forward(x)
            return {"loss": y.sum(), "weights": y.softmax(1)}

    before = fakes()
    assert shadow_count(Two(), (X,), {}).forward == UNIT
    assert fakes() <= before  # other tests leave some, which can go in between


def test_what_was_frozen_for_the_collector_is_cleaned_as_well() -> None:
    kept: dict[str, Any] = {"mask": None}

    class Keeping(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            kept["mask"] = super().forward(x)
            return kept["mask"]

    gc.freeze()
    try:
        assert shadow_count(Keeping(), (X,), {}).forward == UNIT
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
    assert not isinstance(kept.get("mask"), FakeTensor)


def test_the_collector_looks_at_everything_again_afterwards() -> None:
    shadow_count(Layer(), (X,), {})
    assert gc.get_freeze_count() == 0


def test_what_a_forward_stores_on_its_class_is_put_back() -> None:
    class Storing(Layer):
        calls = 0
        seen: ClassVar[list[int]] = []
        sizes: ClassVar[dict[int, int]] = {1: 1}
        names: ClassVar[set[str]] = {"a"}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            Storing.calls += 1
            Storing.seen.append(1)
            Storing.sizes[len(x)] = 2
            Storing.names.add("b")
            Storing.late = x
            return super().forward(x)

    seen = Storing.seen
    assert shadow_count(Storing(), (X,), {}).forward == UNIT
    assert (Storing.calls, Storing.seen, Storing.sizes) == (0, [], {1: 1})
    assert Storing.names == {"a"}
    assert Storing.seen is seen and not hasattr(Storing, "late")


@pytest.mark.parametrize("own", [True, False])
def test_a_generator_is_where_it_was(own: bool) -> None:
    shared = torch.Generator()

    class Noisy(Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = torch.Generator() if own else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            generator = self.generator if own else shared
            return super().forward(x) + torch.rand(x.shape, generator=generator)

    model = Noisy()
    generator = model.generator or shared
    before = generator.get_state()
    assert shadow_count(model, (X,), {}).forward == UNIT
    assert torch.equal(generator.get_state(), before)


def test_torch_logs_nothing_of_what_fails(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) @ x  # (8, 16) @ (8, 16)

    with pytest.raises(ShadowError, match="RuntimeError"):
        shadow_count(Failing(), (X,), {})
    assert caplog.records == []


# --- attributes that are not tensors --------------------------------------------------------------


class WithTable(Layer):
    def __init__(self) -> None:
        super().__init__()
        self.table = np.zeros((1 << 18, 16), dtype=np.float32)  # 16 MiB

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.from_numpy(self.table[:8])


@pytest.mark.filterwarnings("error:The given NumPy array is not writable")
def test_a_large_array_is_read_and_not_copied() -> None:
    model = WithTable()
    shadow_count(model, (X,), {})
    tracemalloc.start()
    assert shadow_count(model, (X,), {}).forward == UNIT
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < model.table.nbytes / 2


def test_writing_to_a_large_array_is_refused_and_the_array_unchanged() -> None:
    class Writing(WithTable):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.table[0] = 1
            return super().forward(x)

    model = Writing()
    with pytest.raises(ShadowError, match="read-only"):
        shadow_count(model, (X,), {})
    assert model.table.sum() == 0 and model.table.flags.writeable


def test_a_model_that_cannot_be_copied_is_refused_by_name_of_the_reason() -> None:
    model = Layer()
    model.lock = threading.Lock()
    with pytest.raises(ShadowError, match=r"cannot be copied \(TypeError: cannot pickle .*lock"):
        shadow_count(model, (X,), {})


def test_a_lazy_layer_is_refused_and_stays_lazy() -> None:
    model = nn.LazyLinear(16)
    with pytest.raises(ShadowError, match="uninitialized parameter"):
        shadow_count(model, (X,), {})
    assert isinstance(model.weight, nn.UninitializedParameter)


# --- equal, or refused ----------------------------------------------------------------------------


def test_a_tensor_in_a_closure_is_used() -> None:
    constant = torch.ones(16, 16)

    class Closing(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) @ constant

    model = Closing()
    shadow = shadow_count(model, (X,), {})
    assert shadow.terms == count_flops(lambda: model(X).sum().backward()).terms


def test_writing_to_a_tensor_in_a_closure_is_refused_and_the_tensor_unchanged() -> None:
    constant = torch.ones(16)

    class Writing(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            constant.add_(1)
            return super().forward(x) + constant

    with pytest.raises(ShadowError, match="would write to a tensor that is not part of the model"):
        shadow_count(Writing(), (X,), {})
    assert constant.sum() == 16


def test_gradients_taken_in_a_forward_are_the_same_in_the_shadow() -> None:
    class Penalty(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.clone().requires_grad_()
            (slope,) = torch.autograd.grad(
                super().forward(x).tanh().exp().sum(), x, create_graph=True
            )
            return slope.square().sum()

    model = Penalty()
    real = count_flops(lambda: model(X).backward())
    assert shadow_count(model, (X,), {}).terms == real.terms
    assert real.backward > real.forward


def test_data_asked_for_behind_an_except_is_refused() -> None:
    class Guarded(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            try:
                again = bool((x > 0).any())
            except Exception:
                again = False
            return super().forward(y) if again else y

    with pytest.raises(ShadowError, match="went on another way where fake tensors have no data"):
        shadow_count(Guarded(), (X,), {})


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_a_product_with_a_sparse_tensor_is_refused(layout: str) -> None:
    class Graph(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(8).expand(2, 8)
            adjacency = torch.sparse_coo_tensor(at, torch.ones(8), (8, 8)).coalesce()
            if layout == "csr":
                adjacency = adjacency.to_sparse_csr()
            return torch.sparse.mm(adjacency, super().forward(x))

    model = Graph()
    assert count_flops(lambda: model(X)).forward == UNIT + 2 * 8 * 16  # 8 stored elements
    with pytest.raises(ShadowError, match="multiplies a sparse tensor"):
        shadow_count(model, (X,), {})


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped product")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_grouped_product_has_a_shadow_in_every_dtype(dtype: torch.dtype) -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.Parameter(torch.ones(2, 16, 16, dtype=dtype))

        def forward(self, x: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
            return torch._grouped_mm(x, self.weights, ends).contiguous() * 1

    shadow = shadow_count(Experts(), (X.to(dtype), torch.tensor([3, 8], dtype=torch.int32)), {})
    assert shadow.forward == UNIT
    assert shadow.backward == UNIT
    assert {term.dtype for term in shadow.terms} == {"bf16" if dtype.itemsize == 2 else "fp32"}


def test_hooks_that_transformers_leaves_on_its_models_do_not_matter() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=1,
        num_attention_heads=4,
    )  # fmt: skip
    model, ids = transformers.BertForMaskedLM(config), torch.randint(0, 97, (2, 8))
    before = shadow_count(model, (ids,), {})
    model(ids, output_hidden_states=True)  # leaves a hook on every layer
    model.enable_input_require_grads()
    assert any(module._forward_hooks for module in model.modules())
    assert shadow_count(model, (ids,), {}).forward == before.forward
