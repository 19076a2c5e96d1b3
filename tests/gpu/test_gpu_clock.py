"""Time on a real GPU: events agree with synchronised timing, and no step waits for the device."""

from __future__ import annotations

import contextlib
import logging
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from small_gpt import small_gpt

from mfu_torch import Meter
from mfu_torch.clock.clocks import CudaClock

pytestmark = pytest.mark.gpu

AGREE = 0.05
"""How far two measurements of the same loop may be apart; clocks of a GPU move by some percent."""


@pytest.fixture
def synchronisations(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Every call that makes the host wait for the device, by name, also from the loop itself."""
    calls: list[str] = []

    def counted(owner: Any, name: str) -> Callable[..., Any]:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls.append(f"{owner.__name__}.{name}")
            return original(*args, **kwargs)

        return call

    for owner in (torch.cuda, torch.cuda.Event, torch.cuda.Stream):
        monkeypatch.setattr(owner, "synchronize", counted(owner, "synchronize"))
    return calls


@contextlib.contextmanager
def synchronising_is_an_error() -> Iterator[None]:
    """``.item()``, copies to the host and the like raise. Waiting for events is not among them."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


class Matmuls:
    """Four products of large matrices: some milliseconds of GPU, some microseconds of host."""

    FLOPS = 4 * 2 * 8192**3

    def __init__(self) -> None:
        self.a, self.b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.float16).unbind(0)

    def __call__(self) -> None:
        for _ in range(4):
            torch.mm(self.a, self.b)


def durations_s(work: Callable[[], None], steps: int = 24, **arguments: Any) -> list[float]:
    """Of the steps, without the first ones and the last, which nothing follows."""
    flops = {"fp16": float(Matmuls.FLOPS)}
    meter = Meter(device="cuda", sinks=[], log_dir="", flops=flops, **arguments)
    with meter:
        for _ in range(steps):
            with meter.step():
                work()
    return [step.duration_s for step in meter.run.steps][3:-1]


def test_events_and_synchronised_timing_agree_on_the_time_of_a_step() -> None:
    work = Matmuls()
    durations_s(work)  # brings the GPU to its clock
    found: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        for sync in (False, True):
            found[sync].append(statistics.median(durations_s(work, sync=sync)))
    assert min(found[False]) == pytest.approx(min(found[True]), rel=AGREE)


def test_the_steps_sum_to_the_time_between_two_synchronisations() -> None:
    work = Matmuls()
    durations_s(work)
    meter = Meter(device="cuda", sinks=[], log_dir="", flops={"fp16": 1.0})
    with meter:
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        for _ in range(50):
            with meter.step():
                work()
        torch.cuda.synchronize()
        between_s = time.perf_counter() - start_s
    run = meter.run
    spent_s = sum(step.duration_s for step in run.steps)
    assert spent_s == pytest.approx(between_s, rel=AGREE)
    parts_s = spent_s + sum(pause.duration_s for pause in run.pauses)
    # Each part is rounded to the resolution of the events, half a microsecond.
    assert parts_s == pytest.approx(run.wall_s, abs=1e-4)


def test_work_that_is_queued_during_a_step_is_timed_though_the_host_has_long_gone_on() -> None:
    work = Matmuls()
    durations_s(work)
    meter = Meter(device="cuda", sinks=[], log_dir="", flops={"fp16": 1.0})
    with meter:
        torch.cuda.synchronize()
        start_s = time.perf_counter()
        for _ in range(3):
            with meter.step():
                work()
        queued_s = time.perf_counter() - start_s
    steps = list(meter.run.steps)
    assert queued_s < sum(step.duration_s for step in steps[:2])


def test_no_step_waits_for_the_device(synchronisations: list[str]) -> None:
    model, ids = small_gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    meter = Meter(model, sinks=[], log_dir="", log_every=2)
    with meter:
        with synchronising_is_an_error():
            for _ in range(9):  # counted ones and windows included
                with meter.step(tokens=ids.numel(), samples=len(ids)), meter.phase("all"):
                    model(ids).backward()
                    optimizer.step()
                    optimizer.zero_grad()
            with meter.pause("eval"), torch.no_grad():
                model(ids)
        assert synchronisations == []
    # Closing waits for events, never for all that the device has to do.
    assert set(synchronisations) <= {"Event.synchronize"}
    assert len(list(meter.run.steps)) == 9


def test_with_sync_every_mark_waits(synchronisations: list[str]) -> None:
    model, ids = small_gpt()
    meter = Meter(model, sinks=[], log_dir="", sync=True)
    with meter:
        for _ in range(3):
            with meter.step():
                model(ids).backward()
    # The start of the run, two marks a step, two around each look-up of a peak, two at the end.
    marks = 1 + 2 * 3 + 2 * len(meter.run.peaks) + 2
    assert synchronisations.count("torch.cuda.synchronize") == marks


def test_a_long_run_makes_no_more_events_than_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    created: list[object] = []

    class Event(torch.cuda.Event):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            event = super().__new__(cls, *args, **kwargs)
            created.append(event)
            return event

    monkeypatch.setattr(torch.cuda, "Event", Event)
    x = torch.ones(64, 64, device="cuda")
    meter = Meter(device="cuda", sinks=[], log_dir="", log_every=10, flops={"fp32": 1.0})
    numbers = []
    with meter:
        for _ in range(10):
            for _ in range(100):
                with meter.step():
                    torch.mm(x, x)
            torch.cuda.synchronize()
            numbers.append(len(created))
    # How far the host gets ahead is not ours to say, but what is in use comes back.
    assert numbers[-1] <= 2 * 100 + 10


def test_a_step_on_a_side_stream_is_timed_on_it() -> None:
    work = Matmuls()
    durations_s(work)
    expected_s = statistics.median(durations_s(work))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found_s = statistics.median(durations_s(work))
    assert found_s == pytest.approx(expected_s, rel=2 * AGREE)


def test_marks_are_taken_on_the_given_device_and_not_on_the_current_one() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    clock = CudaClock(torch.device("cuda", 1))
    a = torch.randn(4096, 4096, device="cuda:1", dtype=torch.float16)
    with torch.cuda.device(0):
        start = clock.mark()
        for _ in range(20):
            torch.mm(a, a)
        end = clock.mark()
        clock.wait(end)
    assert clock.ready(start) and clock.ready(end)
    assert start.device == end.device == torch.device("cuda", 1)
    assert clock.seconds(start, end) > 1e-4  # 20 * 137 GFLOP; no GPU does that at 27 PFLOP/s


@pytest.mark.parametrize("capture_in_step", [0, 3])
def test_capturing_a_graph_inside_a_step_works_and_its_replays_are_timed(
    capture_in_step: int, caplog: pytest.LogCaptureFixture
) -> None:
    model = torch.nn.Linear(64, 64).cuda()
    x = torch.randn(8, 64, device="cuda")
    with torch.no_grad():
        expected = model(x)
        warm = torch.cuda.Stream()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            model(x)
        torch.cuda.current_stream().wait_stream(warm)
    graph = torch.cuda.CUDAGraph()
    with (
        caplog.at_level(logging.WARNING, "mfu_torch"),
        torch.no_grad(),
        Meter(model, sinks=[], log_dir="", log_every=2) as meter,
    ):
        for index in range(12):
            with meter.step():
                if index < capture_in_step:
                    model(x)
                elif index == capture_in_step:
                    with torch.cuda.graph(graph):
                        out = model(x)
                else:
                    graph.replay()
    assert torch.equal(out, expected)
    run = meter.run
    assert run.end is not None and run.end.reason == "completed"
    steps = list(run.steps)
    assert len(steps) == 12 and all(step.duration_s > 0 for step in steps)
    assert not [r for r in caplog.records if "stopped measuring" in r.getMessage()]
    # What a graph replays cannot be seen: such steps have no count, rather than a wrong one.
    replays = steps[capture_in_step + 2 :]
    replayed = [run.counts[count_id] for step in replays for count_id in step.count_ids]
    assert len(replayed) >= len(replays) > 0
    assert all(entry.count is None and entry.unknown for entry in replayed)
