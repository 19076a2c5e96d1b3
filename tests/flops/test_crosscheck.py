"""Witnesses agree where they can count, and every difference has a reason or is called loud."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformer_models
from models import ZOO, Functional
from torch import nn
from torch.utils.checkpoint import checkpoint

from mfu_torch.flops.crosscheck import Crosscheck, CrosscheckError, crosscheck, render
from mfu_torch.flops.crosscheck.fvcore_witness import contracts
from mfu_torch.flops.ops import registry

LINEAR = 2 * 8 * 16 * 32  # a batch of 8 through 16 x 32


def reasons(check: Crosscheck, witness: str) -> list[tuple[str, int, tuple[str, ...]]]:
    return [
        (found.module, found.ours - found.theirs, found.reasons)
        for found in check.differences
        if found.witness == witness
    ]


# --- agreement -------------------------------------------------------------------------------


def test_every_witness_counts_a_linear_layer() -> None:
    check = crosscheck(nn.Linear(16, 32), (torch.randn(8, 16),), closed_form=LINEAR)
    assert {r.witness: r.flops for r in check.readings} == {
        "fvcore": LINEAR, "torch": LINEAR, "closed form": LINEAR,
    }  # fmt: skip
    assert check.ours == LINEAR and check.differences == ()


@pytest.mark.parametrize("name", ["resnet", "gpt2_eager", "llama_eager", "lora", "grouped_conv"])
def test_models_without_fused_kernels_have_no_difference(name: str) -> None:
    case = ZOO[name]()
    assert crosscheck(case.model, case.batch, closed_form=case.forward).differences == ()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ZOO)
def test_every_difference_in_the_zoo_is_explained(name: str) -> None:
    case = ZOO[name]()
    check = crosscheck(case.model, case.batch, closed_form=case.forward)
    assert check.unexplained == ()


def test_keyword_arguments_and_a_cache_are_no_obstacle() -> None:
    case = transformer_models.llama("eager", layers=1)
    case.model.config.use_cache = True
    check = crosscheck(case.model, (), {"input_ids": case.batch[0], "labels": case.batch[0]})
    assert check.reading("fvcore").flops == case.forward
    assert case.model.config.use_cache


def test_a_compiled_model_is_counted_uncompiled() -> None:
    model = torch.compile(nn.Sequential(nn.Linear(16, 32), torch.compile(nn.Linear(32, 16))))
    check = crosscheck(model, (torch.randn(8, 16),))
    assert check.model == "Sequential"
    assert check.reading("fvcore").flops == check.ours == 2 * LINEAR


def test_a_model_on_the_meta_device_computes_nothing() -> None:
    with torch.device("meta"):
        model, x = nn.Linear(10**5, 10**5), torch.randn(8, 10**5)
    check = crosscheck(model, (x,))
    assert check.ours == check.reading("fvcore").flops == check.reading("torch").flops
    assert check.ours == 2 * 8 * 10**10


def test_a_module_used_twice_is_counted_twice_under_its_first_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = self.again = nn.LSTM(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.again(self.first(x)[0])[0]

    check = crosscheck(Model(), (torch.randn(3, 2, 4),))
    each = 2 * 3 * 2 * 4 * 4 * (4 + 4)
    assert reasons(check, "fvcore") == [
        ("first", 2 * each, ("fvcore has no formula for aten::lstm (2 calls)",))
    ]


# --- nothing is left behind ------------------------------------------------------------------


def test_statistics_random_numbers_hooks_and_gradients_stay_as_they_are() -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.BatchNorm1d(32), nn.Dropout(0.5))
    called = []
    model[0].register_forward_hook(lambda *_: called.append(1))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
    crosscheck(model, (x,))
    assert called == []
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    assert all(p.grad is None for p in model.parameters())
    assert len(model[0]._forward_hooks) == 1 and not model[1]._forward_hooks


def test_what_a_forward_stores_never_reaches_the_model() -> None:
    class Lazy(nn.Linear):
        seen: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen = x
            return super().forward(x)

    model = Lazy(16, 32)
    crosscheck(model, (torch.randn(8, 16),))
    assert model.seen is None


def test_hooks_that_compute_the_weight_still_do() -> None:
    model = nn.utils.weight_norm(nn.Linear(16, 32))
    check = crosscheck(model, (torch.randn(8, 16),))
    assert check.ours == check.reading("fvcore").flops == LINEAR


# --- reasons ---------------------------------------------------------------------------------


def test_attention_that_torch_does_not_know_is_found_in_its_modules() -> None:
    case = transformer_models.gpt2("sdpa")
    scores = 4 * 2 * 32 * 32 * 64
    op = "aten._scaled_dot_product_flash_attention_for_cpu"
    assert reasons(crosscheck(case.model, case.batch), "torch") == [
        (f"transformer.h.{i}.attn", scores, (f"torch has no formula for {op}",)) for i in (0, 1)
    ]


def test_a_broadcast_product_is_a_fault_of_fvcore_with_its_size() -> None:
    case = ZOO["functional_broadcast_left"]()
    missing = case.forward * 3 // 4  # it takes one of the four matrices
    fault = "fvcore: its formula for matmul is wrong: (64, 64) and (4, 64, 32)"
    assert reasons(crosscheck(case.model, case.batch), "fvcore") == [
        ("", missing, (f"{fault} ({missing:+,} FLOPs here)",))
    ]


def test_a_formula_that_raises_is_named_and_does_not_end_the_count() -> None:
    case = ZOO["functional_matvec"]()
    reading = crosscheck(case.model, case.batch).reading("fvcore")
    assert reading.flops == 0
    assert reading.remarks == ("its formula for matmul raises IndexError: (4, 32, 64) and (64,)",)


def test_einsum_is_off_by_what_numpy_prints() -> None:
    case = ZOO["functional_einsum"]()
    (found,) = crosscheck(case.model, case.batch).differences
    # 2 x 524288 is printed as 1.049e+06.
    assert (found.theirs, found.unexplained) == (1_049_000, 0)


def test_complex_numbers_are_the_reason_where_there_are_some() -> None:
    model = nn.Linear(16, 32, bias=False, dtype=torch.complex64)
    check = crosscheck(model, (torch.randn(8, 16, dtype=torch.complex64),))
    assert check.ours == 4 * LINEAR and check.unexplained == ()
    assert reasons(check, "torch") == [
        (
            "",
            3 * LINEAR,
            ("torch counts a product of complex numbers, 4 real ones, as one: aten.mm",),
        )
    ]


def test_an_autograd_function_is_not_seen_by_fvcore_and_named() -> None:
    class Multiply(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return x @ w

    model = Functional(lambda x, w: Multiply.apply(x, w).softmax(-1) + 1)
    (found,) = crosscheck(model, (torch.randn(8, 64),)).differences
    assert found.reasons == ("fvcore has no formula for prim::PythonOp.Multiply (1 calls)",)


def test_a_difference_without_evidence_is_called_not_explained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong = registry.Formula(lambda *_, result, **__: 1, operand=None, given=True)
    monkeypatch.setitem(registry._given, "aten::addmm", wrong)
    check = crosscheck(nn.Linear(16, 32), (torch.randn(8, 16),))
    assert [(d.witness, d.unexplained, d.reasons) for d in check.unexplained] == [
        ("fvcore", 1 - LINEAR, ()), ("torch", 1 - LINEAR, ()),
    ]  # fmt: skip
    assert f"not explained: {1 - LINEAR:,} FLOPs" in render(check)


def test_a_closed_form_that_is_missed_is_not_explained_away() -> None:
    check = crosscheck(nn.Linear(16, 32), (torch.randn(8, 16),), closed_form=LINEAR + 1)
    assert [(found.witness, found.unexplained) for found in check.unexplained] == [
        ("closed form", 1)
    ]


def test_an_op_that_was_not_counted_here_explains_a_closed_form() -> None:
    @torch.library.custom_op("crosscheck_test::opaque", mutates_args=())
    def opaque(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() @ w.numpy())

    model = Functional(lambda x, w: opaque(x, w.detach()))
    check = crosscheck(model, (torch.randn(8, 64),), closed_form=2 * 8 * 64 * 64)
    (found,) = (d for d in check.differences if d.witness == "closed form")
    assert found.reasons == ("crosscheck_test.opaque was not counted here (1 calls)",)
    assert "not counted by ours: crosscheck_test.opaque (1 calls)" in render(check)


def test_a_witness_that_fails_says_what_it_raised() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(super().forward, x, use_reentrant=True)

    check = crosscheck(Model(16, 32), (torch.randn(8, 16, requires_grad=True),))
    assert check.reading("fvcore").failure.startswith("RuntimeError: ")
    assert check.reading("torch").flops == LINEAR
    assert "could not count: RuntimeError" in render(check)
    why = check.reading("fvcore").why
    assert why.startswith(
        "fvcore counts the graph that torch.jit.trace makes, and the tracer cannot"
    )
    assert f"    {why}\n" in render(check)
    assert check.reading("torch").why == ""


def test_a_check_of_sizes_that_the_tracer_cannot_run_is_told_in_words() -> None:
    class Model(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check(x.shape[1] == 16)
            return super().forward(x)

    check = crosscheck(Model(16, 32), (torch.randn(8, 16),))
    assert check.reading("torch").flops == LINEAR
    assert check.reading("fvcore").flops is None
    assert "cannot run the model's checks of its sizes" in check.reading("fvcore").why


def test_a_model_that_does_not_run_is_an_error_in_one_line() -> None:
    with pytest.raises(CrosscheckError, match="the forward of Linear does not run: RuntimeError"):
        crosscheck(nn.Linear(16, 32), (torch.randn(8, 17),))


@pytest.mark.parametrize("op", ["lstm", "baddbmm", "mv", "fft_fft", "linalg_solve", "inner"])
def test_an_op_that_contracts_is_never_noise(op: str) -> None:
    assert contracts(f"aten::{op}")


@pytest.mark.parametrize("op", ["add", "softmax", "gelu", "reshape", "linalg_vector_norm", "Int"])
def test_an_elementwise_op_is_noise(op: str) -> None:
    assert not contracts(f"aten::{op}")


# --- what is shown ---------------------------------------------------------------------------


def test_the_shapes_and_dtypes_that_ran_are_shown() -> None:
    model = nn.Linear(16, 32, dtype=torch.bfloat16)
    x = torch.randn(8, 16, dtype=torch.bfloat16)
    by_place, by_name = crosscheck(model, (x,)), crosscheck(model, (), {"input": x})
    assert by_place.work == "8 x 16 bfloat16 | bfloat16"
    assert by_name.work == "input 8 x 16 bfloat16 | bfloat16"
    first = render(by_place).splitlines()[0]
    assert first == "forward FLOPs of Linear | 8 x 16 bfloat16 | bfloat16"


def test_layers_that_differ_alike_share_a_line() -> None:
    case = transformer_models.llama("sdpa", layers=3)
    scores = 4 * 2 * 32 * 32 * 64
    text = render(crosscheck(case.model, case.batch, closed_form=case.forward))
    assert f"fvcore      {case.forward:>24,}   equal" in text
    assert f"model.layers.*.self_attn (3 modules, each): ours {scores:,}, torch 0" in text
    assert "torch has no formula for aten._scaled_dot_product_flash_attention_for_cpu" in text


def test_a_direct_call_of_sdpa_belongs_to_the_model_itself() -> None:
    class Model(nn.Module):
        def forward(self, q: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, q, q)

    text = render(crosscheck(Model(), (torch.randn(1, 2, 8, 4),)))
    assert "the model itself: ours 2,048, torch 0" in text
