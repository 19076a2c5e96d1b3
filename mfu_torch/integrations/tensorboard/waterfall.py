"""The picture ``breakdown/waterfall``: from the step time down to what the model needs of it."""

from __future__ import annotations

from typing import Any

from mfu_torch.integrations.tensorboard.picture import can_draw
from mfu_torch.records import BreakdownEntry
from mfu_torch.records.losses import NO_LOSS, label, steps_text
from mfu_torch.units import rounded_parts

# As in the picture of the wall time (Okabe & Ito 2008).
_GOAL, _STEP, _OTHERS = "#0072B2", "#9A9A9A", "#666666"
_COLOURS = {
    "matrix": "#56B4E9",
    "matrix/beside_model": "#009E73",
    "matrix/optimizer": "#009E73",
    "other_compute": "#009E73",
    "exposed_communication": "#CC79A7",
    "exposed_memcpy": "#F0E442",
    "idle": "#D55E00",
}


def draw(entry: BreakdownEntry) -> Any | None:
    """An image of shape (height, width, 3), 8 bits a channel; ``None`` without matplotlib.

    A row for each part, from the outside in: idle time first, the model FLOPs at the peak last. A
    part below 0 (a peak or FLOPs that are wrong) goes to the right.
    """
    if not can_draw():
        return None
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = entry.breakdown
    printed = rounded_parts([100 * part.time_ns / found.wall_ns for part in found.buckets], 1)
    parts, printed = list(reversed(found.buckets)), printed[::-1]
    # The Images tab shows it about 350 pixels wide, and the text has to be read there.
    figure = Figure(figsize=(6.4, 1.1 + 0.34 * len(parts)), dpi=110, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    axes: Any = figure.subplots()
    axes.barh(0, 1.0, color=_STEP)
    left = 1.0
    for row, part in enumerate(parts, 1):
        share = part.time_ns / found.wall_ns
        left -= share
        axes.barh(row, share, left=left, color=_colour(part.name))
    names = ["step time", *(label(part.name) for part in parts)]
    texts = ["100.0 %", *(f"{text} %" for text in printed)]
    axes.set_yticks(
        range(len(names)),
        [f"{name}  {text}" for name, text in zip(names, texts, strict=True)],
        size=12,
        parse_math=False,
    )
    slower = "" if entry.dilation is None else f", traced: {entry.dilation:.2f}x as long"
    title = f"Where the time of {steps_text(entry.steps)} went{slower}"
    figure.suptitle(title, x=0.02, ha="left", size=13)
    axes.set(ylim=(len(names) - 0.5, -0.5), xticks=[])
    axes.tick_params(left=False)
    axes.set_frame_on(False)
    figure.tight_layout()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _colour(name: str) -> str:
    if name in NO_LOSS[:2]:
        return _GOAL
    return _COLOURS.get(name) or _COLOURS.get(name.partition("/")[0], _OTHERS)
