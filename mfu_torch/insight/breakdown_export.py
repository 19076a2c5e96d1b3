"""A :class:`Breakdown` as markdown, CSV and plain values."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING, Any

import msgspec

from mfu_torch.insight.breakdown.printed import hint_beside
from mfu_torch.insight.breakdown_table import coverage_text, in_order, mfu_text, parts_text
from mfu_torch.insight.breakdown_words import (
    EDGES,
    fix_first,
    hfu_of,
    kernel_name,
    large_losses,
    mfu_of,
    ms_per_step,
    steps_of,
)
from mfu_torch.insight.text import plural
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.records.losses import first_loss, label, printable

if TYPE_CHECKING:
    from mfu_torch.insight.breakdown.roofline import Roofline

_MARKUP = {"|": "\\|", "<": "&lt;", ">": "&gt;", "*": "\\*", "_": "\\_", "`": "\\`", "[": "\\["}


def markdown_cell(text: str) -> str:
    """Text that stands in a cell as it is: names of kernels are full of ``<`` and ``|``."""
    text = printable(text).replace("\\", "\\\\").replace("&", "&amp;")
    return "".join(_MARKUP.get(char, char) for char in text)


def markdown(found: Breakdown, *, top: int = 5) -> str:
    """A table of the buckets with their hints, and one of the kernels of the largest losses."""
    cell = markdown_cell
    device = f", {cell(found.device)}" if found.device else ""
    lines = [
        f"**{cell(found.file)}**{device}, {_steps(found)}",
        "",
        cell(fix_first(found)),
        "",
        f"| bucket | {_ms(found)} | share | what to try |",
        "|---|--:|--:|---|",
    ]
    buckets = in_order(found)
    for one, (ms, share) in zip(buckets, parts_text(found, buckets), strict=True):
        hint = cell(hint_beside(found, one.name, one.hint))
        lines.append(f"| {cell(label(one.name))} | {ms} | {share} % | {hint} |")
    lines.append(f"| **SUM** | {_sum_ms(found)} | 100.00 % | wall time, {found.wall_ns:,} ns |")
    lines += _kernels(found, top)
    lines += ["", cell(mfu_text(found)), "", cell(coverage_text(found))]
    lines += [f"\n**Warning:** {cell(one)}" for one in found.warnings]
    lines += [f"\nNote: {cell(one)}" for one in found.notes]
    return "\n".join(lines) + "\n"


def _ms(found: Breakdown) -> str:
    return "ms" if found.edges == "trace" else "ms per step"


def _steps(found: Breakdown) -> str:
    ms = f"{ms_per_step(found.wall_ns, found):.4g} ms"
    if found.edges == "trace":
        return f"{ms}, {EDGES['trace']}"
    steps = plural(steps_of(found), "step")
    return f"{steps}, {ms} per step ({markdown_cell(found.edges)} edges)"


def _sum_ms(found: Breakdown) -> str:
    times = [ms for ms, _ in parts_text(found, found.buckets)]
    decimals = len(times[0].partition(".")[2]) if times else 3
    return f"{ms_per_step(found.wall_ns, found):.{decimals}f}"


def _kernels(found: Breakdown, top: int) -> list[str]:
    times = "times" if found.edges == "trace" else "per step"
    lines = ["", f"| loss | op | kernel | {times} | {_ms(found)} |", "|---|---|---|--:|--:|"]
    for one in large_losses(found):
        for kernel in one.top[:top]:
            op, name = markdown_cell(kernel.op or "-"), markdown_cell(kernel_name(kernel, 80))
            times = f"{kernel.count / steps_of(found):.4g}"
            ms = f"{ms_per_step(kernel.time_ns, found):.4g}"
            lines.append(f"| {markdown_cell(label(one.name))} | {op} | {name} | {times} | {ms} |")
    return lines if len(lines) > 3 else []


def csv_text(found: Breakdown) -> str:
    """One line per bucket: name, nanoseconds of all steps, ms of a mean step, share, each step."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("bucket", "time_ns", "ms_per_step", "share", *map(_csv_cell, found.steps)))
    for one in found.buckets:
        share = one.time_ns / found.wall_ns if found.wall_ns else ""
        ms = ms_per_step(one.time_ns, found)
        writer.writerow((_csv_cell(one.name), one.time_ns, ms, share, *one.per_step_ns))
    ms = ms_per_step(found.wall_ns, found)
    writer.writerow(("SUM", found.wall_ns, ms, 1.0, *found.step_ns))
    return out.getvalue()


def _csv_cell(text: str) -> str:
    """A name that a spreadsheet does not take for a formula."""
    text = printable(text)
    return f"'{text}" if text[:1] in tuple("=+-@") else text


def summary(
    found: Breakdown, *, top: int | None = None, roofline: Roofline | None = None
) -> dict[str, Any]:
    """The record and what is computed from it, for programs.

    Args:
        found: The breakdown.
        top: How many kernels of each bucket; by default all that it has.
        roofline: Of the same steps, if it is known.
    """
    plain: dict[str, Any] = msgspec.to_builtins(found)
    for bucket in plain["buckets"]:
        bucket["ms_per_step"] = ms_per_step(bucket["time_ns"], found)
        bucket["share"] = bucket["time_ns"] / found.wall_ns if found.wall_ns else None
        bucket["top"] = bucket["top"][:top]
    worst = first_loss(found)
    mfu = mfu_of(found)
    plain["ms_per_step"] = ms_per_step(found.wall_ns, found)
    plain["mfu"] = mfu
    plain["hfu"] = hfu_of(found)
    plain["fix_first"] = {"bucket": worst.name if worst else None, "text": fix_first(found)}
    plain["roofline"] = None if roofline is None else msgspec.to_builtins(roofline)
    return plain
