"""A :class:`Roofline` as text: what is bound by FLOPs, what by memory, and what by neither."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.insight.breakdown.job_roofline import DeviceRoofs, JobRoofline
from mfu_torch.insight.breakdown.roofline import Roof, Roofline
from mfu_torch.insight.breakdown_table import decimals_of
from mfu_torch.insight.breakdown_words import ms_per_step
from mfu_torch.insight.text import COLUMNS, wrap
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.records.losses import printable
from mfu_torch.units import percent, scaled, significant

_BOUND = {"compute": "FLOPs", "memory": "memory", "neither": "neither", "unknown": "not known"}
_WIDTHS = (26, 12, 12, 10, 10)
_DEVICES, _RANKS = 4, 6  # named
_SHAPES = COLUMNS - 2 - sum(_WIDTHS) - 2


def lines(found: Roofline, breakdown: Breakdown, top: int) -> Iterator[str]:
    """The roofs, how much time is near which, and the ops that are furthest from theirs.

    Args:
        found: The roofline.
        breakdown: Of the same steps.
        top: How many ops.
    """
    yield from _lines(found, breakdown, top, _roofs(found.peak_flops_per_s, found.bytes_per_s))


def job_lines(found: JobRoofline, breakdown: Breakdown, top: int) -> Iterator[str]:
    """As :func:`lines`, of the sum over ranks.

    Args:
        found: The rooflines of the ranks.
        breakdown: Their sum.
        top: How many ops.
    """
    if len(found.devices) == 1:
        yield from lines(found.total, breakdown, top)
        return
    devices = "; ".join(map(_device, found.devices[:_DEVICES]))
    more = len(found.devices) - _DEVICES
    devices += f"; and {more} more" if more > 0 else ""
    head = f"the roofs of the ranks differ, and each op stands against those of its own: {devices}"
    yield from _lines(found.total, breakdown, top, head)


def _device(one: DeviceRoofs) -> str:
    name = printable(one.device) if one.device else "no name"
    ranks = ", ".join(map(str, one.ranks[:_RANKS])) + ", ..." * (len(one.ranks) > _RANKS)
    noun = "rank" if len(one.ranks) == 1 else "ranks"
    return f"{name} ({noun} {ranks}), {_roofs(one.peak_flops_per_s, one.bytes_per_s, one.dtype)}"


def _lines(found: Roofline, breakdown: Breakdown, top: int, head: str) -> Iterator[str]:
    known = found.compute_ns + found.memory_ns + found.neither_ns
    if not known:
        why = f": {'; '.join(found.notes)}" if found.notes else ""
        yield from wrap(f"Roofline: of no kernel are both its work and the roofs known{why}")
        return
    yield from wrap(f"Roofline: {head}")
    yield from wrap(f"  {_times(found, breakdown)}", rest="  ")
    shown = sorted((one for one in found.roofs if one.least_ns is not None), key=_lost)[:top]
    if shown:
        ms = "ms" if breakdown.edges == "trace" else "ms per step"
        yield _row("op", ms, "at its roof", "FLOP/byte", "bound by", "shapes")
    for one in shown:
        yield _op(one, breakdown)
    for note in found.notes:
        yield from wrap(f"  {printable(note)}", rest="  ")


def _lost(one: Roof) -> int:
    """Most time beyond the roof first."""
    return (one.least_ns or 0) - one.time_ns


def _roofs(peak: float | None, bandwidth: float | None, dtype: str | None = None) -> str:
    rate = "" if peak is None else scaled(peak, "FLOP/s", 4) + (f" {dtype}" if dtype else "")
    if peak is None or bandwidth is None:
        parts = [] if peak is None else [rate]
        parts += [] if bandwidth is None else [scaled(bandwidth, "B/s")]
        return f"{parts[0]}; the other roof is not known" if parts else "no roof is known"
    return (
        f"{rate} and {scaled(bandwidth, 'B/s')}: an op with less than "
        f"{peak / bandwidth:.0f} FLOP per byte is bound by memory"
    )


def _times(found: Roofline, breakdown: Breakdown) -> str:
    wall = max(1, breakdown.wall_ns)
    parts = (
        ("near the roof of FLOPs", found.compute_ns),
        ("near that of memory", found.memory_ns),
        ("below half of both", found.neither_ns),
        ("not known", found.unknown_ns),
    )
    return "of the time: " + ", ".join(f"{percent(ns / wall)} {name}" for name, ns in parts)


def _op(one: Roof, breakdown: Breakdown) -> str:
    decimals = decimals_of(ms_per_step(breakdown.wall_ns, breakdown))
    least = one.least_ns or 0
    return _row(
        _cut(one.op.removeprefix("aten::"), _WIDTHS[0] - 2),
        f"{ms_per_step(one.time_ns, breakdown):.{decimals}f}",
        f"{ms_per_step(least, breakdown):.{decimals}f}",
        "-" if one.intensity is None else significant(one.intensity),
        _BOUND.get(one.bound, one.bound),
        _cut(one.shapes, _SHAPES),
    )


def _row(op: str, *cells: str) -> str:
    *numbers, shapes = cells
    row = "".join(f"{cell:>{width}}" for cell, width in zip(numbers, _WIDTHS[1:], strict=True))
    return f"  {op:<{_WIDTHS[0]}}{row}  {shapes}".rstrip()


def _cut(text: str, columns: int) -> str:
    text = printable(text)
    return text if len(text) <= columns else f"{text[: columns - 3]}..."
