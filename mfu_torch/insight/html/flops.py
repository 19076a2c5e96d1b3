"""FLOPs of a step by phase, dtype and op."""

from __future__ import annotations

from collections.abc import Iterable

from mfu_torch.insight.html.bars import Bar, bars
from mfu_torch.insight.html.markup import Markup, element, joined, pairs
from mfu_torch.insight.report import PHASES, count_rows, uncounted_text, usual_count
from mfu_torch.records import MODEL_PHASES, FlopCount, Run
from mfu_torch.units import percent, scaled

_OPS = 12


def flops(run: Run) -> Markup:
    """The count that most steps have, and what is not in it."""
    count, of = usual_count(run)
    if count is None:
        return element("p", f"FLOPs per step: not known ({of})")
    phases = [
        (name, getattr(count, phase), "b1" if phase in MODEL_PHASES else "b4")
        for phase, name in PHASES
    ]
    dtypes = sorted(count.by_dtype.items(), key=lambda item: -item[1])
    return joined(
        element("p", f"FLOPs per step ({of})", class_="soft"),
        pairs([*count_rows(count), ("not counted", uncounted_text(run))]),
        element("h3", "By phase"),
        _bars(phases, count),
        element("h3", "By dtype"),
        _bars(((dtype, n, "b3") for dtype, n in dtypes), count),
        element("h3", "By op"),
        _bars(((op, n, "b2") for op, n in _largest(count)), count),
    )


def _largest(count: FlopCount) -> list[tuple[str, int]]:
    ops = list(count.by_op.items())
    if len(ops) <= _OPS:
        return ops
    rest = ops[_OPS - 1 :]
    return [*ops[: _OPS - 1], (f"{len(rest)} smaller ops", sum(n for _, n in rest))]


def _bars(rows: Iterable[tuple[str, int, str]], count: FlopCount) -> Markup:
    """Of shares of the hardware FLOPs."""
    found, whole = [], count.hardware
    for name, n, kind in rows:
        if n and whole:
            text = f"{scaled(n, 'FLOP')}"
            found.append(Bar(name, percent(n / whole), 0.0, n / whole, kind, text))
    return bars(found) if found else element("p", "No FLOPs are counted in it.")
