"""Readings, taken together."""

from __future__ import annotations

import math
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
        self._smallest: dict[str, float] = {}
        self._largest: dict[str, float] = {}
        self._throttle_s: dict[str, float] = {}
        self._absent: dict[str, str] = {}

    def add(self, reading: Reading, elapsed_s: float) -> None:
        """Add a reading for the ``elapsed_s`` seconds before it."""
        self.samples += 1
        self.time_s += elapsed_s
        self._absent.update(reading.absent)
        for name, value in reading.values.items():
            if isinstance(value, frozenset):
                for reason in value:
                    self._throttle_s[reason] = self._throttle_s.get(reason, 0.0) + elapsed_s
            elif math.isfinite(value):
                self._smallest[name] = min(value, self._smallest.get(name, value))
                self._largest[name] = max(value, self._largest.get(name, value))
                self._sums[name] = self._sums.get(name, 0.0) + value * elapsed_s
            else:
                self._absent[name] = f"{value} was reported"
                continue
            self._times_s[name] = self._times_s.get(name, 0.0) + elapsed_s

    def record(self, after_step: int) -> Telemetry:
        """All readings so far as one record."""
        values: dict[str, Any] = {name: self._value(name) for name in self._sums}
        known_s = self._times_s.get("throttle")
        return Telemetry(
            after_step=after_step,
            samples=self.samples,
            time_s=self.time_s,
            sm_clock_min_hz=self._smallest.get("sm_clock_hz"),
            throttle={r: s / known_s for r, s in sorted(self._throttle_s.items())}
            if known_s
            else {},
            absent=with_minimum(
                {name: self._absent.get(name, "") for name in FIELDS if name not in self._times_s}
            ),
            **values,
        )

    def _value(self, name: str) -> float:
        if name in LARGEST:
            return int(self._largest[name]) if name in WHOLE else self._largest[name]
        mean = self._sums[name] / self._times_s[name]
        # Sums round: the mean of three readings of 1.755e9 may come out below every one of them.
        return min(max(mean, self._smallest[name]), self._largest[name])


def with_minimum(absent: Mapping[str, str]) -> dict[str, str]:
    """The lowest clock is not known for the reason for which the clock is not."""
    if "sm_clock_hz" not in absent:
        return dict(absent)
    return {**absent, "sm_clock_min_hz": absent["sm_clock_hz"]}
