"""Meter(explain_every=N) on a real GPU, and a trace of it that is explained again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_gpt import FORWARD, small_gpt

from mfu_torch import Meter, read_run
from mfu_torch.insight import explain
from mfu_torch.records.losses import NO_LOSS

pytestmark = pytest.mark.gpu


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    """Of a run with a breakdown."""
    model, ids = small_gpt()
    optimizer = torch.optim.AdamW(model.parameters())
    with Meter(model, sinks=[], log_dir=tmp_path, explain_every=10, peak=989e12) as meter:
        for _ in range(40):
            with meter.step(tokens=ids.numel()):
                with torch.autocast("cuda", torch.bfloat16):
                    loss = model(ids)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        torch.cuda.synchronize()
    return tmp_path


def test_the_traced_steps_are_explained_on_the_gpus_own_edges(log_dir: Path) -> None:
    run = read_run(log_dir)
    assert run.breakdowns, run.end and run.end.notes
    entry = run.breakdowns[0]
    found = entry.breakdown
    assert found.edges == "gpu"
    assert len(found.steps) == len(entry.steps) == 3
    assert sum(bucket.time_ns for bucket in found.buckets) == found.wall_ns
    assert found.coverage.work > 0 and found.coverage.launches == found.coverage.work
    # A tiny model: the GPU waits for the host most of the time.
    idle = sum(b.time_ns for b in found.buckets if b.name.startswith("idle"))
    assert idle > 0.2 * found.wall_ns
    assert {bucket.name for bucket in found.buckets} & set(NO_LOSS)


def test_tracing_is_said_to_have_made_the_steps_slower_or_not(log_dir: Path) -> None:
    entry = read_run(log_dir).breakdowns[0]
    assert entry.dilation is not None and 0.5 < entry.dilation < 50


def test_the_flops_of_the_trace_are_those_that_were_counted(log_dir: Path) -> None:
    run = read_run(log_dir)
    trace = log_dir / str(run.breakdowns[0].trace)
    found = explain(trace, peak=989e12, dtype="bf16")
    assert found.hardware_flops is not None
    # Shapes of fused attention kernels are in the trace as well; three steps of forward and twice
    # as much backward, and the scores that the fused backward computes once more.
    counted = 3 * 3 * FORWARD
    assert counted <= found.hardware_flops <= 1.05 * counted
