"""What a count and a metered run come to, in a form that can be sent between processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from mfu_torch import Meter
from mfu_torch.flops.counter import count_flops
from mfu_torch.records import FlopCount

Phases = dict[str, Any]


def phases_of(count: FlopCount, unit: int) -> Phases:
    """FLOPs by phase in units, and what could not be counted, where there is something."""
    phases: Phases = {}
    for term in count.terms:
        phases[term.phase] = phases.get(term.phase, 0) + term.flops / unit
    phases.update({f"uncounted {op}": calls for op, calls in count.uncounted.items()})
    return phases


def counted(step: Callable[[], Any], unit: int) -> Phases:
    """One step under ``count_flops``."""
    count = count_flops(step)
    return phases_of(count, unit) | ({"notes": list(count.notes)} if count.notes else {})


def every_way(
    step: Callable[[], Any], unit: int, model: nn.Module, metered_first: bool = False
) -> list[Phases | str]:
    """A step counted twice, as the first call can differ, and as three steps of a metered run."""
    if metered_first:
        return [*metered(model, step, unit), counted(step, unit), counted(step, unit)]
    return [counted(step, unit), counted(step, unit), *metered(model, step, unit)]


def metered(
    model: nn.Module | None, step: Callable[[], Any], unit: int, *, steps: int = 3
) -> list[Phases | str]:
    """What a user of ``Meter`` sees of each step: its FLOPs by phase, or why they are unknown."""
    with Meter(model, peak=1e12, sinks=[], log_dir="", log_every=1) as meter:
        for _ in range(steps):
            with meter.step():
                step()
    run = meter.run
    seen = [run.count_of(taken) for taken in run.steps]
    return [count if isinstance(count, str) else phases_of(count, unit) for count in seen]
