"""Describing devices, with torch and NVML replaced by what a GPU machine would answer."""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_nvml import FakeGpu, FakeNvml, FakeSlice

from mfu_torch.peak import devices, nvml
from mfu_torch.peak.devices import detect_device
from mfu_torch.peak.nvml import nvml_handle
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import Device

UUID = "3f1a0c52-0000-1111-2222-333344445555"


@pytest.fixture(autouse=True)
def warnings_start_afresh() -> None:
    nvml.warn_once.cache_clear()


def properties(name: str, **changes: object) -> SimpleNamespace:
    facts: dict[str, object] = {
        "name": name,
        "uuid": UUID,
        "multi_processor_count": 132,
        "total_memory": 85_000_000_000,
        "major": 9,
        "minor": 0,
        "gcnArchName": "",
    }
    return SimpleNamespace(**(facts | changes))


def use_gpus(
    monkeypatch: pytest.MonkeyPatch, *gpus: SimpleNamespace, hip: str | None = None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(gpus))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: len(gpus) - 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: gpus[index])
    monkeypatch.setattr(torch.version, "hip", hip)


def use_nvml(monkeypatch: pytest.MonkeyPatch, found: FakeNvml | object) -> None:
    module = found.module if isinstance(found, FakeNvml) else found
    monkeypatch.setattr(nvml, "pynvml", module)


def gpu(name: str = "NVIDIA L4", uuid: str = UUID, **changes: Any) -> FakeGpu:
    return FakeGpu(uuid=f"GPU-{uuid}", name=name, **changes)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_cuda_gpu_is_described_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA H100 80GB HBM3"))
    use_nvml(monkeypatch, FakeNvml(gpu("NVIDIA H100 80GB HBM3")))
    assert detect_device() == Device(
        name="NVIDIA H100 80GB HBM3",
        kind="cuda",
        index=0,
        uuid=f"GPU-{UUID}",
        sm_count=132,
        memory_bytes=85_000_000_000,
        compute_capability="9.0",
        max_clock_hz=1.98e9,
    )
    assert warnings(caplog) == []


def test_the_current_device_is_the_default_and_an_index_chooses_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"), properties("NVIDIA A10", uuid="b"))
    use_nvml(monkeypatch, FakeNvml(gpu(), gpu("NVIDIA A10", uuid="b")))
    assert detect_device().name == "NVIDIA A10"
    assert detect_device(index=0).name == "NVIDIA L4"


def test_the_highest_clock_is_the_drivers_and_else_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4", clock_rate=1_755_000))  # kHz
    use_nvml(monkeypatch, FakeNvml(gpu(max_sm_clock_mhz=2040)))
    assert detect_device().max_clock_hz == 2.04e9
    use_nvml(monkeypatch, FakeNvml(gpu(max_sm_clock_mhz=None)))
    assert detect_device().max_clock_hz == 1.755e9
    use_gpus(monkeypatch, properties("NVIDIA L4"))  # a torch that does not have it
    assert detect_device().max_clock_hz is None
    use_gpus(monkeypatch, properties("AMD Instinct MI300X", clock_rate=2_100_000), hip="6.4")
    assert detect_device().max_clock_hz == 2.1e9


def test_nvml_is_opened_by_uuid_whatever_the_order_of_torchs_indices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As under ``CUDA_VISIBLE_DEVICES=2,0``."""
    use_gpus(monkeypatch, properties("NVIDIA L4", uuid="c"), properties("NVIDIA L4", uuid="a"))
    clocks = {"a": 1000, "b": 2000, "c": 3000}
    use_nvml(
        monkeypatch, FakeNvml(*(gpu(uuid=u, max_sm_clock_mhz=mhz) for u, mhz in clocks.items()))
    )
    assert [detect_device(index).max_clock_hz for index in (0, 1)] == [3e9, 1e9]
    found = nvml_handle(detect_device(0))
    assert (found.problem, found.is_slice, found.card) == ("", False, found.handle)
    assert found.api is not None and found.api.nvmlDeviceGetUUID(found.handle) == "GPU-c"


def test_the_mig_profile_is_read_from_torchs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, properties("NVIDIA H100 80GB HBM3 MIG 3g.40gb"))
    own = FakeSlice(uuid=f"MIG-{UUID}", name="NVIDIA H100 80GB HBM3 MIG 3g.40gb")
    use_nvml(monkeypatch, FakeNvml(gpu("NVIDIA H100 80GB HBM3", uuid="b", slices=[own])))
    device = detect_device()
    assert (device.mig, device.max_clock_hz) == ("3g.40gb", 1.98e9)  # the clock of the card


@pytest.mark.parametrize("bytes_names", [False, True])
@pytest.mark.parametrize("torchs", [f"{UUID}", "b"])  # of the slice, or of its card
def test_the_mig_profile_is_read_from_nvml_where_torchs_name_lacks_it(
    monkeypatch: pytest.MonkeyPatch, bytes_names: bool, torchs: str
) -> None:
    name = "NVIDIA A100-SXM4-40GB"
    use_gpus(monkeypatch, properties(name, uuid=torchs, multi_processor_count=14))
    own = FakeSlice(uuid=f"MIG-{UUID}", name=f"{name} MIG 1g.5gb")
    card = gpu(name, uuid="b", slices=[own])
    use_nvml(monkeypatch, FakeNvml(card, bytes_names=bytes_names))
    assert detect_device().mig == "1g.5gb"


def test_an_older_driver_or_module_without_mig_has_no_profile_and_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    fake = FakeNvml(gpu(mig_capable=False), without=("nvmlDeviceIsMigDeviceHandle",))
    fake.remove_from_module("nvmlDeviceGetMigMode")
    use_nvml(monkeypatch, fake)
    assert detect_device().mig is None
    assert warnings(caplog) == []


def test_a_missing_module_is_logged_once_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    use_nvml(monkeypatch, None)
    assert detect_device() == detect_device()
    (warning,) = warnings(caplog)
    assert "pip install nvidia-ml-py" in warning
    assert "MFU is not affected" in warning


def test_another_package_called_pynvml_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_nvml(monkeypatch, SimpleNamespace(__file__="/site-packages/pynvml/__init__.py"))
    problem = nvml_handle(Device(name="NVIDIA L4", kind="cuda", uuid="GPU-1")).problem
    assert problem.startswith("/site-packages/pynvml/__init__.py is not NVIDIA's module")
    assert "pip uninstall pynvml" in problem


def test_a_missing_driver_library_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    use_nvml(monkeypatch, FakeNvml(driver=False))
    assert detect_device().name == "NVIDIA L4"
    (warning,) = warnings(caplog)
    assert "driver library cannot be opened (NVML Shared Library Not Found)" in warning
    assert "nvidia-smi must work here" in warning


def failing(call: str, error: str, *gpus: FakeGpu) -> FakeNvml:
    fake = FakeNvml(*gpus)
    fake.fail(call, error)
    return fake


@pytest.mark.parametrize(
    "fake",
    [
        FakeNvml(),  # the UUID is not found
        failing("nvmlInit", "NO_PERMISSION", gpu()),
        failing("nvmlDeviceGetHandleByUUID", "GPU_IS_LOST", gpu()),
        failing("nvmlDeviceGetName", "NO_PERMISSION", gpu(slices=[FakeSlice(uuid=f"MIG-{UUID}")])),
    ],
)
def test_a_refused_call_is_logged_and_the_device_is_described_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fake: FakeNvml
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4", clock_rate=2_040_000))
    use_nvml(monkeypatch, fake)
    device = detect_device()
    assert (device.sm_count, device.max_clock_hz is not None) == (132, True)
    (warning,) = warnings(caplog)
    assert "NVML refused a call" in warning


@pytest.mark.parametrize("mhz", [0, 2**32 - 1, 65535])
def test_a_highest_clock_that_cannot_be_is_none(monkeypatch: pytest.MonkeyPatch, mhz: int) -> None:
    use_nvml(monkeypatch, FakeNvml(gpu(max_sm_clock_mhz=mhz)))
    use_gpus(monkeypatch, properties("NVIDIA L4", clock_rate=1_755_000))  # kHz
    assert detect_device().max_clock_hz == 1.755e9
    use_gpus(monkeypatch, properties("NVIDIA L4", clock_rate=-1))
    assert detect_device().max_clock_hz is None


# --- a pynvml that is old, foreign or broken ----------------------------------------------------

ODD = [
    TypeError("bytes expected"),
    SystemError("boom"),
    KeyError("x"),
    ValueError(),
    OSError("arm"),
]


CALLS = ["Init", "DeviceGetHandleByUUID", "DeviceGetName", "DeviceGetMaxClockInfo"]


@pytest.mark.parametrize("error", ODD, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("call", CALLS)
def test_whatever_pynvml_raises_the_device_is_described_with_one_warning_at_most(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str, error: Exception
) -> None:
    def odd(*arguments: object) -> None:
        raise error

    own = FakeSlice(uuid=f"MIG-{UUID}", name="NVIDIA L4 MIG 1g.5gb")  # whose name is asked for
    fake = FakeNvml(gpu(uuid="b", slices=[own]))
    monkeypatch.setattr(fake.module, f"nvml{call}", odd)
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    use_nvml(monkeypatch, fake)
    assert detect_device() == detect_device()
    assert detect_device().sm_count == 132
    if call == "DeviceGetMaxClockInfo":
        assert (warnings(caplog), detect_device().mig) == ([], "1g.5gb")
        return
    (warning,) = warnings(caplog)
    if isinstance(error, OSError):
        assert "driver library cannot be opened (arm); nvidia-smi must work" in warning
    else:
        assert f"failed ({type(error).__name__}: " in warning
        assert "run: pip uninstall pynvml nvidia-ml-py3; pip install" in warning


def test_a_module_that_takes_bytes_only_is_named_with_the_way_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As nvidia-ml-py3 7.352, whose file takes the place of NVIDIA's; it has no NVML_... names."""
    module = SimpleNamespace(
        __file__="/site-packages/pynvml.py",
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: ctypes.c_char_p(uuid),
    )
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    use_nvml(monkeypatch, module)
    device = detect_device()
    (warning,) = warnings(caplog)
    assert "/site-packages/pynvml.py failed (TypeError: bytes or integer address" in warning
    assert "old, incomplete or not NVIDIA's: run: pip uninstall" in warning
    sampler = DeviceSampler(device)
    assert sampler.sample() is False
    assert sampler.problem.startswith("no telemetry: /site-packages/pynvml.py failed (TypeError")
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("print 'Python 2'", "pynvml cannot be imported (SyntaxError: "),
        ("import ctypes; ctypes.NoSuch", "pynvml cannot be imported (AttributeError: "),
        ("import not_there_at_all", "pynvml cannot be imported (ModuleNotFoundError: No module"),
    ],
)
def test_a_pynvml_that_cannot_be_imported_is_a_reason(
    source: str, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pynvml.py").write_text(source)
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("nvml_once_more", nvml.__file__)
    assert spec is not None and spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(again)
    problem = again.nvml_handle(Device(name="NVIDIA L4", kind="cuda", uuid="GPU-1")).problem
    assert reason in problem and "pip install" in problem


def test_nothing_is_said_about_nvml_without_an_nvidia_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_nvml(monkeypatch, None)
    use_gpus(monkeypatch)
    detect_device()
    use_gpus(
        monkeypatch,
        properties("AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-"),
        hip="6.4",
    )
    detect_device()
    assert warnings(caplog) == []


@pytest.mark.parametrize("kind", [None, "rocm", "cuda"])
def test_a_rocm_gpu_has_its_gfx_name(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    amd = properties(
        "AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304
    )
    use_gpus(monkeypatch, amd, hip="6.4")
    device = detect_device(kind=kind)
    assert (device.kind, device.compute_capability, device.sm_count) == ("rocm", "gfx942", 304)
    assert device.uuid == UUID


def test_apple_silicon_is_described_by_metal(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.mps, "get_name", lambda: "Apple M1", raising=False)
    monkeypatch.setattr(torch.backends.mps, "get_core_count", lambda: 7, raising=False)
    device = detect_device()
    assert (device.name, device.kind, device.sm_count) == ("Apple M1", "mps", 7)


def test_a_cpu_is_described_by_its_model_cores_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5, 7}, raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    device = detect_device(index=0)
    assert (device.kind, device.index, device.uuid) == ("cpu", None, None)
    assert (device.sm_count, device.threads) == (3, 2)
    assert device.name
    assert device.memory_bytes is None or device.memory_bytes > 2**28


def test_the_cpus_name_is_the_kernels_model_name(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Intel(R) Xeon(R) CPU @ 2.10GHz\n")
    assert devices._cpu_name(cpuinfo) == "Intel(R) Xeon(R) CPU @ 2.10GHz"
    assert devices._cpu_name(tmp_path / "absent")  # no Linux: platform's name


def test_an_index_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"), properties("NVIDIA L4"))
    with pytest.raises(ValueError, match=r"index is 99, but torch sees 2 GPU.*expected 0 to 1"):
        detect_device(index=99)
    use_gpus(monkeypatch)
    with pytest.raises(ValueError, match="index is 99, but this machine has one device of kind"):
        detect_device(index=99, kind="cpu")


def test_a_kind_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch)
    with pytest.raises(ValueError, match=r"kind is 'cuda', but torch .* can use only .*cpu"):
        detect_device(kind="cuda")
    with pytest.raises(ValueError, match="kind is 'tpu'; expected one of cuda, rocm, mps, cpu"):
        detect_device(kind="tpu")
