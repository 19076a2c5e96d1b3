"""What others measured stands beside a device of the same whole name, and beside no other."""

from __future__ import annotations

import pytest

from mfu_torch.peak.published import published, published_for
from mfu_torch.peak.table import find_rows
from mfu_torch.records import Device


def best(name: str, dtype: str = "bf16", **facts: object) -> float | None:
    found = published_for(Device(name=name, kind="cuda", **facts), dtype)  # type: ignore[arg-type]
    return found[0].flops_per_s if found else None


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 794.5),
        ("NVIDIA H100 80GB HBM3", "fp8", 1402.6),
        ("h100-sxm", "bf16", 794.5),
        ("NVIDIA A100-SXM4-40GB", "bf16", 271.2),
        ("NVIDIA A100-SXM4-80GB", "bf16", 271.2),
        ("NVIDIA A100 80GB PCIe", "bf16", 252.9),
        ("NVIDIA H200", "fp8", 1453.4),
        ("NVIDIA H200 NVL", "bf16", 853.3),
        ("NVIDIA B200", "bf16", 1745.0),
        ("NVIDIA GB200", "bf16", 1822.0),
        ("NVIDIA GeForce RTX 4090", "fp8", 354.3),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "bf16", 457.6),
        ("AMD Instinct MI325X", "bf16", 831.4),  # the highest of three
    ],
)
def test_a_whole_name_meets_its_row(name: str, dtype: str, tflops: float) -> None:
    assert best(name, dtype) == pytest.approx(tflops * 1e12)


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H800", "NVIDIA GH200 480GB"),
        *("NVIDIA A100", "a100", "h100", "NVIDIA RTX A1000", "NVIDIA A10", "NVIDIA A800-SXM4-80GB"),
        *("NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 4090 Laptop GPU"),
        *("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "NVIDIA GB300"),
        *("AMD Instinct MI300A", "AMD EPYC", ""),
    ],
)
def test_a_name_that_only_resembles_one_meets_none(name: str) -> None:
    assert best(name) is None


def test_h200_has_no_bf16_figure_although_the_nvl_card_has() -> None:
    assert best("NVIDIA H200") is None


def test_a_part_of_a_device_has_no_figure() -> None:
    assert best("NVIDIA H100 80GB HBM3", sm_count=132) == pytest.approx(794.5e12)
    assert best("NVIDIA H100 80GB HBM3", sm_count=60) is None
    assert best("NVIDIA H100 80GB HBM3", mig="3g.40gb") is None
    assert best("NVIDIA H100 80GB HBM3 MIG 3g.40gb") is None


def test_a_name_of_several_memories_needs_the_memory_that_was_measured() -> None:
    name = "NVIDIA GH200 144G HBM3e"
    assert best(name) is None
    assert best(name, memory_bytes=96 * 2**30) is None
    assert best(name, memory_bytes=141 * 10**9) == pytest.approx(828.6e12)


def test_the_highest_figure_comes_first_and_keeps_its_source() -> None:
    found = published_for(Device(name="AMD Instinct MI325X", kind="rocm"), "bf16")
    assert [round(one.flops_per_s / 1e12, 1) for one in found] == [831.4, 784.9, 616.0]
    assert [one.shape for one in found] == [(4096, 4864, 32896), (13312, 10240, 8192), None]
    assert all(one.source and one.conditions for one in found)


@pytest.mark.parametrize("one", published(), ids=lambda one: f"{one.device} {one.dtype}")
def test_every_row_names_devices_of_the_table_and_a_rate_that_such_a_device_can_have(
    one: object,
) -> None:
    for name in one.driver_names:  # type: ignore[attr-defined]
        rows = find_rows(Device(name=name, kind="cuda"))
        assert len(rows) == 1, name
        peak = rows[0].flops_per_s.get(one.dtype)  # type: ignore[attr-defined]
        # GeForce cards clock above their rated boost: up to 121 % (RTX 5090).
        assert peak is None or 0.4 < one.flops_per_s / peak < 1.25  # type: ignore[attr-defined]
