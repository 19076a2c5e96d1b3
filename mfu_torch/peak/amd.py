"""An AMD GPU by its driver's account, through ``amdsmi``. The one importer of it.

Written after amdsmi's own source (7.0) and documentation, and NOT tested on hardware. amdsmi loads
the driver's library when it is imported, so it is imported only when a source is opened.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from mfu_torch.peak.drivers import Raw, checked, said
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


class AmdSource:
    """Reads one AMD GPU. Untested on hardware.

    Args:
        device: Of kind ``rocm``.
        api: The module ``amdsmi``; by default it is imported.
    """

    def __init__(self, device: Device, api: Any = None) -> None:
        self._device = device
        self._api = api
        self._readers = Readers([], _judge, "")

    def open(self) -> None:
        """Find the GPU; raises NoSource where amdsmi is missing or does not know it."""
        if self._api is None:
            self._api = _import()
        try:
            self._api.amdsmi_init()
            handles = list(self._api.amdsmi_get_processor_handles())
        # Its exceptions are of its own making, and an incomplete library gives AttributeErrors.
        except Exception as error:
            raise NoSource(f"amdsmi cannot be used ({said(error)})") from error
        self._readers = Readers(
            *(_readers(self._api, self._find(handles)), _judge),
            otherwise="not read through amdsmi",
            who="amdsmi",
        )

    def close(self) -> None:
        """Leave amdsmi open: another user of it in this process may count on that."""

    def read(self, elapsed_s: float | None) -> Reading:
        """One reading; raises nothing."""
        return self._readers.read(elapsed_s).reading

    def _find(self, handles: list[Any]) -> Any:
        if len(handles) == 1:
            return handles[0]
        wanted = _serial(self._device.uuid or "")
        found = [h for h in handles if wanted and _hip_uuid(self._api, h) == wanted]
        if len(found) != 1:
            raise NoSource(
                f"{len(found)} of the {len(handles)} devices of amdsmi have the UUID that torch "
                f"gives ({self._device.uuid}); expected 1"
            )
        return found[0]


def _import() -> Any:
    try:
        import amdsmi
    except ModuleNotFoundError as error:
        raise NoSource("the module amdsmi is missing; ROCm has it in share/amd_smi") from error
    # It is there, but loading the driver's library fails, in whatever way.
    except Exception as error:
        raise NoSource(f"amdsmi cannot be imported ({said(error)})") from error
    return amdsmi


def _readers(api: Any, gpu: Any) -> list[Reader]:
    def one(field: str, call: Callable[[], Found]) -> Reader:
        return Reader((field,), lambda elapsed_s: {field: call()})

    clocks, temperatures = api.AmdSmiClkType, api.AmdSmiTemperatureType
    current = api.AmdSmiTemperatureMetric.CURRENT
    return [
        one("gpu_util", lambda: Raw(api.amdsmi_get_gpu_activity(gpu)["gfx_activity"], 1e-2, "%")),
        one("sm_clock_hz", lambda: _clock(api.amdsmi_get_clock_info(gpu, clocks.GFX))),
        one("memory_clock_hz", lambda: _clock(api.amdsmi_get_clock_info(gpu, clocks.MEM))),
        one("power_w", lambda: _power(api.amdsmi_get_power_info(gpu))),
        one("power_limit_w", lambda: _cap(api, gpu, "power_cap")),
        one("power_default_w", lambda: _cap(api, gpu, "default_power_cap")),
        one(
            "temperature_c",
            lambda: Raw(
                api.amdsmi_get_temp_metric(gpu, temperatures.JUNCTION, current),
                unit="degrees Celsius",
            ),
        ),
        one(
            "memory_used_bytes",
            # "in MegaBytes"; torch reads them as 2**20 too
            lambda: Raw(api.amdsmi_get_gpu_vram_usage(gpu)["vram_used"], 2.0**20, "MB"),
        ),
        Reader(
            ("other_processes",),
            lambda elapsed_s: other_processes(
                {process["pid"] for process in api.amdsmi_get_gpu_process_list(gpu)}, os.getpid()
            ),
        ),
    ]


def _clock(info: Mapping[str, Any]) -> Raw:
    mhz = info["clk"] if "clk" in info else info["cur_clk"]  # the latter before ROCm 6.2
    return Raw(mhz, 1e6, "MHz")


def _power(info: Mapping[str, Any]) -> Raw:
    # MI300 and newer have the current one, older cards the average; what a card does not have is
    # "N/A" or 65535.
    found = [
        Raw(info.get(name, "N/A"), 1.0, "W")
        for name in ("current_socket_power", "average_socket_power")
    ]
    return next((raw for raw in found if isinstance(checked("power_w", raw, ""), float)), found[0])


def _cap(api: Any, gpu: Any, name: str) -> Raw | str:
    cap = api.amdsmi_get_power_cap_info(gpu)[name]
    if isinstance(cap, (int, float)) and cap < 1e6:  # no card has a limit below 1 W
        return f"{cap} is no power limit in microwatts"
    return Raw(cap, 1e-6, "microwatts")


def _serial(uuid: str) -> str:
    """The serial number in torch's UUID.

    HIP's 16 bytes are the letters of 16 hexadecimal digits, which torch prints as bytes once more:
    ``"36613666-3266-..."`` -> ``"6a6f2f..."``.
    """
    try:
        letters = bytes.fromhex(uuid.removeprefix("GPU-").replace("-", "")).decode("ascii")
        int(letters, 16)
    except ValueError:  # UnicodeDecodeError is one
        return ""
    return letters.lower()


def _hip_uuid(api: Any, handle: Any) -> str:
    """``"GPU-<16 hexadecimal digits>"`` -> the digits; empty where amdsmi does not tell."""
    try:
        if hasattr(api, "amdsmi_get_gpu_enumeration_info"):  # ROCm 6.4 and newer
            uuid = str(api.amdsmi_get_gpu_enumeration_info(handle)["hip_uuid"])
        else:
            uuid = str(api.amdsmi_get_gpu_asic_info(handle)["asic_serial"])
    except Exception:  # that handle is not found then
        return ""
    return uuid.removeprefix("GPU-").removeprefix("0x").lower()


def _judge(error: Exception) -> Fault:
    text = said(error)
    return Fault(f"amdsmi: {text}", refused="NOT_SUPPORTED" in text or "NO_PERM" in text)
