"""Run files are not trusted: what no run can be is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.records import MFUError, Run

_LONGEST_S = 1e10
"""Three hundred years."""
_SHORTEST_S = 1e-9
"""No clock here tells steps of less; 0 is what a clock shows that does not tell them at all."""
_SLOWEST, _FASTEST = 1.0, 1e24
"""FLOP/s of one device."""
_MOST = 10**18
"""Tokens of a step, bytes of memory."""
_MOST_FLOPS = 10**30
"""Of a step on one device: thirty thousand years at 1 EFLOP/s."""


def plausible(run: Run, name: str) -> Run:
    """The run itself, if sums and ratios of what it holds are numbers.

    Args:
        run: It.
        name: Of its file, for the message.

    Raises:
        MFUError: One of its times is longer than 10^10 s, a step is shorter than a nanosecond, a
            peak is not between 1 and 10^24 FLOP/s, a count of FLOPs is above 10^30 or of anything
            else above 10^18, or the parts of a breakdown do not sum to its time.
    """
    for problem in _problems(run):
        raise MFUError(f"{name}: {problem}: the file is damaged or was changed")
    return run


def _problems(run: Run) -> Iterator[str]:
    for what, time_s in _times(run):
        if not abs(time_s) <= _LONGEST_S:
            yield f"{what} of {time_s:.3g} s is recorded; expected at most {_LONGEST_S:.0e}"
    for step in run.steps:
        if step.duration_s and not step.duration_s >= _SHORTEST_S:
            said = f"a step of {step.duration_s:.3g} s is recorded"
            yield f"{said}; expected {_SHORTEST_S:.0e} s or more"
    yield from _wrong_numbers(run)
    yield from _wrong_breakdowns(run)


def _wrong_numbers(run: Run) -> Iterator[str]:
    for entry in run.peaks.values():
        for peak in (entry.peak, entry.measured):
            if peak is not None and not _SLOWEST <= peak.flops_per_s <= _FASTEST:
                said = f"a peak of {peak.flops_per_s:.3g} FLOP/s is recorded"
                yield f"{said}; expected {_SLOWEST:.0f} to {_FASTEST:.0e}"
    for count in run.counts.values():
        if count.count is not None and not abs(count.count.hardware) <= _MOST_FLOPS:
            yield "a count of more than 10^30 FLOPs is recorded, for one step"
    for what, number in _amounts(run):
        if number is not None and not abs(number) <= _MOST:
            yield f"{what} of more than 10^18 is recorded"


def _amounts(run: Run) -> Iterator[tuple[str, int | None]]:
    for step in run.steps:
        yield "an index of a step", step.index
        yield "a number of tokens", step.tokens
        yield "a number of samples", step.samples
        yield "a number of micro-batches", step.micro_batches
    for window in run.windows:
        yield "an amount of memory", window.memory_bytes


def _wrong_breakdowns(run: Run) -> Iterator[str]:
    for entry in run.breakdowns:
        found = entry.breakdown
        if not entry.steps or not 0 < found.wall_ns <= _LONGEST_S * 1e9:
            yield "a breakdown of no step, or of a time that no step takes, is recorded"
        if sum(bucket.time_ns for bucket in found.buckets) != found.wall_ns:
            yield "the parts of a breakdown do not sum to its time"


def _times(run: Run) -> Iterator[tuple[str, float]]:
    for window in run.windows:
        yield "a window", window.wall_s
    for step in run.steps:
        yield "a step", step.duration_s
        yield "a data wait", step.data_wait_s or 0.0
    for pause in run.pauses:
        yield "a pause", pause.duration_s
    if run.end is not None:
        yield "a run", run.end.wall_s
