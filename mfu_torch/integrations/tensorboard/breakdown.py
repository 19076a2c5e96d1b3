"""What of a breakdown of traced steps goes into an event file: curves, a table."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.integrations.tensorboard.page import markdown_table
from mfu_torch.records import BreakdownEntry
from mfu_torch.records.losses import dilation_text, first_loss, label, printable, steps_text
from mfu_torch.tags import DILATION, breakdown_scalars
from mfu_torch.units import percent, rounded_parts, seconds

_MARKUP = {char: f"\\{char}" for char in "\\`*_[]#"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
_EMPTY = "&nbsp;"  # a row with nothing in its last cell would be left out


class Curves:
    """The parts that there were so far: one that is gone is 0 from then on, and no curve ends."""

    def __init__(self) -> None:
        self._tags: set[str] = set()

    def of(self, entry: BreakdownEntry) -> Iterator[tuple[str, float]]:
        """Tag and value of every part; they sum to exactly 1."""
        found = dict(breakdown_scalars(entry))
        for tag in sorted(self._tags - found.keys()):
            yield tag, 0.0
        self._tags |= found.keys() - {DILATION}
        yield from found.items()


def table(entry: BreakdownEntry) -> str:
    """Markdown: the parts of the step time, what to try about each, and what has to be known.

    The last row says what to fix first: the loss that most can be gained from.
    """
    found, steps = entry.breakdown, len(entry.breakdown.step_ns) or 1
    shares = rounded_parts([100 * part.time_ns / found.wall_ns for part in found.buckets], 1)
    rows = [
        (label(part.name), _per_step(part.time_ns, steps), f"{share}&nbsp;%", _cell(part.hint))
        for part, share in zip(found.buckets, shares, strict=True)
    ]
    rows.append(("**step time**", _per_step(found.wall_ns, steps), "100.0&nbsp;%", _EMPTY))
    first = first_loss(found)
    if first is None:
        rows.append(("**fix first**", "", "", "nothing stands out"))
    else:
        share = f"{100 * first.time_ns / found.wall_ns:.1f}&nbsp;%"
        try_ = f"**{label(first.name)}**: {_cell(first.hint)}" if first.hint else label(first.name)
        rows.append(("**fix first**", _per_step(first.time_ns, steps), share, try_))
    parts = [
        f"### Where the time of {steps_text(entry.steps)} went",
        markdown_table(("part", "per step", "share", "what to try"), rows),
        f"{dilation_text(entry).capitalize()}; shares are of the traced steps.",
        _coverage(entry),
        *(f"**Warning**: {escaped(text)}" for text in found.warnings),
        *(f"Note: {escaped(text)}" for text in found.notes),
        f"Trace: `{entry.trace}`, for `mfu-torch explain`" if entry.trace else "",
    ]
    return "\n\n".join(part for part in parts if part)


def _per_step(time_ns: int, steps: int) -> str:
    return seconds(time_ns / 1e9 / steps).replace(" ", "&nbsp;")


def _cell(text: str) -> str:
    return escaped(text) or _EMPTY


def escaped(text: str) -> str:
    """Text that markdown shows as it is: ``__next__`` is no bold ``next``."""
    return "".join(_MARKUP.get(char, char) for char in printable(text))


def _coverage(entry: BreakdownEntry) -> str:
    seen = entry.breakdown.coverage
    known = []
    if seen.work:
        known.append(f"the launch of {percent(seen.launches / seen.work)} of the device's work")
    if seen.matrix_ns:
        share = percent(seen.matrix_known_ns / seen.matrix_ns)
        known.append(f"the FLOPs of {share} of the time of matrix work")
    return f"Known: {', '.join(known)}." if known else ""
