"""Published figures beside recomputed ones, as text."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from mfu_torch.calculator.claims import Difference, Figures, Recomputed

COLUMNS = 110
_COLUMNS = {
    "row": "<40",
    "convention": "<22",
    "figure": "<8",
    "published": ">11",
    "recomputed": ">12",
    "off by": ">9",
    "ours": ">7",
}
"""Alignment and width of each."""
_NAMES = {
    "mfu": "MFU",
    "hfu": "HFU",
    "flops_per_s": "TFLOP/s",
    "flops_per_token": "TF/token",
    "hardware_flops_per_token": "TF/token",
    "days": "days",
}
_LEGEND = (
    "ours: MFU by matmul, nothing left out (? where sizes, throughput or peak are not stated, and "
    "where not all weights or not whole sequences are trained). "
    "off by: recomputed less published; pt: points of the peak; %: where no peak is stated."
)


def render(rows: Sequence[Recomputed]) -> str:
    """A line for each row, then why some do not agree or cannot be checked; 110 columns wide.

    Args:
        rows: As :func:`mfu_torch.calculator.published.published` gives them.
    """
    lines = [_line(tuple(_COLUMNS)), *(_row(row) for row in rows), "", *_wrapped(_LEGEND)]
    for status, title in (
        ("explained", "Off by more than 0.5, for a known reason:"),
        ("disagrees", "Off by more than 0.5, for no known reason:"),
    ):
        found = [row for row in rows if row.status == status]
        if found:
            lines += ["", title, *(part for row in found for part in _reason(row))]
    lines += [*_unchecked(rows), *_assumed(rows), "", *_wrapped(summary(rows))]
    return "\n".join(lines) + "\n"


def summary(rows: Sequence[Recomputed]) -> str:
    """How many agree, in one sentence."""
    counts = Counter(row.status for row in rows)
    checked = len(rows) - counts["not checkable"]
    text = (
        f"{counts['agrees']} of {checked} published rows within 0.5 points (0.5 % without a peak; "
        f"days within rounding); {counts['explained']} explained"
    )
    if counts["disagrees"]:
        text += f"; {counts['disagrees']} not explained"
    if counts["not checkable"]:
        text += f"; {counts['not checkable']} more cannot be checked"
    return text + "."


def convention_of(row: Recomputed) -> str:
    """The convention of the figure that the row is shown with, and what is left out."""
    figures = _shown(row)
    name = row.convention
    if figures == ("hfu",):
        name = row.hardware_convention
    elif figures == ("flops_per_s",) or figures == ("days",):
        name = row.flops_convention
    return " ".join([name or "not stated", *(f"-{role}" for role in row.without)])


def _shown(row: Recomputed) -> tuple[str, ...]:
    """The figures in the table: shares, where there are any, else FLOP/s, FLOPs or days."""
    stated = [one.figure for one in row.differences] or _names(row.stated) or _names(row.found)
    shares = tuple(name for name in ("mfu", "hfu") if name in stated)
    return shares or (stated[0],) if stated else ()


def _names(figures: Figures) -> list[str]:
    return [n for n in Figures.__struct_fields__ if getattr(figures, n) is not None]


def _row(row: Recomputed) -> str:
    shown = _shown(row)
    title = "/".join(dict.fromkeys(_NAMES[name] for name in shown))
    return _line(
        (
            row.id,
            convention_of(row),
            title,
            "/".join(_printed(row.stated, name) for name in shown),
            "/".join(_value(row.found, name) for name in shown),
            _off([one for one in row.differences if one.figure in shown]),
            "?" if row.ours.mfu is None else f"{100 * row.ours.mfu:.2f}",
        )
    )


def _line(cells: Sequence[str]) -> str:
    pairs = zip(cells, _COLUMNS.values(), strict=True)
    return "".join(f"{cell:{width}}" for cell, width in pairs).rstrip()


def _printed(figures: Figures, name: str) -> str:
    value = getattr(figures, name)
    return "-" if value is None else f"{_scaled(name, value):.10g}"


def _value(figures: Figures, name: str) -> str:
    value = getattr(figures, name)
    if value is None:
        return "?"
    digits = {"mfu": 2, "hfu": 2, "flops_per_s": 1, "days": 1}.get(name, 4)
    return f"{_scaled(name, value):.{digits}f}"


def _scaled(name: str, value: float) -> float:
    if name in ("mfu", "hfu"):
        return 100 * value
    return value if name == "days" else value / 1e12


def _off(differences: Sequence[Difference]) -> str:
    """The largest of the figures that are shown."""
    if not differences:
        return "-"
    largest = max(differences, key=lambda one: abs(one.difference) / one.tolerance)
    sign = {"points": "pt", "%": "%", "days": "d"}[largest.unit]
    return f"{largest.difference:+.{0 if abs(largest.difference) > 100 else 2}f}{sign}"


def _reason(row: Recomputed) -> Iterator[str]:
    text = f"{row.id}: {row.reason}"
    if row.mfu_range is not None:
        low, high = (f"{100 * share:.2f}" for share in row.mfu_range)
        text += f" (by rounding alone between {low} and {high} %)"
    yield from _wrapped(text + ".", first="  ", rest="    ")


def _unchecked(rows: Sequence[Recomputed]) -> list[str]:
    return _grouped(
        "Not checkable:", [(row.reason, row.id) for row in rows if row.status == "not checkable"]
    )


def _assumed(rows: Sequence[Recomputed]) -> list[str]:
    return _grouped(
        "Inputs that the source does not print, and that are ours:",
        [(", ".join(row.assumed), row.id) for row in rows if row.assumed],
    )


def _grouped(title: str, pairs: Sequence[tuple[str, str]]) -> list[str]:
    """Ids of rows after what they have in common."""
    groups: dict[str, list[str]] = {}
    for common, id in pairs:
        groups.setdefault(common, []).append(id)
    lines = ["", title] if groups else []
    for common, ids in groups.items():
        lines += _wrapped(f"{common}: {', '.join(ids)}.", first="  ", rest="    ")
    return lines


def _wrapped(text: str, first: str = "", rest: str = "") -> list[str]:
    lines = textwrap.wrap(
        text.replace(" %", "\xa0%"),  # a number and its sign stay on one line
        COLUMNS,
        initial_indent=first,
        subsequent_indent=rest,
        break_on_hyphens=False,
    )
    return [line.replace("\xa0", " ") for line in lines]
