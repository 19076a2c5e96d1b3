"""The curves of a run over its windows, and the same as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from mfu_torch.figures import Figures, figures
from mfu_torch.ideal import end_to_end, ideal_s_of
from mfu_torch.insight.html.chart import Line, chart
from mfu_torch.insight.html.markup import Markup, element, joined, table
from mfu_torch.insight.text import plural, share_text
from mfu_torch.records import Run
from mfu_torch.units import percent, scaled, seconds, significant

POINTS = 150
"""Of a curve, at most; in longer runs a point is over several windows."""

_DASH = "-"


def window_figures(run: Run, points: int = POINTS) -> list[Figures]:
    """Figures of the windows of a run, or of several windows together where there are many.

    They are sums over sums, as everywhere, and end-to-end MFU is that until then.
    """
    size = windows_in_a_point(run, points)
    found: list[Figures] = []
    ideal_s: float | str = 0.0  # of all steps so far
    for first in range(0, len(run.windows), size):
        windows = run.windows[first : first + size]
        steps = [step for window in windows for step in window.steps]
        more = ideal_s_of(run, steps)
        if not isinstance(ideal_s, str):
            ideal_s = more if isinstance(more, str) else ideal_s + more
        found.append(
            figures(
                steps,
                run.counts,
                run.peaks,
                run.header.attention,
                end_to_end=end_to_end(ideal_s, windows[-1].wall_s, run.header),
                memory_bytes=windows[-1].memory_bytes,
            )
        )
    return found


def windows_in_a_point(run: Run, points: int = POINTS) -> int:
    """How many windows a point of a curve is over."""
    return max(1, -(-len(run.windows) // points))


def curves(run: Run) -> Markup:
    """Charts of utilisation, throughput, step time and data wait, with their table."""
    found = window_figures(run)
    if not found:
        return element("p", "No window of steps is recorded yet.")
    size = windows_in_a_point(run)
    of = "each point is one window" if size == 1 else f"each point is over {size} windows"
    note = f"{plural(len(found), 'point')}; {of} of {plural(run.header.log_every, 'step')}"
    charts = [each for each in _charts(found) if each is not None]
    empty = None if charts else element("p", "No window has a steady step, so there is no curve.")
    return joined(
        element("p", f"{note}. Excluded steps are in end-to-end MFU alone.", class_="soft"),
        empty,
        element("div", charts, class_="charts"),
        element("details", element("summary", "The same as a table"), _table(found)),
    )


def _charts(found: Sequence[Figures]) -> Iterator[Markup | None]:
    x = [now.step for now in found]

    def one(title: str, unit: str, text: Callable[[float], str], **fields: str) -> Markup | None:
        lines = [
            Line(name.replace("_", " "), [getattr(now, field) for now in found])
            for field, name in fields.items()
        ]
        return chart(title, unit, x, lines, text)

    yield one(
        "Utilisation", "% of the peak", percent, mfu="MFU", hfu="HFU", end_to_end="end-to-end MFU"
    )
    rates = [
        one(f"Throughput, {noun}s", f"{noun}s/s", _plain, **{f"{noun}s_per_s": f"{noun}s/s"})
        for noun in ("token", "sample")
    ]
    yield from rates
    if not any(rates):
        yield one("Throughput", "FLOP/s", _flops_per_s, model_flops_per_s="model FLOP/s per device")
    times = [now.step_s_p95 for now in found if now.step_s_p95 is not None]
    unit, text = _time_unit(max(times, default=0.0))
    yield one("Step time", unit, text, step_s="mean", step_s_p95="p95")
    yield one("Data wait", "% of step time", percent, data_wait_share="data wait")


def _flops_per_s(value: float) -> str:
    return scaled(value, "FLOP/s")


def _plain(value: float) -> str:
    return scaled(value, "")


def _time_unit(longest_s: float) -> tuple[str, Callable[[float], str]]:
    """One unit for the whole axis, and how times are written in it."""
    units = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
    unit = next((name for name, size in units.items() if longest_s >= size), "ns")
    return unit, lambda value: f"{significant(value / units[unit])} {unit}"


_COLUMNS: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("MFU", "mfu", share_text),
    ("HFU", "hfu", share_text),
    ("end-to-end", "end_to_end", share_text),
    ("tokens/s", "tokens_per_s", _plain),
    ("samples/s", "samples_per_s", _plain),
    ("step time", "step_s", seconds),
    ("p95", "step_s_p95", seconds),
    ("data wait", "data_wait_share", share_text),
)


def _table(found: Sequence[Figures]) -> Markup:
    rows = []
    for now in found:
        values = ((getattr(now, field), text) for _, field, text in _COLUMNS)
        cells = [_DASH if value is None else text(value) for value, text in values]
        rows.append([f"{now.step:,}", f"{now.steps:,}", *cells])
    titles = ["step", "steady steps", *(title for title, _, _ in _COLUMNS)]
    return table(titles, rows, class_="numbers")
