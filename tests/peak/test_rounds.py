"""The trials and rounds of a measurement; other work has it repeated, labelled and not kept.

Time is faked: it passes only in matmuls, and in making their operands.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from mfu_torch.peak import benchmark
from mfu_torch.peak.benchmark import measured_peak
from mfu_torch.records import Device

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
SMALL, LARGE = (8, 8, 8), (16, 16, 16)  # 2 * 8^3 = 1024 and 2 * 16^3 = 8192 FLOPs

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
    """Run on a fake CPU: ``install(call, *shapes)``."""

    def install(
        call: Callable[[tuple[int, int, int], int, int], Call], *shapes: tuple[int, int, int]
    ) -> FakeCpu:
        cpu = FakeCpu(call)
        monkeypatch.setattr(benchmark, "time", cpu)
        monkeypatch.setattr(benchmark, "_matmul", cpu.matmul)
        monkeypatch.setattr(benchmark, "_CPU_SHAPES", shapes)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
        return cpu

    return install


measure = functools.partial(measured_peak, CPU, "fp32", seconds=1.0)


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


def test_a_disturbed_measurement_is_repeated_labelled_and_not_kept(
    install: Install, tmp_path: Path
) -> None:
    # A call takes 1 ms of each thread: 2 ms on half of its time, 1.25 ms on 80 % of it.
    rounds = [(0.002, (0.5, 0.5)), (0.00125, (0.8, 0.8)), (0.0016, (0.625, 0.625))]
    cpu = install(lambda shape, ordinal, number: rounds[ordinal], SMALL)
    peak = measure(cache_dir=tmp_path)
    assert cpu.made == [SMALL] * 3
    assert peak.flops_per_s == pytest.approx(1024 / 0.00125)
    assert peak.provenance == "measured"
    assert peak.source.startswith(f"fp32 matmul 8x8x8 on 2 threads, torch {torch.__version__}, ")
    assert peak.source.endswith(
        ", on 80% of their time (other work on the machine?): perhaps too low"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_disturbed_measurement_leaves_what_others_kept(install: Install, tmp_path: Path) -> None:
    install(lambda shape, ordinal, number: (0.001, (1.0, 1.0)), SMALL)
    measured_peak(CPU, "bf16", cache_dir=tmp_path)
    before = (tmp_path / "peaks.json").read_bytes()
    install(lambda shape, ordinal, number: (0.002, (0.5, 0.5)), SMALL)
    assert "on 50% of their time" in measure(cache_dir=tmp_path).source
    assert (tmp_path / "peaks.json").read_bytes() == before


def test_a_repeat_that_is_not_disturbed_ends_the_rounds_and_is_kept(
    install: Install, tmp_path: Path
) -> None:
    rounds = [(0.002, (0.5, 0.5)), (0.001, (1.0, 1.0))]
    cpu = install(lambda shape, ordinal, number: rounds[ordinal], SMALL)
    peak = measure(cache_dir=tmp_path)
    assert cpu.made == [SMALL] * 2
    assert peak.flops_per_s == pytest.approx(1024 / 0.001)
    assert "of their time" not in peak.source
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
        ((0.84, 0.84), "84%"),
        ((1.0, 0.72), None),  # 1.72 of 2 threads: 86 %
        ((1.0, 0.5), "75%"),  # only the other thread was kept off
        ((1.0, 0.0), None),  # a kernel of one thread, which got all of its time
        ((0.6, 0.0), "60%"),  # the same, kept off
    ],
)
def test_the_share_is_of_the_threads_that_had_work(
    shares: tuple[float, float], percent: str | None, install: Install, tmp_path: Path
) -> None:
    install(lambda shape, ordinal, number: (0.001, shares), SMALL)
    peak = measure(cache_dir=tmp_path)
    assert (tmp_path / "peaks.json").exists() == (percent is None)
    if percent is None:
        assert "of their time" not in peak.source
    else:
        assert f", on {percent} of their time" in peak.source


def test_making_the_operands_on_one_thread_disturbs_nothing(
    install: Install, tmp_path: Path
) -> None:
    cpu = install(lambda shape, ordinal, number: (0.001, (1.0, 1.0)), SMALL, LARGE)
    cpu.operands_s = 0.24  # nearly half of the second in all
    assert "of their time" not in measure(cache_dir=tmp_path).source
    assert cpu.made == [SMALL, LARGE]


def test_disturbed_trials_count_although_the_repeats_went_well(
    install: Install, tmp_path: Path
) -> None:
    # The trials decide how large the shapes become. Calls 1 to 3 are trials.
    def call(shape: tuple[int, int, int], ordinal: int, number: int) -> Call:
        return (0.002, (0.5, 0.5)) if number <= 3 else (0.001, (1.0, 1.0))

    cpu = install(call, SMALL)
    peak = measure(cache_dir=tmp_path)
    assert cpu.made == [SMALL] * 3
    assert peak.flops_per_s == pytest.approx(1024 / 0.001)
    assert ", on 50% of their time" in peak.source
    assert list(tmp_path.iterdir()) == []


def test_a_gpu_is_not_judged_by_the_time_that_the_cpu_got() -> None:
    assert benchmark._share((0.0, 0.0, 0.0), torch.device("cuda", 0)) == 1.0
