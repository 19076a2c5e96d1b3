"""NVML that fails: every call, with every error, at any time; a GPU that falls off the bus."""

from __future__ import annotations

import logging
import threading

import pynvml
import pytest
from fake_nvml import FakeNvml
from telemetry_rig import Rig, a100

from mfu_torch.peak.telemetry import DeviceSampler, sampler
from mfu_torch.peak.telemetry.nvidia import LOST, REFUSED
from mfu_torch.records import Device, Telemetry

ERRORS = sorted(n.removeprefix("NVML_ERROR_") for n in vars(pynvml) if n.startswith("NVML_ERROR_"))
ENDING = ("GPU_IS_LOST", "RESET_REQUIRED")
ABOUT = ("after_step", "samples", "time_s", "throttle", "absent")

# Library call -> the fields that are gone with it.
NEEDED_FOR = {
    "nvmlDeviceGetUtilizationRates": {"gpu_util"},
    "nvmlDeviceGetPowerUsage": {"power_w"},
    "nvmlDeviceGetPowerManagementDefaultLimit": {"power_default_w"},
    "nvmlDeviceGetMemoryInfo": {"memory_used_bytes"},
    "nvmlDeviceGetComputeRunningProcesses_v3": {"other_processes"},
    "nvmlDeviceGetClockInfo": {"sm_clock_hz", "sm_clock_min_hz", "memory_clock_hz"},
    "nvmlGpmMetricsGet": {"sm_active", "tensor_active", "dram_active"},
}


def calls_of_a_run(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str], FakeNvml]:
    rig = Rig(monkeypatch)
    rig.seen(1.0)
    rig.sampler.stop()
    return sorted(set(rig.nvml.calls)), rig.nvml


def known(found: Telemetry) -> set[str]:
    fields = set(found.__struct_fields__) - set(ABOUT)
    return {name for name in fields if getattr(found, name) is not None}


def test_the_errors_are_told_apart_by_names_that_pynvml_has() -> None:
    for name in (*LOST, *REFUSED, "NVMLError_Unknown", "NVMLError_Uninitialized"):
        assert issubclass(getattr(pynvml, name), pynvml.NVMLError)
    assert issubclass(pynvml.NVMLLibraryMismatchError, Exception)


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("error", ERRORS)
def test_each_call_can_fail_with_each_error_at_any_time(
    monkeypatch: pytest.MonkeyPatch, error: str, after: int
) -> None:
    calls, machine = calls_of_a_run(monkeypatch)
    assert len(calls) >= 19
    for call in calls:
        machine.heal()
        rig = Rig(monkeypatch, machine=machine)
        machine.fail(call, error, after=after)
        rig.sample(1.0, 1.0, 1.0, 1.0)
        found = rig.sampler.take(1)
        rig.sampler.stop()
        if error in ENDING and rig.sampler.problem:
            continue  # that it ends in good order is in the tests below
        assert found is not None, call
        if found.samples == 0:  # it could not be opened
            assert call in ("nvmlInitWithFlags", "nvmlDeviceGetHandleByUUID")
            assert set(found.absent) >= {"power_w", "sm_active", "throttle"}
            continue
        assert found.samples == 3
        for field in set(found.__struct_fields__) - set(ABOUT):
            assert (getattr(found, field) is None) == (field in found.absent), (call, field)
        if after == 0 and call in NEEDED_FOR:
            assert NEEDED_FOR[call] <= set(found.absent)
            assert {"temperature_c", "power_limit_w"} <= known(found)


@pytest.mark.parametrize("error", ["TIMEOUT", "UNKNOWN", "IN_USE", "MEMORY", "NO_DATA"])
def test_a_call_that_fails_once_is_made_again_at_the_next_sample(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    for call in NEEDED_FOR:
        rig = Rig(monkeypatch)
        rig.sampler.sample()
        rig.nvml.fail(call, error, times=1)
        rig.sample(1.0)
        lacking = set(rig.take().absent) - {"cpu_util"}
        assert lacking and lacking <= NEEDED_FOR[call]
        rig.sample(1.0)
        assert set(rig.take().absent) == {"cpu_util"}


@pytest.mark.parametrize("error", ["NOT_SUPPORTED", "NO_PERMISSION", "FUNCTION_NOT_FOUND"])
def test_a_call_that_is_refused_is_not_made_again(
    monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    rig = Rig(monkeypatch)
    rig.nvml.fail("nvmlDeviceGetPowerUsage", error)
    found = rig.seen(1.0, 1.0, 1.0)
    assert rig.nvml.calls.count("nvmlDeviceGetPowerUsage") == 1
    assert found.absent["power_w"]
    rig.sample(1.0)
    assert rig.take().absent["power_w"] == found.absent["power_w"]


def test_a_gpu_that_falls_off_the_bus_ends_sampling_with_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.sample()
    rig.sample(1.0, 1.0)
    rig.gpu.lost = True
    with caplog.at_level(logging.WARNING):
        assert [rig.sample(1.0) for _ in range(3)] == [False] * 3
    (warning,) = caplog.records
    assert "the GPU no longer answers (NVML: GPU is lost)" in warning.getMessage()
    before = rig.take()
    assert (before.samples, before.power_w) == (2, 350.0)
    after = rig.take()
    assert after.samples == 0 and "GPU is lost" in after.absent["power_w"]
    reason = "the GPU no longer answers (NVML: GPU is lost)"
    assert rig.sampler.problem == f"telemetry stopped after 2.00 s: {reason}"
    rig.sampler.stop()
    rig.sampler.stop()


def test_a_gpu_that_falls_off_the_bus_in_the_middle_of_a_sample_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.seen(1.0)
    rig.nvml.calls.clear()
    rig.sample(1.0)
    calls = set(rig.nvml.calls)
    assert len(calls) >= 12
    for call in calls:
        rig.nvml.heal()
        again = Rig(monkeypatch, machine=rig.nvml)
        again.seen(1.0)
        rig.nvml.fail(call, "GPU_IS_LOST")
        assert again.sample(1.0) is False, call
        assert "GPU is lost" in again.sampler.problem


def test_unknown_error_to_every_call_is_a_lost_gpu_and_to_one_call_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.sample()
    rig.sample(1.0)
    rig.nvml.fail("nvmlDeviceGetTemperature", "UNKNOWN")
    assert rig.sample(1.0) is True
    rig.nvml.fail("*", "UNKNOWN")
    assert rig.sample(1.0) is False
    assert "to every call" in rig.sampler.problem


def test_handles_are_found_again_when_somebody_else_shut_nvml_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch)
    rig.sampler.sample()
    rig.sample(1.0)
    rig.nvml.module.nvmlShutdown()
    rig.sample(1.0, 1.0, 1.0)
    found = rig.take()
    assert found.samples == 4 and "power_w" not in found.absent
    rig.sample(1.0)
    assert set(rig.take().absent) == {"cpu_util"}


def test_the_gpm_samples_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(monkeypatch)
    rig.seen(1.0, 1.0, 1.0)
    assert rig.nvml.samples_out == 2
    rig.sampler.stop()
    assert rig.nvml.samples_out == 0


def test_one_driver_call_that_hangs_holds_up_neither_steps_nor_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sampler, "STOP_WITHIN_S", 0.01)
    rig = Rig(monkeypatch)
    release = rig.nvml.hang("nvmlInit")
    rig.sampler.start()  # NVML is opened on the thread, so this returns too
    assert rig.nvml.inside.wait(30.0)
    assert rig.sampler.take(1) is None
    rig.sampler.stop()
    release.set()
    hung = "no telemetry: a call to the driver has not returned for "
    assert rig.sampler.problem.startswith(hung)
    for thread in threading.enumerate():
        if "telemetry of NVIDIA" in thread.name:
            thread.join(30.0)
            assert not thread.is_alive()


def test_many_samplers_of_many_gpus_do_not_disturb_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus = [a100(uuid=f"GPU-{n}", power_mw=n * 1000) for n in range(8)]
    rig = Rig(monkeypatch, *gpus)
    devices = [Device(name="NVIDIA A100", kind="cuda", uuid=f"GPU-{n}") for n in range(8)]
    many = [DeviceSampler(device, clock=rig.clock.host_s) for device in devices]
    for _ in range(2):
        rig.elapse(1.0)
        for one in many:
            one.sample()
    gpus[3].lost = True
    rig.elapse(1.0)
    assert [one.sample() for one in many] == [n != 3 for n in range(8)]
    powers = [found.power_w for one in many if (found := one.take(1)) is not None]
    assert powers == [float(n) for n in range(8)]
