"""The sampler: what it makes of readings, whatever they are read from."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
from fake_clock import FakeClock

from mfu_torch.peak.telemetry import DeviceSampler, NoSource, Reading, sampler
from mfu_torch.records import Device

CPU = Device(name="a CPU", kind="cpu")


class Readings:
    """Gives what is set, and notes how it was asked."""

    def __init__(self) -> None:
        self.now = Reading({"power_w": 100.0})
        self.asked: list[float | None] = []
        self.opened = self.closed = 0
        self.before_return: Callable[[], None] = lambda: None

    def open(self) -> None:
        self.opened += 1

    def read(self, elapsed_s: float | None) -> Reading:
        self.asked.append(elapsed_s)
        self.before_return()
        return self.now

    def close(self) -> None:
        self.closed += 1


class Hand:
    """A sampler without a thread: a test says when it samples."""

    def __init__(self) -> None:
        self.clock, self.source = FakeClock(), Readings()
        self.sampler = DeviceSampler(CPU, source=self.source, clock=self.clock.host_s)

    def sample(self, after_s: float, **values: float | frozenset[str]) -> bool:
        self.clock.advance(after_s)
        if values:
            self.source.now = Reading(dict(values))
        return self.sampler.sample()


@pytest.fixture
def hand() -> Hand:
    return Hand()


def test_a_reading_stands_for_the_time_since_the_one_before(hand: Hand) -> None:
    hand.sample(9.0, power_w=999.0)  # marks the start
    assert hand.sampler.take(1) is None
    hand.sample(3.0, power_w=200.0)
    hand.sample(1.0, power_w=400.0)
    found = hand.sampler.take(7)
    assert found is not None
    assert (found.after_step, found.samples, found.time_s) == (7, 2, 4.0)
    assert found.power_w == 250.0  # (3 s x 200 W + 1 s x 400 W) / 4 s
    assert hand.source.asked == [None, 3.0, 1.0]
    assert hand.sampler.take(8) is None


def test_extremes_are_kept_and_throttling_is_a_share_of_the_time(hand: Hand) -> None:
    hand.sample(0.0)
    hand.sample(
        3.0, temperature_c=70.0, memory_used_bytes=5.0, other_processes=2.0, sm_clock_hz=1.5e9,
        throttle=frozenset({"power cap"}),
    )  # fmt: skip
    hand.sample(
        1.0, temperature_c=60.0, memory_used_bytes=7.0, other_processes=0.0, sm_clock_hz=1.1e9,
        throttle=frozenset({"power cap", "idle"}),
    )  # fmt: skip
    found = hand.sampler.take(1)
    assert found is not None
    assert (found.temperature_c, found.memory_used_bytes, found.other_processes) == (70.0, 7, 2)
    assert isinstance(found.memory_used_bytes, int) and isinstance(found.other_processes, int)
    assert (found.sm_clock_hz, found.sm_clock_min_hz) == (1.4e9, 1.1e9)
    assert found.throttle == {"idle": 0.25, "power cap": 1.0}
    assert "throttle" not in found.absent


def test_a_field_that_fails_for_a_while_is_the_mean_of_the_time_when_it_was_known(
    hand: Hand,
) -> None:
    hand.sample(0.0)
    hand.sample(2.0, power_w=300.0, gpu_util=1.0)
    hand.source.now = Reading({"gpu_util": 0.5}, {"power_w": "NVML: Timeout"})
    hand.sample(6.0)
    found = hand.sampler.take(1)
    assert found is not None
    assert (found.power_w, found.gpu_util, found.time_s) == (300.0, 0.625, 8.0)
    assert "power_w" not in found.absent
    hand.sample(1.0)
    again = hand.sampler.take(2)
    assert again is not None
    assert (again.power_w, again.absent["power_w"]) == (None, "NVML: Timeout")


def test_samples_that_a_pause_overlaps_are_dropped(hand: Hand) -> None:
    hand.sample(0.0)
    hand.sample(1.0, power_w=100.0)
    hand.clock.advance(0.5)
    hand.sampler.pause()
    hand.sample(1.0, power_w=900.0)  # in the pause: not even asked
    hand.sampler.resume()
    hand.sample(1.0, power_w=900.0)  # marks the new start
    hand.sample(1.0, power_w=300.0)
    found = hand.sampler.take(1)
    assert found is not None
    assert (found.samples, found.time_s, found.power_w) == (2, 2.0, 200.0)
    assert hand.source.asked == [None, 1.0, None, 1.0]


def test_a_pause_that_begins_while_the_device_is_read_drops_the_reading(hand: Hand) -> None:
    hand.sample(0.0)
    hand.source.before_return = hand.sampler.pause
    hand.sample(1.0)
    hand.source.before_return = lambda: None
    hand.sampler.resume()
    assert hand.sampler.take(1) is None
    hand.sample(1.0)
    assert hand.source.asked[-1] is None


def test_pauses_may_be_nested(hand: Hand) -> None:
    hand.sampler.pause()
    hand.sampler.pause()
    hand.sampler.resume()
    hand.sample(1.0)
    assert hand.source.asked == []
    hand.sampler.resume()
    hand.sampler.resume()  # one too many does no harm
    hand.sample(1.0)
    hand.sample(1.0)
    found = hand.sampler.take(1)
    assert found is not None and found.samples == 1


def test_a_device_that_is_gone_ends_sampling_with_one_warning_and_the_reason(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    hand.sample(0.0)
    hand.sample(2.0)

    def gone() -> None:
        raise NoSource("it fell off the bus")

    hand.source.before_return = gone
    assert [hand.sample(1.0) for _ in range(3)] == [False] * 3
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert "No more telemetry of a CPU: it fell off the bus" in warning.getMessage()
    before = hand.sampler.take(1)
    assert before is not None and (before.samples, before.power_w) == (1, 100.0)
    last = hand.sampler.take(2)
    assert last is not None and (last.samples, last.time_s) == (0, 0.0)
    assert last.absent["power_w"] == last.absent["sm_clock_min_hz"] == "it fell off the bus"
    assert hand.sampler.take(3) is None
    assert hand.sampler.problem == "telemetry stopped after 2.00 s: it fell off the bus"


def test_an_exception_that_nobody_thought_of_ends_sampling_and_nothing_else(
    hand: Hand, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise ZeroDivisionError("deep inside")

    hand.source.before_return = broken
    assert hand.sample(0.0) is False
    assert "reading failed (ZeroDivisionError: deep inside)" in caplog.text
    expected = "no telemetry: reading failed (ZeroDivisionError: deep inside)"
    assert hand.sampler.problem == expected


def test_a_device_without_counters_says_why_once() -> None:
    sampling = DeviceSampler(Device(name="Apple M1", kind="mps"))
    assert sampling.sample() is False
    said = sampling.take(10)
    assert said is not None and said.samples == 0
    assert "'mps' have no counters" in said.absent["gpu_util"]
    assert sampling.take(20) is None


# --- the thread ---------------------------------------------------------------------------------


def test_the_thread_samples_and_stop_ends_it_and_closes_the_source() -> None:
    source, twice = Readings(), threading.Event()
    source.before_return = lambda: twice.set() if len(source.asked) > 2 else None
    sampling = DeviceSampler(CPU, source=source, interval_s=0.001)
    sampling.start()
    sampling.start()  # once is enough
    assert twice.wait(30.0)
    assert sum("telemetry of a CPU" in t.name for t in threading.enumerate()) == 1
    sampling.stop()
    sampling.stop()
    assert not any("telemetry of a CPU" in t.name for t in threading.enumerate())
    assert (source.opened, source.closed) == (1, 1)
    assert sampling.take(1) is not None


def test_after_a_pause_the_thread_goes_on_at_once() -> None:
    source, first, again = Readings(), threading.Event(), threading.Event()
    source.before_return = lambda: (first if len(source.asked) == 1 else again).set()
    sampling = DeviceSampler(CPU, source=source, interval_s=3600.0)
    sampling.start()
    assert first.wait(30.0)
    sampling.pause()
    sampling.resume()
    assert again.wait(30.0)
    sampling.stop()
    assert source.asked == [None, None]


def test_a_call_that_hangs_does_not_hang_take_or_stop(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sampler, "STOP_WITHIN_S", 0.01)
    source, inside, release = Readings(), threading.Event(), threading.Event()

    def hang() -> None:
        inside.set()
        release.wait()

    source.before_return = hang
    sampling = DeviceSampler(CPU, source=source)
    sampling.start()
    assert inside.wait(30.0)
    assert sampling.take(1) is None
    sampling.pause()
    sampling.resume()
    assert sampling.problem == ""
    sampling.stop()
    (warning,) = caplog.records
    assert "a call to the driver has not returned" in warning.getMessage()
    said = sampling.take(2)
    assert said is not None and said.samples == 0
    assert said.absent["power_w"].startswith("a call to the driver has not returned for ")
    assert sampling.problem == f"no telemetry: {said.absent['power_w']}"
    (thread,) = [t for t in threading.enumerate() if "telemetry of a CPU" in t.name]
    assert thread.daemon
    release.set()
    thread.join(30.0)
    assert source.closed == 1  # it cleans up behind itself when the call does return


def test_a_call_that_hangs_after_a_while_is_said_with_both_times(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "STOP_WITHIN_S", 0.01)
    inside, release = threading.Event(), threading.Event()
    hand.sample(0.0)
    hand.sample(5.0)
    hand.source.before_return = lambda: (inside.set(), release.wait())  # type: ignore[assignment]
    hand.clock.advance(1.0)
    hand.sampler.start()
    assert inside.wait(30.0)
    hand.clock.advance(70.0)
    hand.sampler.stop()
    release.set()
    reason = "a call to the driver has not returned for 70.0 s"
    assert hand.sampler.problem == f"telemetry stopped after 5.00 s: {reason}"
    before = hand.sampler.take(1)
    assert before is not None and (before.samples, before.power_w) == (1, 100.0)


def test_a_sampler_that_nobody_holds_ends_its_thread() -> None:
    source, inside = Readings(), threading.Event()
    source.before_return = inside.set
    sampling = DeviceSampler(CPU, source=source, interval_s=0.001)
    sampling.start()
    assert inside.wait(30.0)
    thread = sampling._thread
    assert thread is not None
    del sampling
    thread.join(30.0)
    assert not thread.is_alive() and source.closed == 1


def test_a_call_that_never_returns_does_not_keep_the_interpreter() -> None:
    code = """
import threading
from mfu_torch.peak.telemetry import DeviceSampler, sampler
from mfu_torch.records import Device
sampler.STOP_WITHIN_S = 0.01
inside = threading.Event()
class Hangs:
    def open(self):
        inside.set()
        threading.Event().wait()
    def close(self):
        pass
forgotten = DeviceSampler(Device(name="a GPU", kind="cuda"), source=Hangs())
forgotten.start()
inside.wait()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    )
    assert "a call to the driver has not returned" in done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_in_a_forked_child_the_sampler_is_one_that_was_stopped(hand: Hand) -> None:
    hand.sample(0.0)
    hand.sample(1.0)
    hand.sampler._lock.acquire()  # as the thread of the parent may hold it at that moment
    child = os.fork()
    if child == 0:
        hand.sampler.pause()
        hand.sampler.resume()
        nothing = hand.sampler.take(1) is None and not hand.sampler.problem
        hand.sampler.stop()
        os._exit(0 if nothing else 1)
    hand.sampler._lock.release()
    assert os.waitpid(child, 0)[1] == 0
    assert hand.sampler.take(1) is not None


def test_where_no_thread_can_be_started_there_is_no_telemetry_and_no_exception(
    hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    hand.sampler.start()
    said = hand.sampler.take(1)
    assert said is not None and "can't start new thread" in said.absent["gpu_util"]
    hand.sampler.stop()
    assert hand.sampler.problem == f"no telemetry: {said.absent['gpu_util']}"


@pytest.mark.parametrize("error", [MemoryError("none left"), OSError("too many"), KeyError("x")])
def test_whatever_hinders_the_start_is_a_reason(
    hand: Hand, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise error

    monkeypatch.setattr(threading.Thread, "start", refuse)
    hand.sampler.start()
    assert hand.sampler.problem == f"no telemetry: no thread could be started ({error})"
    hand.sampler.stop()


@pytest.mark.parametrize("kind", ["cuda", "rocm", "cpu", "mps", "a kind to come"])
def test_a_source_that_cannot_be_made_is_a_reason_and_no_exception(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def broken(device: Device) -> None:
        raise ImportError("libodd.so is missing")

    assert DeviceSampler(Device(name="one", kind=kind)).problem == ""
    monkeypatch.setattr(sampler, "source_for", broken)
    sampling = DeviceSampler(Device(name="one", kind=kind))
    assert sampling.sample() is False
    reason = "it cannot be read (ImportError: libodd.so is missing)"
    assert sampling.problem == f"no telemetry: {reason}"
