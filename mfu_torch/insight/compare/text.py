"""A comparison as text, at most 100 columns wide: the answer first, then its reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from mfu_torch.insight.compare.record import EVERYTHING, Change, Comparison, Difference, Side
from mfu_torch.insight.compare.verdict import signed, unsigned
from mfu_torch.insight.parts_block import NAMES, TITLE
from mfu_torch.insight.text import COLUMNS, field, plural, wrap
from mfu_torch.records.losses import printable
from mfu_torch.units import bytes_, percent, scaled, seconds

_LABEL = 18
_COLUMNS = (16, 10, 11, 16, 22, 25)  # they sum to 100

_UNITS: dict[str, Callable[[float], str]] = {
    "step_s": seconds,
    "tokens_per_s": lambda rate: scaled(rate, ""),
    "samples_per_s": lambda rate: scaled(rate, ""),
    "memory_bytes": bytes_,
}


def render_comparison(found: Comparison) -> str:
    """The comparison of two runs: verdict, runs, changes, differences, how sure it is."""
    blocks = (
        wrap(printable(found.verdict), rest=""),
        [_side(letter, side) for letter, side in (("A", found.a), ("B", found.b))],
        _changes(found),
        _parts(found),
        _differences(found),
        _how(found),
    )
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def _side(letter: str, side: Side) -> str:
    steps = plural(side.steps, "steady step")
    text = f"{side.name}: {side.device} | {steps} | {side.status}"
    return field(letter, printable(text), 3)


def _changes(found: Comparison) -> Iterator[str]:
    if not found.changes:
        return
    convention = f"attention {found.attention}" if found.attention else ""
    yield _row(convention, "A", "B", "change", "95 % interval", "")
    reasons: dict[str, list[str]] = {}
    for change in found.changes:
        values = [_value(change, value) for value in (change.a, change.b)]
        if change.change is None:
            yield _row(change.name, *values, "", "", "not compared")
            reasons.setdefault(change.not_compared, []).append(change.name)
            continue
        yield _row(change.name, *values, signed(change, change.change), *_sure(change))
        if change.no_interval:
            reasons.setdefault(change.no_interval, []).append(change.name)
    for reason, names in reasons.items():
        yield from wrap(printable(f"{', '.join(names)}: {reason}"), "  ", "    ")


def _parts(found: Comparison) -> Iterator[str]:
    """Where a step's time went in both runs."""
    if not found.parts:
        return
    yield _part_row(TITLE, "A", "B", "change")
    for each in found.parts:
        times = ["-" if part_s is None else seconds(part_s) for part_s in (each.a_s, each.b_s)]
        change = ""
        if each.a_s is not None and each.b_s is not None:
            change = _signed_s(round(each.b_s - each.a_s, 12))
        yield _part_row(f"  {NAMES.get(each.part, each.part)}", *times, change)


def _part_row(name: str, *cells: str) -> str:
    return f"{name:<34}{''.join(f'{cell:>15}' for cell in cells)}".rstrip()


def _signed_s(change_s: float) -> str:
    sign = "+" if change_s > 0 else "-" if change_s < 0 else ""
    return f"{sign}{seconds(abs(change_s))}"


def _sure(change: Change) -> tuple[str, str]:
    """The interval, and whether the change is more than chance."""
    if change.low is None or change.high is None or change.smallest is None:
        return "", "no interval"
    unit = " %" if change.relative else " points"
    low, high = signed(change, change.low), signed(change, change.high)
    smallest = unsigned(change, change.smallest).removesuffix(unit)
    words = "significant" if change.significant else f"not significant (<{smallest})"
    return f"{low.removesuffix(unit)} to {high.removesuffix(' points')}", words


def _value(change: Change, value: float | None) -> str:
    return "-" if value is None else _UNITS.get(change.figure, percent)(value)


def _row(name: str, *cells: str) -> str:
    first, *widths = _COLUMNS
    columns = (f" {cell:>{width - 1}}" for cell, width in zip(cells, widths, strict=True))
    return f"{name:<{first}}{''.join(columns)}".rstrip()


def _differences(found: Comparison) -> Iterator[str]:
    if not found.differences:
        yield "No difference in what makes two runs comparable"
        return
    yield "Differences"
    for each in found.differences:
        yield from _difference(each)


def _difference(each: Difference) -> Iterator[str]:
    label, a, b = f"  {printable(each.aspect)}", printable(each.a), printable(each.b)
    if len(label) >= _LABEL - 1:
        yield from wrap(label[2:], "  ", "    ")
        label = ""
    short = f"{a} | {b}"
    if _LABEL + len(short) <= COLUMNS:
        yield field(label, short, _LABEL)
    else:
        yield field(label, f"A: {a}", _LABEL)
        yield field("", f"B: {b}", _LABEL)
    effect = "remark"
    if each.forbids:
        what = "anything" if each.forbids == EVERYTHING else ", ".join(each.forbids)
        effect = f"forbids comparing {what}"
    yield field("", f"{effect}: {each.why}", _LABEL)


def _how(found: Comparison) -> Iterator[str]:
    if all(change.low is None for change in found.changes):
        return
    blocks = [
        f"{side.block} ({letter})"
        for letter, side in (("A", found.a), ("B", found.b))
        if side.block
    ]
    of = f" in blocks of {' and '.join(blocks)}" if blocks else ""
    yield from wrap(
        f"Intervals: bootstrap over the steady steps{of}, {found.replicates} draws, seed "
        f"{found.seed}. In brackets: the change that 4 of 5 such pairs of runs would have shown.",
        rest="",
    )
    drift = [letter for letter, side in (("A", found.a), ("B", found.b)) if side.drifts]
    if drift:
        yield from wrap(
            f"The steps of {' and '.join(drift)} drift for longer than a fifth of the run, so the "
            "intervals are wide: they rest on three numbers, its slowest waves.",
            rest="",
        )
    yield from wrap(
        "They know these two runs alone: the same code started twice can differ by more, so repeat "
        "both before a small change is believed.",
        rest="",
    )
