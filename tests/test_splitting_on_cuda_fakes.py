"""Steps whose parts run on a GPU, whose work is queued: their times, and the lead of the host."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch
from fake_cuda import FakeEvent, FakeGpu
from slow_loop import Loop, seconds

from mfu_torch.clock.clocks import CudaClock, HostClock, SyncClock
from mfu_torch.records import Device
from mfu_torch.splitting import StepSplitter, splitter_for

# --- clocks -------------------------------------------------------------------------------------


def test_no_step_is_split_where_that_would_not_be_the_truth(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, mps, cpu = (torch.device(kind) for kind in ("cuda", "mps", "cpu"))

    def fails(error: Exception) -> None:
        raise AssertionError from error

    assert splitter_for([], SyncClock(cuda), cuda, fails) is None
    assert splitter_for([], HostClock(), mps, fails) is None
    assert isinstance(splitter_for([], HostClock(), cpu, fails), StepSplitter)
    assert isinstance(splitter_for([], CudaClock(cuda), cuda, fails), StepSplitter)


H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", index=0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 0)
    yield FakeGpu(monkeypatch)


def on(gpu: FakeGpu, host_s: float) -> Loop:
    """A loop whose parts are queued on the GPU, each in ``host_s`` of the host's time."""

    def lasts(seconds: float) -> None:
        gpu.launch(seconds)
        gpu.now_s += host_s

    clock = CudaClock(torch.device("cuda:0"))
    clock.host_s = lambda: gpu.now_s  # type: ignore[method-assign]
    return Loop(lasts=lasts, clock=clock, device=H100, telemetry=False)


def test_on_a_gpu_the_parts_are_those_of_its_own_timeline(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)
    steps = loop.run(loop.train, times=6)
    assert set(gpu.calls) == {"record", "query", "synchronize"}  # the last: when it is closed
    for step in steps[1:]:
        assert step.parts is not None
        assert seconds(step.parts) == pytest.approx((1.0, 0.25, 2.5, 4.0, 0.0))


def test_the_lead_of_the_host_grows_as_it_runs_ahead(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)
    steps = loop.run(loop.train, times=4)
    # Of 7.75 s a step on the GPU the host takes 5 * 0.125 s. The first mark is reached at once.
    leads = [step.parts.lead_s for step in steps if step.parts]
    assert leads == pytest.approx([7.125 * number for number in (1, 2, 3, 4)], rel=1e-3)


def test_a_lead_that_does_not_change_is_still_known_much_later(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)

    def step() -> None:
        loop.train()
        if gpu.busy_until_s and max(gpu.busy_until_s.values()) - gpu.now_s > 16.0:
            gpu.now_s += 7.125  # the queue is full: the host is held up for a step's time

    with loop.meter:
        for _ in range(600):
            with loop.meter.step():
                step()
    last = list(loop.meter.run.steps)[-1]
    assert last.parts is not None
    # In truth 14.25 s when a step is left; a mark that is not reached tells all but a part of it.
    assert last.parts.lead_s is not None
    assert 14.25 - 7.75 <= last.parts.lead_s <= 14.25


def test_a_host_that_is_always_late_has_no_lead(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=8.0)
    for step in loop.run(loop.train, times=4)[1:]:
        assert step.parts is not None
        assert (step.parts.lead_s, step.parts.lead_most_s) == pytest.approx((0.0, 0.0))
        assert seconds(step.parts) == pytest.approx((8.0, 8.0, 16.0, 8.0, 0.0))


def test_a_step_that_ends_by_waiting_for_the_gpu_had_a_lead_before(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)

    def step() -> None:
        loop.train()
        gpu.now_s = max([gpu.now_s, *gpu.busy_until_s.values()])  # loss.item()

    for one in loop.run(step, times=4)[1:]:
        assert one.parts is not None
        assert one.parts.lead_s == pytest.approx(0.0)
        assert one.parts.lead_most_s == pytest.approx(7.75 - 5 * 0.125, rel=1e-3)


def test_while_a_graph_is_captured_no_event_is_recorded(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)
    recorded = []

    def step() -> None:
        before = gpu.calls.count("record")
        gpu.capturing = True
        loop.train()
        gpu.capturing = False
        recorded.append(gpu.calls.count("record") - before)

    steps = loop.run(step)
    assert recorded == [0, 0, 0]
    assert [step.parts for step in steps] == [None] * 3


def test_parts_on_a_stream_of_their_own_that_lags_leave_the_step_whole(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)

    def step() -> None:
        default, gpu.stream = gpu.stream, "side stream of {}"
        loop.train()
        gpu.stream = default

    assert [step.parts for step in loop.run(step)][-1] is None


@pytest.mark.parametrize("seed", range(3))
def test_a_host_that_is_held_up_anywhere_never_makes_a_lead_too_long(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """After a mark it waits for other threads (``record`` gives the GIL away), or for the queue."""
    chance = random.Random(seed)
    record = FakeEvent.record

    def held_up(self: FakeEvent, stream: str) -> None:
        gpu.now_s += chance.choice([0.0, 0.0, 0.0, 2.0])
        record(self, stream)
        gpu.now_s += chance.choice([0.0, 0.0, 0.0, 2.0])

    def asked(self: FakeEvent) -> bool:
        passed = self.passed()
        if not passed:
            gpu.now_s += chance.choice([0.0, 2.0])
        return passed

    monkeypatch.setattr(FakeEvent, "record", held_up)
    monkeypatch.setattr(FakeEvent, "query", asked)
    loop = on(gpu, host_s=0.125)
    at_end: list[float] = []
    most: list[float] = []

    def behind() -> float:
        return max(0.0, *gpu.busy_until_s.values()) - gpu.now_s if gpu.busy_until_s else 0.0

    with loop.meter:
        for _ in range(300):
            if behind() > 20.0:
                gpu.now_s += behind() - 20.0  # the queue is full
            most.append(max(0.0, behind()))
            with loop.meter.step():
                loop.loss(torch.ones(2, 4)).backward()
                loop.optimizer.step()
                most[-1] += 7.75
            at_end.append(max(0.0, behind()))
    split = [step for step in loop.meter.run.steps if step.parts]
    assert len(split) > 20
    for step in split:
        parts = step.parts
        assert parts is not None and parts.lead_s is not None and parts.lead_most_s is not None
        assert parts.lead_s <= at_end[step.index] + 1e-6
        assert parts.lead_most_s <= most[step.index] + 1e-6
    assert max(step.parts.lead_s or 0.0 for step in split if step.parts) > 5.0
