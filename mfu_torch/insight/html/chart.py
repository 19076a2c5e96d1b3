"""A line chart as SVG: axes with units, lines that differ by more than colour, tooltips."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from mfu_torch.insight.html.markup import Markup, element, joined

_WIDTH, _HEIGHT = 420, 210
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 26, 38
_TICKS = 5


class Line(NamedTuple):
    """A curve: its name, and a value for each x; ``None`` where there is none."""

    name: str
    values: Sequence[float | None]


def chart(
    title: str, unit: str, x: Sequence[int], lines: Sequence[Line], text: Callable[[float], str]
) -> Markup | None:
    """A figure; ``None`` where no line has a value.

    Args:
        title: What is shown.
        unit: Of the y axis, which starts at 0.
        x: Steps completed.
        lines: At most three; those without a value are left out.
        text: A value in words, with its unit.
    """
    drawn = [line for line in lines if any(map(_finite, line.values))]
    if not drawn:
        return None
    top = max(v for line in drawn for v in line.values if v is not None and _finite(v))
    scale = _Scale(x[0], x[-1], ticks(0.0, top))
    names = ", ".join(line.name for line in drawn)
    svg = element(
        "svg",
        _axes(scale, unit, text),
        [_line(number, line, x, scale, text) for number, line in enumerate(drawn, start=1)],
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"{title} over steps: {names}",
    )
    return element("figure", element("figcaption", title), svg, _legend(drawn, text))


def _finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers from ``low`` to at least ``high``, about five steps: 0 to 0.43 by 0.1."""
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low, low + 1.0]
    size = float(10.0 ** math.floor(math.log10(span / _TICKS)))
    step = next(m * size for m in (1, 2, 5, 10) if m * size * _TICKS >= span * (1 - 1e-9))
    return [low + i * step for i in range(math.ceil(span / step * (1 - 1e-9)) + 1)]


class _Scale:
    """Where a value stands in the picture."""

    def __init__(self, first: int, last: int, of_y: list[float]) -> None:
        self.of_y = of_y
        whole = [round(tick) for tick in ticks(0, last - first)] if last > first else [0]
        self.of_x = [first + tick for tick in dict.fromkeys(whole) if first + tick <= last]
        self._first, self._span = first, max(1, last - first)

    def x(self, step: float) -> float:
        share = (step - self._first) / self._span
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, value: float) -> float:
        share = (value - self.of_y[0]) / (self.of_y[-1] - self.of_y[0])
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 1)


def _axes(scale: _Scale, unit: str, text: Callable[[float], str]) -> Iterator[Markup]:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    for value in scale.of_y:
        y = scale.y(value)
        yield element("line", class_="grid", x1=_LEFT, x2=right, y1=y, y2=y)
        yield element("text", text(value), x=_LEFT - 6, y=y + 4, text_anchor="end")
    for step in scale.of_x:
        x = scale.x(step)
        yield element("line", class_="axis", x1=x, x2=x, y1=bottom, y2=bottom + 4)
        yield element("text", f"{step:,}", x=x, y=bottom + 17, text_anchor="middle")
    yield element("line", class_="axis", x1=_LEFT, x2=right, y1=bottom, y2=bottom)
    yield element("text", "steps", x=(_LEFT + right) / 2, y=_HEIGHT - 6, text_anchor="middle")
    yield element("text", unit, x=_LEFT - 6, y=12)


def _line(
    number: int, line: Line, x: Sequence[int], scale: _Scale, text: Callable[[float], str]
) -> Markup:
    known = [
        (step, value) if value is not None and _finite(value) else None
        for step, value in zip(x, line.values, strict=True)
    ]
    path = ""
    for before, point in zip([None, *known], known, strict=False):
        if point is not None:
            path += f"{'L' if before else 'M'}{scale.x(point[0])} {scale.y(point[1])}"
    points = [
        element(
            "circle",
            element("title", f"step {step:,}: {line.name} {text(value)}"),
            class_=f"p{number}",
            cx=scale.x(step),
            cy=scale.y(value),
            r=2,
        )
        for step, value in filter(None, known)
    ]
    return joined(element("path", class_=f"s s{number}", d=path), points)


def _legend(lines: Sequence[Line], text: Callable[[float], str]) -> Markup:
    items = []
    for number, line in enumerate(lines, start=1):
        stroke = element("path", class_=f"s s{number}", d="M0 5L30 5")
        sample = element("svg", stroke, viewBox="0 0 30 10", aria_hidden="true")
        last = next(v for v in reversed(line.values) if v is not None and _finite(v))
        items.append(element("li", sample, f" {line.name}, {text(last)} at the end"))
    return element("ul", items, class_="legend")
