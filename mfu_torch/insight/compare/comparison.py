"""Two runs: whether they can be compared at all, and then what changed, and how sure that is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from mfu_torch.insight.compare.bootstrap import LEVEL, REPLICATES, SEED
from mfu_torch.insight.compare.changes import Drawn, changes, draw
from mfu_torch.insight.compare.facet import Facet
from mfu_torch.insight.compare.record import Comparison, Difference, PartChange, Side
from mfu_torch.insight.compare.terms import term_differences, time_differences
from mfu_torch.insight.compare.verdict import verdict
from mfu_torch.insight.compare.work import batch_differences, work_differences
from mfu_torch.insight.report import status
from mfu_torch.records import Attention, Run
from mfu_torch.step_parts import PARTS, SplitSteps


def compare(
    run_a: Run,
    run_b: Run,
    *,
    names: tuple[str, str] = ("A", "B"),
    attention: Attention | None = None,
    replicates: int = REPLICATES,
    seed: int = SEED,
) -> Comparison:
    """Compare two runs.

    The figures are those of :func:`mfu_torch.figures.run_figures`, so the same as in the report of
    each run. A change of step time from 1.00 s to 0.95 s is -0.05 (relative), with an interval from
    a bootstrap over the steps of both runs (:mod:`mfu_torch.insight.compare.bootstrap`).

    Args:
        run_a: The run before.
        run_b: The run after.
        names: How the runs are called.
        attention: Read both runs under this convention; by default each under its own.
        replicates: Draws of the bootstrap, at least 100.
        seed: Of these draws: the same runs and seed give the same intervals.

    Raises:
        ValueError: If there are fewer replicates than that, or the convention is none.
    """
    if replicates < 100:
        raise ValueError(f"replicates is {replicates}; expected at least 100")
    if attention not in ("full", "causal", None):
        raise ValueError(f"attention is {attention!r}; expected 'full' or 'causal'")
    a, b = (Facet(_under(run, attention)) for run in (run_a, run_b))
    differences = _differences(a, b, same=run_a == run_b)
    drawn = draw(a, 2 * seed, replicates), draw(b, 2 * seed + 1, replicates)
    found = tuple(changes(a, b, drawn, differences))
    forbidden = {group for each in differences for group in each.forbids}
    return Comparison(
        comparable=not forbidden & {"MFU", "throughput"},
        verdict=verdict(differences, found, max(len(a.steady), len(b.steady))),
        a=_side(a, names[0], drawn[0]),
        b=_side(b, names[1], drawn[1]),
        attention=_common(a, b),
        differences=differences,
        changes=found,
        level=LEVEL,
        replicates=replicates,
        seed=seed,
        parts=tuple(_parts(a, b)),
    )


def _parts(a: Facet, b: Facet) -> Iterator[PartChange]:
    """Of a mean step, those that one of the two has; nothing unless both are split."""
    one, other = a.figures.split, b.figures.split
    if one is None or other is None:
        return
    for part in PARTS:
        times = [_each_s(found, part) for found in (one, other)]
        if any(times):
            yield PartChange(part=part, a_s=times[0], b_s=times[1])
    yield PartChange(part="total", a_s=one.time_s / one.steps, b_s=other.time_s / other.steps)


def _each_s(found: SplitSteps, part: str) -> float | None:
    """Seconds of a mean step, without what is left of a difference of floats."""
    part_s = found.parts_s.get(part)
    return None if part_s is None else round(part_s / found.steps, 12)


def _under(run: Run, attention: Attention | None) -> Run:
    if attention is None:
        return run
    header = msgspec.structs.replace(run.header, attention=attention)
    return msgspec.structs.replace(run, header=header)


def _common(a: Facet, b: Facet) -> Literal["full", "causal"] | None:
    one, other = a.run.header.attention, b.run.header.attention
    return one if one == other else None


def _differences(a: Facet, b: Facet, *, same: bool) -> tuple[Difference, ...]:
    found = [
        *term_differences(a, b),
        *work_differences(a, b),
        *(batch_differences(a, b) if a.steady and b.steady else ()),
        *time_differences(a, b),
    ]
    if same:
        why = "A and B are one and the same recording"
        found.append(Difference(aspect="recording", a="the same", b="the same", why=why))
    return tuple(sorted(found, key=lambda each: -len(each.forbids)))


def _side(facet: Facet, name: str, drawn: Drawn) -> Side:
    sums = drawn.speed
    return Side(
        name=name,
        device=facet.run.header.device.name,
        status=status(facet.run),
        steps=len(facet.steady),
        block=None if isinstance(sums, str) else sums.block,
        no_interval=sums if isinstance(sums, str) else "",
        drifts=not isinstance(sums, str) and sums.drifts,
    )
