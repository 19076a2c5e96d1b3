"""AMD through amdsmi: written after its source and documentation, never run on hardware.

The stand-in below has the names, arguments and results of amdsmi 7.0's Python interface.
"""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from fake_clock import FakeClock

from mfu_torch.peak.amd import AmdSource
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import Device, Telemetry

SERIAL = "6a6f2f0011223344"
# HIP's UUID is the letters of the serial number; torch prints its 16 bytes.
TORCHS = "36613666-3266-3030-3131-323233333434"
MI300X = Device(name="AMD Instinct MI300X", kind="rocm", index=0, uuid=TORCHS)


class AmdSmiException(Exception):
    """As amdsmi's."""


class FakeAmdsmi:
    """``handles`` are serial numbers."""

    AmdSmiClkType = SimpleNamespace(GFX="GFX", MEM="MEM")
    AmdSmiTemperatureType = SimpleNamespace(JUNCTION="JUNCTION")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="CURRENT")

    def __init__(self, *handles: str) -> None:
        self.handles = handles
        self.answers: dict[str, Any] = {
            "activity": {"gfx_activity": 97, "umc_activity": 20, "mm_activity": "N/A"},
            "power": {"current_socket_power": 650, "average_socket_power": "N/A"},
            "cap": {"power_cap": 750_000_000, "default_power_cap": 750_000_000},
            "processes": [{"pid": os.getpid()}, {"pid": 1}],
            "temperature": 61,
            "vram": {"vram_total": 196_592, "vram_used": 1024},
            "clocks": {"GFX": 2100, "MEM": 1300},
        }

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            return self.answer(name.removeprefix("amdsmi_"), *arguments)

        return call

    def answer(self, name: str, *arguments: Any) -> Any:
        known = {
            "init": None,
            "get_processor_handles": list(self.handles),
            "get_gpu_activity": self.answers["activity"],
            "get_power_info": self.answers["power"],
            "get_power_cap_info": self.answers["cap"],
            "get_gpu_process_list": self.answers["processes"],
            "get_temp_metric": self.answers["temperature"],
            "get_gpu_vram_usage": self.answers["vram"],
        }
        if name == "get_clock_info":
            return {"clk": self.answers["clocks"][arguments[1]], "max_clk": 2100}
        if name == "get_gpu_enumeration_info":
            return {"hip_id": 0, "hip_uuid": f"GPU-{arguments[0]}"}
        if isinstance(known[name], Exception):
            raise known[name]
        return known[name]


def seen(api: Any, device: Device = MI300X) -> Telemetry:
    clock = FakeClock()
    sampler = DeviceSampler(device, source=AmdSource(device, api), clock=clock.host_s)
    sampler.sample()
    clock.advance(1.0)
    sampler.sample()
    found = sampler.take(1)
    assert found is not None
    return found


def test_an_amd_gpu_is_read_through_amdsmi() -> None:
    found = seen(FakeAmdsmi("ffff000000000000", SERIAL))
    assert (found.gpu_util, found.sm_clock_hz, found.memory_clock_hz) == (0.97, 2.1e9, 1.3e9)
    assert (found.power_w, found.temperature_c) == (650.0, 61.0)
    assert (found.power_limit_w, found.power_default_w) == (750.0, 750.0)
    assert (found.memory_used_bytes, found.other_processes) == (2**30, 1)
    assert found.absent["tensor_active"] == "not read through amdsmi"


def test_older_cards_have_the_average_power_and_what_is_not_available_is_absent() -> None:
    api = FakeAmdsmi(SERIAL)
    api.answers["power"] = {"current_socket_power": "N/A", "average_socket_power": 300}
    api.answers["activity"] = {"gfx_activity": "N/A"}
    found = seen(api)
    assert found.power_w == 300.0
    assert (found.gpu_util, found.absent["gpu_util"]) == (None, "amdsmi reported N/A")


def test_figures_that_no_card_has_are_absent() -> None:
    """65535 and all ones are what amdsmi gives where the firmware has no figure."""
    api = FakeAmdsmi(SERIAL)
    api.answers |= {
        "power": {"current_socket_power": 65535, "average_socket_power": 300},
        "activity": {"gfx_activity": 65535},
        "cap": {"power_cap": 2**32 - 1, "default_power_cap": 2**64 - 1},
        "temperature": 65535,
        "vram": {"vram_used": 2**32 - 1},
        "clocks": {"GFX": 0, "MEM": 65535},
    }
    found = seen(api)
    assert found.power_w == 300.0  # the next best
    assert found.absent == {
        **found.absent,
        "gpu_util": "amdsmi reported 65535 %",
        "sm_clock_hz": "amdsmi reported 0 MHz",
        "sm_clock_min_hz": "amdsmi reported 0 MHz",
        "memory_clock_hz": "amdsmi reported 65535 MHz",
        "power_limit_w": "amdsmi reported 4294967295 microwatts",
        "power_default_w": "amdsmi reported 18446744073709551615 microwatts",
        "temperature_c": "amdsmi reported 65535 degrees Celsius",
        "memory_used_bytes": "amdsmi reported 4294967295 MB",
    }
    api.answers["power"] = {"current_socket_power": 65535, "average_socket_power": "N/A"}
    assert seen(api).absent["power_w"] == "amdsmi reported 65535 W"


def test_a_limit_in_another_unit_is_not_taken_for_microwatts() -> None:
    api = FakeAmdsmi(SERIAL)
    api.answers["cap"] = {"power_cap": 750, "default_power_cap": "N/A"}
    found = seen(api)
    assert found.power_limit_w is found.power_default_w is None
    assert found.absent["power_limit_w"] == "750 is no power limit in microwatts"


def test_one_call_that_fails_takes_no_other_along() -> None:
    api = FakeAmdsmi(SERIAL)
    api.answers["activity"] = AmdSmiException("AMDSMI_STATUS_NOT_SUPPORTED -\n\tnot here")
    found = seen(api)
    assert found.absent["gpu_util"] == "amdsmi: AMDSMI_STATUS_NOT_SUPPORTED - not here"
    assert found.power_w == 650.0


def test_the_gpu_is_not_guessed_among_several() -> None:
    for handles in (("a" * 16, "b" * 16), (SERIAL, SERIAL)):  # none, or partitions of one card
        found = seen(FakeAmdsmi(*handles))
        assert found.samples == 0
        assert "devices of amdsmi have the UUID" in found.absent["power_w"]
    only = Device(name="AMD", kind="rocm", uuid=None)
    assert seen(FakeAmdsmi("a" * 16), only).power_w == 650.0


def test_without_amdsmi_the_reason_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert "amdsmi is missing" in seen(None).absent["gpu_util"]

    def refuse() -> None:
        raise AmdSmiException("AMDSMI_STATUS_INIT_ERROR")

    api = FakeAmdsmi()
    api.amdsmi_init = refuse  # type: ignore[attr-defined]
    assert "cannot be used (AMDSMI_STATUS_INIT_ERROR)" in seen(api).absent["gpu_util"]
