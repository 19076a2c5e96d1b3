"""A thread that asks a device how it is, so that the step path never does."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable

from mfu_torch.peak.drivers import said
from mfu_torch.peak.telemetry.means import Means, with_minimum
from mfu_torch.peak.telemetry.source import FIELDS, NoSource, Reading, Source
from mfu_torch.records import Device, Telemetry
from mfu_torch.units import seconds

logger = logging.getLogger(__name__)

STOP_WITHIN_S = 2.0
"""So long ``stop`` waits for a call to the driver that is under way."""

PAUSED_S = 60.0
"""So often a paused thread looks whether it is still wanted."""


class DeviceSampler:
    """Samples a device on a thread of its own.

    The thread alone talks to the driver; ``take`` hands over what it has found since. A reading
    stands for the time since the one before, so the first one after ``start`` or ``resume`` only
    marks where that time begins. In a forked child the sampler is one that has been stopped.

    Args:
        device: What to sample.
        interval_s: From one reading to the next.
        source: Reads the device; by default the one for its kind.
        clock: Seconds from any origin.
    """

    def __init__(
        self,
        device: Device,
        *,
        interval_s: float = 1.0,
        source: Source | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device = device
        self._interval_s = interval_s
        self._source = source if source is not None else _source_of(device)
        self._clock = clock
        self._at_exit: Callable[[], None] | None = None
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._stopping = self._opened = False
        self._means = Means()
        self._pauses = 0  # how many are under way: they may be nested
        self._stretch = 0  # counts the stretches between pauses
        self._begin: tuple[int, float] | None = None  # stretch and time of the reading before
        self._span_s: tuple[float, float] | None = None  # times of the first and last reading
        self._asked_s: float | None = None  # since when a call to the source is under way
        self._problem = ""
        self._problem_told = True

    @property
    def problem(self) -> str:
        """That there are no readings, or none any more, and why; empty while there are.

        "no telemetry: the module pynvml is missing; ...", or "telemetry stopped after 12 s: the GPU
        no longer answers ...". A call to the driver that does not return is found by ``stop``.
        """
        # Without the lock, which in a forked child may be held for ever.
        problem, span_s = self._problem, self._span_s
        if not problem:
            return ""
        if span_s is None or span_s[1] <= span_s[0]:
            return f"no telemetry: {problem}"
        return f"telemetry stopped after {seconds(span_s[1] - span_s[0])}: {problem}"

    def start(self) -> None:
        """Begin to sample. Never raises: what cannot be read is absent with its reason."""
        try:
            self._start()
        # No more threads or memory, or the interpreter is ending; a run does without.
        except Exception as error:
            self._end(f"no thread could be started ({said(error)})")

    def _start(self) -> None:
        if self._pid != os.getpid():
            self._reset()
        if self._thread is not None or self._stopping:
            return
        thread = threading.Thread(
            target=_run,
            args=(weakref.ref(self), self._wake, self._source),
            name=f"mfu_torch telemetry of {self._device.name}",
            daemon=True,  # a call to the driver that never returns must not keep the process
        )
        thread.start()
        self._thread = thread
        # A daemon thread that wakes up while the interpreter is taken down can crash it.
        self._at_exit = functools.partial(_stop, weakref.ref(self))
        atexit.register(self._at_exit)

    def stop(self) -> None:
        """End sampling; may be called twice. Waits 2 s at most for a call to the driver."""
        if self._pid != os.getpid() or self._stopping:
            return
        self._stopping = True
        self._wake.set()
        if self._at_exit is not None:
            atexit.unregister(self._at_exit)
        if self._thread is None:
            _close(self._source)
            return
        self._thread.join(STOP_WITHIN_S)
        if self._thread.is_alive():
            self._leave_alone()

    def _leave_alone(self) -> None:
        with self._lock:
            hung_s = STOP_WITHIN_S
            if self._asked_s is not None:
                hung_s = max(hung_s, self._clock() - self._asked_s)
            problem = f"a call to the driver has not returned for {seconds(hung_s)}"
            if self._asked_s is not None and not self._problem:
                self._problem, self._problem_told = problem, False
        logger.warning(
            "Telemetry of %s: %s; its thread is left to itself and does not keep the process.",
            self._device.name,
            problem,
        )

    def pause(self) -> None:
        """From here on the time belongs to no sample; pauses may be nested."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._pauses += 1
            self._stretch += 1

    def resume(self) -> None:
        """The end of a pause; after the outermost one sampling goes on."""
        if self._pid != os.getpid():
            return
        with self._lock:
            self._pauses = max(0, self._pauses - 1)
            going_on = self._pauses == 0
        if going_on:
            self._wake.set()

    def take(self, after_step: int) -> Telemetry | None:
        """What was sampled since the last call; ``None`` if there was no sample.

        Where nothing can be read, or nothing any more, one record of 0 samples says why.
        Costs the exchange of an object, and never waits for the driver.
        """
        if self._pid != os.getpid():
            return None
        with self._lock:
            means, self._means = self._means, Means()
            tell = not means.samples and not self._problem_told
            self._problem_told |= tell
        if means.samples:
            return means.record(after_step)
        if tell:
            absent = with_minimum(dict.fromkeys(FIELDS, self._problem))
            return Telemetry(after_step=after_step, samples=0, time_s=0.0, absent=absent)
        return None

    def sample(self) -> bool:
        """Read the device once. The thread calls it; a test may. ``False`` once it is over."""
        with self._lock:
            paused, stretch, before = self._pauses > 0, self._stretch, self._begin
        if paused or self._problem:
            return not self._problem
        begin_s = before[1] if before is not None and before[0] == stretch else None
        try:
            self._asked_s = self._clock()
            if not self._opened:
                self._source.open()
                self._opened = True
            now_s = self._clock()
            elapsed_s = None if begin_s is None else now_s - begin_s
            reading = self._source.read(elapsed_s)
        except NoSource as error:
            self._end(str(error), warn=self._opened)
            return False
        # A source catches what a driver does; should anything slip through, the run goes on.
        except Exception as error:
            self._end(f"reading failed ({type(error).__name__}: {said(error)})", warn=True)
            return False
        finally:
            self._asked_s = None
        self._keep(reading, stretch, now_s, elapsed_s)
        return True

    def _keep(self, reading: Reading, stretch: int, now_s: float, elapsed_s: float | None) -> None:
        with self._lock:
            if self._stretch != stretch:
                return  # a pause began meanwhile
            self._begin = (stretch, now_s)
            self._span_s = (self._span_s[0] if self._span_s else now_s, now_s)
            if elapsed_s is not None and elapsed_s > 0:
                self._means.add(reading, elapsed_s)

    def _end(self, problem: str, warn: bool = False) -> None:
        with self._lock:
            self._problem, self._problem_told = problem, False
        logger.log(
            logging.WARNING if warn else logging.INFO,
            "No %s of %s: %s. MFU is not affected.",
            "more telemetry" if self._opened else "telemetry",
            self._device.name,
            problem,
        )

    def _turn(self) -> float | None:
        """Sample if it is time; seconds until it may be time again, ``None`` for never."""
        if self._stopping:
            return None
        with self._lock:
            if self._pauses:
                return PAUSED_S
            due_in_s = 0.0
            if self._begin is not None and self._begin[0] == self._stretch:
                due_in_s = self._begin[1] + self._interval_s - self._clock()
        if due_in_s > 0:
            return min(due_in_s, self._interval_s)
        return self._interval_s if self.sample() else None


def _source_of(device: Device) -> Source:
    try:
        return source_for(device)
    # What a source needs may be missing, or of a version that nobody has seen; a run does without.
    except Exception as error:
        return Unreadable(f"it cannot be read ({type(error).__name__}: {said(error)})")


def source_for(device: Device) -> Source:
    """The source for a kind of device; importing it does not load a driver."""
    if device.kind == "cuda":
        from mfu_torch.peak.telemetry.nvidia import NvidiaSource

        return NvidiaSource(device)
    if device.kind == "rocm":
        from mfu_torch.peak.amd import AmdSource

        return AmdSource(device)
    if device.kind == "cpu":
        from mfu_torch.peak.telemetry.cpu import CpuSource

        return CpuSource()
    return Unreadable(
        f"devices of kind {device.kind!r} have no counters that this process may read"
    )


class Unreadable:
    """The source of a device that says nothing."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def open(self) -> None:
        """Raises NoSource."""
        raise NoSource(self._reason)

    def read(self, elapsed_s: float | None) -> Reading:
        """Nothing."""
        return Reading()

    def close(self) -> None:
        """Nothing to close."""


def _run(sampler: weakref.ref[DeviceSampler], wake: threading.Event, source: Source) -> None:
    # A sampler that nobody holds any more, and nobody stopped, is not kept by its thread.
    try:
        while (strong := sampler()) is not None:
            wait_s = strong._turn()
            del strong
            if wait_s is None:
                break
            wake.wait(wait_s)
            wake.clear()
    finally:
        _close(source)


def _close(source: Source) -> None:
    try:
        source.close()
    # The device may be gone, and its driver may say so in any way; the end of a run goes on.
    except Exception as error:
        logger.info("Telemetry could not be closed (%s: %s).", type(error).__name__, error)


def _stop(sampler: weakref.ref[DeviceSampler]) -> None:
    strong = sampler()
    if strong is not None:
        strong.stop()
