"""A device whose multiplies take the time that a test says, and a sampler that says what it saw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mfu_torch.peak import cpu_time, matmuls, sustained
from mfu_torch.peak.sustained import Bench, Watch
from mfu_torch.records import Telemetry

Shape = tuple[int, int, int]


class StubSampler:
    """Notes what it is told to do; between resume and take it has seen ``seen``."""

    def __init__(self, seen: Telemetry | None = None) -> None:
        self.seen = seen
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def pause(self) -> None:
        self.calls.append("pause")

    def resume(self) -> None:
        self.calls.append("resume")

    def take(self, after_step: int) -> Telemetry | None:
        self.calls.append("take")
        return self.seen


class FakeDevice:
    """``call_s(shape, number)``: seconds of a call; calls of all shapes are numbered together.

    Attributes:
        shapes: Of the calls, in order.
        share: Of its time that each of torch's two threads gets.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, call_s: Callable[[Shape, int], float]
    ) -> None:
        self.call_s = call_s
        self.now_s = 100.0
        self.cpu_s = 0.0
        self.share = 1.0
        self.shapes: list[Shape] = []
        self.sets = 1
        self.made: list[tuple[Shape, str]] = []
        for module in (matmuls, cpu_time):
            monkeypatch.setattr(module, "time", self)
        monkeypatch.setattr(cpu_time, "cpu_quota", lambda: None)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        monkeypatch.setattr(sustained, "rotating", self.rotating)

    def perf_counter(self) -> float:
        return self.now_s

    def process_time(self) -> float:
        return 2 * self.cpu_s

    def thread_time(self) -> float:
        return self.cpu_s

    def rotating(self, shape: Shape, dtype: str, where: torch.device) -> tuple[Any, ...]:
        self.made.append((shape, dtype))
        return tuple(lambda: self.call(shape) for _ in range(self.sets))

    def call(self, shape: Shape) -> None:
        spent_s = self.call_s(shape, len(self.shapes))
        self.shapes.append(shape)
        self.now_s += spent_s
        self.cpu_s += spent_s * self.share


def bench(seconds: float = 1.0, sampler: StubSampler | None = None, **fields: Any) -> Bench:
    """Of fp32 on a CPU of two cores."""
    values: dict[str, Any] = {"dtype": "fp32", "where": torch.device("cpu"), "cpus": 2.0}
    values |= {"seconds": seconds, "watch": Watch(sampler or StubSampler())}
    return Bench(**values | fields)
