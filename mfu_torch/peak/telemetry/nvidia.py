"""An NVIDIA GPU by its driver's account: NVML, and GPM where there is any.

Of a MIG slice NVML knows the memory, the processes and, on Hopper and newer, the GPM counters.
Clocks, temperature and throttling are the whole card's: all slices run at them. What the card does
for all its slices together (power, GPU-Util, traffic) is no figure of one slice and is absent.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mfu_torch.peak.drivers import Raw, all_ones, checked_bits, said
from mfu_torch.peak.nvml import Nvml, nvml_handle, warn_once
from mfu_torch.peak.telemetry.gpm import METRICS, Gpm
from mfu_torch.peak.telemetry.source import (
    Fault,
    Found,
    NoSource,
    Reader,
    Readers,
    Reading,
    other_processes,
)
from mfu_torch.records import Device

THROTTLE_REASONS: dict[int, str] = {
    # Bits of nvmlDeviceGetCurrentClocksEventReasons: nvmlClocksEventReason... and, for the last
    # two, nvmlClocksThrottleReason... in pynvml.
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "thermal (software)",
    0x40: "thermal (hardware)",
    0x80: "power brake",
    0x100: "display clock",
    0x200: "board limit",
    0x400: "reliability",
}

ALL_LINKS = 0xFFFFFFFF  # scope of NVML_FI_DEV_NVLINK_THROUGHPUT_...: the sum over the links

LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired")
REFUSED = (
    "NVMLError_NotSupported",
    "NVMLError_NoPermission",
    "NVMLError_Deprecated",
    "NVMLError_ArgumentVersionMismatch",
)
NOT_OF_A_SLICE = "NVML knows it of the whole card, not of a MIG slice"


def throttle_reasons(bits: int) -> frozenset[str]:
    """``0x44`` -> power cap, thermal (hardware); an unknown bit is kept: ``"bit 0x800"``."""
    set_bits = (1 << n for n in range(bits.bit_length()) if bits >> n & 1)
    return frozenset(THROTTLE_REASONS.get(bit, f"bit {bit:#x}") for bit in set_bits)


class NvidiaSource:
    """Reads one GPU or one MIG slice."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._gpm: Gpm | None = None
        self._readers = Readers([], _judge, "")
        self._worked = False

    def open(self) -> None:
        """Find the GPU in NVML; raises NoSource where NVML does not work."""
        gpu = nvml_handle(self._device)
        if gpu.handle is None:
            warn_once(gpu.problem)
            raise NoSource(gpu.problem)
        self._use(gpu)

    def close(self) -> None:
        """Give the GPM samples back."""
        if self._gpm is not None:
            self._gpm.close()

    def read(self, elapsed_s: float | None) -> Reading:
        """One reading; raises NoSource when the GPU has fallen off the bus."""
        outcome = self._readers.read(elapsed_s)
        kinds = [type(error).__name__ for error in outcome.errors]
        for kind, error in zip(kinds, outcome.errors, strict=True):
            if kind in LOST:
                raise NoSource(f"the GPU no longer answers (NVML: {said(error)})")
        if self._worked and kinds and not outcome.answered and elapsed_s is not None:
            if "NVMLError_Unknown" in kinds:
                raise NoSource("the GPU no longer answers (NVML: Unknown Error, to every call)")
            if "NVMLError_Uninitialized" in kinds or "NVMLError_InvalidArgument" in kinds:
                self._open_again()
        self._worked |= outcome.answered > 0
        return outcome.reading

    def _open_again(self) -> None:
        # Somebody shut NVML down, and with it went the handles.
        self.close()
        gpu = nvml_handle(self._device)
        if gpu.handle is not None:
            self._use(gpu)

    def _use(self, gpu: Nvml) -> None:
        self._gpm = Gpm(gpu)
        self._readers = Readers(
            [Reader(tuple(METRICS), self._gpm.read, counts=True), *_readers(_Calls(gpu), gpu)],
            _judge,
            otherwise="of a CPU only",
            who="NVML",
        )


def _readers(calls: _Calls, gpu: Nvml) -> list[Reader]:
    def of_card(field: str, call: Callable[[], Found]) -> Reader:
        return Reader((field,), lambda elapsed_s: {field: call()})

    def of_whole_only(reader: Reader) -> Reader:
        if not gpu.is_slice:
            return reader
        return reader._replace(call=lambda elapsed_s: dict.fromkeys(reader.fields, NOT_OF_A_SLICE))

    links = ("nvlink_rx_bytes_per_s", "nvlink_tx_bytes_per_s")
    return [
        of_whole_only(of_card("gpu_util", calls.util)),
        of_card("sm_clock_hz", calls.sm_clock_hz),
        of_card("memory_clock_hz", calls.memory_clock_hz),
        of_whole_only(of_card("power_w", calls.power_w)),
        of_whole_only(of_card("power_limit_w", calls.power_limit_w)),
        of_whole_only(of_card("power_default_w", calls.power_default_w)),
        of_card("temperature_c", calls.temperature_c),
        Reader(("throttle",), lambda elapsed_s: {"throttle": calls.throttle()}),
        of_card("memory_used_bytes", calls.memory_used_bytes),
        Reader(("other_processes",), lambda elapsed_s: other_processes(calls.pids(), os.getpid())),
        of_whole_only(of_card("pcie_rx_bytes_per_s", calls.pcie_rx)),
        of_whole_only(of_card("pcie_tx_bytes_per_s", calls.pcie_tx)),
        of_whole_only(Reader(links, calls.links, counts=True)),
    ]


class _Calls:
    """NVML's calls: figures as they come, with their units."""

    def __init__(self, gpu: Nvml) -> None:
        self._api: Any = gpu.api
        self._gpu = gpu
        self._links_before: dict[str, int] = {}

    @property
    def _card(self) -> Any:
        if self._gpu.card is None:
            raise LookupError("NVML does not give the card that the MIG slice is a part of")
        return self._gpu.card

    def util(self) -> Raw:
        # Over NVML's own sample period, 1/6 s to 1 s by product.
        return Raw(self._api.nvmlDeviceGetUtilizationRates(self._card).gpu, 1e-2, "%")

    def sm_clock_hz(self) -> Raw:
        return self._clock(self._api.NVML_CLOCK_SM)

    def memory_clock_hz(self) -> Raw:
        return self._clock(self._api.NVML_CLOCK_MEM)

    def _clock(self, kind: int) -> Raw:
        return Raw(self._api.nvmlDeviceGetClockInfo(self._card, kind), 1e6, "MHz")

    def power_w(self) -> Raw:
        return Raw(self._api.nvmlDeviceGetPowerUsage(self._card), 1e-3, "mW")

    def power_limit_w(self) -> Raw:
        # The lowest of all limits; the one set by hand where the driver does not tell it.
        api = self._api
        limit = _first(
            lambda: api.nvmlDeviceGetEnforcedPowerLimit(self._card),
            lambda: api.nvmlDeviceGetPowerManagementLimit(self._card),
        )
        return Raw(limit, 1e-3, "mW")

    def power_default_w(self) -> Raw:
        return Raw(self._api.nvmlDeviceGetPowerManagementDefaultLimit(self._card), 1e-3, "mW")

    def temperature_c(self) -> Raw:
        # The former is to go with CUDA 14, the latter came with drivers of 2025.
        api = self._api
        sensor = api.NVML_TEMPERATURE_GPU
        temperature = _first(
            lambda: api.nvmlDeviceGetTemperature(self._card, sensor),
            lambda: api.nvmlDeviceGetTemperatureV(self._card, sensor),
        )
        return Raw(temperature, 1.0, "degrees Celsius")

    def throttle(self) -> frozenset[str] | str:
        # The same bits; drivers before R535 have only the latter.
        api = self._api
        bits = _first(
            lambda: api.nvmlDeviceGetCurrentClocksEventReasons(self._card),
            lambda: api.nvmlDeviceGetCurrentClocksThrottleReasons(self._card),
        )
        bits = checked_bits(bits, "NVML")
        return throttle_reasons(bits) if isinstance(bits, int) else bits

    def memory_used_bytes(self) -> Raw:
        return Raw(self._api.nvmlDeviceGetMemoryInfo(self._gpu.handle).used, 1.0, "bytes")

    def pids(self) -> set[int]:
        """Of everything that computes or draws on the GPU, or on the slice."""
        computing = self._api.nvmlDeviceGetComputeRunningProcesses(self._gpu.handle)
        try:
            drawing = self._api.nvmlDeviceGetGraphicsRunningProcesses(self._gpu.handle)
        except Exception as error:  # a slice, or a card that cannot draw
            if not _judge(error).refused:
                raise
            drawing = []
        return {process.pid for process in (*computing, *drawing)}

    def pcie_rx(self) -> Raw:
        return self._pcie(self._api.NVML_PCIE_UTIL_RX_BYTES)

    def pcie_tx(self) -> Raw:
        return self._pcie(self._api.NVML_PCIE_UTIL_TX_BYTES)

    def _pcie(self, counter: int) -> Raw:
        # KB/s over 20 ms, for which the call waits: a glimpse of the interval. NVIDIA does not say
        # whether a KB has 1000 or 1024 bytes.
        return Raw(self._api.nvmlDeviceGetPcieThroughput(self._card, counter), 1e3, "KB/s")

    def links(self, elapsed_s: float | None) -> Mapping[str, Found]:
        """From counters of KiB of payload over all links, so it is exact over the interval."""
        api, fields = self._api, _LINK_FIELDS
        before, self._links_before = self._links_before, {}
        ids = [(getattr(api, name), ALL_LINKS) for name in fields.values()]
        found: dict[str, Found] = {}
        for field, entry in zip(fields, api.nvmlDeviceGetFieldValues(self._card, ids), strict=True):
            if entry.nvmlReturn != api.NVML_SUCCESS:
                found[field] = f"NVML: {api.NVMLError(entry.nvmlReturn)}"
                continue
            now = int(entry.value.ullVal)
            if all_ones(now):
                found[field] = Raw(now, 1024.0, "KiB")
                continue
            self._links_before[field] = now
            if elapsed_s is not None and field in before and now >= before[field]:
                found[field] = Raw((now - before[field]) / elapsed_s, 1024.0, "KiB/s")
        return found


_LINK_FIELDS = {
    "nvlink_rx_bytes_per_s": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX",
    "nvlink_tx_bytes_per_s": "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX",
}


def _first(preferred: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    try:
        return preferred()
    except Exception as error:
        # Only what this driver or module lacks has another name.
        if not _judge(error).refused:
            raise
    return otherwise()


def _judge(error: Exception) -> Fault:
    kind = type(error).__name__
    if kind in ("NVMLError_FunctionNotFound", "NVMLLibraryMismatchError"):
        return Fault("this driver does not have the call", refused=True)
    if kind == "AttributeError":
        return Fault(f"this pynvml is too old ({said(error)}); update nvidia-ml-py", refused=True)
    return Fault(f"NVML: {said(error)}", refused=kind in REFUSED)
