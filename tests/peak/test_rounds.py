"""The trials and rounds of a measurement; where other work disturbs them all, there is no peak.

Time is faked: it passes only in matmuls, and in making their operands.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mfu_torch.peak import benchmark, cpu_time, matmuls
from mfu_torch.peak.benchmark import measured_peak
from mfu_torch.records import Device, UnknownPeak

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
SMALL, LARGE = (8, 8, 8), (16, 16, 16)  # 2 * 8^3 = 1024 and 2 * 16^3 = 8192 FLOPs

EXACT_S = 1 / 1024
"""About 1 ms, of which sums have no rounding error. A measurement of 1 s makes 102 repeats: after
the warm-up and three trials there are 1020 calls, and a repeat of 10 ms has 10 of them."""

# Seconds that a call takes, and the shares of them that torch's two threads get.
Call = tuple[float, tuple[float, float]]


class FakeCpu:
    """A CPU of two threads. ``call`` is given the shape, the round and the number of the call.

    Both count from 0; the calls of each shape in each round are counted by themselves, and the
    first is the warm-up.
    """

    def __init__(self, call: Callable[[tuple[int, int, int], int, int], Call]) -> None:
        self.call = call
        self.wall_s = self.all_s = self.own_s = 0.0
        self.operands_s = 0.0
        self.made: list[tuple[int, int, int]] = []

    def perf_counter(self) -> float:
        return self.wall_s

    def process_time(self) -> float:
        return self.all_s

    def thread_time(self) -> float:
        return self.own_s

    def spend(self, seconds: float, shares: tuple[float, float]) -> None:
        self.wall_s += seconds
        self.own_s += seconds * shares[0]
        self.all_s += seconds * sum(shares)

    def matmul(
        self, shape: tuple[int, int, int], dtype: str, where: torch.device
    ) -> Callable[[], None]:
        self.spend(self.operands_s, (1.0, 0.0))
        ordinal = self.made.count(shape)
        self.made.append(shape)
        numbers = iter(range(10**6))
        return lambda: self.spend(*self.call(shape, ordinal, next(numbers)))


Install = Callable[..., FakeCpu]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Run on a fake CPU: ``install(call, *shapes, threads=2, quota=None)``."""

    def install(
        call: Callable[[tuple[int, int, int], int, int], Call],
        *shapes: tuple[int, int, int],
        threads: int = 2,
        quota: float | None = None,
    ) -> FakeCpu:
        cpu = FakeCpu(call)
        monkeypatch.setattr(benchmark, "time", cpu)
        monkeypatch.setattr(matmuls, "time", cpu)
        monkeypatch.setattr(cpu_time, "time", cpu)
        monkeypatch.setattr(cpu_time, "cpu_quota", lambda: quota)
        monkeypatch.setattr(benchmark, "matmul", cpu.matmul)
        monkeypatch.setattr(benchmark, "_CPU_SHAPES", shapes)
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        return cpu

    return install


measure = functools.partial(measured_peak, CPU, "fp32", seconds=1.0)


def refusal(cache_dir: Path) -> str:
    """What a measurement that has to fail says."""
    with pytest.raises(UnknownPeak) as caught:
        measure(cache_dir=cache_dir)
    return str(caught.value)


def test_the_fastest_shape_is_the_one_repeated(install: Install, tmp_path: Path) -> None:
    # Every call takes 1 ms: the largest shape then has the highest rate.
    cpu = install(lambda shape, ordinal, number: (0.001, (1.0, 1.0)), SMALL, (16, 8, 8), LARGE)
    peak = measure(cache_dir=tmp_path)
    assert cpu.made == [SMALL, (16, 8, 8), LARGE]
    assert "matmul 16x16x16" in peak.source
    assert peak.flops_per_s == pytest.approx(8192 / 0.001)
    # And the largest takes 9 ms of the others' 1 ms: 8192 / 0.009 is less than 2048 / 0.001.
    slow = install(
        lambda shape, ordinal, number: (0.009 if shape == LARGE else 0.001, (1.0, 1.0)),
        *cpu.made,
    )
    peak = measured_peak(CPU, "bf16", cache_dir=tmp_path, seconds=1.0)
    assert slow.made == [SMALL, (16, 8, 8), LARGE]
    assert "matmul 16x8x8" in peak.source
    assert peak.flops_per_s == pytest.approx(2048 / 0.001)


def test_a_slow_first_trial_does_not_stop_larger_shapes_from_being_tried(
    install: Install, tmp_path: Path
) -> None:
    # By its first trial (100 ms), the small shape runs at 10240 FLOP/s, and four calls of the
    # large one would take 3.2 s of the 0.5 s; by its best (1 ms), they take 32 ms.
    def call(shape: tuple[int, int, int], ordinal: int, number: int) -> Call:
        if shape == LARGE:
            return 0.004, (1.0, 1.0)
        return (0.1, (0.01, 0.01)) if number == 1 else (0.001, (1.0, 1.0))

    cpu = install(call, SMALL, LARGE)
    peak = measure(cache_dir=tmp_path)
    assert cpu.made == [SMALL, LARGE]
    assert "matmul 16x16x16 on 2 threads" in peak.source
    assert peak.flops_per_s == pytest.approx(8192 / 0.004)


def test_a_shape_that_is_slow_in_every_trial_does_stop_larger_ones(
    install: Install, tmp_path: Path
) -> None:
    # 4 * 8192 FLOPs at 10240 FLOP/s take 3.2 s.
    cpu = install(lambda shape, ordinal, number: (0.1, (1.0, 1.0)), SMALL, LARGE)
    assert measure(cache_dir=tmp_path).flops_per_s == pytest.approx(1024 / 0.1)
    assert cpu.made == [SMALL]


def test_a_measurement_that_was_disturbed_every_time_is_no_peak_and_not_kept(
    install: Install, tmp_path: Path
) -> None:
    # The third got the most, although the first was the fastest; a sixth would do.
    rounds = [(0.001, (0.4, 0.4)), (0.006, (0.16, 0.16)), (0.002, (0.48, 0.48))]
    rounds += [(0.01, (0.1, 0.1)), (0.004, (0.25, 0.25)), (0.001, (1.0, 1.0))]
    cpu = install(lambda shape, ordinal, number: rounds[ordinal], SMALL)
    assert refusal(tmp_path) == (
        "no fp32 peak for 'AMD EPYC': other work kept the machine busy while it was measured "
        "(the threads got at most 48 % of their time, in 5 tries). Run again when it is idle, or "
        'give the rate that a matmul reaches then, such as peak="200 GFLOP/s"'
    )
    assert cpu.made == [SMALL] * 5
    assert list(tmp_path.iterdir()) == []


def test_after_a_refusal_the_next_call_measures_anew(install: Install, tmp_path: Path) -> None:
    cpu = install(
        lambda shape, ordinal, number: (0.002, (0.5, 0.5)) if ordinal < 5 else (0.001, (1.0, 1.0)),
        SMALL,
    )
    refusal(tmp_path)
    assert measure(cache_dir=tmp_path).flops_per_s == pytest.approx(1024 / 0.001)
    assert cpu.made == [SMALL] * 6


def test_the_fifth_try_is_as_good_as_the_first(install: Install, tmp_path: Path) -> None:
    cpu = install(
        lambda shape, ordinal, number: (
            (0.125, (0.01, 0.01)) if ordinal < 4 else (EXACT_S, (1.0, 1.0))
        ),
        SMALL,
    )
    peak = measure(cache_dir=tmp_path)
    assert peak.flops_per_s == 1024 * 1024
    assert cpu.made == [SMALL] * 5
    assert peak.source == (
        f"fp32 matmul 8x8x8 on 2 threads, torch {torch.__version__}, best of 102"
    )


def test_a_disturbed_measurement_leaves_what_others_kept(install: Install, tmp_path: Path) -> None:
    install(lambda shape, ordinal, number: (0.001, (1.0, 1.0)), SMALL)
    measured_peak(CPU, "bf16", cache_dir=tmp_path)
    before = (tmp_path / "peaks.json").read_bytes()
    install(lambda shape, ordinal, number: (0.002, (0.5, 0.5)), SMALL)
    assert "at most 50 % of their time" in refusal(tmp_path)
    assert (tmp_path / "peaks.json").read_bytes() == before


def test_a_repeat_that_is_not_disturbed_ends_the_rounds_and_is_kept(
    install: Install, tmp_path: Path
) -> None:
    rounds = [(0.002, (0.5, 0.5)), (0.001, (1.0, 1.0))]
    cpu = install(lambda shape, ordinal, number: rounds[ordinal], SMALL)
    peak = measure(cache_dir=tmp_path)
    assert cpu.made == [SMALL] * 2
    assert peak.flops_per_s == pytest.approx(1024 / 0.001)
    (kept,) = json.loads((tmp_path / "peaks.json").read_text()).values()
    assert kept["flops_per_s"] == peak.flops_per_s
    assert measure(cache_dir=tmp_path) == peak
    assert cpu.made == [SMALL] * 2


def test_an_undisturbed_measurement_is_made_once_and_kept(install: Install, tmp_path: Path) -> None:
    cpu = install(lambda shape, ordinal, number: (0.001, (1.0, 1.0)), SMALL)
    peak = measure(cache_dir=tmp_path)
    assert peak.flops_per_s == pytest.approx(1024 / 0.001)
    assert measure(cache_dir=tmp_path) == peak
    assert cpu.made == [SMALL]


@pytest.mark.parametrize(
    ("shares", "percent"),
    [
        ((0.86, 0.86), None),
        ((0.84, 0.84), "84 %"),
        ((1.0, 0.72), None),  # 1.72 of 2 threads: 86 %
        ((1.0, 0.5), "75 %"),  # only the other thread was kept off
        ((1.0, 0.0), None),  # a kernel of one thread, which got all of its time
        ((0.6, 0.0), "60 %"),  # the same, kept off
    ],
)
def test_the_share_is_of_the_threads_that_had_work(
    shares: tuple[float, float], percent: str | None, install: Install, tmp_path: Path
) -> None:
    install(lambda shape, ordinal, number: (0.001, shares), SMALL)
    if percent is None:
        assert measure(cache_dir=tmp_path).flops_per_s == pytest.approx(1024 / 0.001)
    else:
        assert f"the threads got at most {percent} of their time" in refusal(tmp_path)
    assert (tmp_path / "peaks.json").exists() == (percent is None)


def test_making_the_operands_on_one_thread_disturbs_nothing(
    install: Install, tmp_path: Path
) -> None:
    cpu = install(lambda shape, ordinal, number: (0.001, (1.0, 1.0)), SMALL, LARGE)
    cpu.operands_s = 0.24  # nearly half of the second in all
    assert "matmul 16x16x16" in measure(cache_dir=tmp_path).source
    assert cpu.made == [SMALL, LARGE]


@pytest.mark.parametrize("disturbed", ["trials", "repeats"])
def test_disturbed_trials_count_although_the_repeats_went_well_and_the_other_way_round(
    disturbed: str, install: Install, tmp_path: Path
) -> None:
    # The trials decide how large the shapes become. Calls 1 to 3 are trials.
    def call(shape: tuple[int, int, int], ordinal: int, number: int) -> Call:
        part = "trials" if number <= 3 else "repeats"
        return (0.002, (0.5, 0.5)) if part == disturbed else (0.001, (1.0, 1.0))

    cpu = install(call, SMALL)
    assert "at most 50 % of their time" in refusal(tmp_path)
    assert cpu.made == [SMALL] * 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("threads", "quota", "shares", "percent"),
    [
        (2, 1.5, (0.75, 0.75), None),  # 1.5 of 1.5 CPUs
        (2, 1.5, (0.65, 0.65), None),  # 1.3 of 1.5: 87 %
        (2, 1.5, (0.6, 0.6), "80 %"),  # 1.2 of 1.5
        (2, 0.5, (0.25, 0.25), None),  # all of half a CPU
        (2, 0.5, (0.2, 0.2), "80 %"),
        (2, 0.5, (0.5, 0.0), None),  # a kernel of one thread
        (2, 1.5, (0.8, 0.0), "80 %"),  # the same: the quota allows its thread all of its time
        (2, 1.5, (1.0, 1.0), None),  # a burst beyond the quota
        (4, 1.5, (0.75, 0.75), None),
    ],
)
def test_under_a_quota_the_share_is_of_what_it_allows(
    threads: int,
    quota: float,
    shares: tuple[float, float],
    percent: str | None,
    install: Install,
    tmp_path: Path,
) -> None:
    install(lambda shape, ordinal, number: (0.001, shares), SMALL, threads=threads, quota=quota)
    if percent is None:
        assert measure(cache_dir=tmp_path).source.startswith(
            f"fp32 matmul 8x8x8 on {threads} threads with a CPU quota of {quota}, "
            f"torch {torch.__version__}, best of "
        )
    else:
        assert (
            f"(the threads got at most {percent} of the time that a CPU quota of {quota} leaves "
            "them, in 5 tries)"
        ) in refusal(tmp_path)


@pytest.mark.parametrize("quota", [None, 2.0, 3.5])
def test_a_quota_that_leaves_the_threads_all_of_their_time_is_not_mentioned(
    quota: float | None, install: Install, tmp_path: Path
) -> None:
    install(lambda shape, ordinal, number: (EXACT_S, (1.0, 1.0)), SMALL, quota=quota)
    assert measure(cache_dir=tmp_path).source == (
        f"fp32 matmul 8x8x8 on 2 threads, torch {torch.__version__}, best of 102"
    )
    (key,) = json.loads((tmp_path / "peaks.json").read_text())
    assert key == f"AMD EPYC, 2 cores, 2 threads, fp32, torch {torch.__version__}"


def test_more_threads_than_cores_is_not_other_work(install: Install, tmp_path: Path) -> None:
    # Eight threads share two cores: together they have two seconds a second, and no more.
    install(lambda shape, ordinal, number: (0.001, (0.25, 1.75)), SMALL, threads=8)
    assert "on 8 threads, torch" in measure(cache_dir=tmp_path).source


def test_a_gpu_is_not_judged_by_the_time_that_the_cpu_got(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = install(lambda shape, ordinal, number: (EXACT_S, (0.01, 0.0)), quota=0.5)

    def timed(run: Callable[[], None], calls: int, where: torch.device) -> float:
        assert where == torch.device("mps", 0)
        begin_s = cpu.wall_s
        for _ in range(calls):
            run()
        return cpu.wall_s - begin_s

    monkeypatch.setattr(benchmark, "timed", timed)
    monkeypatch.setattr(benchmark, "_GPU_SHAPES", (SMALL,))
    gpu = Device(name="Apple M1", kind="mps", sm_count=8)
    peak = measured_peak(gpu, "fp16", cache_dir=tmp_path, seconds=1.0)
    assert peak.flops_per_s == 1024 * 1024
    assert peak.source == f"fp16 matmul 8x8x8 on Apple M1, torch {torch.__version__}, best of 102"
    assert cpu.made == [SMALL]
    (key,) = json.loads((tmp_path / "peaks.json").read_text())
    assert key == f"Apple M1, 8 units, fp16, torch {torch.__version__}"
