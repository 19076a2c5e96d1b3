"""How much each figure differs between two runs, and how sure that is."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np

from mfu_torch.ideal import sum_ideal
from mfu_torch.insight.compare.blocks import Floats
from mfu_torch.insight.compare.bootstrap import Interval, Resampled, interval, resample
from mfu_torch.insight.compare.facet import Facet
from mfu_torch.insight.compare.record import Change, Difference, Group

_ONE_NUMBER = "one number per run, which no steps can be drawn for"


class _Row(NamedTuple):
    """A figure, the group that can forbid it, and the columns of steps that it is a ratio of."""

    name: str
    figure: str
    group: Group | None
    of: str = ""
    over: str = ""
    relative: bool = True


_ROWS = (
    _Row("MFU", "mfu", "MFU", "model", "time"),
    _Row("HFU", "hfu", "HFU", "hardware", "time"),
    _Row("end-to-end MFU", "end_to_end", "end-to-end MFU"),
    _Row("step time", "step_s", "step time", "time", "steps"),
    _Row("tokens/s", "tokens_per_s", "throughput", "tokens", "time"),
    _Row("samples/s", "samples_per_s", "throughput", "samples", "time"),
    _Row("data wait", "data_wait_share", None, "wait", "time", relative=False),
    _Row("memory", "memory_bytes", None),
)


class Drawn(NamedTuple):
    """A run whose steps were drawn anew, or why they were not.

    Attributes:
        speed: For everything but data wait.
        wait: For data wait, whose blocks are its own: a stall of a loader may last for many steps
            without a trace in their time.
        column: Where each column stands in both.
    """

    speed: Resampled | str
    wait: Resampled | str
    column: Mapping[str, int]


def draw(facet: Facet, seed: int, replicates: int) -> Drawn:
    """Draw the steady steps of a run anew.

    Args:
        facet: The run.
        seed: Of the draws; two runs need two.
        replicates: How often.
    """
    columns = dict(_columns(facet))
    place = {name: number for number, name in enumerate(columns)}
    if not facet.steady:
        return Drawn("no steady step", "no steady step", place)
    every = np.stack([*columns.values()], axis=1)
    ratios = [row for row in _ROWS if {row.of, row.over} <= place.keys()]

    def drawn(wait: bool) -> Resampled | str:
        of = [(place[row.of], place[row.over]) for row in ratios if (row.of == "wait") == wait]
        return resample(every, of, seed, replicates) if of else "nothing is known of it"

    return Drawn(drawn(wait=False), drawn(wait=True), place)


def _columns(facet: Facet) -> Iterator[tuple[str, Floats]]:
    """What each steady step adds to the sums that figures are ratios of: (steps,)."""
    steps, now = facet.steady, facet.figures
    yield "steps", np.ones(len(steps))
    yield "time", _column(step.duration_s for step in steps)
    if now.mfu is not None and now.hfu is not None:
        for kind in ("model", "hardware"):
            yield kind, _ideal_s(facet, kind)
    for name in ("tokens", "samples"):
        if getattr(now, f"{name}_per_s") is not None:
            yield name, _column(getattr(step, name) for step in steps)
    if now.data_wait_share is not None:
        yield "wait", _column(step.data_wait_s or 0.0 for step in steps)


def _column(values: Iterable[float]) -> Floats:
    return np.fromiter(values, dtype=np.float64)


def _ideal_s(facet: Facet, kind: Literal["model", "hardware"]) -> Floats:
    """Of each steady step; every one is known where the MFU is."""
    run = facet.run
    found: dict[tuple[int, ...], float] = {}
    for ids in {step.count_ids for step in facet.steady}:
        ideal = sum_ideal(Counter(ids), run.counts, run.peaks)
        found[ids] = math.nan if isinstance(ideal, str) else ideal.of(kind, run.header.attention)
    return _column(found[step.count_ids] for step in facet.steady)


def changes(
    a: Facet, b: Facet, drawn: tuple[Drawn, Drawn], differences: Sequence[Difference]
) -> Iterator[Change]:
    """One for each figure that one of the runs has, those that cannot be compared included."""
    for row in _ROWS:
        change = _change(row, a, b, differences)
        if change.a is None and change.b is None:
            continue
        yield _with_interval(change, row, drawn) if change.change is not None else change


def _change(row: _Row, a: Facet, b: Facet, differences: Sequence[Difference]) -> Change:
    one, other = (getattr(facet.figures, row.figure) for facet in (a, b))
    known = Change(name=row.name, figure=row.figure, a=one, b=other, relative=row.relative)
    aspects = [d.aspect for d in differences if row.group is not None and row.group in d.forbids]
    if aspects:
        reason = f"forbidden by {', '.join(aspects)}"
    elif one is None or other is None:
        reason = f"not known in {'A' if one is None else 'B'}"
    elif row.relative and not (one > 0 and other > 0):
        reason = "one of them is 0" if one != other else "both are 0"
    else:
        amount = other / one - 1 if row.relative else other - one
        return msgspec.structs.replace(known, change=amount)
    return msgspec.structs.replace(known, not_compared=reason)


def _with_interval(change: Change, row: _Row, drawn: tuple[Drawn, Drawn]) -> Change:
    found = _interval(change, row, drawn)
    if isinstance(found, str):
        return msgspec.structs.replace(change, no_interval=found)
    return msgspec.structs.replace(
        change,
        low=found.low,
        high=found.high,
        significant=not found.low <= 0 <= found.high,
        smallest=found.smallest,
    )


def _interval(change: Change, row: _Row, drawn: tuple[Drawn, Drawn]) -> Interval | str:
    if not row.of:
        return _ONE_NUMBER
    a, b = ((each.wait if row.of == "wait" else each.speed) for each in drawn)
    for name, sums in (("A", a), ("B", b)):
        if isinstance(sums, str):
            return f"{name}: {sums}"
    assert not isinstance(a, str) and not isinstance(b, str) and change.change is not None
    places = [(each.column[row.of], each.column[row.over]) for each in drawn]
    found = interval(a, b, *places, change=change.change, relative=row.relative)
    return found or "some draws of the steps have no such figure"
