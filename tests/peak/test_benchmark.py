"""Measured peaks: what they leave alone, what they say, and how they are kept."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import torch

from mfu_torch.peak import benchmark, cpu_time, matmuls
from mfu_torch.peak.benchmark import measured_peak
from mfu_torch.peak.devices import detect_device
from mfu_torch.records import Device, UnknownPeak

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
QUICK = 1e-6  # seconds: only the smallest shape is tried


class QuietClock:
    """The real time, all of which every thread of torch gets: no other work on the machine."""

    now_s = 0.0

    def perf_counter(self) -> float:
        self.now_s = time.perf_counter()
        return self.now_s

    def process_time(self) -> float:
        return self.now_s * torch.get_num_threads()

    def thread_time(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def no_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = QuietClock()
    monkeypatch.setattr(benchmark, "time", clock)
    monkeypatch.setattr(matmuls, "time", clock)
    monkeypatch.setattr(cpu_time, "time", clock)
    monkeypatch.setattr(cpu_time, "cpu_quota", lambda: None)


@pytest.mark.parametrize("dtype", ["fp32", "fp64", "bf16", "int8"])
def test_a_measurement_says_what_ran_where(dtype: str, tmp_path: Path) -> None:
    peak = measured_peak(CPU, dtype, cache_dir=tmp_path, seconds=QUICK)
    assert peak.provenance == "measured"
    assert peak.device == "AMD EPYC"
    assert peak.source == (
        f"{dtype} matmul 256x256x256 on {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}, best of 1"
    )
    assert 1e6 < peak.flops_per_s < 1e16


def test_the_rate_is_two_flops_per_multiply_add_over_the_shortest_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # 2 * 256^3 = 33554432 FLOPs. The best of three trials takes 10 ms, so a repeat is one call:
    # 8 ms.
    times_s = iter([0.012, 0.010, 0.011, 0.008])
    monkeypatch.setattr(benchmark, "timed", lambda run, calls, where: calls * next(times_s))
    peak = measured_peak(CPU, "fp32", cache_dir=tmp_path, seconds=QUICK)
    assert peak.flops_per_s == pytest.approx(33554432 / 0.008)
    assert next(times_s, None) is None


def test_random_number_states_and_settings_stay_as_they_are(tmp_path: Path) -> None:
    def state() -> tuple[object, ...]:
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            torch.get_num_threads(),
            torch.get_default_dtype(),
            torch.get_float32_matmul_precision(),
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cpu"),
        )

    before = state()
    for dtype in ("fp32", "int8"):
        measured_peak(CPU, dtype, cache_dir=tmp_path, seconds=QUICK)
    assert state() == before


def test_the_users_autocast_does_not_change_what_is_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    results: list[torch.dtype] = []

    def timed(run: object, calls: int, where: torch.device) -> float:
        a = torch.ones(2, 2)
        results.append((a @ a).dtype)
        return 0.01 * calls

    monkeypatch.setattr(benchmark, "timed", timed)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        measured_peak(CPU, "fp32", cache_dir=tmp_path, seconds=QUICK)
    assert set(results) == {torch.float32}


def test_a_cpu_has_no_tf32_and_no_benchmark_for_fp8(tmp_path: Path) -> None:
    with pytest.raises(UnknownPeak, match="kind 'cpu' has no tf32 units"):
        measured_peak(CPU, "tf32", cache_dir=tmp_path)
    with pytest.raises(UnknownPeak, match="measured are only fp64, fp32"):
        measured_peak(CPU, "fp8", cache_dir=tmp_path)
    with pytest.raises(ValueError, match="dtype is 'float32'"):
        measured_peak(CPU, "float32", cache_dir=tmp_path)


def test_a_matmul_that_fails_is_an_unknown_peak_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: object, **kwargs: object) -> torch.Tensor:
        raise RuntimeError('"addmm" not implemented for this dtype\nand a long stack')

    monkeypatch.setattr(torch, "mm", refuse)
    with pytest.raises(UnknownPeak, match=r'failed: "addmm" not implemented for this dtype\. Sup'):
        measured_peak(CPU, "fp16", cache_dir=tmp_path, seconds=QUICK)
    assert not (tmp_path / "peaks.json").exists()


def test_a_device_that_torch_cannot_use_is_an_unknown_peak(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has the device")
    device = Device(name="NVIDIA L4", kind="cuda", index=0)
    with pytest.raises(UnknownPeak, match="no bf16 peak for 'NVIDIA L4': the matmul failed"):
        measured_peak(device, "bf16", cache_dir=tmp_path)


@pytest.mark.parametrize(
    ("reduced", "dtype", "reason"),
    [("tf32", "fp32", "runs fp32 matmuls as tf32"), ("", "tf32", "allow TF32 first")],
)
def test_a_gpu_measures_fp32_and_tf32_only_under_the_users_own_setting(
    reduced: str, dtype: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(benchmark, "reduced_fp32", lambda device: reduced)
    with pytest.raises(UnknownPeak, match=reason):
        measured_peak(Device(name="NVIDIA L4", kind="cuda"), dtype, cache_dir=tmp_path)


def test_a_reduced_fp32_on_a_cpu_is_said_in_the_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(benchmark, "reduced_fp32", lambda device: "bf16")
    peak = measured_peak(CPU, "fp32", cache_dir=tmp_path, seconds=QUICK)
    assert peak.source.endswith("best of 1, run as bf16")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_is_measured_with_its_own_events(tmp_path: Path) -> None:
    device = detect_device(kind="cuda")
    peak = measured_peak(device, "bf16", cache_dir=tmp_path)
    assert peak.source.startswith("bf16 matmul ")
    assert peak.flops_per_s > 1e12
