"""A name is believed only as far as the device's other facts do not speak against it."""

from __future__ import annotations

import pytest

from mfu_torch.peak.contradiction import contradiction
from mfu_torch.peak.table import handle, peak_for, rows_named, table
from mfu_torch.records import Device, UnknownPeak

GIB = 2**30
A100 = "NVIDIA A100-SXM4-40GB"
H100 = "NVIDIA H100 80GB HBM3"
T = 1e12


def gpu(name: str, **facts: object) -> Device:
    return Device(name=name, kind="cuda", **facts)  # type: ignore[arg-type]


def amd(name: str, **facts: object) -> Device:
    return Device(name=name, kind="rocm", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "why"),
    [
        (Device(name=A100, kind="cuda", compute_capability="7.0"), "architecture 8.0, and this"),
        (Device(name=H100, kind="cuda", compute_capability="8.0"), "9.0, and this device reports"),
        (Device(name="NVIDIA GeForce RTX 3060", kind="cuda", compute_capability="6.1"), "8.6, and"),
        (Device(name="NVIDIA L4", kind="cuda", compute_capability="gfx942"), "8.9, and this"),
        (
            Device(name="AMD Instinct MI300X", kind="rocm", compute_capability="gfx90a:xnack-"),
            "architecture gfx942, and this device reports gfx90a",
        ),
        (Device(name=A100, kind="rocm"), "made by NVIDIA, and a device of kind 'rocm' by AMD"),
        (Device(name=A100, kind="mps"), "made by NVIDIA, and a device of kind 'mps' by Apple"),
        (Device(name="AMD Instinct MI300X", kind="cuda"), "made by AMD, and .* by NVIDIA"),
        (Device(name="TPU v4", kind="cuda"), "made by Google, and .* by NVIDIA"),
        (Device(name=H100, kind="cuda", memory_bytes=24 * GIB), "has 85.9 GB of memory, and this"),
        (Device(name="Tesla T4", kind="cuda", memory_bytes=48 * GIB), "reports 51.5 GB"),
        (Device(name="h100", kind="rocm"), "the H100 SXM5 is made by NVIDIA"),
    ],
)
def test_a_fact_that_the_device_of_the_name_cannot_have_leaves_no_peak(
    device: Device, why: str
) -> None:
    for dtype in ("fp32", "fp16", "bf16"):
        with pytest.raises(UnknownPeak, match=f"its facts contradict each other: .*{why}"):
            peak_for(device, dtype)


KINDS = {"NVIDIA": "cuda", "AMD": "rocm", "Apple": "mps"}


def test_each_row_agrees_with_its_own_facts_and_with_memory_as_drivers_report_it() -> None:
    for row in table():
        for share in (0.915, 1, 1.01):  # a T4 with ECC: 14.65 of 16 GiB
            for architecture in (None, *row.architectures):
                device = Device(
                    name=row.driver_names[0],
                    kind=KINDS.get(row.vendor, "xla"),
                    sm_count=row.sm_count,
                    compute_capability=architecture,
                    memory_bytes=int(row.memory_bytes * share) if row.memory_bytes else None,
                )
                assert contradiction(device, row) == ""


@pytest.mark.parametrize(
    ("name", "mib", "tflops"),
    [
        # As nvidia-smi prints the total.
        ("Tesla T4", 15109, 65),
        ("NVIDIA A10G", 22731, 70),
        ("NVIDIA L40S", 46068, 362.05),
        ("NVIDIA H200", 143771, 989.5),
        ("NVIDIA B200", 183359, 2250),
        ("NVIDIA B300 SXM6 AC", 275040, 2250),
        # One name of several memories, and cards that are sold with twice the memory.
        ("NVIDIA GeForce RTX 5060 Ti", 8151, 47.4),
        ("NVIDIA GeForce RTX 4060 Ti", 16380, 44.1),
        ("NVIDIA GeForce RTX 3060", 8192, 25.5),
        ("NVIDIA GeForce RTX 4090", 49140, 165.2),
        ("NVIDIA GeForce RTX 2080 Ti", 22528, 53.8),
    ],
)
def test_memory_that_cards_of_the_name_have_speaks_against_nothing(
    name: str, mib: int, tflops: float
) -> None:
    device = Device(name=name, kind="cuda", memory_bytes=mib * 2**20)
    assert peak_for(device, "fp16").flops_per_s == pytest.approx(tflops * 1e12)


def test_a_part_of_a_device_may_have_a_part_of_its_memory() -> None:
    part = Device(name="AMD Instinct MI300X", kind="rocm", sm_count=38, memory_bytes=24 * GIB)
    assert peak_for(part, "bf16").provenance == "derived"
    piece = Device(name=A100, kind="cuda", sm_count=14, memory_bytes=5 * GIB, mig="1g.5gb")
    assert peak_for(piece, "bf16").flops_per_s == pytest.approx(312e12 * 14 / 108)


def test_a_number_that_a_driver_changed_is_the_same_chip() -> None:
    for architecture in ("10.1", "11.0"):
        device = Device(
            name="NVIDIA Thor", kind="cuda", sm_count=20, compute_capability=architecture
        )
        assert peak_for(device, "fp8").flops_per_s == 517e12


def test_a_name_alone_is_of_any_kind() -> None:
    for name in ("mi300x", "tpu-v4", "m1-8core", "h100-sxm"):
        assert peak_for(name, "fp32" if "m1" in name else "bf16").flops_per_s > 0


def test_every_gpu_of_the_two_makers_has_its_architecture() -> None:
    for row in table():
        assert bool(row.architectures) == (row.vendor in ("NVIDIA", "AMD")), row.name
    (h100,) = rows_named("h100-sxm")
    assert h100.architectures == ("9.0",)


# --- cards of one name, clocks, chips, parts ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tflops", "others", "uncertainty"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", 53.8, (56.9,), 0.06),  # Founders Edition
        ("NVIDIA GeForce RTX 2080", 40.3, (42.4, 37.4), 0.08),  # Founders Edition, laptop
        ("Quadro RTX 8000", 130.5, (119.4,), 0.09),  # passive
        ("Quadro RTX 6000", 130.5, (119.4, 107.3), 0.18),  # passive, laptop
        ("Quadro RTX 5000", 89.2, (75.9,), 0.15),  # laptop
    ],
)
def test_a_name_of_several_cards_carries_the_largest_deviation_of_the_others(
    name: str, tflops: float, others: tuple[float, ...], uncertainty: float
) -> None:
    peak = peak_for(name, "fp16")
    assert (peak.flops_per_s, peak.uncertainty) == (tflops * T, uncertainty)
    largest = max(abs(other / tflops - 1) for other in others)
    assert uncertainty - 0.01 < largest <= uncertainty
    assert all(str(other) in peak.source for other in others)


def test_no_other_row_of_the_table_is_uncertain_by_its_name() -> None:
    assert [handle(row) for row in table() if row.deviation is not None] == [
        *("quadro-rtx-8000", "quadro-rtx-6000", "quadro-rtx-5000", "rtx-2080-ti", "rtx-2080"),
    ]


@pytest.mark.parametrize(
    ("device", "dtype", "tflops", "uncertainty", "clocks"),
    [
        (amd("AMD Instinct MI300X", max_clock_hz=1.9e9), "bf16", 1307.4, 0.0952, (1900, 2100)),
        (gpu("Quadro RTX 5000", max_clock_hz=1.545e9), "fp16", 89.2, 0.15, (1545, 1815)),
        (gpu("Quadro RTX 8000", max_clock_hz=1.5e9), "fp16", 130.5, 0.1525, (1500, 1770)),
        (
            amd("AMD Instinct MI300X", max_clock_hz=1.9e9, sm_count=38),
            *("bf16", 163.425, 0.0952, (1900, 2100)),
        ),
    ],
)
def test_a_highest_clock_below_that_of_the_figure_is_its_uncertainty(
    device: Device, dtype: str, tflops: float, uncertainty: float, clocks: tuple[int, int]
) -> None:
    peak = peak_for(device, dtype)
    assert peak.flops_per_s == pytest.approx(tflops * T)
    assert peak.uncertainty == pytest.approx(uncertainty, abs=1e-4)
    text = f"highest clock is {clocks[0]} MHz, and the figure is at {clocks[1]} MHz"
    assert peak.source.endswith(text)


def test_a_highest_clock_within_3_percent_or_above_changes_nothing() -> None:
    for clock_hz in (None, 2.04e9, 2.1e9, 2.4e9):
        peak = peak_for(amd("AMD Instinct MI300X", max_clock_hz=clock_hz), "bf16")
        assert peak == peak_for("AMD Instinct MI300X", "bf16")


def test_a_low_clock_is_said_also_where_the_clock_of_the_figure_is_not_known() -> None:
    # fp64 of the H100 is stated at another clock than bf16, 1830 MHz.
    peak = peak_for(gpu("NVIDIA H100 80GB HBM3", max_clock_hz=1.5e9), "fp64")
    assert peak.uncertainty is None
    assert "clock is 1500 MHz, and other figures of the document are at 1830 MHz" in peak.source


def test_a_power_mode_with_a_lower_clock_has_no_peak() -> None:
    whole = gpu("NVIDIA Thor", sm_count=20, max_clock_hz=1.575e9)
    assert peak_for(whole, "fp8").flops_per_s == 517 * T
    with pytest.raises(UnknownPeak, match=r"is 1386 MHz, in this power .* at 1575 MHz"):
        peak_for(gpu("NVIDIA Thor", sm_count=20, max_clock_hz=1.386e9), "fp8")


@pytest.mark.parametrize("name", ["GAUDI3", "HL-325L", "HL-338", "gaudi3"])
def test_a_figure_at_a_clock_that_shipping_parts_lack_needs_that_clock(name: str) -> None:
    for clock_hz in (None, 1.6e9):
        device = Device(name=name, kind="hpu", max_clock_hz=clock_hz)
        for asked in (device, name):
            with pytest.raises(UnknownPeak, match=r"is at 1750 MHz, .* parts run at 1600 MHz"):
                peak_for(asked, "bf16")
    fast = Device(name=name, kind="hpu", max_clock_hz=1.75e9)
    assert peak_for(fast, "bf16").flops_per_s == 1835 * T


@pytest.mark.parametrize(
    ("name", "dtype", "parts", "each"),
    [
        ("TPU v2", "bf16", 2, "22.5 TFLOP/s"),
        ("TPU v3", "bf16", 2, "61.5 TFLOP/s"),
        ("TPU7x", "bf16", 2, "1153.5 TFLOP/s"),
        ("trn1", "bf16", 2, "95 TFLOP/s"),
        ("trn2", "bf16", 4, "166.75 TFLOP/s"),
        ("trn3", "bf16", 4, "167.75 TFLOP/s"),
    ],
)
def test_the_figure_of_a_chip_of_several_devices_is_none_of_a_device(
    name: str, dtype: str, parts: int, each: str
) -> None:
    for asked in (name, Device(name=name, kind="xla")):
        with pytest.raises(UnknownPeak, match=f"of the whole chip, .*: one of {parts}, ") as one:
            peak_for(asked, dtype)
        assert f" {each} each" in str(one.value)


@pytest.mark.parametrize(
    ("device", "row", "whole"),
    [
        (gpu("NVIDIA GeForce RTX 4090", sm_count=76, memory_bytes=16 * 2**30), "4090", 128),
        (gpu("NVIDIA H100 80GB HBM3", sm_count=114), "H100 SXM5", 132),
        (gpu("NVIDIA A100-SXM4-40GB", sm_count=14), "A100 SXM4 40GB", 108),
        (gpu("NVIDIA H100 80GB HBM3", sm_count=136), "H100 SXM5", 132),
        (gpu("NVIDIA L4", sm_count=60), "L4", 58),
        (amd("AMD Radeon RX 7900 XTX", sm_count=24), "Radeon RX 7900 XTX", 48),
        (amd("AMD Instinct MI100", sm_count=60), "MI100", 120),
        (amd("AMD Instinct MI210", sm_count=52), "MI210", 104),
        (amd("AMD Instinct MI300X", sm_count=80), "MI300X", 304),  # an MI308X
    ],
)
def test_another_number_of_multiprocessors_is_another_device(
    device: Device, row: str, whole: int
) -> None:
    text = (
        f"reports {device.sm_count} multiprocessors and the .*{row} has {whole}, so it is another"
    )
    with pytest.raises(UnknownPeak, match=text):
        peak_for(device, "bf16")


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        (gpu("NVIDIA H100 80GB HBM3", sm_count=128), 989.4 * 128 / 132),
        (gpu("NVIDIA H100 80GB HBM3", sm_count=134), 989.4 * 134 / 132),
        (amd("AMD Instinct MI300A", sm_count=38), 980.6 / 6),  # CPX
        (amd("AMD Instinct MI355X", sm_count=32), 2516.6 / 8),  # CPX
    ],
)
def test_a_few_more_or_fewer_and_partitions_are_scaled(device: Device, tflops: float) -> None:
    peak = peak_for(device, "bf16")
    assert peak.flops_per_s == pytest.approx(tflops * T)
    assert peak.provenance == "derived"
