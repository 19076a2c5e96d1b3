"""A :class:`Diff` as text, markdown, CSV and plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

from mfu_torch.insight.breakdown.diff import Change, Diff, step_sentence
from mfu_torch.insight.breakdown.printed import short_share, shortened
from mfu_torch.insight.breakdown_export import markdown_cell
from mfu_torch.insight.breakdown_table import decimals_of
from mfu_torch.insight.breakdown_words import mfu_of, steps_of
from mfu_torch.insight.text import COLUMNS, plural, wrap
from mfu_torch.records.losses import label, printable
from mfu_torch.units import rounded_parts

_WIDTHS = (28, 11, 10, 11, 10, 11)
_BAR = COLUMNS - sum(_WIDTHS) - 2
_LITTLE = Fraction(1, 100)


class Row(NamedTuple):
    """A printed line: milliseconds and percent of a step; the columns add up as printed."""

    name: str
    before_ms: str
    before_share: str
    after_ms: str
    after_share: str
    change_ms: str


def rows(found: Diff) -> tuple[list[Row], Row]:
    """A row for each bucket, outermost loss first, and their sum.

    Parts are rounded so that each column adds up; a change is the difference of what is printed.
    """
    changes = found.changes[::-1]
    most = max(found.step_before_ns, found.step_after_ns)
    decimals = decimals_of(float(most) / 1e6)
    old = rounded_parts([float(found.before_ns(one)) / 1e6 for one in changes], decimals)
    new = rounded_parts([float(found.after_ns(one)) / 1e6 for one in changes], decimals)
    before_wall, after_wall = float(found.step_before_ns), float(found.step_after_ns)
    old_share = rounded_parts([100 * float(found.before_ns(c)) / before_wall for c in changes], 2)
    new_share = rounded_parts([100 * float(found.after_ns(c)) / after_wall for c in changes], 2)
    body = [
        Row(one.name, a, b, c, d, _signed(Decimal(c) - Decimal(a)))
        for one, a, b, c, d in zip(changes, old, old_share, new, new_share, strict=True)
    ]
    total = (sum(map(Decimal, old)), sum(map(Decimal, new)))
    last = Row(
        "SUM",
        str(total[0]),
        "100.00",
        str(total[1]),
        "100.00",
        _signed(Decimal(total[1] - total[0])),
    )
    return body, last


def _signed(value: Decimal) -> str:
    return f"{value:+f}" if value else f"{abs(value):f}"


def sentence(found: Diff) -> str:
    """What changed most, and whether it is more than chance."""
    moved, text = found.largest(), step_sentence(found)
    if not moved:
        return f"{text} No bucket changed."
    chance = found.may_be_chance() if found.step_change_ns else False
    if chance:
        text += " Steps of one trace differ by as much: this may be chance."
    named = [one for one in moved if not chance or found.may_be_chance(one) is False]
    if not named or (chance and _is_little(found, named[0])):
        text += " No part of it changed by 1 % of the step beyond chance; the largest change: "
        return f"{text}{_moved(found, moved[0])}."
    text += f" What changed most{' beyond chance' * bool(chance)}: {_moved(found, named[0])}."
    first = found.change_ns(named[0])
    against = [one for one in named[1:] if (found.change_ns(one) > 0) != (first > 0)]
    if against and not _is_little(found, against[0]):
        text += f" The other way: {_moved(found, against[0])}."
    if chance is None:
        text += " With one step in each, whether that is chance is not known."
    return text


def _is_little(found: Diff, one: Change) -> bool:
    """Less than 1 % of the longer step."""
    longer = max(found.step_before_ns, found.step_after_ns)
    return abs(found.change_ns(one)) < _LITTLE * longer


def _moved(found: Diff, one: Change) -> str:
    old, new = found.before_ns(one), found.after_ns(one)
    row = next(row for row in rows(found)[0] if row.name == one.name)
    shares = (
        shortened(row.before_share, float(old / found.step_before_ns)),
        shortened(row.after_share, float(new / found.step_after_ns)),
    )
    change = f"{Decimal(row.change_ms).normalize():+f} ms per step"
    text = f"{shares[0]} of the step, then {shares[1]}"
    alone = found.may_be_chance(one) and not (found.step_change_ns and found.may_be_chance())
    return f"{label(one.name)}, {change} ({text}{'; this may be chance' * bool(alone)})"


def render(found: Diff) -> str:
    """The comparison, at most 100 columns wide."""
    blocks = (
        _title(found),
        (line for one in found.warnings for line in wrap(f"WARNING: {printable(one)}")),
        wrap(sentence(found)),
        _table(found),
        _mfu(found),
    )
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def _title(found: Diff) -> Iterator[str]:
    for word, one in (("Before", found.before), ("After", found.after)):
        steps = plural(steps_of(one), "step")
        yield from wrap(
            f"{word + ':':<8} {printable(one.file)} | {printable(one.device or 'no GPU named')} | "
            f"{steps}"
        )


def _table(found: Diff) -> Iterator[str]:
    body, last = rows(found)
    most = max((abs(Decimal(row.change_ms)) for row in body), default=Decimal(0))
    yield _line("ms per step", "before", "", "after", "", "change", "")
    for row in body:
        yield _line(label(row.name), *_cells(row), _bar(Decimal(row.change_ms), most))
    yield _line("SUM", *_cells(last), "= the step")


def _cells(row: Row) -> tuple[str, str, str, str, str]:
    return (
        row.before_ms,
        f"{row.before_share} %",
        row.after_ms,
        f"{row.after_share} %",
        row.change_ms,
    )


def _line(name: str, *cells: str) -> str:
    *numbers, bar = cells
    text = f"{name:<{_WIDTHS[0]}}"
    text += "".join(f"{cell:>{w}}" for cell, w in zip(numbers, _WIDTHS[1:], strict=True))
    return f"{text}  {bar}".rstrip()[:COLUMNS]


def _bar(change: Decimal, most: Decimal) -> str:
    if not change or not most:
        return ""
    length = max(1, round(_BAR * abs(change) / most))
    return ("+" if change > 0 else "-") * length


def _mfu(found: Diff) -> Iterator[str]:
    old, new = mfu_of(found.before), mfu_of(found.after)
    if old is not None and new is not None:
        mfu = (short_share(one, "matrix/model_flops") for one in (found.before, found.after))
        yield f"MFU {', then '.join(mfu)}"


def markdown(found: Diff) -> str:
    """The table and its sentence as markdown."""
    body, last = rows(found)
    lines = [f"**Warning:** {markdown_cell(one)}\n" for one in found.warnings]
    lines += [markdown_cell(sentence(found)), ""]
    lines.append("| ms per step | before | share | after | share | change |")
    lines.append("|---|--:|--:|--:|--:|--:|")
    for row in body:
        lines.append(f"| {markdown_cell(label(row.name))} | {' | '.join(_cells(row))} |")
    lines.append(f"| **SUM** | {' | '.join(_cells(last))} |")
    return "\n".join(lines) + "\n"


def csv_text(found: Diff) -> str:
    """One line per bucket in whole nanoseconds of all steps, and the steps they are of."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("bucket", "before_ns", "before_steps", "after_ns", "after_steps", "change_ms"))
    steps = steps_of(found.before), steps_of(found.after)
    for one in found.changes:
        change = float(found.change_ns(one)) / 1e6
        writer.writerow((one.name, one.before_ns, steps[0], one.after_ns, steps[1], change))
    return out.getvalue()


def summary(found: Diff) -> dict[str, Any]:
    """The same for programs. ``change_units / units_per_ns`` is exact, and sums exactly."""
    steps = steps_of(found.before), steps_of(found.after)
    units = steps[0] * steps[1]
    return {
        "sentence": sentence(found),
        "before": {"file": found.before.file, "steps": steps[0], "wall_ns": found.before.wall_ns},
        "after": {"file": found.after.file, "steps": steps[1], "wall_ns": found.after.wall_ns},
        "units_per_ns": units,
        "step_change_units": int(found.step_change_ns * units),
        "step_change_ms": float(found.step_change_ns) / 1e6,
        "may_be_chance": found.may_be_chance(),
        "mfu": [mfu_of(found.before), mfu_of(found.after)],
        "changes": [
            {
                "name": one.name,
                "before_ns": one.before_ns,
                "after_ns": one.after_ns,
                "change_units": int(found.change_ns(one) * units),
                "change_ms_per_step": float(found.change_ns(one)) / 1e6,
                "may_be_chance": found.may_be_chance(one),
            }
            for one in found.changes
        ],
        "warnings": found.warnings,
    }
