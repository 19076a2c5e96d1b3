"""A :class:`Job` as text, markdown, CSV and plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mfu_torch.insight import breakdown_export, breakdown_table
from mfu_torch.insight.breakdown.ranks import Exchange, Job
from mfu_torch.insight.breakdown_table import decimals_of
from mfu_torch.insight.breakdown_words import bucket_of, fix_first, ms_per_step, share_of, steps_of
from mfu_torch.insight.text import COLUMNS, wrap
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.records.losses import label, losses, printable
from mfu_torch.units import percent, rounded_parts

_MOST = 16  # ranks with a line of their own
_COMMUNICATION = "exposed_communication"


def render(job: Job, *, top: int = 5) -> str:
    """What the ranks lost together, communication by group, and a line for each rank."""
    total = job.total
    blocks = (
        [*breakdown_table.title(_named(job)), *wrap(first(job))],
        breakdown_table.waterfall(total),
        _exchanges(job),
        _ranks(job),
        breakdown_table.top_kernels(total, top),
        breakdown_table.facts(total),
        breakdown_table.said("WARNING", total.warnings),
        breakdown_table.said(
            "Note", (*job.notes, *breakdown_table.edges_note(total), *total.notes)
        ),
    )
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def _named(job: Job) -> Breakdown:
    of = "" if job.world_size is None else f" of {job.world_size}"
    ranks = ", ".join(str(one.rank) for one in job.ranks[:8]) + ", ..." * (len(job.ranks) > 8)
    return msgspec.structs.replace(job.total, file=f"{len(job.ranks)}{of} ranks ({ranks})")


def first(job: Job) -> str:
    """What to fix first; for communication, whether it is the transfer or a rank that is late."""
    total = job.total
    worst = next(iter(losses(total)), None)
    if worst is None or worst.name != _COMMUNICATION or not whose(job):
        return fix_first(total)
    share = percent(worst.time_ns / total.wall_ns)
    hint = printable(worst.hint)
    return f"Fix first: {label(worst.name)}, {share} of the time. {whose(job)} {hint}".rstrip()


def whose(job: Job) -> str:
    """Transfer or waiting, and for whom."""
    exposed, waiting = _sums(job.exchanges)
    if not exposed or not any(one.matched for one in job.exchanges):
        return ""
    text = f"{percent(waiting / exposed)} of exposed communication is waiting for other ranks."
    if job.culprit is not None:
        return f"{text} They wait for rank {job.culprit}, which itself waits least{_more(job)}."
    if waiting and job.world_size == len(job.ranks):
        text += " No single rank is late: they wait for each other in turn."
    elif waiting:
        text += " None of the given ranks is late by itself."
    return text


def _more(job: Job) -> str:
    """In what the late rank takes longer than the mean of the others."""
    (late,) = (one for one in job.ranks if one.rank == job.culprit)
    others = [one for one in job.ranks if one is not late]

    def excess(name: str) -> float:
        mean = sum(_ms(one, name) for one in others) / len(others)
        return _ms(late, name) - mean

    names = [one.name for one in late.buckets if one.name != _COMMUNICATION]
    most = max(names, key=excess, default=None)
    if most is None or excess(most) <= 0:
        return ""
    return f": it takes {excess(most):.3g} ms per step more than the others in {label(most)}"


def _ms(one: Breakdown, name: str) -> float:
    mine = bucket_of(one, name)
    return ms_per_step(mine.time_ns, one) if mine is not None else 0.0


def _sums(exchanges: Sequence[Exchange]) -> tuple[int, int]:
    return sum(one.exposed_ns for one in exchanges), sum(one.waiting_ns for one in exchanges)


# --- communication ---------------------------------------------------------------------------

_WIDTHS = (16, 24, 12, 12, 12, 12, 12)


def _exchanges(job: Job) -> Iterator[str]:
    if not job.exchanges:
        return
    total = job.total
    decimals = decimals_of(ms_per_step(total.wall_ns, total))
    yield "Exposed communication by process group (ms per step of a rank)"
    head = ("  group", "collective", "exposed", "transfer", "waiting", "not split", "matched")
    yield _line(head)
    for one in job.exchanges:
        parts = [one.transfer_ns, one.waiting_ns, one.unsplit_ns]
        times = rounded_parts([ms_per_step(ns, total) for ns in parts], decimals)
        whole = f"{ms_per_step(one.exposed_ns, total):.{decimals}f}"
        matched = percent(one.matched / max(1, one.calls))
        yield _line((f"  {_cut(one.group, 13)}", _cut(one.collective, 22), whole, *times, matched))
    if told := whose(job):
        yield from wrap(told, "  ", "  ")
    if job.bubble_ns is not None:
        ms = f"{ms_per_step(job.bubble_ns, total):.{decimals}f} ms per step of a rank"
        share = percent(job.bubble_ns / max(1, total.wall_ns))
        yield from wrap(
            f"Pipeline bubble: {ms} ({share}), the time in a send or receive beyond its transfer, "
            "and the idle time that one ended.",
            "  ",
            "  ",
        )


def _line(cells: Sequence[str]) -> str:
    names = "".join(f"{cell:<{width}}" for cell, width in zip(cells[:2], _WIDTHS, strict=False))
    numbers = "".join(
        f"{cell:>{width}}" for cell, width in zip(cells[2:], _WIDTHS[2:], strict=True)
    )
    return (names + numbers).rstrip()


def _cut(text: str, columns: int) -> str:
    text = printable(text)
    return text if len(text) <= columns else f"{text[: columns - 3]}..."


# --- ranks -----------------------------------------------------------------------------------


def _ranks(job: Job) -> Iterator[str]:
    yield "Ranks (ms per step)"
    yield _rank_line("rank", "step", "communication", "waiting", "idle", "largest loss")
    waits = {one.rank: one for one in job.waits}
    shown = sorted(job.ranks, key=lambda one: waits[one.rank or 0].waited_ns)[:_MOST]
    for one in sorted(shown, key=lambda one: one.rank or 0):
        mean = ms_per_step(one.wall_ns, one)
        waited = ms_per_step(waits[one.rank or 0].waited_ns, one)
        idle = sum(b.time_ns for b in one.buckets if b.name.startswith("idle/"))
        worst = next(iter(losses(one)), None)
        text = f"{label(worst.name)} {percent(share_of(one, worst.name))}" if worst else "-"
        decimals = decimals_of(mean)
        cells = (mean, ms_per_step(one.communication_ns, one), waited, ms_per_step(idle, one))
        mark = "  <- late" if one.rank == job.culprit else ""
        text = _cut(text, COLUMNS - 56 - len(mark)) + mark
        yield _rank_line(str(one.rank), *(f"{x:.{decimals}f}" for x in cells), text)
    if len(job.ranks) > _MOST:
        yield f"  ... and {len(job.ranks) - _MOST} ranks that wait longer; --json has all"


def _rank_line(*cells: str) -> str:
    *numbers, worst = cells
    widths = (8, 11, 15, 10, 10)
    row = "".join(f"{cell:>{width}}" for cell, width in zip(numbers, widths, strict=True))
    return f"{row}  {worst}".rstrip()


# --- other forms -----------------------------------------------------------------------------


def markdown(job: Job, *, top: int = 5) -> str:
    """The sum over ranks, and communication by group."""
    cell, total = breakdown_export.markdown_cell, job.total
    lines = [breakdown_export.markdown(_named(job), top=top)]
    if job.exchanges:
        lines.append("| group | collective | exposed ms | transfer | waiting | not split |")
        lines.append("|---|---|--:|--:|--:|--:|")
    for one in job.exchanges:
        parts = (one.exposed_ns, one.transfer_ns, one.waiting_ns, one.unsplit_ns)
        times = " | ".join(f"{ms_per_step(ns, total):.4g}" for ns in parts)
        lines.append(f"| {cell(one.group)} | {cell(one.collective)} | {times} |")
    lines += ["", cell(whose(job))] if whose(job) else []
    lines += [f"\nNote: {cell(one)}" for one in job.notes]
    return "\n".join(lines) + "\n"


def csv_text(job: Job) -> str:
    """One line per rank and bucket: nanoseconds of all its steps."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("rank", "bucket", "time_ns", "steps", "wall_ns"))
    names = [one.name for one in job.total.buckets]
    for one in job.ranks:
        for name in names:
            mine = bucket_of(one, name)
            ns = mine.time_ns if mine is not None else 0
            writer.writerow((one.rank, name, ns, steps_of(one), one.wall_ns))
    return out.getvalue()


def summary(job: Job, *, top: int | None = None) -> dict[str, Any]:
    """The record and what is computed from it, for programs."""
    return {
        "total": breakdown_export.summary(job.total, top=top),
        "ranks": [breakdown_export.summary(one, top=top) for one in job.ranks],
        "world_size": job.world_size,
        "exchanges": msgspec.to_builtins(job.exchanges),
        "waits": msgspec.to_builtins(job.waits),
        "culprit": job.culprit,
        "bubble_ns": job.bubble_ns,
        "fix_first": first(job),
        "notes": job.notes,
    }
