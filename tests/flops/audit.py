"""Runs steps under a meter, and holds each step's count against the truth, given by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

from mfu_torch import Meter
from mfu_torch.records import FlopCount, Run


class Audit:
    """Runs steps under a meter; what each step truly needs is given by hand."""

    def __init__(self, model: nn.Module | None, folder: Path, **arguments: Any) -> None:
        arguments = {"peak": 1e12, "sinks": [], "log_dir": folder, "log_every": 3} | arguments
        self.meter = Meter(model, **arguments)
        self.truth: list[int] = []

    def step(self, work: Callable[[], Any], truth: int, **given: Any) -> None:
        with self.meter.step(**given):
            work()
        self.truth.append(truth)

    def close(self) -> tuple[Run, list[int | None]]:
        self.meter.close()
        run = self.meter.run
        counts = [run.count_of(step) for step in run.steps]
        return run, [count.model if isinstance(count, FlopCount) else None for count in counts]

    def assert_right(self, unknown: int = 0) -> Run:
        run, counts = self.close()
        known = [pair for pair in zip(counts, self.truth, strict=True) if pair[0] is not None]
        assert [count for count, _ in known] == [truth for _, truth in known]
        assert len(counts) - len(known) == unknown
        return run


def linear(rows: int) -> int:
    """Forward and dW of Linear(16, 16), whose input needs no gradient."""
    return 2 * 2 * rows * 16 * 16
