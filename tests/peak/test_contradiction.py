"""A name is believed only as far as the device's other facts do not speak against it."""

from __future__ import annotations

import pytest

from mfu_torch.peak.contradiction import contradiction
from mfu_torch.peak.table import peak_for, rows_named, table
from mfu_torch.records import Device, UnknownPeak

GIB = 2**30
A100 = "NVIDIA A100-SXM4-40GB"
H100 = "NVIDIA H100 80GB HBM3"


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
