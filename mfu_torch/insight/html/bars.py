"""Rows with a bar each: shares of a whole, from anywhere to anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from mfu_torch.insight.html.markup import Child, Markup, element


class Bar(NamedTuple):
    """One row.

    Attributes:
        name: What it is.
        value: Its share in words.
        start, end: From where to where the bar goes, as fractions; ``None`` for no bar.
        kind: Class of its colour: ``b1`` to ``b4``, ``lost`` or ``bad``.
        more: What else is said, below.
    """

    name: str
    value: str
    start: float | None = None
    end: float | None = None
    kind: str = "b1"
    more: Child = None


def bars(rows: list[Bar]) -> Markup:
    """The rows, below each other; a bar that would leave its row is cut at the border."""
    return element("div", [_row(row) for row in rows], class_="rows")


def key(kinds: Iterable[tuple[str, str]]) -> Markup:
    """What the colours of bars mean.

    Args:
        kinds: Class of a colour, and its meaning.
    """
    return element(
        "ul",
        [
            element(
                "li",
                element(
                    "svg",
                    element("rect", class_=kind, x=0, y=0, width=18, height=10),
                    viewBox="0 0 18 10",
                    aria_hidden="true",
                ),
                f" {meaning}",
            )
            for kind, meaning in kinds
        ],
        class_="legend",
    )


def _row(row: Bar) -> Markup:
    return element(
        "div",
        element("span", row.name, class_="name"),
        _drawn(row),
        element("span", row.value, class_="value"),
        element("span", row.more, class_="more") if row.more else None,
        class_="row",
    )


def _drawn(row: Bar) -> Markup:
    rect = None
    if row.start is not None and row.end is not None:
        low, high = sorted((row.start, row.end))
        if math.isfinite(low) and math.isfinite(high):
            low, high = min(max(low, 0.0), 1.0), min(max(high, 0.0), 1.0)
            width = max(round(1000 * (high - low), 1), 1.5)  # a line, where it is next to nothing
            left = min(round(1000 * low, 1), 1000 - width)
            rect = element("rect", class_=row.kind, x=left, y=0, width=width, height=10)
    return element(
        "svg", rect, viewBox="0 0 1000 10", preserveAspectRatio="none", aria_hidden="true"
    )
