"""Describing devices, with torch and NVML replaced by what a GPU machine would answer."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace

import pynvml as real_pynvml
import pytest
import torch
from fakes import FakeNvml, NVMLError_LibraryNotFound, NVMLError_NoPermission

from mfu_torch.peak import devices
from mfu_torch.peak.devices import detect_device, nvml_handle
from mfu_torch.records import Device

UUID = "3f1a0c52-0000-1111-2222-333344445555"


@pytest.fixture(autouse=True)
def warnings_start_afresh() -> None:
    devices._warn_once.cache_clear()


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


def use_nvml(monkeypatch: pytest.MonkeyPatch, nvml: object) -> None:
    monkeypatch.setattr("mfu_torch.peak.devices.pynvml", nvml)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_cuda_gpu_is_described_by_torch(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA H100 80GB HBM3"))
    use_nvml(monkeypatch, FakeNvml({f"GPU-{UUID}": "NVIDIA H100 80GB HBM3"}))
    assert detect_device() == Device(
        name="NVIDIA H100 80GB HBM3",
        kind="cuda",
        index=0,
        uuid=f"GPU-{UUID}",
        sm_count=132,
        memory_bytes=85_000_000_000,
        compute_capability="9.0",
    )
    assert warnings(caplog) == []


def test_the_current_device_is_the_default_and_an_index_chooses_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"), properties("NVIDIA A10", uuid="b"))
    use_nvml(monkeypatch, FakeNvml({f"GPU-{UUID}": "NVIDIA L4", "GPU-b": "NVIDIA A10"}))
    assert detect_device().name == "NVIDIA A10"
    assert detect_device(index=0).name == "NVIDIA L4"


def test_nvml_is_opened_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    nvml = FakeNvml({f"GPU-{UUID}": "NVIDIA L4"})
    use_nvml(monkeypatch, nvml)
    handle = nvml_handle(detect_device())
    assert handle == (f"GPU-{UUID}", "")
    assert f"nvmlDeviceGetHandleByUUID GPU-{UUID}" in nvml.calls


def test_the_mig_profile_is_read_from_torchs_name(monkeypatch: pytest.MonkeyPatch) -> None:
    use_gpus(monkeypatch, properties("NVIDIA H100 80GB HBM3 MIG 3g.40gb"))
    use_nvml(monkeypatch, FakeNvml({f"GPU-{UUID}": "NVIDIA H100 80GB HBM3"}))
    assert detect_device().mig == "3g.40gb"


def test_the_mig_profile_is_read_from_nvml_where_torchs_name_lacks_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA A100-SXM4-40GB", multi_processor_count=14))
    use_nvml(monkeypatch, FakeNvml({f"MIG-{UUID}": "NVIDIA A100-SXM4-40GB MIG 1g.5gb"}))
    assert detect_device().mig == "1g.5gb"


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
    error = NVMLError_LibraryNotFound("NVML Shared Library Not Found")
    use_nvml(monkeypatch, FakeNvml(init_error=error))
    assert detect_device().name == "NVIDIA L4"
    (warning,) = warnings(caplog)
    assert "driver library cannot be opened (NVML Shared Library Not Found)" in warning
    assert "nvidia-smi must work here" in warning


def test_the_errors_are_told_apart_by_names_that_pynvml_has() -> None:
    for name in (
        "NVMLError_LibraryNotFound",
        "NVMLError_DriverNotLoaded",
        "NVMLError_NotSupported",
        "NVMLError_FunctionNotFound",
    ):
        assert hasattr(real_pynvml, name)
    with pytest.raises(real_pynvml.NVMLError) as caught:
        raise real_pynvml.NVMLError(real_pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    assert type(caught.value).__name__ == "NVMLError_DriverNotLoaded"


@pytest.mark.parametrize(
    "nvml",
    [
        FakeNvml({}),  # the UUID is not found
        FakeNvml({}, init_error=NVMLError_NoPermission("Insufficient Permissions")),
        FakeNvml({f"MIG-{UUID}": ""}, name_error=NVMLError_NoPermission("Insufficient")),
    ],
)
def test_a_refused_call_is_logged_and_the_device_is_described_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, nvml: FakeNvml
) -> None:
    use_gpus(monkeypatch, properties("NVIDIA L4"))
    use_nvml(monkeypatch, nvml)
    assert detect_device().sm_count == 132
    (warning,) = warnings(caplog)
    assert "NVML refused a call" in warning


def test_nothing_is_said_about_nvml_without_an_nvidia_gpu(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    use_nvml(monkeypatch, None)
    use_gpus(monkeypatch)
    detect_device()
    gpu = properties("AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-")
    use_gpus(monkeypatch, gpu, hip="6.4")
    detect_device()
    assert warnings(caplog) == []


@pytest.mark.parametrize("kind", [None, "rocm", "cuda"])
def test_a_rocm_gpu_has_its_gfx_name(monkeypatch: pytest.MonkeyPatch, kind: str | None) -> None:
    gpu = properties(
        "AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304
    )
    use_gpus(monkeypatch, gpu, hip="6.4")
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
