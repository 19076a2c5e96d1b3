"""``torch.cuda`` of a machine whose GPU has a timeline of its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch


class FakeEvent:
    """An event that the GPU reaches when it has done the work queued before it."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.at_s: float | None = None

    def record(self, stream: str) -> None:
        self._gpu.calls.append("record")
        self._gpu.recorded_on.append(stream)
        self.at_s = max(self._gpu.now_s, self._gpu.busy_until_s.get(stream, 0.0))

    def query(self) -> bool:
        self._gpu.calls.append("query")
        return self.passed()

    def synchronize(self) -> None:
        self._gpu.calls.append("synchronize")
        assert self.at_s is not None
        self._gpu.now_s = max(self._gpu.now_s, self.at_s)

    def elapsed_time(self, end: FakeEvent) -> float:
        if not (self.passed() and end.passed()):  # the real one refuses too
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        assert self.at_s is not None and end.at_s is not None
        return (end.at_s - self.at_s) * 1000

    def passed(self) -> bool:
        return self.at_s is not None and self.at_s <= self._gpu.now_s


class FakeGpu:
    """The host's time, the work that is queued on the GPU, and every call of the API.

    Streams are named after their device; work on one of them runs in order.

    Attributes:
        calls: ``record``, ``query`` and ``synchronize`` of events, and ``torch.cuda.synchronize``.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.busy_until_s: dict[str, float] = {}
        self.calls: list[str] = []
        self.recorded_on: list[str] = []
        self.created = 0
        self.capturing = False
        self.synchronized: list[Any] = []
        self.stream = "stream of {}"
        monkeypatch.setattr(torch.cuda, "Event", self._new_event)
        monkeypatch.setattr(torch.cuda, "current_stream", self.current_stream)
        monkeypatch.setattr(torch.cuda, "synchronize", self._synchronize)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.capturing)

    def launch(self, seconds: float, device: str = "cuda:0") -> None:
        """Queue work of that length; the host goes on at once."""
        stream = self.current_stream(torch.device(device))
        self.busy_until_s[stream] = max(self.now_s, self.busy_until_s.get(stream, 0.0)) + seconds

    def current_stream(self, device: torch.device) -> str:
        return self.stream.format(device)

    def _new_event(self, *, enable_timing: bool = False) -> FakeEvent:
        assert enable_timing
        self.created += 1
        return FakeEvent(self)

    def _synchronize(self, device: Any = None) -> None:
        self.calls.append("torch.cuda.synchronize")
        self.synchronized.append(device)
        self.now_s = max([self.now_s, *self.busy_until_s.values()])
