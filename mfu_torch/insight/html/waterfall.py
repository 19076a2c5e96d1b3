"""From 100 % of the wall time down to the end-to-end MFU: what the model did not get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from mfu_torch.figures import Figures
from mfu_torch.insight.html.bars import Bar, bars, key
from mfu_torch.insight.html.markup import Markup, element, joined, table
from mfu_torch.insight.report import OVERLAP, part_name, wall_rows
from mfu_torch.insight.text import share_text
from mfu_torch.records import Run
from mfu_torch.units import rounded_parts
from mfu_torch.wall import WallShare, wall_shares

STEPS = 14
"""Of the waterfall: names of pauses are the user's, and can be many."""


_IN_STEPS = {"b2": "steady steps, below the peak", "b4": "steady steps, recompute"}


class Drop(NamedTuple):
    """What a part takes of the wall time without putting it into the model."""

    name: str
    share: float
    kind: str = "lost"


def drops(run: Run, now: Figures) -> list[Drop]:
    """From the wall time to the end-to-end MFU; empty where that or the MFU is not known.

    1 - sum of the drops is the end-to-end MFU: a part with share s of the wall time, whose ideal
    time is the share t of it, drops s - t, and the gap that it is responsible for is m s - t with
    the steady-state MFU m. Steady steps drop what is below the peak, and recompute.
    """
    if now.mfu is None or now.hfu is None or now.end_to_end is None:
        return []
    found = []
    for part in wall_shares(run):
        if part.kind == "steady":
            found += [
                Drop("steady steps: below peak", (1 - now.hfu) * part.share, "b2"),
                Drop("steady steps: recompute", (now.hfu - now.mfu) * part.share, "b4"),
            ]
        else:
            found.append(Drop(part_name(part), _lost(part, now.mfu)))
    # What belongs to no step first, so that the steps come last, before what is left.
    found.sort(key=lambda drop: drop.kind != "lost")
    return _largest([drop for drop in found if drop.share])


def _lost(part: WallShare, mfu: float) -> float:
    in_model = mfu * part.share - (part.mfu_gap or 0.0)
    return part.share - in_model


def _largest(found: list[Drop]) -> list[Drop]:
    """The largest, in their order, and the others as one."""
    if len(found) <= STEPS:
        return found
    order = sorted(range(len(found)), key=lambda i: abs(found[i].share))
    small = set(order[: len(found) - STEPS + 1])
    rest = Drop(f"{len(small)} smaller parts", sum(found[i].share for i in small))
    return [rest, *(drop for i, drop in enumerate(found) if i not in small)]


def waterfall(run: Run, now: Figures) -> Markup:
    """The waterfall, and the table of the wall time that the report has."""
    rows = wall_rows(run, now)
    if not rows:
        return element("p", "No wall time is recorded yet.")
    overlap = wall_shares(run)[-1].share < -0.005
    warning = element("p", OVERLAP, class_="warn") if overlap else None
    titles = ("Where the wall time went", "seconds", "share %", "MFU gap, points")
    return joined(_bars(run, now), warning, table(titles, rows, class_="numbers"))


def _bars(run: Run, now: Figures) -> Markup:
    found = drops(run, now)
    if found:
        said = "What each part took of the wall time without putting it into the model."
        last = ("end-to-end MFU", share_text(now.end_to_end))
    else:
        missing = "end_to_end" if now.mfu is not None else "mfu"
        why = now.absent.get(missing, "no reason is recorded")
        said = f"Only down to the steady steps, since MFU is not known: {why}"
        parts = wall_shares(run)
        steady = sum(part.share for part in parts if part.kind == "steady")
        rest = [Drop(part_name(part), part.share) for part in parts if part.kind != "steady"]
        found = _largest([drop for drop in rest if drop.share])
        last = ("steady steps", f"{100 * steady:.1f} %")
    kinds = {"b1": "what is left", "lost": "outside of the steady steps", **_IN_STEPS}
    drawn = {"b1", *(drop.kind for drop in found)}
    meaning = key([(kind, text) for kind, text in kinds.items() if kind in drawn])
    return joined(element("p", said, class_="soft"), meaning, bars(list(_rows(found, *last))))


def _rows(found: list[Drop], last: str, share: str) -> Iterator[Bar]:
    yield Bar("wall time", "100.0 %", 0.0, 1.0, "lost")
    texts = rounded_parts([100 * drop.share for drop in found], 1)
    left = 1.0
    for drop, text in zip(found, texts, strict=True):
        less = not drop.share < 0
        number = text.lstrip("-")  # nothing is left of it where it is not finite
        sign = "" if not number.strip("0.") else "-" if less else "+"
        kind = drop.kind if less else "bad"
        yield Bar(drop.name, f"{sign}{number or '-'} %", left - drop.share, left, kind)
        left -= drop.share
    yield Bar(last, share, 0.0, left, "b1")
