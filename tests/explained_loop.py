"""A loop whose steps are recorded now and then, on a fake clock, and a stand-in for the analysis.

FLOPs are given, so that only the first step is counted as no steady one. Recordings begin at the
11th step: step 10 warms the profiler up, and 11 to 13 are traced.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink

from mfu_torch import Meter
from mfu_torch.explaining import explainer
from mfu_torch.records import Breakdown, BreakdownEntry, Peak
from mfu_torch.records.breakdown import Bucket, Coverage

MS = 1_000_000
HINT = "The loop waits for its loader: raise num_workers (now 0)."
PARTS = {"matrix": 60, "other_compute": 30, "idle/data_wait": 90, "idle/launch_bound": 20}


def breakdown(parts_ms: dict[str, int] = PARTS, **more: Any) -> Breakdown:
    """Of two steps that take as long; ``parts_ms`` are of both together."""
    wall_ns = sum(parts_ms.values()) * MS
    known: dict[str, Any] = {
        "file": "trace.json.gz",
        "device": None,
        "rank": None,
        "edges": "gpu",
        "steps": ("ProfilerStep#11", "ProfilerStep#12"),
        "step_ns": (wall_ns // 2, wall_ns - wall_ns // 2),
        "wall_ns": wall_ns,
        "buckets": tuple(
            Bucket(
                name=name,
                time_ns=ms * MS,
                per_step_ns=(ms * MS // 2,) * 2,
                hint=HINT if name == "idle/data_wait" else "",
            )
            for name, ms in parts_ms.items()
        ),
        "peak": None,
        "model_flops": None,
        "hardware_flops": None,
        "communication_ns": 0,
        "overlapped_ns": 0,
        "coverage": Coverage(launches=9, work=10, matrix_known_ns=0, matrix_ns=60 * MS),
    }
    return Breakdown(**known | more)


def entry(**more: Any) -> BreakdownEntry:
    """Of steps 11 and 12, which took 1.25 times as long as others."""
    known: dict[str, Any] = {
        "after_step": 13,
        "steps": (11, 12),
        "breakdown": breakdown(),
        "traced_s": 1.25,
        "untraced_s": 1.0,
        "untraced_steps": 20,
        "trace": "traces/run.steps-11-12.json.gz",
    }
    return BreakdownEntry(**known | more)


class InstantAnalysis:
    """Done when it is started: a step of its trace took what its annotation says."""

    jobs: ClassVar[list[dict[str, Any]]]
    events: ClassVar[list[list[dict[str, Any]]]]
    result: Breakdown | str
    done = False
    killed = ""

    def __init__(self, job: bytes) -> None:
        self._job = json.loads(job)
        self.jobs.append(self._job)

    def start(self) -> None:
        text = Path(self._job["trace"]).read_text(encoding="utf-8")
        Path(self._job["packed"]).write_bytes(gzip.compress(text.encode()))
        self.events.append(json.loads(text)["traceEvents"])
        steps = [one for one in self.events[-1] if one["name"].startswith("ProfilerStep#")]
        self.result = breakdown(steps=tuple(one["name"] for one in steps))
        self.done = True

    def wait(self, timeout_s: float) -> bool:
        return True

    def kill(self, why: str) -> None:
        """Nothing runs."""


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> type[InstantAnalysis]:
    """The analysis, done at once and in this process."""

    class Instant(InstantAnalysis):
        jobs: ClassVar[list[dict[str, Any]]] = []
        events: ClassVar[list[list[dict[str, Any]]]] = []

    monkeypatch.setattr(explainer, "Analysis", Instant)
    return Instant


class Loop:
    """Steps of one second, in which a model is really trained."""

    def __init__(self, folder: Path | str, **arguments: Any) -> None:
        self.clock = FakeClock()
        self.sink = ListSink()
        self.model = torch.nn.Linear(16, 32, bias=False)
        known: dict[str, Any] = {
            "log_dir": folder,
            "log_every": 2,
            "explain_every": 10,
            "flops": {"fp32": 16384},
            "peak": Peak(flops_per_s=65536.0, dtype="fp32"),
            "clock": self.clock,
            "sinks": [self.sink],
            "telemetry": False,
        }
        self.meter = Meter(self.model, **known | arguments)
        self.seconds = 1.0  # of a step

    def work(self) -> None:
        self.model(torch.ones(8, 16)).sum().backward()

    def step(self) -> None:
        with self.meter.step():
            self.work()
            self.clock.advance(self.seconds)

    def steps(self, number: int) -> None:
        for _ in range(number):
            self.step()

    @property
    def entries(self) -> list[BreakdownEntry]:
        return list(self.meter.run.breakdowns)

    def traced(self) -> list[int]:
        """Indices of the steps that are said to have been profiled."""
        return [step.index for step in self.meter.run.steps if step.excluded == "being profiled"]


def profiler_is_off() -> bool:
    """Whether no profiler is left behind, and a new one can begin."""
    if torch.autograd.profiler._is_profiler_enabled or torch.autograd._profiler_enabled():
        return False
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        torch.ones(2).sum()
    return any(event.key == "aten::sum" for event in profile.key_averages())


def notes(loop: Loop) -> list[str]:
    """What a run that is over says of its recordings."""
    end = loop.meter.run.end
    return [note for note in end.notes if "explain_every" in note] if end else ["it is not over"]
