"""What a device sustains: GEMMs of many shapes, each for long enough, and what the device did then.

A short burst on a cool GPU is faster than what it holds. So a quick look at every shape only
chooses the promising ones; these run for a second each after a warm-up, and the rate is the mean
over that second. Clocks, power, throttling and other processes meanwhile are part of the result.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import msgspec

from mfu_torch.peak.cpu_time import BUSY, clocks, share_since
from mfu_torch.peak.matmuls import FAILURES, Shape, flops, rotating, timed, timeline
from mfu_torch.records import Record, Telemetry
from mfu_torch.units import percent

if TYPE_CHECKING:
    import torch

_GROUP_S = 0.01
"""Multiplies between two marks: long against the timer, and the burst is the best of them."""

_AHEAD = 2
"""Groups that are queued before one is waited for, so that a GPU never runs dry."""

_CALL_SHARE = 0.25
"""A shape of which one call takes more than this share of the time is not tried."""

_WARM_UP = 0.25
"""Of the time, before what counts: clocks and power need some to settle."""


class Sampler(Protocol):
    """What :class:`mfu_torch.peak.telemetry.DeviceSampler` does."""

    def start(self) -> None:
        """Begin to sample."""

    def stop(self) -> None:
        """Let go of the device; safe to call twice."""

    def pause(self) -> None:
        """Samples from here on do not count."""

    def resume(self) -> None:
        """Samples count again."""

    def take(self, after_step: int) -> Telemetry | None:
        """What was seen since the last take."""


class Watch:
    """A sampler that counts only while a rate is sustained: a context, in which it is started."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self._nothing: Telemetry | None = None

    def __enter__(self) -> Watch:
        self._sampler.start()
        self._sampler.pause()
        return self

    def __exit__(self, *exception: object) -> None:
        self._sampler.stop()

    def begin(self) -> None:
        """What the device does from here on counts."""
        self._take()  # what was seen before is of no interest
        self._sampler.resume()

    def end(self) -> Telemetry | None:
        """What it has done since; if nothing can be read, a record of no samples says why."""
        self._sampler.pause()
        return self._take()

    def _take(self) -> Telemetry | None:
        seen = self._sampler.take(0)
        if seen is not None and not seen.samples:
            self._nothing = seen  # a sampler says so once
        return seen if seen is not None and seen.samples else self._nothing


class Sustained(Record, frozen=True, kw_only=True):
    """The best rate that a device held for one dtype.

    Attributes:
        flops_per_s: The mean over ``time_s``.
        burst_flops_per_s: The best that the same shape reached for about 10 ms.
        shape: ``(m, n, k)``.
        time_s: Seconds of the sustained run, on the device's own time.
        operand_sets: How many took turns.
        shapes_tried: In the quick look before.
        cpu_share: Of the CPU time that its threads may have, what they got; 1 on other devices.
        telemetry: What the device did meanwhile; ``None`` if there was no sample yet.
    """

    dtype: str
    flops_per_s: float
    burst_flops_per_s: float
    shape: Shape
    time_s: float
    calls: int
    operand_sets: int = 1
    shapes_tried: int = 1
    cpu_share: float = 1.0
    telemetry: Telemetry | None = None

    @property
    def disturbed(self) -> bool:
        """Whether other work took so much of a CPU that the rate is not what it can do."""
        return self.cpu_share < BUSY

    @property
    def cautions(self) -> tuple[str, ...]:
        """Why the device may do more at another time, as phrases."""
        said = []
        if self.disturbed:
            said.append(
                f"other work was on the CPU: its threads got {percent(self.cpu_share)} of the "
                "time they may have"
            )
        return (*said, *_cautions(self.telemetry)) if self.telemetry else tuple(said)


def _cautions(seen: Telemetry) -> list[str]:
    said = []
    if seen.other_processes:
        many = "processes were" if seen.other_processes > 1 else "process was"
        said.append(f"{seen.other_processes} other {many} on the device")
    held = [f"{why} ({percent(share)} of the samples)" for why, share in seen.throttle.items()]
    if held:
        said.append(f"the clock was held down: {', '.join(held)}")
    limit_w, default_w = seen.power_limit_w, seen.power_default_w
    if limit_w is not None and default_w is not None and limit_w < default_w:
        said.append(f"its power is capped at {limit_w:.0f} W; its default is {default_w:.0f} W")
    return said


class Bench(NamedTuple):
    """Where and how long one dtype is measured.

    Attributes:
        cpus: From :func:`usable_cpus`.
        seconds: Of a sustained run, about.
    """

    dtype: str
    where: torch.device
    cpus: float | None
    seconds: float
    watch: Watch


def best_sustained(bench: Bench, shapes: Sequence[Shape], candidates: int) -> Sustained:
    """Look at all shapes, sustain the most promising, and return the best of those.

    Call it inside :func:`exactly`.

    Args:
        bench: What to measure.
        shapes: Any; one that would take too long for the time, or that fails, is left out.
        candidates: How many to sustain: in a burst, on a cool device, others may lead than later.

    Raises:
        What torch raises (``FAILURES``), if no shape runs.
    """
    seen: dict[Shape, float] = {}
    failures: list[Exception] = []
    for shape in sorted(shapes, key=flops):
        # The highest rate so far: a larger shape is not slower by much.
        if seen and flops(shape) / max(seen.values()) > _CALL_SHARE * bench.seconds:
            break
        rate = _unless_it_fails(functools.partial(_glance, bench, shape), failures)
        if rate is not None:
            seen[shape] = rate
    promising = sorted(seen, key=lambda shape: -seen[shape])[:candidates]
    found = []
    for shape in promising:
        one = _unless_it_fails(functools.partial(_sustain, bench, shape, seen[shape]), failures)
        if one is not None:
            found.append(one)
    if not found:
        raise failures[0] if failures else ValueError("no shape to measure; expected one or more")
    best = max(found, key=lambda one: one.flops_per_s)
    return msgspec.structs.replace(best, shapes_tried=len(seen))


_T = TypeVar("_T")


def _unless_it_fails(measure: Callable[[], _T], failures: list[Exception]) -> _T | None:
    """A shape may be too large for the memory, or of a size that the kernel does not take."""
    try:
        return measure()
    except FAILURES as error:
        # Without its traceback, which would keep the operands in memory.
        failures.append(error.with_traceback(None))
        return None


def _in_turn(bench: Bench, shape: Shape) -> tuple[Callable[[], Any], int]:
    runs = rotating(shape, bench.dtype, bench.where)
    turns = itertools.cycle(runs)
    return lambda: next(turns)(), len(runs)


def _glance(bench: Bench, shape: Shape) -> float:
    """FLOP/s of a shape in a burst."""
    run, _ = _in_turn(bench, shape)
    timed(run, 1, bench.where)  # builds kernels and allocates workspaces
    once_s = timed(run, 2, bench.where) / 2
    if once_s > _CALL_SHARE * bench.seconds:  # long enough to tell
        return flops(shape) / once_s
    calls = max(1, int(min(_GROUP_S, _CALL_SHARE * bench.seconds) / once_s))
    best_s = min(once_s, *(timed(run, calls, bench.where) / calls for _ in range(2)))
    return flops(shape) / best_s


def _sustain(bench: Bench, shape: Shape, burst_flops_per_s: float) -> Sustained:
    run, sets = _in_turn(bench, shape)
    calls = max(1, int(_GROUP_S * burst_flops_per_s / flops(shape)))
    _hold(bench, run, calls, _WARM_UP * bench.seconds)
    bench.watch.begin()
    begin = clocks()
    groups_s = _hold(bench, run, calls, bench.seconds)
    share = share_since(begin, bench.cpus)
    seen = bench.watch.end()
    # A group begins where the one before ends, so this is all the time from the first to the last.
    time_s, done = sum(groups_s), calls * len(groups_s)
    return Sustained(
        dtype=bench.dtype,
        flops_per_s=flops(shape) * done / time_s,
        burst_flops_per_s=max(burst_flops_per_s, flops(shape) * calls / min(groups_s)),
        shape=shape,
        time_s=time_s,
        calls=done,
        operand_sets=sets,
        cpu_share=share,
        telemetry=seen,
    )


def _hold(bench: Bench, run: Callable[[], Any], calls: int, seconds: float) -> list[float]:
    """Seconds of each group of ``calls``, from mark to mark, until they make up ``seconds``."""
    time_of = timeline(bench.where)
    marks = [time_of.mark()]
    passed_s = 0.0
    while passed_s < seconds:
        for _ in range(calls):
            run()
        marks.append(time_of.mark())
        if len(marks) > _AHEAD:
            passed = marks[-_AHEAD]
            time_of.wait(passed)
            passed_s = time_of.seconds(marks[0], passed)
    time_of.wait(marks[-1])
    return [time_of.seconds(begin, end) for begin, end in itertools.pairwise(marks)]
