"""Clocks: marks are taken on the step path, and turned into seconds later, without waiting.

    step path      mark()   mark()   mark()          never waits
                     |        |        |
    device        ---o--------o--------o-->          reaches each mark in its own time
    step path               ready(first)? seconds(first, second)     polled, some steps later

On the host a mark is a number and is ready at once. On CUDA it is an event recorded on the current
stream: the seconds between two events are seconds of the GPU's own timeline.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Clock(Protocol):
    """What the meter needs of a clock. A mark is opaque; only its clock can read it.

    A clock may also have ``runs_behind``, true where a mark is reached after it was taken, and
    ``may_mark()``, false where no mark can be taken just now.
    """

    description: str

    def host_s(self) -> float:
        """Host seconds from an arbitrary origin."""

    def mark(self) -> Any:
        """Mark this moment in the device's work. Must not wait for the device."""

    def ready(self, mark: Any) -> bool:
        """Whether the device has reached the mark. Must not wait for it."""

    def wait(self, mark: Any) -> None:
        """Wait until the device has reached the mark. Called when the run is closed only."""

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two marks that are ready."""

    def release(self, mark: Any) -> None:
        """Take back a mark that nobody will ask about again."""


class HostClock:
    """The host's monotonic clock: right for the CPU, where ops have run when they return."""

    description = "host clock"

    def host_s(self) -> float:
        """Host seconds from an arbitrary origin."""
        return time.perf_counter()

    mark = host_s

    def ready(self, mark: float) -> bool:
        """A host mark is ready at once."""
        return True

    def wait(self, mark: float) -> None:
        """Nothing to wait for."""

    def seconds(self, start: float, end: float) -> float:
        """Seconds between two marks."""
        return end - start

    def release(self, mark: float) -> None:
        """Nothing to take back."""


class SyncClock(HostClock):
    """The host's clock, read after the device has finished everything: exact, and a stall a mark.

    For ``Meter(sync=True)``, where someone wants to check the events against plain timing.
    """

    def __init__(self, device: torch.device) -> None:
        import torch

        synchronize = torch.get_device_module(device).synchronize
        # The one MPS device is synchronised without naming it.
        self._synchronize = synchronize if device.type == "mps" else partial(synchronize, device)
        self.description = f"host clock, {device.type} synchronised at every mark"

    def mark(self) -> float:
        """Wait for the device, then read the host clock."""
        self._synchronize()
        return time.perf_counter()


class CudaClock:
    """CUDA events from a pool, recorded on the current stream and polled later.

    ``cudaEventQuery`` can fail while a graph is being captured, so events are polled between steps
    on the thread that runs them, never from a thread of our own.
    """

    description = "CUDA events"
    runs_behind = True

    def __init__(self, device: torch.device) -> None:
        import torch

        self._new_event: Callable[[], Any] = partial(torch.cuda.Event, enable_timing=True)
        self._current_stream = torch.cuda.current_stream
        self._is_capturing = torch.cuda.is_current_stream_capturing
        self._device = device
        self._pool: list[Any] = []

    def host_s(self) -> float:
        """Host seconds from an arbitrary origin."""
        return time.perf_counter()

    def mark(self) -> Any:
        """Record an event on the current stream of the device."""
        event = self._pool.pop() if self._pool else self._new_event()
        event.record(self._current_stream(self._device))
        return event

    def may_mark(self) -> bool:
        """Whether an event that is recorded now is reached: not where a graph is captured."""
        return not self._is_capturing()

    def ready(self, mark: Any) -> bool:
        """Whether the GPU has passed the event."""
        return bool(mark.query())

    def wait(self, mark: Any) -> None:
        """Block until the GPU has passed the event."""
        mark.synchronize()

    def seconds(self, start: Any, end: Any) -> float:
        """Seconds between two events on the GPU (resolution about 0.5 us)."""
        return float(start.elapsed_time(end)) / 1e3

    def release(self, mark: Any) -> None:
        """Put the event back into the pool."""
        self._pool.append(mark)


def clock_for(device: torch.device, *, sync: bool = False) -> Clock:
    """The clock that measures ``device`` without stalling it, or with ``sync`` by stalling it."""
    if device.type == "cpu":
        return HostClock()
    if sync:
        return SyncClock(device)
    # Other accelerators have no pooled events here yet: their host queue is short, so the time
    # from start to start is right over many steps though not for a single one.
    return CudaClock(device) if device.type == "cuda" else HostClock()
