"""One run as plain data: what the report says, for programs (``mfu-torch report --json``)."""

from __future__ import annotations

from typing import Any

from mfu_torch.figures import run_figures
from mfu_torch.ideal import by_count
from mfu_torch.insight.advice import advice
from mfu_torch.insight.report import status
from mfu_torch.ladder import Beside, against_measured, at_clock_held, ladder, sampled
from mfu_torch.records import CountEntry, Run
from mfu_torch.wall import wall_shares


def summary(run: Run) -> dict[str, Any]:
    """The figures of a run under the names of their records; shares are fractions.

    ``figures`` are over the steady steps, ``wall`` sums to ``wall_s``, and what is not known is
    ``None``, with the reason in ``figures.absent`` or ``unknown``. ``fix_first`` is ``None`` where
    no step was split or traced, and its ``name`` is empty where nothing stands out.
    """
    steps = list(run.steps)
    uses = by_count(steps)
    now = run_figures(run)
    first = advice(run, now)
    return {
        "status": status(run),
        "started": run.header.started,
        "wall_s": run.wall_s,
        "steps": len(steps),
        "device": run.header.device,
        "rank": run.header.rank,
        "world_size": run.header.world_size,
        "attention": run.header.attention,
        "versions": run.header.versions,
        "figures": now,
        "fix_first": None if first is None else first._asdict(),
        "wall": wall_shares(run),
        "device_meanwhile": _meanwhile(run),
        "peaks": run.peaks,
        "breakdowns": run.breakdowns,
        "counts": [_count(entry, uses[entry.id]) for entry in run.counts.values()],
        "notes": [*(run.end.notes if run.end else ()), *run.notes],
    }


def _meanwhile(run: Run) -> dict[str, Any]:
    found = sampled(run)
    return {
        "telemetry": found,
        "ladder": ladder(run),
        "at_clock_held": _beside(at_clock_held(run)),
        "against_measured": _beside(against_measured(run)),
    }


def _beside(found: Beside | str) -> dict[str, Any]:
    if isinstance(found, str):
        return {"mfu": None, "hfu": None, "absent": found}
    return {
        "mfu": found.figures.mfu,
        "hfu": found.figures.hfu,
        "as_stated": found.as_stated,
        "absent": found.figures.absent.get("mfu"),
    }


def _count(entry: CountEntry, times: int) -> dict[str, Any]:
    count = entry.count
    if count is None:
        return {"id": entry.id, "times": times, "unknown": entry.unknown}
    return {
        "id": entry.id,
        "times": times,
        "model": count.model,
        "model_causal": count.model_causal,
        "hardware": count.hardware,
        "forward": count.forward,
        "forward_no_grad": count.forward_no_grad,
        "backward": count.backward,
        "given": count.given,
        "recompute": count.recompute,
        "kernel_recompute": count.kernel_recompute,
        "optimizer": count.optimizer,
        "by_dtype": count.by_dtype,
        "by_op": count.by_op,
        "uncounted": count.uncounted,
        "elementwise": count.elementwise,
        "method": count.method,
        "uncertainty": count.uncertainty,
        "notes": count.notes,
    }
