"""The clocks, with the host's clock and ``torch.cuda`` replaced by ones that a test moves."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import FakeEvent, FakeGpu

from mfu_torch.clock.clocks import CudaClock, HostClock, SyncClock, clock_for
from mfu_torch.clock.ledger import TAIL, Ledger, OpenStep, PauseTime

CUDA_0 = torch.device("cuda", 0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """A GPU whose host clock is the one that ``time.perf_counter`` reads in the clocks."""
    gpu = FakeGpu(monkeypatch)
    host = SimpleNamespace(perf_counter=lambda: gpu.now_s)
    monkeypatch.setattr("mfu_torch.clock.clocks.time", host)
    return gpu


# --- the host -----------------------------------------------------------------------------------


def test_a_host_mark_is_the_time_at_which_it_was_taken(gpu: FakeGpu) -> None:
    clock = HostClock()
    start = clock.mark()
    gpu.now_s += 0.25
    end = clock.mark()
    assert clock.seconds(start, end) == 0.25
    assert clock.host_s() == end


def test_a_host_mark_is_ready_at_once_and_there_is_nothing_to_wait_for(gpu: FakeGpu) -> None:
    clock = HostClock()
    mark = clock.mark()
    assert clock.ready(mark)
    clock.wait(mark)
    clock.release(mark)
    assert gpu.calls == []


def test_the_synchronising_clock_waits_for_the_device_at_every_mark(gpu: FakeGpu) -> None:
    clock = SyncClock(CUDA_0)
    start = clock.mark()
    gpu.launch(0.5)  # the host goes on at once, and would see no time pass
    end = clock.mark()
    assert clock.seconds(start, end) == 0.5
    assert gpu.calls == ["torch.cuda.synchronize"] * 2
    assert clock.ready(end)


def test_reading_the_host_time_does_not_synchronise(gpu: FakeGpu) -> None:
    clock = SyncClock(CUDA_0)
    assert clock.host_s() == gpu.now_s
    assert gpu.calls == []


# --- CUDA events --------------------------------------------------------------------------------


def test_a_cuda_mark_is_an_event_on_the_current_stream_of_the_given_device(gpu: FakeGpu) -> None:
    clock = CudaClock(torch.device("cuda", 3))
    clock.mark()
    gpu.stream = "side stream of {}"  # entered with `with torch.cuda.stream(..)`
    clock.mark()
    assert gpu.recorded_on == ["stream of cuda:3", "side stream of cuda:3"]


def test_taking_a_cuda_mark_records_and_does_nothing_else(gpu: FakeGpu) -> None:
    clock = CudaClock(CUDA_0)
    for _ in range(100):
        gpu.launch(1.0)
        clock.mark()
    assert Counter(gpu.calls) == {"record": 100}  # no query, no synchronize
    assert gpu.now_s == 1000.0  # the host has not waited


def test_a_cuda_mark_is_ready_when_a_query_says_that_the_gpu_has_passed_it(gpu: FakeGpu) -> None:
    clock = CudaClock(CUDA_0)
    gpu.launch(2.0)
    mark = clock.mark()
    gpu.calls.clear()
    assert clock.ready(mark) is False
    gpu.now_s += 2.0
    assert clock.ready(mark) is True
    assert gpu.calls == ["query", "query"]


def test_waiting_for_a_cuda_mark_synchronises_its_event_and_not_the_device(gpu: FakeGpu) -> None:
    clock = CudaClock(CUDA_0)
    gpu.launch(2.0)
    mark = clock.mark()
    gpu.launch(50.0)
    gpu.calls.clear()
    clock.wait(mark)
    assert gpu.calls == ["synchronize"]
    assert gpu.now_s == 1002.0


def test_cuda_seconds_are_the_elapsed_milliseconds_of_the_gpu_over_1000(gpu: FakeGpu) -> None:
    class Event:
        def elapsed_time(self, end: object) -> float:
            return 250.0

    assert CudaClock(CUDA_0).seconds(Event(), Event()) == 0.25


def test_cuda_seconds_are_those_of_the_gpu_and_not_of_the_host(gpu: FakeGpu) -> None:
    clock = CudaClock(CUDA_0)
    gpu.launch(4.0)
    start = clock.mark()  # at 0 s on the host, at 4 s on the GPU
    gpu.now_s += 1.0
    gpu.launch(0.5)
    end = clock.mark()
    clock.wait(end)
    assert clock.seconds(start, end) == 0.5


def test_host_seconds_beside_cuda_events_are_those_of_the_host(gpu: FakeGpu) -> None:
    assert CudaClock(CUDA_0).host_s() == gpu.now_s


def test_a_released_event_is_the_next_mark(gpu: FakeGpu) -> None:
    clock = CudaClock(CUDA_0)
    first = clock.mark()
    second = clock.mark()
    assert second is not first
    clock.release(first)
    assert clock.mark() is first
    assert gpu.created == 2


# --- with the ledger ----------------------------------------------------------------------------


def drive(ledger: Ledger, gpu: FakeGpu, steps: int, poll_every: int) -> list[OpenStep]:
    """Steps of 0.5 s on the GPU, of which the host runs 4 s, that is 8 steps, ahead."""
    done: list[OpenStep] = []
    last = None
    for index in range(steps):
        step = OpenStep(index, None, None, None)
        ledger.begin(step, closes=last)
        gpu.launch(0.375)
        ledger.begin(step, TAIL)
        gpu.launch(0.125)
        last = step
        gpu.now_s = max(gpu.now_s, max(gpu.busy_until_s.values()) - 4.0)
        if index % poll_every == 0:
            done += [part for part in ledger.poll() if type(part) is OpenStep]
    return done


@pytest.mark.parametrize(
    ("poll_every", "in_use"),
    [
        # 8 steps ahead are 16 marks that the GPU has not reached, and the two that it is between.
        (1, 18),
        # Between two polls 9 more steps are not looked at.
        (10, 36),
    ],
)
def test_over_ten_thousand_steps_no_more_events_are_made_than_are_in_use_at_once(
    gpu: FakeGpu, poll_every: int, in_use: int
) -> None:
    ledger = Ledger(CudaClock(CUDA_0))
    done = drive(ledger, gpu, 100, poll_every)
    created = gpu.created
    assert created <= in_use
    done += drive(ledger, gpu, 9_900, poll_every)
    assert gpu.created == created
    assert gpu.calls.count("record") == 20_000
    assert "synchronize" not in gpu.calls and "torch.cuda.synchronize" not in gpu.calls
    assert len(done) > 9_900
    assert {(step.inside_s, step.tail_s) for step in done} == {(0.375, 0.125)}


def test_a_poll_asks_for_one_event_that_is_not_ready_and_stops_there(gpu: FakeGpu) -> None:
    ledger = Ledger(CudaClock(CUDA_0))
    for index in range(50):
        gpu.launch(1.0)
        ledger.begin(PauseTime(f"part {index}", 0))
    gpu.calls.clear()
    assert ledger.poll() == []
    assert gpu.calls == ["query"]


def test_the_first_event_is_asked_for_until_it_was_reached_and_then_no_more(gpu: FakeGpu) -> None:
    ledger = Ledger(CudaClock(CUDA_0))
    ledger.begin(PauseTime("a", 0))  # reached at once
    gpu.launch(1.0)
    ledger.begin(PauseTime("b", 0))
    gpu.calls.clear()
    assert ledger.poll() == []
    assert gpu.calls == ["query", "query"]
    gpu.calls.clear()
    assert ledger.poll() == []
    assert gpu.calls == ["query"]


def test_closing_waits_for_the_events_and_returns_all_but_the_last_to_the_pool(
    gpu: FakeGpu,
) -> None:
    clock = CudaClock(CUDA_0)
    ledger = Ledger(clock)
    parts = [PauseTime("a", 0), PauseTime("b", 0), PauseTime("c", 0)]
    for part in parts:
        ledger.begin(part)
        gpu.launch(1.5)
    assert ledger.poll(wait=True) == parts[:2]
    assert [part.duration_s for part in parts] == [1.5, 1.5, 0.0]
    assert gpu.calls == ["record"] * 3 + ["synchronize"] * 3  # for the first one, too
    marks: list[FakeEvent] = [clock.mark() for _ in range(2)]
    assert gpu.created == 3 and len(set(map(id, marks))) == 2


# --- which clock --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "sync", "kind", "description"),
    [
        ("cpu", False, HostClock, "host clock"),
        ("cpu", True, HostClock, "host clock"),  # ops have run when they return: nothing to wait
        ("cuda", False, CudaClock, "CUDA events"),
        ("cuda:1", False, CudaClock, "CUDA events"),
        ("cuda", True, SyncClock, "host clock, cuda synchronised at every mark"),
        ("mps", False, HostClock, "host clock"),
        ("mps", True, SyncClock, "host clock, mps synchronised at every mark"),
    ],
)
def test_the_clock_is_chosen_by_the_device(
    gpu: FakeGpu, device: str, sync: bool, kind: type, description: str
) -> None:
    clock = clock_for(torch.device(device), sync=sync)
    assert type(clock) is kind
    assert clock.description == description
    assert gpu.created == 0 and gpu.calls == []


def test_the_synchronising_clock_waits_for_its_own_device_and_not_for_the_current_one(
    gpu: FakeGpu,
) -> None:
    clock = SyncClock(torch.device("cuda", 1))
    clock.mark()
    assert gpu.synchronized == [torch.device("cuda", 1)]


def test_the_synchronising_clock_does_not_name_the_one_mps_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []

    def synchronize() -> None:  # as torch.mps has it: it takes no device
        calls.append("torch.mps.synchronize")

    monkeypatch.setattr(torch.mps, "synchronize", synchronize)
    clock = SyncClock(torch.device("mps"))
    clock.mark()
    clock.mark()
    assert calls == ["torch.mps.synchronize"] * 2


def test_a_run_that_moves_to_another_stream_is_timed_although_the_first_one_is_still_busy(
    gpu: FakeGpu,
) -> None:
    ledger = Ledger(CudaClock(CUDA_0))
    gpu.launch(10.0)  # say, the copy of the model to the device
    init, step = PauseTime("init", 0), OpenStep(0, None, None, None)
    ledger.begin(init)
    gpu.stream = "side stream of {}"
    ledger.begin(step)
    gpu.now_s += 1.0
    assert ledger.poll() == []  # the first mark itself has not been reached yet
    assert gpu.calls == ["record", "record", "query"]
    gpu.now_s += 9.0
    assert ledger.poll() == [init]
