"""Sinks and records for the tests of the recorder."""

from __future__ import annotations

import threading
from typing import Any

from samples import step

from mfu_torch.figures import Figures
from mfu_torch.records import Entry, Pause, Window


class ListSink:
    """Keeps what it is given, and which thread gave it."""

    def __init__(self, fail_on: type | None = None) -> None:
        self.records: list[Any] = []
        self.threads: set[str] = set()
        self.closed = 0
        self._fail_on = fail_on

    def write(self, record: Entry | Figures) -> None:
        if self._fail_on is not None and isinstance(record, self._fail_on):
            raise OSError(28, "No space left on device")
        self.records.append(record)
        self.threads.add(threading.current_thread().name)

    def close(self) -> None:
        self.closed += 1

    def kinds(self) -> list[str]:
        return [type(record).__name__ for record in self.records]


class StuckSink(ListSink):
    """Blocks in its first write until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered = threading.Event()
        self.let_go = threading.Event()

    def write(self, record: Entry | Figures) -> None:
        self.entered.set()
        self.let_go.wait()
        super().write(record)


def window(*indices: int, wall_s: float = 8.0) -> Window:
    steps = tuple(step(index, 1.0, excluded="" if index else "first step") for index in indices)
    return Window(steps=steps, wall_s=wall_s, memory_bytes=1000)


def pause(number: int) -> Pause:
    return Pause(name="eval", after_step=number, duration_s=1.0)
