"""A :class:`Job` as text, markdown, CSV and plain values."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from mfu_torch.insight import breakdown_export, breakdown_table, roofline_table
from mfu_torch.insight.breakdown.printed import printed_shares
from mfu_torch.insight.breakdown.ranks import Exchange, Job, RankWait
from mfu_torch.insight.breakdown_table import decimals_of
from mfu_torch.insight.breakdown_words import bucket_of, ms_per_step, steps_of
from mfu_torch.insight.ranks_words import bubbles, first, whose
from mfu_torch.insight.text import COLUMNS, plural, wrap
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.records.losses import label, losses, printable
from mfu_torch.units import percent, rounded_parts

_MOST = 12  # ranks with a line of their own


def render(job: Job, *, top: int = 5) -> str:
    """What the ranks lost together, communication by group, and a line for each rank."""
    total = job.total
    blocks = (
        [*breakdown_table.title(_named(job)), *wrap(first(job))],
        breakdown_table.said("WARNING", total.warnings),
        breakdown_table.waterfall(total),
        _exchanges(job),
        _ranks(job),
        breakdown_table.top_kernels(total, top),
        roofline_table.job_lines(job.roofline, total, top),
        breakdown_table.facts(total),
        breakdown_table.said(
            "Note", (*job.notes, *breakdown_table.edges_note(total), *total.notes)
        ),
    )
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def _named(job: Job) -> Breakdown:
    of = "" if job.world_size is None else f" of {job.world_size}"
    ranks = ", ".join(str(one.rank) for one in job.ranks[:8]) + ", ..." * (len(job.ranks) > 8)
    return msgspec.structs.replace(job.total, file=f"{len(job.ranks)}{of} ranks ({ranks})")


# --- communication ---------------------------------------------------------------------------

_WIDTHS = (30, 15, 11, 11, 11, 11, 11)


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
        yield _line((f"  {_group(one)}", _cut(one.collective, 14), whole, *times, matched))
    if told := whose(job):
        yield from wrap(told, "  ", "  ")
    for sentence in bubbles(job, decimals):
        yield from wrap(sentence, "  ", "  ")


def _group(one: Exchange) -> str:
    """``DATA_PARALLEL (8x)``: eight groups that the program calls DATA_PARALLEL_GROUP."""
    several = f" ({one.groups}x)" if one.groups > 1 else ""
    return _cut(one.group.replace("_GROUP", ""), _WIDTHS[0] - 3 - len(several)) + several


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
    """All of them by their number; of many, those that wait least and those that wait most."""
    waits = {one.rank: one for one in job.waits}
    yield "Ranks (ms per step)"
    yield _rank_line("rank", "step", "communication", "waiting", "idle", "largest loss")
    if len(job.ranks) <= _MOST:
        yield from (_rank(job, one, waits) for one in job.ranks)
        return
    order, left_out = _by_lateness(job, waits), len(job.ranks) - _MOST
    half = _MOST // 2
    yield from (_rank(job, one, waits) for one in order[:half])
    by = "wait" if _has_waits(job) else "take"
    ends = ("least", "most") if by == "wait" else ("longest", "shortest")
    between = f"{plural(left_out, 'rank')} between those that {by} {ends[0]} and {ends[1]}"
    yield f"     ...  {between}: --json has all"
    yield from (_rank(job, one, waits) for one in order[-half:])


def _by_lateness(job: Job, waits: dict[int, RankWait]) -> list[Breakdown]:
    """The slowest first: late ranks, then those that wait least; else those whose steps last."""
    late = {rank for one in job.late for rank in one.ranks}
    has_waits = _has_waits(job)

    def key(one: Breakdown) -> tuple[bool, float, float]:
        waited = ms_per_step(waits[one.rank or 0].waited_ns, one) if has_waits else 0.0
        return one.rank not in late, waited, -ms_per_step(one.wall_ns, one)

    return sorted(job.ranks, key=key)


def _has_waits(job: Job) -> bool:
    return any(one.waited_ns for one in job.waits)


def _rank(job: Job, one: Breakdown, waits: dict[int, RankWait]) -> str:
    mean, wait = ms_per_step(one.wall_ns, one), waits[one.rank or 0]
    idle = sum(b.time_ns for b in one.buckets if b.name.startswith("idle/"))
    worst = next(iter(losses(one)), None)
    share = printed_shares(one, 1).get(worst.name) if worst else None
    text = f"{label(worst.name)} {share} %" if worst else "-"
    decimals = decimals_of(mean)
    times = (one.wall_ns, one.communication_ns, wait.waited_ns, idle)
    cells = [f"{ms_per_step(ns, one):.{decimals}f}" for ns in times]
    if not wait.matched:
        cells[2] = "-"
    mark = "  <- late" if any(one.rank in late.ranks for late in job.late) else ""
    text = _cut(text, COLUMNS - 56 - len(mark)) + mark
    return _rank_line(str(one.rank), *cells, text)


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
        lines.append(f"| {cell(_group(one))} | {cell(one.collective)} | {times} |")
    told = [one for one in (whose(job), *bubbles(job, 3)) if one]
    lines += [line for one in told for line in ("", cell(one))]
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
        "total": breakdown_export.summary(job.total, top=top, roofline=job.roofline.total),
        "ranks": [_without_roofline(one, top) for one in job.ranks],
        "world_size": job.world_size,
        "exchanges": msgspec.to_builtins(job.exchanges),
        "waits": msgspec.to_builtins(job.waits),
        "culprit": job.culprit,
        "late": msgspec.to_builtins(job.late),
        "bubble_ns": job.bubble_ns,
        "pipelines": msgspec.to_builtins(job.pipelines),
        "roofs": msgspec.to_builtins(job.roofline.devices),
        "fix_first": first(job),
        "notes": job.notes,
    }


def _without_roofline(one: Breakdown, top: int | None) -> dict[str, Any]:
    plain = breakdown_export.summary(one, top=top)
    del plain["roofline"]  # it is that of all ranks: "total" has it
    return plain
