"""The fake is the real module on another library; here it is held against the real one."""

from __future__ import annotations

import ctypes
import inspect
import re
from pathlib import Path
from typing import Any

import pynvml
import pytest
from fake_nvml import FakeGpu, FakeNvml, FakeSlice
from fake_nvml_library import NvmlLibrary

SOURCE = Path(pynvml.__file__).read_text(encoding="utf-8")
LIBRARY = [name[1:] for name in dir(NvmlLibrary) if name.startswith("_nvml")]


def opened(*gpus: FakeGpu, **options: Any) -> tuple[FakeNvml, Any]:
    fake = FakeNvml(*gpus, **options)
    fake.module.nvmlInit()
    return fake, fake.module


def test_every_function_of_the_fake_library_is_one_that_the_real_module_calls() -> None:
    called = set(re.findall(r'_nvmlGetFunctionPointer\("(\w+)"\)', SOURCE))
    assert len(LIBRARY) > 35
    assert set(LIBRARY) <= called


def test_the_fake_module_has_the_functions_structures_and_constants_of_the_real_one() -> None:
    fake = FakeNvml().module
    for name, real in vars(pynvml).items():
        if name.startswith("__") or name in ("nvmlLib", "sys"):
            continue
        ours = getattr(fake, name)
        if isinstance(real, (int, float, str)):
            assert ours == real, name
        elif inspect.isfunction(real):
            parameters = list(inspect.signature(real).parameters)
            assert list(inspect.signature(ours).parameters) == parameters, name
        elif inspect.isclass(real) and issubclass(real, ctypes.Structure):
            fields = [
                (entry[0], ctypes.sizeof(entry[1])) for entry in getattr(real, "_fields_", ())
            ]
            assert [
                (entry[0], ctypes.sizeof(entry[1])) for entry in getattr(ours, "_fields_", ())
            ] == fields, name
        elif inspect.isclass(real) and issubclass(real, Exception):
            assert issubclass(ours, Exception), name


@pytest.mark.parametrize(
    "error", sorted(n.removeprefix("NVML_ERROR_") for n in vars(pynvml) if "NVML_ERROR_" in n)
)
def test_any_call_can_fail_with_any_error_from_its_nth_call_on(error: str) -> None:
    fake, api = opened(FakeGpu(uuid="GPU-1"))
    handle = api.nvmlDeviceGetHandleByUUID("GPU-1")
    fake.fail("nvmlDeviceGetPowerUsage", error, after=2, times=1)
    assert [api.nvmlDeviceGetPowerUsage(handle) for _ in range(2)] == [350_000] * 2
    with pytest.raises(api.NVMLError) as caught:
        api.nvmlDeviceGetPowerUsage(handle)
    words = error.split("_")
    assert type(caught.value).__name__ == "NVMLError_" + "".join(w.capitalize() for w in words)
    assert str(caught.value)
    assert api.nvmlDeviceGetPowerUsage(handle) == 350_000


def test_handles_end_with_the_last_shutdown() -> None:
    _, api = opened(FakeGpu(uuid="GPU-1"))
    handle = api.nvmlDeviceGetHandleByUUID("GPU-1")
    api.nvmlInit()
    api.nvmlShutdown()
    assert api.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
    api.nvmlShutdown()
    with pytest.raises(api.NVMLError_Uninitialized):
        api.nvmlDeviceGetName(handle)
    api.nvmlInit()
    with pytest.raises(api.NVMLError_InvalidArgument):
        api.nvmlDeviceGetName(handle)


def test_without_a_driver_the_real_modules_own_loading_fails() -> None:
    api = FakeNvml(driver=False).module
    with pytest.raises(api.NVMLError_LibraryNotFound):
        api.nvmlInit()


def test_old_drivers_and_old_modules_lack_functions_and_give_bytes() -> None:
    fake, api = opened(
        FakeGpu(uuid="GPU-1"),
        bytes_names=True,
        without=("nvmlGpmSampleAlloc", "nvmlDeviceGetComputeRunningProcesses"),
    )
    handle = api.nvmlDeviceGetHandleByUUID(b"GPU-1")
    assert api.nvmlDeviceGetUUID(handle) == b"GPU-1"
    with pytest.raises(api.NVMLError_FunctionNotFound):
        api.nvmlGpmSampleAlloc()
    with pytest.raises(api.NVMLLibraryMismatchError):  # no NVMLError
        api.nvmlDeviceGetComputeRunningProcesses(handle)
    fake.remove_from_module("nvmlGpmSampleAlloc")
    assert not hasattr(api, "nvmlGpmSampleAlloc")


def test_a_mig_slice_has_a_handle_of_its_own_that_refuses_what_is_the_cards() -> None:
    one = FakeSlice(uuid="MIG-1", gpu_instance=7, processes={5: 1})
    two = FakeSlice(uuid="MIG-2", gpu_instance=9)
    _, api = opened(FakeGpu(uuid="GPU-1", slices=[one, two]))
    card = api.nvmlDeviceGetHandleByIndex(0)
    handle = api.nvmlDeviceGetHandleByUUID("MIG-GPU-1/7/0")
    assert api.nvmlDeviceGetUUID(handle) == "MIG-1"
    assert bool(api.nvmlDeviceIsMigDeviceHandle(handle))
    assert not bool(api.nvmlDeviceIsMigDeviceHandle(card))
    assert api.nvmlDeviceGetMigMode(card) == [1, 1]
    assert api.nvmlDeviceGetAttributes(handle).multiprocessorCount == 16
    assert [p.pid for p in api.nvmlDeviceGetComputeRunningProcesses(handle)] == [5]
    parent = api.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    assert api.nvmlDeviceGetUUID(parent) == "GPU-1"
    for refused in (api.nvmlDeviceGetPowerUsage, api.nvmlDeviceGetUtilizationRates):
        with pytest.raises(api.NVMLError_NotSupported):
            refused(handle)
    with pytest.raises(api.NVMLError_NotSupported):  # nor in MIG mode
        api.nvmlDeviceGetUtilizationRates(card)
    with pytest.raises(api.NVMLError_NotFound):
        api.nvmlDeviceGetMigDeviceHandleByIndex(card, 2)


def test_gpm_metrics_are_what_the_counters_did_between_two_samples() -> None:
    gpu = FakeGpu(uuid="GPU-1", activity={"SM_UTIL": 80.0})
    fake, api = opened(gpu)
    handle = api.nvmlDeviceGetHandleByUUID("GPU-1")
    samples = [api.nvmlGpmSampleAlloc(), api.nvmlGpmSampleAlloc()]
    get = api.c_nvmlGpmMetricsGet_t()
    get.version, get.numMetrics = api.NVML_GPM_METRICS_GET_VERSION, 2
    get.sample1, get.sample2 = samples
    get.metrics[0].metricId = api.NVML_GPM_METRIC_SM_UTIL
    get.metrics[1].metricId = api.NVML_GPM_METRIC_DRAM_BW_UTIL
    with pytest.raises(api.NVMLError_InvalidArgument):  # nothing in the samples
        api.nvmlGpmMetricsGet(get)
    api.nvmlGpmSampleGet(handle, samples[0])
    gpu.elapse(3.0)
    gpu.activity = {"SM_UTIL": 40.0}
    gpu.elapse(1.0)
    api.nvmlGpmSampleGet(handle, samples[1])
    api.nvmlGpmMetricsGet(get)
    assert get.metrics[0].value == 70.0  # (3 s x 80 % + 1 s x 40 %) / 4 s
    assert get.metrics[1].nvmlReturn == api.NVML_ERROR_NOT_SUPPORTED
    get.version = 2
    with pytest.raises(api.NVMLError_ArgumentVersionMismatch):
        api.nvmlGpmMetricsGet(get)
    for sample in samples:
        api.nvmlGpmSampleFree(sample)
    assert fake.samples_out == 0
