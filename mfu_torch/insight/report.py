"""One run as text: what share of the hardware went into the model, and where the rest went.

Every number comes from :mod:`mfu_torch.figures`; here they only become words. What is not known
is listed at the end, with the reason and the line of code that supplies it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from mfu_torch.figures import ABOVE_PEAK, ESTIMATED, NOT_GIVEN, Figures, run_figures
from mfu_torch.insight.advice import advice
from mfu_torch.insight.breakdown_block import breakdown_block
from mfu_torch.insight.device_block import device_block
from mfu_torch.insight.parts_block import not_split, parts_block
from mfu_torch.insight.text import field, plural, share_text, wrap
from mfu_torch.records import CountEntry, FlopCount, Phase, Run
from mfu_torch.units import bytes_, margin, percent, rounded_parts, scaled, seconds
from mfu_torch.wall import WallShare, wall_shares, whole_s

PHASES: tuple[tuple[Phase, str], ...] = (
    ("forward", "forward"),
    ("forward_no_grad", "forward, no gradient"),
    ("backward", "backward"),
    ("given", "given"),
    ("recompute", "recompute"),
    ("kernel_recompute", "recompute in attention kernels"),
    ("optimizer", "optimizer"),
)
"""Phases of a count, and how they are called; in the order in which they are shown."""

OVERLAP = "other is negative: the recorded parts are longer than the wall time"
"""Said where they are by more than rounding."""

_GIVE_PEAK = 'Meter(..., peak="... TFLOP/s")'
_GIVE_FLOPS = 'Meter(..., flops={"bf16": MODEL_FLOPS_PER_STEP})'
_GIVE_WORK = "with meter.step(tokens=n, samples=b):"
_GIVE_FORMULA = "mfu_torch.register_flops(op, formula)"


def render_report(run: Run) -> str:
    """The report of a run, at most 100 columns wide; it may still be going on.

    Steady-state figures are over the steps that are not excluded, end-to-end MFU over all steps
    and the whole wall time; the table in between explains the gap.
    """
    now = run_figures(run)
    blocks = (
        _title(run),
        _headline(run, now),
        _advice(run, now),
        device_block(run),
        _wall_table(run, now),
        parts_block(run, now),
        breakdown_block(run),
        _flops_block(run),
        _peaks_block(run),
        _notes_block(run),
        _absent_block(run, now),
    )
    return "\n\n".join("\n".join(block) for block in map(list, blocks) if block) + "\n"


def status(run: Run) -> str:
    """How the run ended, in words."""
    if run.end is None:
        return "no end record: still running, or its process was killed"
    return "completed" if run.end.reason == "completed" else f"ended by {run.end.reason}"


def _title(run: Run) -> Iterator[str]:
    for line in title(run):
        yield from wrap(line)


def title(run: Run) -> Iterator[str]:
    """What was run, how far, and what its figures are of: sentences."""
    steps = sum(len(window.steps) for window in run.windows)
    yield (
        f"{run.header.device.name} | {plural(steps, 'step')} | {seconds(run.wall_s)} | "
        f"{status(run)}"
    )
    earlier = run.header.earlier
    if earlier is not None:
        yield (
            f"resumed after step {earlier.steps}; end-to-end MFU is over all attempts since "
            f"{earlier.started}"
        )
    if run.header.world_size > 1:
        yield (
            f"rank {run.header.rank} of {run.header.world_size}: "
            "the figures are those of this rank's device"
        )


def _headline(run: Run, now: Figures) -> Iterator[str]:
    return (field(label, text) for label, text in headline(run, now))


def _advice(run: Run, now: Figures) -> Iterator[str]:
    found = advice(run, now)
    if found is not None:
        yield from wrap(f"Fix first: {found.text}")


def headline(run: Run, now: Figures) -> Iterator[tuple[str, str]]:
    """The figures of a run, as labels and words; a label is empty where the one above goes on."""
    attention = run.header.attention
    other = "causal" if attention == "full" else "full"
    other_mfu = now.mfu_causal if attention == "full" else now.mfu_full
    convention = f"attention {attention}"
    if now.mfu_causal != now.mfu_full:  # else there is no attention, or no mask is known
        convention += f"; {other}: {share_text(other_mfu)}"
    yield (
        "MFU",
        f"{share_text(now.mfu)} steady-state, {share_text(now.end_to_end)} end-to-end   "
        f"({convention})",
    )
    yield ("HFU", f"{share_text(now.hfu)} steady-state")
    if max(now.mfu or 0.0, now.hfu or 0.0, now.end_to_end or 0.0) > 1:
        yield ("", ABOVE_PEAK)
    if now.uncertainty is not None:
        yield ("", f"{ESTIMATED}: within {percent(now.uncertainty)} of these figures")
    if now.model_flops_per_s is not None:
        yield ("model", f"{scaled(now.model_flops_per_s, 'FLOP/s')} per device")
    rates = [
        f"{scaled(rate, '')} {name}/s"
        for name, rate in (("tokens", now.tokens_per_s), ("samples", now.samples_per_s))
        if rate is not None
    ]
    if rates:
        yield ("throughput", ", ".join(rates))
    if now.step_s is not None and now.step_s_p95 is not None:
        yield (
            "step time",
            f"{seconds(now.step_s)} mean, {seconds(now.step_s_p95)} p95, "
            f"over {plural(now.steps, 'steady step')}",
        )
    if now.data_wait_share is not None:
        yield ("data wait", f"{percent(now.data_wait_share)} of the step time")
    if now.phases:
        shares = ", ".join(f"{name} {percent(share)}" for name, share in now.phases.items())
        yield ("phases", f"{shares} of the step time")
    if now.memory_bytes is not None:
        yield ("memory", f"{bytes_(now.memory_bytes)} at its peak")


def _wall_table(run: Run, now: Figures) -> Iterator[str]:
    rows = wall_rows(run, now)
    if not rows:
        return
    yield _row("Where the wall time went", "seconds", "share %", "MFU gap, points")
    for name, *cells in rows:
        yield _row(f"  {name}", *cells)
    if wall_shares(run)[-1].time_s < -0.005 * whole_s(run):
        yield from wrap(f"  {OVERLAP}")


def wall_rows(run: Run, now: Figures) -> list[tuple[str, str, str, str]]:
    """Name, seconds, share in percent and MFU gap in points of each part, and their total."""
    parts = wall_shares(run)
    if not parts:
        return []
    wall_s = whole_s(run)
    times = rounded_parts([part.time_s for part in parts], _decimals(wall_s))
    shares = rounded_parts([100 * part.share for part in parts], 1)
    gaps, gap = ["-"] * len(parts), "-"
    if now.mfu is not None and now.end_to_end is not None:
        gaps = rounded_parts([100 * (part.mfu_gap or 0.0) for part in parts], 1)
        gap = f"{100 * (now.mfu - now.end_to_end):.1f}"
    names = [part_name(part) for part in parts]
    total = ("total", f"{wall_s:.{_decimals(wall_s)}f}", "100.0", gap)
    return [*zip(names, times, shares, gaps, strict=True), total]


def _row(name: str, time: str, share: str, gap: str) -> str:
    if len(name) > 50:
        name = name[:47] + "..."
    return f"{name:<50}{time:>14}{share:>12}{gap:>18}"


def part_name(part: WallShare) -> str:
    """How a part of the wall time is called, with how often it was."""
    if part.kind == "steady":
        return f"steady steps ({part.times})"
    if part.kind == "earlier":
        return f"earlier attempts ({plural(part.times, 'step')} kept)"
    if part.kind == "other":
        return "other"
    return f"{part.kind}: {part.name} ({part.times})"


def _decimals(wall_s: float) -> int:
    """So that the smallest time shown is well below a thousandth of the whole."""
    return 1 if wall_s >= 100 else 2 if wall_s >= 10 else 4


def _flops_block(run: Run) -> Iterator[str]:
    uses = Counter(tuple(sorted(step.count_ids)) for step in run.steps)
    if not uses:
        return
    count, of = usual_count(run)
    if count is None:
        yield f"FLOPs per step: not known ({of})"
    else:
        yield f"FLOPs per step ({of})"
        yield from (field(f"  {label}", text, 34) for label, text in count_rows(count))
    yield from _spread(run, uses)
    if any(_known(entry) for entry in run.counts.values()):
        yield field("  not counted", uncounted_text(run), 34)


def usual_count(run: Run) -> tuple[FlopCount | None, str]:
    """The FLOPs that most steps have, ``None`` if not known; and how many have, in words."""
    uses = Counter(tuple(sorted(step.count_ids)) for step in run.steps)
    if not uses:
        return None, "no step is recorded"
    total = sum(uses.values())
    count_ids, times = uses.most_common(1)[0]
    others = len(uses) - 1
    of = f"{times} of {plural(total, 'step')}"
    if others:
        of += f"; the others have {plural(others, 'other count')}"
    counts = [count for i in count_ids if (count := _known(run.counts.get(i))) is not None]
    return (FlopCount.sum(counts) if len(counts) == len(count_ids) else None), of


def _spread(run: Run, uses: Mapping[tuple[int, ...], int]) -> Iterator[str]:
    """Over all steps whose count is known: the range of model FLOPs, and their mean."""
    model: dict[int, int] = {}  # model FLOPs -> steps
    for count_ids, times in uses.items():
        counts = [count for i in count_ids if (count := _known(run.counts.get(i))) is not None]
        if len(counts) == len(count_ids):
            flops = sum(count.model for count in counts)
            model[flops] = model.get(flops, 0) + times
    if len(model) < 2:
        return
    mean = sum(flops * times for flops, times in model.items()) / sum(model.values())
    low, high = scaled(min(model), "FLOP"), scaled(max(model), "FLOP")
    yield field("  model FLOPs of all steps", f"{low} to {high}, mean {scaled(mean, 'FLOP')}", 34)


def _known(entry: CountEntry | None) -> FlopCount | None:
    return None if entry is None else entry.count


def count_rows(count: FlopCount) -> Iterator[tuple[str, str]]:
    """A count as labels and words: phases, model and hardware FLOPs, dtypes, how it is known."""
    for phase, name in PHASES:
        flops = getattr(count, phase)
        if flops:
            yield name, _share_of(flops, count.hardware)
    causal = f"   (attention causal: {scaled(count.model_causal, 'FLOP')})"
    if count.model_causal == count.model:
        causal = ""
    yield "model FLOPs", scaled(count.model, "FLOP") + causal
    yield "hardware FLOPs", scaled(count.hardware, "FLOP")
    by_dtype = sorted(count.by_dtype.items(), key=lambda item: -item[1])
    shares = ", ".join(f"{dtype} {_share_of(flops, count.hardware)}" for dtype, flops in by_dtype)
    if shares:
        yield "by dtype", shares
    if count.method:
        yield "how", count.method
    if count.elementwise:
        text = f"{scaled(count.elementwise, '')} elements of elementwise and reduction ops"
        yield "left out by definition", text


def uncounted_text(run: Run) -> str:
    """What looks like a contraction and has no formula, in all counts that are known."""
    calls: Counter[str] = Counter()
    for entry in run.counts.values():
        for op, times in entry.count.uncounted.items() if entry.count else ():
            calls[op] = max(calls[op], times)
    if not calls:
        return "nothing: every op that looks like a contraction has a formula"
    ops = ", ".join(f"{op} ({plural(n, 'call')} a step)" for op, n in calls.most_common())
    return f"{ops}; MFU is a lower bound -> {_GIVE_FORMULA}"


def _peaks_block(run: Run) -> Iterator[str]:
    if run.peaks:
        yield "Peaks, dense, per device"
    for dtype, entry in run.peaks.items():
        peak = entry.peak
        if peak is None:
            yield field(f"  {dtype}", f"unknown: {entry.unknown}")
        else:
            rate = scaled(peak.flops_per_s, "FLOP/s")
            how = f"{peak.provenance}{margin(peak.uncertainty)}"
            yield field(f"  {dtype}", f"{rate}, {how}: {peak.source}")


def _notes_block(run: Run) -> Iterator[str]:
    notes = notes_of(run)
    if notes:
        yield "Notes"
    for note in notes:
        yield from wrap(f"- {note}", "  ", "    ")


def notes_of(run: Run) -> tuple[str, ...]:
    """What has to be said of the counts, during the run and by its reader, each once."""
    notes = [note for entry in run.counts.values() if entry.count for note in entry.count.notes]
    return tuple(dict.fromkeys([*notes, *(run.end.notes if run.end else ()), *run.notes]))


def _absent_block(run: Run, now: Figures) -> Iterator[str]:
    lines = not_known(run, now)
    if lines:
        yield "Not known"
    for text in lines:
        yield from wrap(text, "  ", "    ")


def not_known(run: Run, now: Figures) -> list[str]:
    """Each reason once, with the figures that it concerns and what supplies them."""
    names = {"mfu": "MFU", "hfu": "HFU", "end_to_end": "end-to-end MFU"}
    names["model_flops_per_s"] = "model FLOP/s"
    if now.steps and now.tokens_per_s is None and now.samples_per_s is None:
        names["tokens_per_s"] = "throughput"
    concerned: dict[str, list[str]] = {}
    for key, name in names.items():
        if key in now.absent:
            concerned.setdefault(now.absent[key], []).append(name)
    lines = []
    for reason, figures in concerned.items():
        remedy = _remedy(reason, run)
        lines.append(f"{', '.join(figures)}: {reason}" + (f" -> {remedy}" if remedy else ""))
    return [*lines, *not_split(run, now)]


def _remedy(reason: str, run: Run) -> str:
    """The line that supplies what is missing, unless the reason already says it."""
    if reason.startswith(NOT_GIVEN):
        return _GIVE_WORK
    if any(reason == entry.unknown for entry in run.peaks.values()) and "peak=" not in reason:
        return _GIVE_PEAK
    if any(reason == entry.unknown for entry in run.counts.values()) and "flops=" not in reason:
        return _GIVE_FLOPS
    return ""


def _share_of(flops: int, total: int) -> str:
    return f"{scaled(flops, 'FLOP')} ({percent(flops / total)})"
