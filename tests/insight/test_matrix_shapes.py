"""FLOPs from recorded shapes are those that live tensors give, to the digit, for every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

from mfu_torch import count_flops
from mfu_torch.insight.breakdown.explain import explain
from mfu_torch.insight.breakdown.formulas.work import Work
from mfu_torch.insight.breakdown.shapes import OpWork
from mfu_torch.insight.trace.reading import read_trace

Tensor = torch.Tensor


def _normal(*sizes: int) -> Tensor:
    return torch.randn(sizes, requires_grad=True)


def _bf16(*sizes: int) -> Tensor:
    return torch.randn(sizes).to(torch.bfloat16)


def _fp8(*sizes: int) -> Tensor:
    return torch.randn(sizes).to(torch.float8_e4m3fn)


def _train(run: Callable[[], Tensor]) -> Callable[[], object]:
    return lambda: run().sum().backward()


def _scaled() -> Tensor:
    one = torch.tensor(1.0)
    return torch._scaled_mm(_fp8(16, 32), _fp8(16, 32).t(), one, one, out_dtype=torch.bfloat16)


def _grouped() -> Tensor:
    offsets = torch.tensor([4, 10], dtype=torch.int32)
    return torch._grouped_mm(_bf16(10, 16), _bf16(2, 16, 8), offs=offsets)


def _lstm(**options: object) -> Callable[[], Tensor]:
    # a gradient of the input, which the record of the kernel does not tell
    layer = torch.nn.LSTM(4, 5, num_layers=2, **options)
    x = _normal(3, 2, 4)
    return lambda: layer(x)[0]


def _gru() -> Tensor:
    return torch.nn.GRU(4, 5)(_normal(3, 2, 4))[0]


def _attention(**options: object) -> Callable[[], Tensor]:
    q, k = _normal(2, 4, 8, 16), _normal(2, 4, 6, 16)
    return lambda: F.scaled_dot_product_attention(q, k, k, **options)


def _grouped_queries() -> Tensor:
    k = _normal(2, 2, 8, 16)
    return F.scaled_dot_product_attention(_normal(2, 4, 8, 16), k, k, enable_gqa=True)


CASES: dict[str, Callable[[], object]] = {
    "mm": _train(lambda: _normal(3, 4) @ _normal(4, 5)),
    "mm in bf16": lambda: _bf16(3, 4) @ _bf16(4, 5),
    "addmm": _train(lambda: torch.addmm(_normal(5), _normal(3, 4), _normal(4, 5))),
    "bmm": _train(lambda: torch.bmm(_normal(2, 3, 4), _normal(2, 4, 5))),
    "baddbmm": _train(lambda: torch.baddbmm(_normal(5), _normal(2, 3, 4), _normal(2, 4, 5))),
    "addbmm": lambda: torch.addbmm(_normal(3, 5), _normal(2, 3, 4), _normal(2, 4, 5)),
    "vectors": lambda: (
        torch.mv(_normal(3, 4), _normal(4)),
        torch.dot(_normal(7), _normal(7)),
        torch.addmv(_normal(3), _normal(3, 4), _normal(4)),
    ),
    "linear": _train(lambda: F.linear(_normal(2, 3, 4), _normal(5, 4), _normal(5))),
    "frozen linear": _train(lambda: F.linear(_normal(2, 3, 4), torch.randn(5, 4))),
    "matmul": _train(lambda: torch.matmul(_normal(2, 1, 3, 4), _normal(6, 4, 5))),
    "einsum": _train(lambda: torch.einsum("bij,kj->bik", _normal(2, 3, 4), _normal(5, 4))),
    "complex": lambda: torch.ones(3, 4, dtype=torch.cfloat) @ torch.ones(4, 5, dtype=torch.cfloat),
    "int8": lambda: torch._int_mm(
        torch.ones(32, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)
    ),
    "fp8": _scaled,
    "grouped": _grouped,
    "int8 weights": lambda: torch._weight_int8pack_mm(
        _bf16(4, 16), torch.ones(8, 16, dtype=torch.int8), _bf16(8)
    ),
    "conv1d": _train(lambda: F.conv1d(_normal(2, 4, 9), _normal(6, 4, 3), padding=1)),
    "conv2d": _train(lambda: F.conv2d(_normal(2, 4, 9, 9), _normal(6, 4, 3, 3), stride=2)),
    "grouped conv2d": _train(
        lambda: F.conv2d(_normal(2, 4, 9, 8), _normal(6, 2, 3, 2), padding=(1, 0), groups=2)
    ),
    "dilated conv2d": _train(
        lambda: F.conv2d(_normal(2, 4, 9, 9), _normal(6, 4, 3, 3), dilation=2, padding="same")
    ),
    "first conv2d": _train(lambda: F.conv2d(torch.randn(2, 4, 9, 9), _normal(6, 4, 3, 3))),
    "frozen conv2d": _train(lambda: F.conv2d(_normal(2, 4, 9, 9), torch.randn(6, 4, 3, 3))),
    "one image": lambda: F.conv2d(torch.randn(4, 9, 9), torch.randn(6, 4, 3, 3)),
    "conv3d": _train(lambda: F.conv3d(_normal(2, 4, 5, 6, 7), _normal(6, 4, 3, 3, 3))),
    "transposed conv2d": _train(
        lambda: F.conv_transpose2d(_normal(2, 4, 9, 9), _normal(4, 3, 3, 3), stride=2)
    ),
    "conv2d in fp64": lambda: F.conv2d(
        torch.randn(2, 4, 9, 9, dtype=torch.double), torch.randn(6, 4, 3, 3, dtype=torch.double)
    ),
    "attention": _train(_attention()),
    "causal attention": _train(_attention(is_causal=True)),
    "grouped-query attention": _train(_grouped_queries),
    "LSTM": _lstm(),
    "trained LSTM": _train(_lstm(bidirectional=True)),
    "GRU": _train(_gru),
}


def _recorded(run: Callable[[], object], folder: Path) -> list[Work]:
    path = folder / "trace.json"
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        run()
    profiler.export_chrome_trace(str(path))
    work = OpWork(read_trace(path))
    found = [work.of(op) for op in work.leaves()]
    return [one for one in found if one is not None]


@pytest.mark.parametrize("name", CASES)
def test_recorded_shapes_give_the_flops_of_the_live_tensors(name: str, tmp_path: Path) -> None:
    run = CASES[name]
    count = count_flops(run)
    found = _recorded(run, tmp_path)
    assert count.model > 0
    assert sum(work.flops for work in found) == count.model
    assert sum(work.executed for work in found) == count.hardware
    assert sum(work.causal_flops for work in found) == count.model_causal


def test_the_dtype_is_that_of_the_operands(tmp_path: Path) -> None:
    assert {work.dtype for work in _recorded(CASES["mm"], tmp_path)} == {"fp32"}
    assert {work.dtype for work in _recorded(CASES["mm in bf16"], tmp_path)} == {"bf16"}
    assert {work.dtype for work in _recorded(CASES["int8"], tmp_path)} == {"int8"}
    # a CPU multiplies fp8 widened, in an addmm of its own
    assert {work.dtype for work in _recorded(CASES["fp8"], tmp_path)} == {"fp32"}
    assert {work.dtype for work in _recorded(CASES["conv2d in fp64"], tmp_path)} == {"fp64"}


def test_the_bytes_are_those_of_all_operands_and_the_result(tmp_path: Path) -> None:
    # bf16 (3, 4) @ (4, 5) -> (3, 5): 2 * (12 + 20 + 15)
    assert [work.bytes for work in _recorded(CASES["mm in bf16"], tmp_path)] == [94]
    # fp32 (4, 9, 9) * (6, 4, 3, 3) -> (6, 7, 7): 4 * (324 + 216 + 294)
    assert [work.bytes for work in _recorded(CASES["one image"], tmp_path)] == [3336]


def test_a_masked_attention_says_that_its_mask_is_not_read(tmp_path: Path) -> None:
    mask = torch.ones(8, 6, dtype=torch.bool).tril()
    (work,) = _recorded(_attention(attn_mask=mask), tmp_path)
    assert work.flops == work.causal_flops == 4 * 2 * 4 * 8 * 6 * 16
    assert "masks are not in a trace" in work.note


def test_the_ops_of_a_cpu_alone_have_the_flops_of_the_step(tmp_path: Path) -> None:
    layer = torch.nn.Linear(32, 16)
    x = torch.randn(8, 32)

    def step() -> None:
        layer(x).sum().backward()

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        step()
        step()
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    found = explain(tmp_path / "trace.json", peak="100 GFLOP/s")
    # forward and the weights' gradient; x needs none
    assert found.model_flops == 2 * count_flops(step).model == 2 * 2 * (2 * 8 * 32 * 16)
    assert not any("TF32" in note for note in found.notes)
    matrix_ns = sum(b.time_ns for b in found.buckets if b.name.startswith("matrix/"))
    assert found.coverage.matrix_ns == matrix_ns > 0
