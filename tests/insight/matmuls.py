"""Traces with matrix products whose FLOPs and times are whole numbers, for tests."""

from __future__ import annotations

from pathlib import Path

from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.explain import Analysis, analyse

GEMM = "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
SGEMM = "ampere_sgemm_128x64_nn"


def add_mm(
    trace: TraceBuilder,
    start_ns: int,
    duration_ns: int,
    sizes: tuple[int, int, int] = (1000, 1000, 1000),
    *,
    kernel: str = GEMM,
    dtype: str = "c10::BFloat16",
    op: str = "aten::mm",
    stream: int = 7,
    grid: list[int] | None = None,
    launch_ns: int | None = None,
) -> None:
    """A product (m, k) @ (k, n) of one kernel, launched 500 ns before; 1000^3: 2 GFLOP."""
    m, k, n = sizes
    at = start_ns - 500 if launch_ns is None else launch_ns
    trace.op(op, at - 100, 300, dims=[[m, k], [k, n]], types=[dtype] * 2, concrete=["", ""])
    trace.kernel(kernel, start_ns, duration_ns, launch_ns=at, grid=grid, stream=stream)


def analysed(trace: TraceBuilder, folder: Path, **options: object) -> Analysis:
    """Written, read and explained."""
    return analyse(trace.write(folder / "trace.json"), **options)  # type: ignore[arg-type]


def times_of(found: Analysis) -> dict[str, int]:
    """Name of each bucket -> its ns."""
    return {bucket.name: bucket.time_ns for bucket in found.breakdown.buckets}
