"""A clock that stands still until a test moves it."""

from __future__ import annotations

import random


class FakeClock:
    """Starts at a random origin, so that no test can rely on time beginning at 0.

    Args:
        lag_s: A mark is ready only this long after it was taken, as on a device that runs behind.
    """

    description = "a fake clock"

    def __init__(self, lag_s: float = 0.0) -> None:
        # A multiple of 1/1024, like all times that tests use: their differences are exact.
        self._now_s = random.randrange(1, 2**20) / 1024
        self._lag_s = lag_s
        self.marks_out = 0
        self.marks = 0
        self.waits = 0

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now_s += seconds

    def host_s(self) -> float:
        return self._now_s

    def mark(self) -> float:
        self.marks += 1
        self.marks_out += 1
        return self._now_s

    def ready(self, mark: float) -> bool:
        return self._now_s >= mark + self._lag_s

    def wait(self, mark: float) -> None:
        self.waits += 1
        self._now_s = max(self._now_s, mark + self._lag_s)

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def release(self, mark: float) -> None:
        self.marks_out -= 1
