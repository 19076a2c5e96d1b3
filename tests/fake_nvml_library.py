"""The functions of the driver's library ``libnvidia-ml`` that this project calls, in Python.

They take what the real ``pynvml`` passes to C and fill what it passes by reference. What is refused
to a MIG device is so by NVIDIA's documentation; which of the refusals are "Not Supported" is this
fake's choice.
"""

from __future__ import annotations

import ctypes
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pynvml as real_pynvml


@dataclass
class FakeSlice:
    """A MIG device: a compute instance of a GPU instance.

    ``activity`` and ``elapse`` as of :class:`FakeGpu`.
    """

    uuid: str
    name: str = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    gpu_instance: int = 7
    compute_instance: int = 0
    sm_count: int = 16
    gpu_instance_slices: int = 1
    compute_instance_slices: int = 1
    memory_total: int = 10 * 2**30
    memory_used: int = 2**30
    processes: dict[int, int] = field(default_factory=dict)
    activity: dict[str, float] = field(default_factory=dict)
    total_s: float = 0.0
    totals: Counter[str] = field(default_factory=Counter)

    def elapse(self, seconds: float) -> None:
        """Let the GPM counters run for a while at ``activity``."""
        self.total_s += seconds
        for metric, rate in self.activity.items():
            self.totals[metric] += rate * seconds


@dataclass
class FakeGpu(FakeSlice):
    """A whole card. ``None`` is a figure that this card does not have (Not Supported).

    Attributes:
        activity: GPM metric, such as ``"SM_UTIL"``, -> its rate: percent or MiB/s.
        gpm: Hopper or newer.
        lost: It has fallen off the bus.
        slices: Not empty in MIG mode.
    """

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    gpm: bool = True
    lost: bool = False
    slices: list[FakeSlice] = field(default_factory=list)
    mig_capable: bool = True
    sm_clock_mhz: int | None = 1755
    memory_clock_mhz: int | None = 2619
    max_sm_clock_mhz: int | None = 1980
    power_mw: int | None = 350_000
    enforced_limit_mw: int | None = 700_000
    limit_mw: int | None = 700_000
    default_limit_mw: int | None = 700_000
    temperature: int | None = 55
    reasons: int | None = 0
    gpu_util: int | None = 100
    memory_total: int = 80 * 2**30
    memory_used: int = 3 * 2**30
    graphics: dict[int, int] | None = None
    pcie_rx_kb: int | None = 3000
    pcie_tx_kb: int | None = 1000
    nvlink_rx_kib: int | None = 0
    nvlink_tx_kib: int | None = 0


class Failure(Exception):
    """NVML_ERROR_..., by the end of its name."""


class NvmlLibrary:
    """The library of a machine with the given GPUs, by the C names after an underscore.

    Attributes:
        gpus: NVML's index is the position.
    """

    def __init__(self, gpus: list[FakeGpu]) -> None:
        self.gpus = gpus
        self._inits = 0
        self._handles: dict[int, FakeSlice] = {}
        self._kept: list[Any] = []  # what the handles point to
        self._samples: dict[int, tuple[FakeSlice, float, Counter[str]] | None] = {}

    def _nvmlInitWithFlags(self, flags: int) -> None:
        self._inits += 1

    def _nvmlShutdown(self) -> None:
        self._inits -= 1
        if self._inits == 0:
            self._handles.clear()
            self._samples.clear()

    def _nvmlErrorString(self, code: int) -> bytes:
        return b"an error that the module has no text for"

    # Devices. A handle is the address of one byte, which stays valid until NVML is shut down.

    def _give(self, device: FakeSlice, out: Any) -> None:
        self._kept.append(ctypes.c_char())
        address = ctypes.addressof(self._kept[-1])
        self._handles[address] = device
        out._obj.contents = type(out._obj)._type_.from_address(address)

    def _device(self, handle: Any) -> FakeSlice:
        device = self._handles.get(ctypes.cast(handle, ctypes.c_void_p).value or 0)
        if device is None:
            raise Failure("INVALID_ARGUMENT")
        if self._card_of(device).lost:
            raise Failure("GPU_IS_LOST")
        return device

    def _card(self, handle: Any) -> FakeGpu:
        """Of a call that a MIG device refuses."""
        device = self._device(handle)
        if not isinstance(device, FakeGpu):
            raise Failure("NOT_SUPPORTED")
        return device

    def _card_of(self, device: FakeSlice) -> FakeGpu:
        return next(g for g in self.gpus if device is g or any(device is s for s in g.slices))

    def _nvmlDeviceGetCount_v2(self, out: Any) -> None:
        out._obj.value = len(self.gpus)

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, out: Any) -> None:
        if index.value >= len(self.gpus):
            raise Failure("INVALID_ARGUMENT")
        self._found(self.gpus[index.value], out)

    def _nvmlDeviceGetHandleByUUID(self, uuid: Any, out: Any) -> None:
        wanted = uuid.value.decode()
        for gpu in self.gpus:
            for device in (gpu, *gpu.slices):
                old = f"MIG-{gpu.uuid}/{device.gpu_instance}/{device.compute_instance}"
                if device.uuid == wanted or (device is not gpu and old == wanted):
                    return self._found(device, out)
        raise Failure("NOT_FOUND")

    def _found(self, device: FakeSlice, out: Any) -> None:
        if self._card_of(device).lost:
            raise Failure("GPU_IS_LOST")
        self._give(device, out)

    def _nvmlDeviceGetIndex(self, handle: Any, out: Any) -> None:
        out._obj.value = self.gpus.index(self._card(handle))

    def _nvmlDeviceGetName(self, handle: Any, out: Any, size: Any) -> None:
        out.value = self._device(handle).name.encode()

    def _nvmlDeviceGetUUID(self, handle: Any, out: Any, size: Any) -> None:
        out.value = self._device(handle).uuid.encode()

    def _nvmlDeviceGetMemoryInfo(self, handle: Any, out: Any) -> None:
        device, memory = self._device(handle), out._obj
        memory.total, memory.used = device.memory_total, device.memory_used
        memory.free = memory.total - memory.used

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> None:
        major._obj.value, minor._obj.value = self._card(handle).capability

    def _nvmlDeviceGetClockInfo(self, handle: Any, kind: Any, out: Any) -> None:
        names = {1: "sm_clock_mhz", 2: "memory_clock_mhz"}
        _put(out, getattr(self._card(handle), names[kind.value]))

    def _nvmlDeviceGetMaxClockInfo(self, handle: Any, kind: Any, out: Any) -> None:
        _put(out, self._card(handle).max_sm_clock_mhz if kind.value == 1 else None)

    def _nvmlDeviceGetPowerUsage(self, handle: Any, out: Any) -> None:
        _put(out, self._card(handle).power_mw)

    def _nvmlDeviceGetEnforcedPowerLimit(self, handle: Any, out: Any) -> None:
        _put(out, self._card(handle).enforced_limit_mw)

    def _nvmlDeviceGetPowerManagementLimit(self, handle: Any, out: Any) -> None:
        _put(out, self._card(handle).limit_mw)

    def _nvmlDeviceGetPowerManagementDefaultLimit(self, handle: Any, out: Any) -> None:
        _put(out, self._card(handle).default_limit_mw)

    def _nvmlDeviceGetTemperature(self, handle: Any, sensor: Any, out: Any) -> None:
        _put(out, self._card(handle).temperature)

    def _nvmlDeviceGetTemperatureV(self, handle: Any, out: Any) -> None:
        if out._obj.version != real_pynvml.nvmlTemperature_v1:
            raise Failure("ARGUMENT_VERSION_MISMATCH")
        out._obj.temperature = _known(self._card(handle).temperature)

    def _nvmlDeviceGetCurrentClocksEventReasons(self, handle: Any, out: Any) -> None:
        _put(out, self._card(handle).reasons)

    def _nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: Any, out: Any) -> None:
        _put(out, self._card(handle).reasons)

    def _nvmlDeviceGetUtilizationRates(self, handle: Any, out: Any) -> None:
        gpu = self._card(handle)
        if gpu.slices:  # not in MIG mode
            raise Failure("NOT_SUPPORTED")
        out._obj.gpu = _known(gpu.gpu_util)

    def _nvmlDeviceGetPcieThroughput(self, handle: Any, counter: Any, out: Any) -> None:
        gpu = self._card(handle)
        _put(out, gpu.pcie_rx_kb if counter.value else gpu.pcie_tx_kb)

    def _nvmlDeviceGetFieldValues(self, handle: Any, count: Any, out: Any) -> None:
        gpu = self._card(handle)
        for entry in out._obj:
            counters = {138: gpu.nvlink_tx_kib, 139: gpu.nvlink_rx_kib}
            value = counters.get(entry.fieldId)
            if value is None or entry.scopeId != 0xFFFFFFFF:  # this fake has the sums only
                entry.nvmlReturn = real_pynvml.NVML_ERROR_NOT_SUPPORTED
            else:
                entry.valueType = real_pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
                entry.value.ullVal = value

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> None:
        _put_processes(self._device(handle).processes, count, out)

    def _nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle: Any, count: Any, out: Any) -> None:
        _put_processes(_known(self._card(handle).graphics), count, out)

    # MIG

    def _nvmlDeviceIsMigDeviceHandle(self, handle: Any, out: Any) -> None:
        out._obj.value = not isinstance(self._device(handle), FakeGpu)

    def _nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> None:
        gpu = self._card(handle)
        if not gpu.mig_capable:
            raise Failure("NOT_SUPPORTED")
        current._obj.value = pending._obj.value = bool(gpu.slices)

    def _nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, out: Any) -> None:
        out._obj.value = 7 if self._card(handle).slices else 0

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, out: Any) -> None:
        slices = self._card(handle).slices
        if index.value >= len(slices):
            raise Failure("NOT_FOUND")
        self._give(slices[index.value], out)

    def _nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: Any, out: Any) -> None:
        self._give(self._card_of(self._slice(handle)), out)

    def _nvmlDeviceGetGpuInstanceId(self, handle: Any, out: Any) -> None:
        out._obj.value = self._slice(handle).gpu_instance

    def _nvmlDeviceGetComputeInstanceId(self, handle: Any, out: Any) -> None:
        out._obj.value = self._slice(handle).compute_instance

    def _nvmlDeviceGetAttributes_v2(self, handle: Any, out: Any) -> None:
        device, attributes = self._slice(handle), out._obj
        attributes.multiprocessorCount = device.sm_count
        attributes.gpuInstanceSliceCount = device.gpu_instance_slices
        attributes.computeInstanceSliceCount = device.compute_instance_slices
        attributes.memorySizeMB = device.memory_total // 2**20

    def _slice(self, handle: Any) -> FakeSlice:
        device = self._device(handle)
        if isinstance(device, FakeGpu):
            raise Failure("NOT_SUPPORTED")
        return device

    # GPM

    def _nvmlGpmQueryDeviceSupport(self, handle: Any, out: Any) -> None:
        if out._obj.version != real_pynvml.NVML_GPM_SUPPORT_VERSION:
            raise Failure("ARGUMENT_VERSION_MISMATCH")
        out._obj.isSupportedDevice = self._card(handle).gpm

    def _nvmlGpmSampleAlloc(self, out: Any) -> None:
        self._kept.append(ctypes.c_char())
        address = ctypes.addressof(self._kept[-1])
        self._samples[address] = None
        out._obj.contents = type(out._obj)._type_.from_address(address)

    def _nvmlGpmSampleFree(self, sample: Any) -> None:
        del self._samples[self._sample(sample)]

    def _nvmlGpmSampleGet(self, handle: Any, sample: Any) -> None:
        self._take(self._card(handle), sample)

    def _nvmlGpmMigSampleGet(self, handle: Any, gpu_instance: int, sample: Any) -> None:
        slices = [s for s in self._card(handle).slices if s.gpu_instance == gpu_instance]
        if not slices:
            raise Failure("INVALID_ARGUMENT")
        self._take(slices[0], sample)

    def _take(self, device: FakeSlice, sample: Any) -> None:
        if not self._card_of(device).gpm:
            raise Failure("NOT_SUPPORTED")
        self._samples[self._sample(sample)] = (device, device.total_s, Counter(device.totals))

    def _sample(self, sample: Any) -> int:
        address = ctypes.cast(sample, ctypes.c_void_p).value or 0
        if address not in self._samples:
            raise Failure("INVALID_ARGUMENT")
        return address

    def _nvmlGpmMetricsGet(self, out: Any) -> None:
        get = out._obj
        if get.version != real_pynvml.NVML_GPM_METRICS_GET_VERSION:
            raise Failure("ARGUMENT_VERSION_MISMATCH")
        first = self._samples[self._sample(get.sample1)]
        second = self._samples[self._sample(get.sample2)]
        if first is None or second is None or first[0] is not second[0]:
            raise Failure("INVALID_ARGUMENT")
        names = {getattr(real_pynvml, f"NVML_GPM_METRIC_{n}"): n for n in first[0].activity}
        seconds = second[1] - first[1]
        for entry in get.metrics[: get.numMetrics]:
            name = names.get(entry.metricId)
            if name is None:
                entry.nvmlReturn = real_pynvml.NVML_ERROR_NOT_SUPPORTED
            else:
                entry.nvmlReturn = real_pynvml.NVML_SUCCESS
                change = second[2][name] - first[2][name]
                entry.value = change / seconds if seconds > 0 else math.nan


def _known(value: Any) -> Any:
    if value is None:
        raise Failure("NOT_SUPPORTED")
    return value


def _put(out: Any, value: Any) -> None:
    out._obj.value = _known(value)


def _put_processes(processes: dict[int, int], count: Any, out: Any) -> None:
    room, count._obj.value = count._obj.value, len(processes)
    if not processes:
        return
    if out is None or room < len(processes):
        raise Failure("INSUFFICIENT_SIZE")
    for entry, (pid, used) in zip(out, processes.items(), strict=False):
        entry.pid, entry.usedGpuMemory = pid, used
