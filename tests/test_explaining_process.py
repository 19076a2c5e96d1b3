"""Meter(explain_every=N) from end to end: a real recording, analysed by the real process."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import ListSink

from mfu_torch import Meter
from mfu_torch.cli import main
from mfu_torch.explaining import explainer
from mfu_torch.explaining.analysis import Analysis, job_of
from mfu_torch.insight.breakdown_block import breakdown_block
from mfu_torch.records import Breakdown, BreakdownEntry, Peak

ROOT = Path(__file__).parent.parent


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the process may take long to start."""
    monkeypatch.setattr(explainer, "CLOSE_S", 120.0)


def trained(folder: Path | str, sink: ListSink, steps: int = 15, **arguments: Any) -> Meter:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    meter = Meter(
        model,
        log_dir=folder,
        peak=Peak(flops_per_s=1e12, dtype="fp32"),
        sinks=[sink],
        telemetry=False,
        explain_every=10,
        **arguments,
    )
    with meter:
        for _ in range(steps):
            with meter.step():
                model(torch.randn(32, 64)).square().sum().backward()
    return meter


@pytest.mark.usefixtures("patient")
def test_a_run_on_the_cpu_has_the_breakdown_of_its_traced_steps(tmp_path: Path) -> None:
    sink = ListSink()
    meter = trained(tmp_path, sink, steps=17)
    (entry,) = sink.of(BreakdownEntry)
    assert meter.run.breakdowns == (entry,)
    found = entry.breakdown
    assert found.steps == tuple(f"ProfilerStep#{index}" for index in entry.steps)
    assert sum(bucket.time_ns for bucket in found.buckets) == found.wall_ns > 0
    assert {"other_compute"} <= {bucket.name for bucket in found.buckets}
    # 2*32*64*64 + 2*32*64*8 forward; all but the gradient of the input backward; three steps.
    first, second = 2 * 32 * 64 * 64, 2 * 32 * 64 * 8
    assert found.model_flops == 3 * (2 * first + 3 * second)
    assert found.peak is not None and found.peak.flops_per_s == 1e12
    assert entry.dilation is not None and entry.dilation > 0
    steps = {step.index: step for step in meter.run.steps}
    mean = sum(steps[index].duration_s for index in entry.steps) / 3
    assert entry.traced_s == pytest.approx(mean)
    events = json.loads(gzip.decompress((tmp_path / entry.trace).read_bytes()))["traceEvents"]
    assert any(event.get("name") == "aten::mm" for event in events)
    assert [path.name for path in (tmp_path / "traces").iterdir()] == [Path(entry.trace).name]


def looped(folder: Path, sink: ListSink, body: Callable[[torch.nn.Module], None]) -> Meter:
    """A run whose steps train a layer of 64 x 64; ``body`` runs after each."""
    model = torch.nn.Linear(64, 64)
    meter = Meter(
        model,
        log_dir=folder,
        peak=Peak(flops_per_s=1e12, dtype="fp32"),
        sinks=[sink],
        telemetry=False,
        explain_every=10,
    )
    with meter:
        for _ in range(17):
            with meter.step():
                model(torch.randn(32, 64)).square().sum().backward()
            body(model)
    return meter


def evaluate(model: torch.nn.Module) -> None:
    with torch.no_grad():
        model(torch.randn(320, 64))


@pytest.mark.usefixtures("patient")
def test_an_evaluation_between_steps_is_no_recompute_and_explain_agrees(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = looped(tmp_path, ListSink(), evaluate).run
    found = run.breakdowns[0].breakdown
    times = {bucket.name: bucket.time_ns for bucket in found.buckets}
    forward = 2 * 32 * 64 * 64
    assert found.model_flops == found.hardware_flops == 3 * 2 * forward
    assert times["matrix/beside_model"] == pytest.approx(3 * 10 * forward / 1e12 * 1e9, abs=6)
    assert "matrix/recompute" not in times
    block = " ".join(" ".join(breakdown_block(run)).split())
    command = block[block.index("explain traces/") : block.index(" in the folder")]
    name, *options = shlex.split(command)[1:]
    capsys.readouterr()
    assert main(["explain", str(tmp_path / name), *options, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {one["name"]: one["time_ns"] for one in again["buckets"]} == times


@pytest.mark.usefixtures("patient")
def test_a_run_that_is_kept_in_memory_has_it_too() -> None:
    sink = ListSink()
    trained("", sink, steps=17)
    (entry,) = sink.of(BreakdownEntry)
    assert entry.trace == ""
    assert entry.breakdown.wall_ns == sum(entry.breakdown.step_ns)


def test_a_last_step_that_is_much_shorter_than_the_others_is_one_of_them(tmp_path: Path) -> None:
    def step(index: int, at_us: int, dur_us: int) -> list[dict[str, Any]]:
        common = {"ph": "X", "pid": 1, "tid": 1, "ts": at_us}
        name = f"ProfilerStep#{index}"
        return [
            {"name": name, "cat": "user_annotation", "dur": dur_us, **common},
            {"name": "aten::add", "cat": "cpu_op", "dur": dur_us - 1, "args": {}, **common},
        ]

    trace = tmp_path / "run.steps-1-3.json"
    events = [*step(1, 1000, 900), *step(2, 2000, 900), *step(3, 3000, 20)]
    trace.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}), encoding="utf-8")
    found = analysed(trace)
    assert isinstance(found, Breakdown), found
    assert found.step_ns == (1_000_000, 1_000_000, 20_000)


def analysed(trace: Path) -> Breakdown | str:
    one = Analysis(job_of(trace, (1, 2, 3), None, None, None))
    one.start()
    assert one.wait(120.0)
    return one.result


def test_a_file_that_is_no_trace_is_told_in_one_line(tmp_path: Path) -> None:
    trace = tmp_path / "run.steps-1-3.json"
    trace.write_text('{"traceEvents": 3}', encoding="utf-8")
    problem = analysed(trace)
    assert isinstance(problem, str) and "run.steps-1-3.json" in problem and "\n" not in problem


def test_a_trace_that_is_gone_is_told(tmp_path: Path) -> None:
    problem = analysed(tmp_path / "gone.json")
    assert isinstance(problem, str) and problem.startswith("FileNotFoundError: ")


def test_modules_of_the_folder_that_the_program_was_started_in_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "gzip", "msgspec", "numpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one])
    assert str(analysed(tmp_path / "gone.json")).startswith("FileNotFoundError: ")


@pytest.mark.skipif(not hasattr(os, "nice"), reason="this system has no priorities of this kind")
def test_the_process_has_the_lowest_priority_and_a_time_limit_of_its_own(tmp_path: Path) -> None:
    code = (
        "import os, signal\n"
        "from mfu_torch.insight.live import main\n"
        f"main({{'trace': '{tmp_path}/no', 'packed': '{tmp_path}/no.gz', 'peak': None,\n"
        "       'dtype': None, 'model_flops': None, 'time_limit_s': 99999.0})\n"
        "print(os.nice(0), signal.alarm(0) > 9999)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.splitlines()[-1] == "19 True"


def test_the_process_never_waits_for_torch() -> None:
    code = "import sys, mfu_torch.insight.live; print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"
