"""Breakdowns built by hand: two steps of 100 ms, of 1000 TFLOP/s, with round parts."""

from __future__ import annotations

from typing import Any

from mfu_torch.records import Peak
from mfu_torch.records.breakdown import BUCKETS, Breakdown, Bucket, Coverage, Kernel

MS = 1_000_000
PEAK = Peak(flops_per_s=1e15, dtype="bf16", source="a table", provenance="datasheet")

# ms of both steps together
PARTS = {
    "matrix/model_flops": 50,
    "matrix/recompute": 10,
    "matrix/below_peak": 30,
    "other_compute": 20,
    "exposed_communication": 16,
    "exposed_memcpy": 4,
    "idle/data_wait": 60,
    "idle/launch_bound": 10,
}
HINTS = {"idle/data_wait": "The loop waits for its loader: raise num_workers (now 0)."}


def bucket(name: str, ns: int, steps: int = 2, **more: Any) -> Bucket:
    each = [ns // steps] * steps
    each[0] += ns - sum(each)
    return Bucket(name=name, time_ns=ns, per_step_ns=tuple(each), **more)


def breakdown(
    parts: dict[str, int] = PARTS, *, steps: int = 2, unit: int = MS, **more: Any
) -> Breakdown:
    """``parts`` in ms of all steps (in ns with ``unit=1``); the rest may be given."""
    order = {name: at for at, name in enumerate(("matrix", *BUCKETS))}
    names = sorted(parts, key=lambda name: order[name])
    tops = {
        "idle/data_wait": (Kernel(name="Memcpy HtoD", op="aten::copy_", count=2, time_ns=60 * MS),)
    }
    buckets = tuple(
        bucket(name, parts[name] * unit, steps, hint=HINTS.get(name, ""), top=tops.get(name, ()))
        for name in names
    )
    wall = sum(one.time_ns for one in buckets)
    each = [wall // steps] * steps
    each[0] += wall - sum(each)
    given: dict[str, Any] = {
        "file": "trace.json.gz",
        "device": "NVIDIA H100 80GB HBM3",
        "rank": None,
        "edges": "gpu",
        "steps": tuple(f"ProfilerStep#{3 + i}" for i in range(steps)),
        "step_ns": tuple(each),
        "wall_ns": wall,
        "buckets": buckets,
        "peak": PEAK,
        "model_flops": 50 * 10**12,
        "hardware_flops": 60 * 10**12,
        "communication_ns": 40 * MS,
        "overlapped_ns": 24 * MS,
        "coverage": Coverage(launches=90, work=100, matrix_known_ns=90 * MS, matrix_ns=90 * MS),
    }
    return Breakdown(**{**given, **more})
