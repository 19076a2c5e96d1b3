"""What drivers say where they know nothing, and what becomes of it."""

from __future__ import annotations

from typing import Any

import pytest
from telemetry_rig import BUSY, Rig, a100, h100

from mfu_torch.peak.drivers import Raw, checked, checked_bits, said
from mfu_torch.peak.telemetry.source import FIELDS

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("field", "raw", "value"),
    [
        ("sm_clock_hz", Raw(1755, 1e6, "MHz"), 1.755e9),
        ("memory_clock_hz", Raw(2619.5, 1e6, "MHz"), 2.6195e9),
        ("power_w", Raw(0, 1e-3, "mW"), 0.0),
        ("power_limit_w", Raw(1_200_000, 1e-3, "mW"), 1200.0),
        ("temperature_c", Raw(-40), -40.0),
        ("gpu_util", Raw(100, 1e-2, "%"), 1.0),
        ("sm_active", Raw(101.3, 1e-2, "%"), 1.0),
        ("dram_active", Raw(-0.4, 1e-2, "%"), 0.0),
        ("memory_used_bytes", Raw(65535.0), 65535.0),
        ("pcie_rx_bytes_per_s", Raw(65535, 1e3, "KB/s"), 65.535e6),
        ("other_processes", Raw(0), 0.0),
    ],
)
def test_what_can_be_true_is_taken(field: str, raw: Raw, value: float) -> None:
    found = checked(field, raw, "NVML")
    assert type(found) is float and found == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("field", "raw", "reason"),
    [
        ("sm_clock_hz", Raw(0, 1e6, "MHz"), "0 MHz"),
        ("sm_clock_hz", Raw(-1, 1e6, "MHz"), "-1 MHz"),
        ("sm_clock_hz", Raw(2**32 - 1, 1e6, "MHz"), "4294967295 MHz"),
        ("sm_clock_hz", Raw(65535, 1e6, "MHz"), "65535 MHz"),
        ("memory_clock_hz", Raw(NAN, 1e6, "MHz"), "nan MHz"),
        ("power_w", Raw(INF, 1e-3, "mW"), "inf mW"),
        ("power_w", Raw(-5000, 1e-3, "mW"), "-5000 mW"),
        ("power_w", Raw(10_000_001, 1e-3, "mW"), "10000001 mW"),
        ("power_limit_w", Raw(0, 1e-3, "mW"), "0 mW"),
        ("power_default_w", Raw(2**32 - 1, 1e-6, "microwatts"), "4294967295 microwatts"),
        ("temperature_c", Raw(-60), "-60"),
        ("temperature_c", Raw(255, 1.0, "degrees Celsius"), "255 degrees Celsius"),
        ("gpu_util", Raw(103, 1e-2, "%"), "103 %"),
        ("tensor_active", Raw(-2.5, 1e-2, "%"), "-2.5 %"),
        ("memory_used_bytes", Raw(2**60 + 2**20, 1.0, "bytes"), f"{2**60 + 2**20} bytes"),
        ("memory_used_bytes", Raw(2**32 - 1, 1.0, "bytes"), "4294967295 bytes"),
        ("pcie_rx_bytes_per_s", Raw(2**32 - 1, 1e3, "KB/s"), "4294967295 KB/s"),
        ("nvlink_tx_bytes_per_s", Raw(2**64 - 1, 1024.0, "KiB"), f"{2**64 - 1} KiB"),
        ("nvlink_tx_bytes_per_s", Raw(10**400), str(10**400)),
        ("other_processes", Raw(-1), "-1"),
        ("power_w", Raw(None, 1e-3, "mW"), "None"),
        ("power_w", Raw("N/A", 1e-3, "mW"), "N/A"),
        ("power_w", Raw("350", 1e-3, "mW"), "350"),
    ],
)
def test_what_cannot_be_true_is_a_reason(field: str, raw: Raw, reason: str) -> None:
    assert checked(field, raw, "NVML") == f"NVML reported {reason}"


def test_every_field_of_a_reading_has_a_range() -> None:
    for field in set(FIELDS) - {"throttle"}:
        assert isinstance(checked(field, Raw(NAN), "it"), str)
        assert isinstance(checked(field, Raw(2**64), "it"), str)
        assert isinstance(checked(field, Raw(-(2**64)), "it"), str)


@pytest.mark.parametrize("odd", [-1, 2**32 - 1, 2**64 - 1, 2**70, None, "N/A", 4.5])
def test_all_bits_at_once_are_no_set_of_reasons(odd: Any) -> None:
    assert checked_bits(odd, "NVML") == f"NVML reported {odd} as a set of bits"
    assert checked_bits(0x44, "NVML") == 0x44


def test_an_exception_always_has_a_text() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise RuntimeError("the driver is gone")

    assert (said(Odd()), said(ValueError()), said(OSError("a\n\tb"))) == (
        "Odd",
        "ValueError",
        "a b",
    )


# --- through NVML -------------------------------------------------------------------------------


def test_what_nvml_does_not_know_is_absent_and_says_what_nvml_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ones = 2**32 - 1
    gpu = a100(
        sm_clock_mhz=0, memory_clock_mhz=ones, power_mw=ones, enforced_limit_mw=0,
        default_limit_mw=ones, temperature=ones, reasons=2**64 - 1, gpu_util=ones,
        memory_used=2**64 - 1, memory_total=2**64 - 1, pcie_rx_kb=ones, nvlink_rx_kib=2**64 - 1,
    )  # fmt: skip
    found = Rig(monkeypatch, gpu).seen(1.0, 1.0)
    assert {name: why for name, why in found.absent.items() if "reported" in why} == {
        "sm_clock_hz": "NVML reported 0 MHz",
        "sm_clock_min_hz": "NVML reported 0 MHz",
        "memory_clock_hz": "NVML reported 4294967295 MHz",
        "power_w": "NVML reported 4294967295 mW",
        "power_limit_w": "NVML reported 0 mW",
        "power_default_w": "NVML reported 4294967295 mW",
        "temperature_c": "NVML reported 4294967295 degrees Celsius",
        "throttle": "NVML reported 18446744073709551615 as a set of bits",
        "gpu_util": "NVML reported 4294967295 %",
        "memory_used_bytes": "NVML reported 18446744073709551615 bytes",
        "pcie_rx_bytes_per_s": "NVML reported 4294967295 KB/s",
        "nvlink_rx_bytes_per_s": "NVML reported 18446744073709551615 KiB",
    }  # fmt: skip
    for field in set(FIELDS) - {"throttle"}:
        assert (getattr(found, field) is None) == (field in found.absent)
    assert found.throttle == {}
    assert (found.nvlink_tx_bytes_per_s, found.other_processes) == (0.0, 0)


def test_a_figure_that_is_odd_for_a_while_is_the_mean_of_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(monkeypatch, a100(sm_clock_mhz=0, nvlink_rx_kib=2**64 - 1))
    rig.sampler.sample()
    rig.sample(1.0)
    rig.gpu.sm_clock_mhz, rig.gpu.nvlink_rx_kib = 1410, 1024
    rig.sample(1.0)  # the first counter that can be: nothing to compare it with
    rig.gpu.nvlink_rx_kib = 3 * 1024
    rig.sample(1.0)
    found = rig.take()
    assert (found.sm_clock_hz, found.sm_clock_min_hz) == (1.41e9, 1.41e9)
    assert found.nvlink_rx_bytes_per_s == 2 * 2.0**20


def test_odd_metrics_of_gpm_leave_the_field_to_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    odd = BUSY | {"SM_UTIL": NAN, "DRAM_BW_UTIL": 6553.5, "PCIE_RX_PER_SEC": INF}
    found = Rig(monkeypatch, h100(activity=odd)).seen(1.0)
    assert found.absent["sm_active"] == "NVML reported nan %"
    assert found.absent["dram_active"] == "NVML reported 6553.5 %"
    assert found.pcie_rx_bytes_per_s == 3e6
    assert found.tensor_active == pytest.approx(0.45)


@pytest.mark.parametrize("answer", [None, "N/A", NAN, object, -1])
def test_answers_of_another_type_are_absent(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    rig = Rig(monkeypatch)
    for call in ("PowerUsage", "ClockInfo", "CurrentClocksEventReasons", "Temperature"):
        monkeypatch.setattr(rig.nvml.module, f"nvmlDeviceGet{call}", lambda *given: answer)
    found = rig.seen(1.0)
    for field in ("power_w", "sm_clock_hz", "memory_clock_hz", "throttle"):
        assert found.absent[field].startswith(f"NVML reported {str(answer)[:30]}"), field
    assert found.power_w is found.sm_clock_hz is found.sm_clock_min_hz is None
    assert (found.temperature_c, found.gpu_util) == (-1.0 if answer == -1 else None, 1.0)


def test_ids_that_no_process_has_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = h100()
    gpu.processes |= {0: 1, 2**32 - 1: 1, 7: 1}
    assert Rig(monkeypatch, gpu).seen(1.0).other_processes == 1
