"""Runs on a real GPU: nothing of the training changes, and the figures are those of the device."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from small_gpt import AGAIN, FORWARD, small_gpt

from mfu_torch import Meter, Peak, UnknownPeak, count_flops, detect_device, peak_for
from mfu_torch.figures import run_figures
from mfu_torch.records import FlopCount

pytestmark = pytest.mark.gpu


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


Result = tuple[list[torch.Tensor], list[torch.Tensor], torch.Tensor, torch.Tensor]


def training(
    meter_for: Callable[[torch.nn.Module], Meter] | None,
    wrap: Callable[[torch.nn.Module], Any] = lambda model: model,
) -> Result:
    """Losses, weights and the states of both generators after five steps with dropout."""
    model, ids = small_gpt(dropout=0.1)
    called = wrap(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []

    def one() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = called(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())

    meter = None if meter_for is None else meter_for(called)
    for _ in range(5):
        if meter is None:
            one()
        else:
            with meter.step(tokens=ids.numel()):
                one()
    if meter is not None:
        meter.close()
    weights = [parameter.detach().clone() for parameter in model.parameters()]
    return losses, weights, torch.cuda.get_rng_state(), torch.get_rng_state()


def assert_bit_equal(left: Result, right: Result) -> None:
    for ours, theirs in zip(left[:2], right[:2], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert torch.equal(left[2], right[2]) and torch.equal(left[3], right[3])


def test_a_run_is_bit_equal_with_and_without_the_meter(deterministic: None) -> None:
    plain = training(None)
    assert_bit_equal(plain, training(None))  # the loop itself is deterministic
    assert_bit_equal(plain, training(lambda model: Meter(model, sinks=[], log_dir="")))
    assert_bit_equal(plain, training(lambda model: Meter(sinks=[], log_dir="")))


class Inductor:
    """torch.compile's own backend, which counts its graphs and how often they run."""

    def __init__(self) -> None:
        self.graphs = self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        compiled = compile_fx(graph, inputs)

        def run(*args: Any) -> Any:
            self.runs += 1
            return compiled(*args)

        return run


@pytest.fixture
def compiles() -> Iterator[None]:
    pytest.importorskip("triton", reason="torch.compile on a GPU needs triton")
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_a_compiled_model_is_counted_like_an_eager_one_and_stays_compiled(
    compiles: None, deterministic: None
) -> None:
    alone, measured = Inductor(), Inductor()
    meters: list[Meter] = []

    def meter_for(model: torch.nn.Module) -> Meter:
        meters.append(Meter(model, sinks=[], log_dir=""))
        return meters[0]

    plain = training(None, lambda model: torch.compile(model, backend=alone))
    torch._dynamo.reset()
    with_meter = training(meter_for, lambda model: torch.compile(model, backend=measured))
    assert_bit_equal(plain, with_meter)
    assert (measured.graphs, measured.runs) == (alone.graphs, alone.runs) == (1, 5)
    run = meters[0].run
    (ids_of_counts,) = {step.count_ids for step in run.steps}
    counts = [run.counts[count_id].count for count_id in ids_of_counts]
    assert any("shadow" in count.method for count in counts)
    count = FlopCount.sum(counts)
    model, ids = small_gpt(dropout=0.1)

    def eager() -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(ids)
        loss.backward()

    expected = count_flops(eager)
    assert count.model == expected.model == 3 * FORWARD
    assert count.hardware == expected.hardware == 3 * FORWARD + AGAIN
    assert count.by_dtype == expected.by_dtype == {"bf16": 3 * FORWARD + AGAIN}
    assert [bool(step.excluded) for step in run.steps][2:] == [False] * 3


def test_the_device_is_described_and_its_peak_found_or_refused_with_a_reason() -> None:
    device = detect_device(kind="cuda")
    assert device.kind == "cuda" and device.name == torch.cuda.get_device_name()
    assert device.sm_count and device.memory_bytes and device.uuid
    try:
        peak = peak_for(device, "bf16")
    except UnknownPeak as error:
        assert device.name in str(error) and 'peak="... TFLOP/s"' in str(error)
    else:
        assert 1e13 < peak.flops_per_s < 1e17
        assert peak.provenance in ("datasheet", "derived") and peak.source


def test_large_matmuls_reach_a_believable_share_of_the_peak(tmp_path: Path) -> None:
    try:
        peak: Peak = peak_for(detect_device(kind="cuda"), "bf16")
    except UnknownPeak as error:
        pytest.skip(str(error))
    model = torch.nn.Linear(8192, 8192, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    with Meter(model, sinks=[], log_dir=tmp_path) as meter:
        for _ in range(30):
            with meter.step(tokens=8192):
                model(x).backward(x)  # x stands for a gradient
    figures = run_figures(meter.run)
    assert figures.mfu is not None and 0.25 < figures.mfu < 1.05
    assert figures.mfu == figures.hfu
    # 2 * 8192^3 FLOPs forward, as many for dW
    assert figures.model_flops_per_s == pytest.approx(figures.mfu * peak.flops_per_s)
    assert meter.run.counts[0].count.model == 4 * 8192**3
    assert figures.memory_bytes is not None
    # Weights, their gradient and the batch, 128 MiB each, are there at the same time.
    assert 3 * 2**27 <= figures.memory_bytes <= torch.cuda.get_device_properties(0).total_memory


def test_memory_is_the_most_that_was_allocated_so_far(tmp_path: Path) -> None:
    torch.cuda.reset_peak_memory_stats()
    model = torch.nn.Linear(256, 256).cuda()
    with Meter(model, sinks=[], log_dir=tmp_path, log_every=1, peak=1e15) as meter:
        for rows in (2**10, 2**18, 2**10):
            with meter.step():
                model(torch.ones(rows, 256, device="cuda")).sum().backward()
            torch.cuda.synchronize()  # so that the next step finds this one complete
    first, *_, last = [window.memory_bytes for window in meter.run.windows]
    assert first is not None and last is not None
    assert first > 0
    assert last >= 2 * 2**18 * 256 * 4  # input and output of the large batch


def test_a_run_with_the_default_sinks_reports_the_device_and_its_memory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model, ids = small_gpt()
    with caplog.at_level(logging.WARNING, "mfu_torch"), Meter(model, log_dir=tmp_path) as meter:
        for _ in range(12):
            with meter.step(tokens=ids.numel()), torch.autocast("cuda", torch.bfloat16):
                model(ids).backward()
    out = capsys.readouterr().out
    assert f"mfu_torch on {torch.cuda.get_device_name()}, attention full" in out
    assert meter.run.header.clock == "CUDA events"
    summary = meter.summary()
    assert "at its peak" in summary  # the memory
    assert "bf16" in summary
    assert not [r for r in caplog.records if "stopped measuring" in r.getMessage()]
