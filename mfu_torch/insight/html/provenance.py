"""Where every number of a page comes from: conventions, peaks, counts, clocks, versions, gaps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from mfu_torch.figures import Figures
from mfu_torch.ideal import by_count
from mfu_torch.insight.html.markup import Child, Markup, element, joined, pairs, table
from mfu_torch.insight.report import not_known, notes_of
from mfu_torch.insight.text import plural
from mfu_torch.records import CountEntry, Peak, Run
from mfu_torch.units import bytes_, percent, scaled

_DEFINITIONS = (
    ("MFU", "ideal time of the model FLOPs at the peak / time of the steady steps"),
    ("HFU", "the same with hardware FLOPs: what is computed twice counts twice"),
    ("end-to-end MFU", "ideal time of the model FLOPs of all steps / wall time of the run"),
    ("ideal time", "sum over dtypes of FLOPs / peak; a multiply-add is 2 FLOPs"),
    ("throughput, step time", "over the steady steps: sums over sums, never means of rates"),
    ("p95", "95th percentile of the step time, nearest rank"),
    ("data wait", "host time spent waiting for the next batch / time of the steady steps"),
)
_CONVENTIONS = {
    "full": "full: every attention score is counted",
    "causal": "causal: only the attention scores that the mask keeps are counted",
}
_COUNTS = 30
"""Counts that have a row; a run on sequences of any length can have many."""


def provenance(run: Run, now: Figures) -> Markup:
    """What stands behind the numbers of a run, and what is not known with its reason."""
    return joined(
        element("h3", "What is not known"),
        _list(not_known(run, now)) or element("p", "Nothing: every figure above is known."),
        element("h3", "How the figures are computed"),
        pairs(_DEFINITIONS),
        element("h3", "The run"),
        pairs(_of_run(run, now)),
        element("h3", "Peaks, dense, of one device"),
        _peaks(run),
        element("h3", "Counts of FLOPs"),
        _counts(run),
        element("h3", "Notes"),
        _list(notes_of(run)) or element("p", "None."),
    )


def _list(lines: list[str] | tuple[str, ...]) -> Markup | None:
    return element("ul", [element("li", line) for line in lines]) if lines else None


def _of_run(run: Run, now: Figures) -> Iterator[tuple[str, Child]]:
    header, device = run.header, run.header.device
    yield "attention", _CONVENTIONS[header.attention]
    yield "time", header.clock
    yield "steady steps", _steps(run, now)
    yield "model", _model(run)
    yield "device", device.name
    facts = {
        "kind": device.kind,
        "index": device.index,
        "MIG": device.mig,
        "multiprocessors or cores": device.sm_count,
        "threads": device.threads,
        "memory": None if device.memory_bytes is None else bytes_(device.memory_bytes),
        "compute capability": device.compute_capability,
        "highest clock": None if device.max_clock_hz is None else _hz(device.max_clock_hz),
    }
    yield "", ", ".join(f"{name} {fact}" for name, fact in facts.items() if fact is not None)
    yield "rank", f"{header.rank} of {header.world_size}: figures are those of this rank's device"
    yield "began", header.started
    if header.earlier is not None:
        earlier = header.earlier
        yield "resumed", f"after step {earlier.steps} of a run that began {earlier.started}"
    yield "versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())


def _steps(run: Run, now: Figures) -> str:
    excluded = Counter(step.excluded for step in run.steps if step.excluded)
    text = f"{now.steps} of {plural(now.steps + sum(excluded.values()), 'step')}"
    reasons = ", ".join(f"{reason} ({times})" for reason, times in excluded.items())
    return f"{text}; excluded: {reasons}" if reasons else text


def _model(run: Run) -> str:
    header = run.header
    parts = [header.model] if header.model else []
    if header.parameters is not None:
        parts.append(f"{header.parameters:,} parameters")
    if header.trainable is not None and header.trainable != header.parameters:
        parts.append(f"{header.trainable:,} of them trainable")
    return ", ".join(parts)


def _hz(clock_hz: float) -> str:
    return f"{clock_hz / 1e6:.0f} MHz"


def _peaks(run: Run) -> Markup:
    rows = []
    for dtype, entry in run.peaks.items():
        if entry.peak is None:
            rows.append([dtype, "unknown", "", entry.unknown])
        else:
            rows.append(_peak(dtype, entry.peak))
        if entry.measured is not None:
            rows.append(_peak(f"{dtype}, measured beside it", entry.measured))
    if not rows:
        return element("p", "None was needed yet.")
    return table(("dtype", "FLOP/s", "how it is known", "source"), rows)


def _peak(name: str, peak: Peak) -> list[str]:
    how: str = peak.provenance
    if peak.uncertainty is not None:
        how += f", up to {percent(peak.uncertainty)} off"
    source = peak.source
    if peak.device:
        source += f"; device: {peak.device}"
    if peak.clock_hz is not None:
        source += f"; at {_hz(peak.clock_hz)}"
    return [name, scaled(peak.flops_per_s, "FLOP/s"), how, source]


def _counts(run: Run) -> Markup:
    uses = by_count(list(run.steps))
    entries = sorted(run.counts.values(), key=lambda entry: (-uses[entry.id], entry.id))
    if not entries:
        return element("p", "Nothing was counted.")
    titles = ("count", "steps", "model", "hardware", "how it is known")
    rows = [_count(entry, uses[entry.id]) for entry in entries[:_COUNTS]]
    more = len(entries) - len(rows)
    rest = f"and {plural(more, 'further count')}, all among the numbers below" if more > 0 else ""
    return joined(table(titles, rows), element("p", rest, class_="soft") if rest else None)


def _count(entry: CountEntry, times: int) -> list[Child]:
    count = entry.count
    if count is None:
        return [str(entry.id), str(times), "unknown", "unknown", entry.unknown]
    how = [count.method or "not said"]
    if count.uncertainty:
        how.append(f"within {percent(count.uncertainty)}")
    if count.uncounted:
        calls = ", ".join(f"{op} ({plural(n, 'call')})" for op, n in count.uncounted.items())
        how.append(f"not counted: {calls}")
    flops = scaled(count.model, "FLOP"), scaled(count.hardware, "FLOP")
    return [str(entry.id), str(times), *flops, "; ".join(how)]
