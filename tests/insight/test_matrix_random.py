"""Random traces: FLOPs and the time without them, found again one op and one segment at a time."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from matmuls import analysed, times_of
from trace_builder import TraceBuilder

RATES = {"bf16": 989.4e12, "fp16": 989.4e12, "fp8": 1978.9e12}
TYPES = {"bf16": "c10::BFloat16", "fp16": "c10::Half", "fp8": "c10::Float8_e4m3fn"}


@dataclass
class Op:
    """What was written: FLOPs (``None``: a custom op) and the times of its kernels."""

    flops: int | None
    dtype: str
    kernels: list[tuple[int, int]] = field(default_factory=list)


def _random_trace(rng: random.Random) -> tuple[TraceBuilder, list[Op]]:
    trace, ops = TraceBuilder(), []
    for number in range(2):
        trace.step(number, number * 5_000, 5_000)
    for index in range(rng.randint(1, 14)):
        launch = 700 * index + 10
        m, k, n = (rng.choice((8, 64, 1000)) for _ in range(3))
        dtype = rng.choice(list(TYPES))
        custom = rng.random() < 0.2
        op = Op(None if custom else 2 * m * k * n, dtype)
        name = "mine::gemm" if custom else "aten::mm"
        trace.op(name, launch - 5, 300, dims=[[m, k], [k, n]], types=[TYPES[dtype]] * 2)
        if rng.random() < 0.3:  # an op in it, of which nothing is known
            trace.op("mine::gemm_part", launch, 250, dims=[[m]], types=["float"])
        for part in range(rng.randint(1, 3)):
            start = launch + part + rng.randint(50, 3_000)
            duration = rng.randint(1, 1_500)
            trace.kernel(
                "some_gemm", start, duration, launch_ns=launch + part, stream=rng.randint(1, 3)
            )
            op.kernels.append((start, start + duration))
        ops.append(op)
    return trace, ops


@pytest.mark.parametrize("edges", ["gpu", "cpu"])
@pytest.mark.parametrize("seed", range(40))
def test_flops_and_time_without_them_are_those_of_the_ops_that_lie_in_the_steps(
    seed: int, edges: str, tmp_path: Path
) -> None:
    trace, ops = _random_trace(random.Random(seed))
    found = analysed(trace, tmp_path, edges=edges, peak="989.4 TFLOP/s", dtype="bf16")
    low, high = found.labels.edges.bounds_ns[0], found.labels.edges.bounds_ns[-1]
    counts = [op.flops is not None and _inside(op, low, high) for op in ops]
    expected = sum(op.flops or 0 for op, count in zip(ops, counts, strict=True) if count)
    assert (found.breakdown.model_flops or 0) == expected
    known = [span for op, count in zip(ops, counts, strict=True) if count for span in op.kernels]
    times = times_of(found)
    # The kernel on top is the one that started first; those of one op are known or not together.
    first_is_known = sum(
        int(end - start)
        for start, end, work in zip(
            found.labels.bounds_ns[:-1], found.labels.bounds_ns[1:], found.labels.work, strict=True
        )
        if _on_top(ops, int(start)) and _span(found.trace.work, int(work)) in known
    )
    assert found.breakdown.coverage.matrix_known_ns == first_is_known
    assert times.get("matrix/unknown_flops", 0) == (
        found.breakdown.coverage.matrix_ns - first_is_known
    )
    model = next((b for b in found.breakdown.buckets if b.name == "matrix/model_flops"), None)
    bounds = found.labels.edges.bounds_ns.tolist()
    for step, (begin, end) in enumerate(itertools.pairwise(bounds)):
        ideal = sum(
            (op.flops or 0) / RATES[op.dtype] * 1e9
            for op, count in zip(ops, counts, strict=True)
            if count and begin <= min(op.kernels)[0] < end
        )
        took = 0 if model is None else model.per_step_ns[step]
        assert took == pytest.approx(ideal, abs=2)  # each dtype is rounded


def _inside(op: Op, low: int, high: int) -> bool:
    return all(low <= start and end <= high for start, end in op.kernels)


def _on_top(ops: list[Op], time_ns: int) -> bool:
    return any(start <= time_ns < end for op in ops for start, end in op.kernels)


def _span(work: object, index: int) -> tuple[int, int]:
    return int(work.start_ns[index]), int(work.end_ns[index])  # type: ignore[attr-defined]
