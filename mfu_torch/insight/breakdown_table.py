"""A :class:`Breakdown` as text: from the step time down to the MFU, and what to fix first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from mfu_torch.insight.breakdown.printed import hint_beside, printed_shares, short_share
from mfu_torch.insight.breakdown_words import (
    EDGES,
    fix_first,
    hfu_of,
    kernel_name,
    lacking,
    large_losses,
    mfu_of,
    ms_per_step,
    share_of,
    steps_of,
)
from mfu_torch.insight.text import COLUMNS, plural, wrap
from mfu_torch.records.breakdown import BUCKETS, Breakdown, Bucket, Kernel
from mfu_torch.records.losses import first_loss, label, printable
from mfu_torch.units import margin, percent, rounded_parts, scaled

_LABEL, _MS, _SHARE = 30, 12, 11
_BAR = COLUMNS - _LABEL - _MS - _SHARE - 2
_FIX = "fix first"
_ORDER = ("matrix", *BUCKETS)


def render(found: Breakdown, *, top: int = 5, roofs: Iterable[str] = ()) -> str:
    """The breakdown, at most 100 columns wide.

    Args:
        found: What :func:`mfu_torch.insight.explain` returned.
        top: How many kernels are shown of each of the three largest losses; 0: none.
        roofs: Lines on the roofline, :func:`mfu_torch.insight.roofline_table.lines`.
    """
    blocks = (
        [*title(found), *wrap(fix_first(found))],
        said("WARNING", found.warnings),
        waterfall(found),
        top_kernels(found, top),
        roofs,
        facts(found),
        said("Note", (*edges_note(found), *found.notes)),
    )
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


# --- title -----------------------------------------------------------------------------------


def title(found: Breakdown) -> Iterator[str]:
    """What was traced: file, device, steps, and what a step is."""
    parts = [printable(found.file)]
    if found.device:
        parts.append(printable(found.device))
    if found.rank is not None:
        parts.append(f"rank {found.rank}")
    parts.append(_steps(found))
    yield from wrap(" | ".join(parts))


def _steps(found: Breakdown) -> str:
    mean = ms_per_step(found.wall_ns, found)
    if found.edges == "trace":
        return f"{_short_ms(mean)} ms, {EDGES['trace']}"
    text = f"{plural(steps_of(found), 'step')}, {_short_ms(mean)} ms per step"
    least, most = _short_ms(min(found.step_ns) / 1e6), _short_ms(max(found.step_ns) / 1e6)
    if least != most:
        text += f" ({least} to {most})"
    return f"{text} | {printable(found.edges)} edges"


def _short_ms(value: float) -> str:
    return f"{value:.{max(0, decimals_of(value) - 1)}f}"


def decimals_of(ms: float) -> int:
    """Decimals with which a hundredth of a percent of a step shows: 2 for 195 ms."""
    return min(6, max(0, 4 - math.floor(math.log10(ms)))) if ms > 0 else 3


# --- waterfall -------------------------------------------------------------------------------


def in_order(found: Breakdown) -> list[Bucket]:
    """From the outside in: idle time first, what the MFU is last."""
    known = {name: at for at, name in enumerate(_ORDER)}
    return sorted(found.buckets, key=lambda one: -known.get(one.name, len(known)))


def parts_text(found: Breakdown, buckets: Sequence[Bucket]) -> list[tuple[str, str]]:
    """``("65.61", "33.60")`` for each: ms per step and percent, which add up as printed."""
    decimals = decimals_of(ms_per_step(found.wall_ns, found))
    times = rounded_parts([ms_per_step(one.time_ns, found) for one in buckets], decimals)
    shares = printed_shares(found, 2)
    return [(ms, shares[one.name]) for ms, one in zip(times, buckets, strict=True)]


def waterfall(found: Breakdown) -> Iterator[str]:
    """The buckets from the outside in, each with its bar and hint, and their sum."""
    buckets = in_order(found)
    mean = ms_per_step(found.wall_ns, found)
    whole = f"{mean:.{decimals_of(mean)}f}"
    is_one = found.edges == "trace"
    yield _row("Where the time goes", "ms" if is_one else "ms per step", "share", "")
    name = "  whole trace" if is_one else "  step time"
    yield _row(name, whole, "100.00 %", "#" * _BAR)
    worst = first_loss(found)
    passed = found.wall_ns
    for one, (ms, share) in zip(buckets, parts_text(found, buckets), strict=True):
        passed -= one.time_ns
        mark = "=" if one.name == "matrix/model_flops" else "-"
        bar = _bar(passed, one.time_ns, found.wall_ns)
        bar = _marked(bar) if one is worst else bar
        yield _row(f"{mark} {label(one.name)}", ms, f"{share} %", bar)
        if one is worst and one.hint:
            yield "      see above"
        elif one.hint:
            yield from wrap(printable(hint_beside(found, one.name, one.hint)), "      ", "      ")
    yield _sum(found, whole)


def _sum(found: Breakdown, whole: str) -> str:
    total = sum(one.time_ns for one in found.buckets)
    if total != found.wall_ns:  # never seen: the partition is asserted; a record may be edited
        text = f"WRONG: {total:,} ns of {found.wall_ns:,} ns"
    else:
        text = f"= wall time, {found.wall_ns:,} ns"
    return _row("  SUM", whole, "100.00 %", text)


def _bar(from_ns: int, time_ns: int, wall_ns: int) -> str:
    """Where it lies below the step time, as the whole bar is the step."""
    if wall_ns <= 0 or time_ns <= 0:
        return ""
    begin = round(_BAR * max(0, from_ns) / wall_ns)
    end = min(_BAR, round(_BAR * (from_ns + time_ns) / wall_ns))
    if 2 * _BAR * time_ns < wall_ns or begin == end:  # less than half a character
        return " " * min(begin, _BAR - 1) + "|"
    return " " * begin + "#" * (end - begin)


def _marked(bar: str) -> str:
    """Beside the bar, on the side where there is room."""
    if len(bar) + len(_FIX) + 4 <= _BAR:
        return f"{bar} <- {_FIX}"
    free = len(bar) - len(bar.lstrip(" "))
    return f"{_FIX} -> ".rjust(free) + bar[free:] if free >= len(_FIX) + 4 else bar


def _row(name: str, ms: str, share: str, bar: str) -> str:
    return f"{name:<{_LABEL}}{ms:>{_MS}}{share:>{_SHARE}}  {bar}".rstrip()


# --- top kernels -----------------------------------------------------------------------------


def top_kernels(found: Breakdown, top: int) -> Iterator[str]:
    """What took most of the three largest losses."""
    shown = [one for one in large_losses(found) if one.top[:top]]
    if not shown:
        return
    per_step = "ms, times" if found.edges == "trace" else "ms per step, times per step"
    columns = "op, kernel" if found.coverage.work else "op"
    yield f"What took it ({per_step}, {columns})"
    for one in shown:
        ended = ""
        if one.name.startswith("idle/") and found.coverage.work:
            ended = ": the kernels for which the GPU waited"
        yield f"  {label(one.name)}{ended}"
        for kernel in one.top[:top]:
            yield _kernel(kernel, found)


def _kernel(kernel: Kernel, found: Breakdown) -> str:
    decimals = decimals_of(ms_per_step(found.wall_ns, found))
    ms = f"{ms_per_step(kernel.time_ns, found):.{decimals}f}"
    times = kernel.count / steps_of(found)
    each = f"{times:,.0f}x" if times >= 10 or times == int(times) else f"{times:.1f}x"
    on_cpu = not found.coverage.work  # there the ops themselves are what ran
    op = kernel_name(kernel, COLUMNS) if on_cpu else printable(kernel.op or "-")
    op = op.removeprefix("aten::")
    if on_cpu:
        return f"{ms:>12} {each:>8}  {op}"[:COLUMNS]
    op = op if len(op) <= 26 else f"{op[:23]}..."
    left = f"{ms:>12} {each:>8}  {op:<26}  "
    return left + kernel_name(kernel, COLUMNS - len(left))


# --- facts -----------------------------------------------------------------------------------


def facts(found: Breakdown) -> Iterator[str]:
    """MFU, communication and coverage."""
    yield from wrap(mfu_text(found))
    if found.communication_ns:
        yield from wrap(_communication(found))
    yield from wrap(coverage_text(found))


def mfu_text(found: Breakdown) -> str:
    """MFU with what it divides by; what it lacks, where it is not known."""
    if found.peak is None and not found.coverage.matrix_ns:
        return "MFU: there is no matrix work in these steps"
    if found.peak is None:
        return f"MFU: not known without {lacking(found)}; the notes below say why"
    peak, mfu, hfu = found.peak, mfu_of(found) or 0.0, hfu_of(found) or 0.0
    at_least = " or more" if share_of(found, "matrix/unknown_flops") > 0 else ""
    text = f"MFU {short_share(found, 'matrix/model_flops')}{at_least}"
    text += f", HFU {percent(hfu)}{at_least}" if hfu > mfu else ""
    if found.model_flops is not None:
        per_step = found.model_flops / steps_of(found)
        text += f": {scaled(per_step, 'FLOP', 4)}{_each(found)}"
    text += f", of {scaled(peak.flops_per_s, 'FLOP/s', 4)} {peak.dtype}, {peak.provenance}"
    source = "" if peak.source == peak.provenance else f" ({printable(peak.source)})"
    return f"{text}{source}{margin(peak.uncertainty)}"


def _communication(found: Breakdown) -> str:
    total, beside = found.communication_ns, found.overlapped_ns
    decimals = decimals_of(ms_per_step(found.wall_ns, found))
    ms = [f"{ms_per_step(x, found):.{decimals}f} ms" for x in (total, beside, total - beside)]
    hidden = percent(beside / total)
    return (
        f"Communication: {ms[0]}{_each(found)}, of it {ms[1]} ({hidden}) beside compute, "
        f"{ms[2]} exposed"
    )


def _each(found: Breakdown) -> str:
    return "" if found.edges == "trace" else " per step"


def coverage_text(found: Breakdown) -> str:
    """How much of what was seen is understood."""
    seen = found.coverage
    parts = []
    if seen.work:
        share = percent(seen.launches / seen.work)
        parts.append(
            f"launches known of {seen.launches:,} of {seen.work:,} kernels and copies ({share})"
        )
    if seen.matrix_ns:
        share = percent(seen.matrix_known_ns / seen.matrix_ns)
        parts.append(f"FLOPs of {share} of matrix time")
    return "Coverage: " + (", ".join(parts) or "there is no work of a device in the trace")


def edges_note(found: Breakdown) -> Iterator[str]:
    """What a step is."""
    if found.edges in ("gpu", "cpu"):
        other = "cpu" if found.edges == "gpu" else "gpu"
        instead = f" (--edges {other}: {EDGES[other]})" if found.coverage.work else ""
        yield f"{found.edges} edges: {EDGES[found.edges]}{instead}"


def said(label_: str, sentences: Sequence[str]) -> Iterator[str]:
    """Sentences, each with what it is before it."""
    for one in sentences:
        yield from wrap(f"{label_}: {printable(one)}")
