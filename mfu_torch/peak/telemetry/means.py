"""Readings, taken together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mfu_torch.peak.telemetry.source import FIELDS, Reading
from mfu_torch.records import Telemetry

LARGEST = ("temperature_c", "memory_used_bytes", "other_processes")
WHOLE = ("memory_used_bytes", "other_processes")


class Means:
    """Means over time, extremes, and shares of the time.

    A reading stands for the time since the one before: 1.2 GHz read after 3 s and 1.6 GHz after
    one more are a mean of 1.3 GHz.
    """

    def __init__(self) -> None:
        self.samples = 0
        self.time_s = 0.0
        self._sums: dict[str, float] = {}
        self._times_s: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._sm_clock_min_hz: float | None = None
        self._throttle_s: dict[str, float] = {}
        self._absent: dict[str, str] = {}

    def add(self, reading: Reading, elapsed_s: float) -> None:
        """Add a reading for the ``elapsed_s`` seconds before it."""
        self.samples += 1
        self.time_s += elapsed_s
        self._absent.update(reading.absent)
        for name, value in reading.values.items():
            self._times_s[name] = self._times_s.get(name, 0.0) + elapsed_s
            if isinstance(value, frozenset):
                for reason in value:
                    self._throttle_s[reason] = self._throttle_s.get(reason, 0.0) + elapsed_s
            elif name in LARGEST:
                self._largest[name] = max(value, self._largest.get(name, value))
            else:
                self._sums[name] = self._sums.get(name, 0.0) + value * elapsed_s
        clock_hz = reading.values.get("sm_clock_hz")
        if isinstance(clock_hz, float):
            self._sm_clock_min_hz = min(clock_hz, self._sm_clock_min_hz or clock_hz)

    def record(self, after_step: int) -> Telemetry:
        """All readings so far as one record."""
        values: dict[str, Any] = {name: s / self._times_s[name] for name, s in self._sums.items()}
        values |= {name: int(v) if name in WHOLE else v for name, v in self._largest.items()}
        known_s = self._times_s.get("throttle")
        return Telemetry(
            after_step=after_step,
            samples=self.samples,
            time_s=self.time_s,
            sm_clock_min_hz=self._sm_clock_min_hz,
            throttle={r: s / known_s for r, s in sorted(self._throttle_s.items())}
            if known_s
            else {},
            absent=with_minimum(
                {name: self._absent.get(name, "") for name in FIELDS if name not in self._times_s}
            ),
            **values,
        )


def with_minimum(absent: Mapping[str, str]) -> dict[str, str]:
    """The lowest clock is not known for the reason for which the clock is not."""
    if "sm_clock_hz" not in absent:
        return dict(absent)
    return {**absent, "sm_clock_min_hz": absent["sm_clock_hz"]}
