"""The picture ``breakdown/wall_time``: where the wall time of a run went, as one bar."""

from __future__ import annotations

import importlib.util
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

from mfu_torch.units import rounded_parts

HOW_TO_GET_IT = (
    "The Images tab has no picture of the wall time: it is drawn with matplotlib, which "
    "`pip install 'mfu_torch[plot]'` brings."
)

# Okabe & Ito 2008, told apart by colour-blind eyes too; what is left in greys.
_COLOURS = {
    "model": "#0072B2",
    "recompute": "#56B4E9",
    "below peak": "#BFD9EA",
    "steady steps": "#BFD9EA",
    "other": "#9A9A9A",
}
_MORE_COLOURS = ("#E69F00", "#009E73", "#CC79A7", "#D55E00", "#F0E442", "#666666")
_DARK = ("#0072B2", "#009E73", "#D55E00", "#666666")

_MEANINGS = {
    "model": "model FLOPs, at the peak",
    "recompute": "recompute, at the peak",
    "below peak": "below peak: the rest of the steps",
    "steady steps": "steady steps (MFU unknown)",
}


PARTS = 12
"""Parts that have a line of their own; names of pauses are the user's, and can be many."""

_LETTERS = 36  # that fit on a line
_NOT_DRAWN = " (not drawn)"


def can_draw() -> bool:
    """Whether matplotlib is installed; it is not imported for that."""
    try:
        return importlib.util.find_spec("matplotlib") is not None
    except ValueError:  # something that is called so is imported, and does not say from where
        return True


def draw(shares: Mapping[str, float]) -> Any | None:
    """An image of shape (height, width, 3), 8 bits a channel.

    ``None`` without matplotlib, and where no share can be drawn.

    Args:
        shares: Of the wall time by name, in the order of the bar. Those below 0 (an MFU above
            100 %, parts that overlap) and those that are not finite have no part of the bar, and a
            line that says so.
    """
    if not any(map(_drawn, shares.values())) or not can_draw():
        return None
    import numpy as np
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shares = _largest(shares)
    # The Images tab shows it about 350 pixels wide, and the text has to be read there.
    figure = Figure(figsize=(5.4, 1.4 + 0.34 * len(shares)), dpi=110, facecolor="white")
    canvas: Any = FigureCanvasAgg(figure)
    bar, legend = figure.subplots(2, 1, height_ratios=[1, 0.45 * len(shares)])
    colours = _colours(shares)
    printed = rounded_parts([100 * share for share in shares.values()], 1)
    whole, left = math.fsum(share for share in shares.values() if _drawn(share)), 0.0
    for row, (name, share) in enumerate(shares.items()):
        colour, text = colours[row], f"{printed[row]} %"
        if _drawn(share):
            bar.barh(0, share, left=left, color=colour, edgecolor="white", linewidth=1)
            if share >= 0.15 * whole:
                ink = "white" if colour in _DARK else "black"
                bar.text(left + share / 2, 0, text, ha="center", va="center", size=13, color=ink)
            left += share
        legend.scatter(0.02, row, s=130, marker="s", color=colour)
        legend.text(0.215, row, text, ha="right", va="center", size=13)
        # A name is anybody's text, and no formula.
        legend.text(0.24, row, _words(name, share), va="center", size=13, parse_math=False)
    bar.set(xlim=(0, whole))
    bar.set_title("Where the wall time went", loc="left", size=15)
    legend.set(xlim=(0, 1), ylim=(len(shares) - 0.5, -0.5))
    for axes in (bar, legend):
        axes.axis("off")
    figure.tight_layout()
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _drawn(share: float) -> bool:
    return share > 0 and math.isfinite(share)


def _words(name: str, share: float) -> str:
    """What stands beside the colour of a part."""
    if _drawn(share) or round(share, 3) == 0:
        return _cut(_MEANINGS.get(name, name), _LETTERS)
    return _cut(name, _LETTERS - len(_NOT_DRAWN)) + _NOT_DRAWN


def _cut(text: str, letters: int) -> str:
    return text if len(text) <= letters else f"{text[:letters]}..."


def _largest(shares: Mapping[str, float]) -> dict[str, float]:
    """The largest parts, in their order, and the others as one."""
    kept = sorted(shares, key=lambda name: (_drawn(shares[name]), shares[name]))[-PARTS:]
    largest = {name: share for name, share in shares.items() if name in kept}
    left = len(shares) - len(largest)
    if left:
        rest = math.fsum(share for name, share in shares.items() if name not in kept)
        largest[f"{left} smaller parts"] = rest
    return largest


def _colours(names: Iterable[str]) -> list[str]:
    more = itertools.cycle(_MORE_COLOURS)
    return [_COLOURS.get(name) or next(more) for name in names]
