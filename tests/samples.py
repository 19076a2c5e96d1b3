"""Records with round numbers, built by hand, for the tests of everything that reads a run."""

from __future__ import annotations

from typing import Any

from mfu_torch.records import (
    CountEntry,
    Device,
    End,
    Entry,
    FlopCount,
    FlopTerm,
    Header,
    Pause,
    Peak,
    PeakEntry,
    Phase,
    Run,
    Step,
    Window,
)

T = 10**12


def header(**changes: Any) -> Header:
    fields: dict[str, Any] = {
        "schema": 1,
        "started": "2026-01-02T03:04:05+00:00",
        "versions": {"mfu_torch": "0.1.0", "torch": "2.13.0", "python": "3.12.1"},
        "device": Device(name="NVIDIA H100 80GB HBM3", kind="cuda", index=0),
        "attention": "full",
        "log_every": 10,
        "clock": "CUDA events",
    }
    return Header(**fields | changes)


def peak(dtype: str = "bf16", flops_per_s: float = 100e12) -> PeakEntry:
    known = Peak(flops_per_s=flops_per_s, dtype=dtype, source="Made-up sheet", provenance="given")
    return PeakEntry(dtype=dtype, peak=known)


def term(
    phase: Phase, flops: int, causal: int, *, op: str = "aten.mm", dtype: str = "bf16"
) -> FlopTerm:
    return FlopTerm(phase=phase, op=op, dtype=dtype, flops=flops, causal_flops=causal, calls=1)


def flop_count(**changes: Any) -> FlopCount:
    """Model 30 T (causal 27 T), hardware 40 T bf16 + 0.5 T fp32 (causal 36 T + 0.5 T).

    At 100 TFLOP/s bf16 and 50 TFLOP/s fp32 the ideal times are: model 0.30 s, causal 0.27 s,
    hardware 0.40 + 0.01 = 0.41 s, causal 0.36 + 0.01 = 0.37 s.
    """
    fields: dict[str, Any] = {
        "terms": (
            term("forward", 10 * T, 9 * T),
            term("backward", 20 * T, 18 * T),
            term("recompute", 10 * T, 9 * T),
            term("optimizer", T // 2, T // 2, dtype="fp32"),
        ),
        "elementwise": 12 * 10**8,
        "method": "counted on the first step as it trained",
    }
    return FlopCount(**fields | changes)


def count(id: int = 0, **changes: Any) -> CountEntry:
    return CountEntry(id=id, count=flop_count(**changes))


def step(index: int, duration_s: float, **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "index": index,
        "duration_s": duration_s,
        "data_wait_s": 0.02 * duration_s,
        "count_ids": (0,),
        "tokens": 1000,
        "samples": 2,
    }
    return Step(**fields | changes)


def entries() -> list[Entry]:
    """Wall 20 s: 10 s compiling, 4 s in 4 steady steps, init 2 s, two evals of 1.5 s, 1 s other."""
    return [
        header(),
        peak("bf16", 100e12),
        peak("fp32", 50e12),
        count(),
        Pause(name="init", after_step=0, duration_s=2.0),
        Pause(name="eval", after_step=2, duration_s=1.5),
        Window(
            steps=(step(0, 10.0, excluded="first step, compiling"), step(1, 0.9), step(2, 1.0)),
            wall_s=15.4,
            memory_bytes=60 * 10**9,
        ),
        Pause(name="eval", after_step=4, duration_s=1.5),
        Window(steps=(step(3, 1.0), step(4, 1.1)), wall_s=19.0, memory_bytes=61 * 10**9),
        End(wall_s=20.0, reason="completed"),
    ]


def run(**changes: Any) -> Run:
    """The run of :func:`entries`, with some of its fields changed."""
    fields = {name: getattr(Run.from_entries(entries()), name) for name in Run.__struct_fields__}
    return Run(**fields | changes)
