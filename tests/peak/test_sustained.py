"""The sustained rate is the mean over the run, of the shape that held most, with what was seen."""

from __future__ import annotations

import weakref

import pytest
import torch
from fake_bench import FakeDevice, Shape, StubSampler, bench
from fake_cuda import FakeGpu

from mfu_torch.peak import sustained
from mfu_torch.peak.sustained import Sustained, best_sustained
from mfu_torch.records import Telemetry

SMALL, MIDDLE, LARGE = (8, 8, 8), (16, 8, 8), (16, 16, 16)  # 1024, 2048 and 8192 FLOPs
MS = 1 / 1024
"""About a millisecond, of which sums have no rounding error."""


def test_the_rate_is_the_mean_of_the_run_and_not_its_best(monkeypatch: pytest.MonkeyPatch) -> None:
    # The first 40 calls take 1 ms, all later ones 2 ms: the device throttles.
    FakeDevice(monkeypatch, lambda shape, number: MS if number < 40 else 2 * MS)
    found = best_sustained(bench(), [SMALL], 1)
    assert found.flops_per_s == pytest.approx(1024 / (2 * MS))
    assert found.burst_flops_per_s == pytest.approx(1024 / MS)
    assert found.shape == SMALL
    assert found.time_s == pytest.approx(1.0, rel=0.05)
    assert found.calls * 1024 / found.time_s == pytest.approx(found.flops_per_s)


def test_a_pause_in_the_run_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of 1 s, one call takes a quarter: the burst is as without it.
    FakeDevice(monkeypatch, lambda shape, number: 0.25 if number == 600 else MS)
    found = best_sustained(bench(), [SMALL], 1)
    assert found.burst_flops_per_s == pytest.approx(1024 / MS)
    assert found.flops_per_s == pytest.approx(0.75 * 1024 / MS, rel=0.02)


def test_the_warm_up_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    # The quick look ends after 1 + 2 + 2 * 10 calls; until call 100 the clock has not risen.
    FakeDevice(monkeypatch, lambda shape, number: 2 * MS if 23 <= number < 100 else MS)
    found = best_sustained(bench(), [SMALL], 1)
    assert found.flops_per_s == pytest.approx(1024 / MS)


def test_the_shape_that_holds_most_wins_over_the_one_that_was_fastest_in_a_burst(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The large shape does 8192 FLOPs in 1 ms at first and in 8 ms later; the middle one 2048 in 1.
    def call_s(shape: Shape, number: int) -> float:
        return 8 * MS if shape == LARGE and number > 80 else MS

    FakeDevice(monkeypatch, call_s)
    found = best_sustained(bench(), [LARGE, SMALL, MIDDLE], 2)
    assert found.shape == MIDDLE
    assert found.flops_per_s == pytest.approx(2048 / MS)
    assert found.shapes_tried == 3
    FakeDevice(monkeypatch, call_s)
    alone = best_sustained(bench(), [LARGE, SMALL, MIDDLE], 1)
    assert alone.shape == LARGE
    assert alone.flops_per_s == pytest.approx(8192 / (8 * MS))
    assert alone.burst_flops_per_s == pytest.approx(8192 / MS)


def test_a_shape_that_would_take_too_long_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    # 1024 FLOPs in 40 ms: 8192 would take 0.32 s, more than a quarter of the second.
    device = FakeDevice(monkeypatch, lambda shape, number: 0.04)
    found = best_sustained(bench(), [LARGE, SMALL], 3)
    assert {shape for shape, _ in device.made} == {SMALL}
    assert (found.shape, found.shapes_tried) == (SMALL, 1)


def test_a_slow_shape_is_called_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch, lambda shape, number: 10.0)
    found = best_sustained(bench(), [SMALL], 1)
    assert found.time_s == 20.0  # two groups of one call
    assert len(device.shapes) == 3 + 2 + 2  # look, warm-up, run


def test_a_shape_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def call_s(shape: Shape, number: int) -> float:
        if shape == LARGE:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return MS

    FakeDevice(monkeypatch, call_s)
    assert best_sustained(bench(), [SMALL, LARGE], 3).shapes_tried == 1
    with pytest.raises(RuntimeError, match="out of memory"):
        best_sustained(bench(), [LARGE], 3)
    with pytest.raises(ValueError, match="no shape to measure; expected one or more"):
        best_sustained(bench(), [], 3)


def test_a_shape_that_fails_when_it_is_sustained_leaves_the_next_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Another process takes the memory between the quick look and the run.
    def call_s(shape: Shape, number: int) -> float:
        if shape == LARGE and number > 60:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return MS

    FakeDevice(monkeypatch, call_s)
    assert best_sustained(bench(), [SMALL, MIDDLE, LARGE], 2).shape == MIDDLE


def test_a_failure_does_not_keep_the_operands_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def make(shape: Shape, dtype: str, where: torch.device) -> object:
        operand = torch.empty(8)
        kept.append(weakref.ref(operand))
        raise torch.OutOfMemoryError(f"CUDA out of memory, with {len(operand)} numbers")

    FakeDevice(monkeypatch, lambda shape, number: MS)
    monkeypatch.setattr(sustained, "rotating", make)
    failures: list[Exception] = []
    sustained._unless_it_fails(lambda: sustained._glance(bench(), SMALL), failures)
    assert len(failures) == 1 and kept[0]() is None


def test_operands_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    FakeDevice(monkeypatch, lambda shape, number: MS)
    runs = tuple(lambda number=number: seen.append(number) for number in range(3))
    monkeypatch.setattr(sustained, "rotating", lambda shape, dtype, where: runs)
    run, sets = sustained._in_turn(bench(), SMALL)
    for _ in range(7):
        run()
    assert (seen, sets) == ([0, 1, 2, 0, 1, 2, 0], 3)


def test_the_sampler_sees_the_sustained_run_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Telemetry(after_step=0, samples=9, time_s=0.9, sm_clock_hz=1.4e9)
    sampler = StubSampler(seen)
    calls = sampler.calls

    def call_s(shape: Shape, number: int) -> float:
        if calls[-1:] != ["multiply"]:
            calls.append("multiply")
        return MS

    FakeDevice(monkeypatch, call_s)
    found = best_sustained(bench(sampler=sampler), [SMALL], 1)
    assert found.telemetry == seen
    assert calls == ["multiply", "take", "resume", "multiply", "pause", "take"]


def test_why_nothing_can_be_read_is_kept_although_a_sampler_says_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    FakeDevice(monkeypatch, lambda shape, number: MS)
    sampler = StubSampler(Telemetry(after_step=0, samples=0, time_s=0.0, absent={"power_w": "no"}))
    where = bench(sampler=sampler)
    first = best_sustained(where, [SMALL], 1)
    sampler.seen = None
    assert best_sustained(where, [SMALL], 1).telemetry == first.telemetry
    assert first.telemetry is not None and first.telemetry.absent == {"power_w": "no"}
    sampler.seen = Telemetry(after_step=0, samples=1, time_s=0.1)
    assert best_sustained(where, [SMALL], 1).telemetry == sampler.seen


# --- on the timeline of a GPU ------------------------------------------------------------------


def test_a_gpu_is_never_without_work_and_its_own_time_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = FakeGpu(monkeypatch)
    idle: list[float] = []

    def launch() -> None:
        busy_until_s = gpu.busy_until_s.get("stream of cuda:0", 0.0)
        idle.append(max(0.0, gpu.now_s - busy_until_s))
        gpu.now_s += 1e-5  # the host's own time for a call
        gpu.launch(MS)

    monkeypatch.setattr(sustained, "rotating", lambda shape, dtype, where: (launch,))
    found = best_sustained(bench(where=torch.device("cuda", 0), cpus=None), [LARGE], 1)
    assert found.flops_per_s == pytest.approx(8192 / MS, rel=1e-4)  # but for the first call
    assert found.cpu_share == 1.0
    run = idle[-found.calls :]
    assert max(run[1:]) == 0.0


# --- what is said of a rate --------------------------------------------------------------------


def rate(**fields: object) -> Sustained:
    values: dict[str, object] = {"dtype": "bf16", "flops_per_s": 7e14, "shape": (8, 8, 8)}
    values |= {"burst_flops_per_s": 8e14, "time_s": 1.0, "calls": 10}
    return Sustained(**values | fields)  # type: ignore[arg-type]


def seen(**fields: object) -> Telemetry:
    return Telemetry(after_step=0, samples=10, time_s=1.0, **fields)  # type: ignore[arg-type]


def test_nothing_is_said_of_a_quiet_device() -> None:
    assert rate().cautions == ()
    quiet = seen(other_processes=0, power_limit_w=700.0, power_default_w=700.0)
    assert rate(telemetry=quiet).cautions == ()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"other_processes": 1}, "1 other process was on the device"),
        ({"other_processes": 3}, "3 other processes were on the device"),
        (
            {"throttle": {"power cap": 0.9, "heat": 0.1}},
            "the clock was held down: power cap (90.0 % of the samples), "
            "heat (10.0 % of the samples)",
        ),
        (
            {"power_limit_w": 500.0, "power_default_w": 700.0},
            "its power is capped at 500 W; its default is 700 W",
        ),
    ],
)
def test_what_disturbed_or_slowed_the_device_is_said(fields: dict[str, object], said: str) -> None:
    assert rate(telemetry=seen(**fields)).cautions == (said,)


def test_a_cpu_that_others_used_is_told_by_its_own_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    device = FakeDevice(monkeypatch, lambda shape, number: MS)
    device.share = 0.6
    found = best_sustained(bench(), [SMALL], 1)
    assert found.cpu_share == pytest.approx(0.6)
    assert found.disturbed
    assert found.cautions == (
        "other work was on the CPU: its threads got 60.0 % of the time they may have",
    )
    device.share = 0.9
    assert not best_sustained(bench(), [SMALL], 1).disturbed
