"""Every row of the table of peaks, held against arithmetic and against the other rows."""

from __future__ import annotations

import csv
from fractions import Fraction
from importlib import resources

import pytest

from mfu_torch.peak.table import DTYPES, Row, _index, find_rows, table
from mfu_torch.records import Device

CLOCK_NOT_STATED = {
    # The documents state no clock, and the rated boost that stands in for it is another one.
    "H100 NVL": 1.155,
    "H200 NVL": 1.155,
    "B200 SXM": 1.059,
    "GB200 (per GPU)": 1.027,
    # Shipping parts report 1600 MHz, the whitepaper assumes 1750.
    "Gaudi 3": 0.914,
    # Apple rounds to two digits.
    "M1 Pro (16-core)": 1.021,
    "M1 Max (32-core)": 1.021,
}


def first_principles(row: Row) -> float | None:
    """SMs x FLOP per clock x clock over the row's figure."""
    stated = next((row.flops_per_s[d] for d in ("bf16", "fp16", "fp32") if d in row.flops_per_s), 0)
    if not stated or None in (row.sm_count, row.flops_per_clock_per_sm, row.clock_hz):
        return None
    assert row.sm_count and row.flops_per_clock_per_sm and row.clock_hz
    return row.sm_count * row.flops_per_clock_per_sm * row.clock_hz / stated


CHECKED = [row for row in table() if row.verified != "secondary" and first_principles(row)]


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: row.name)
def test_a_row_agrees_with_multiprocessors_times_rate_times_clock(row: Row) -> None:
    ratio = first_principles(row)
    if row.name in CLOCK_NOT_STATED:
        assert ratio == pytest.approx(CLOCK_NOT_STATED[row.name], abs=1e-3)
    else:
        assert ratio == pytest.approx(1, abs=0.02)


def test_of_the_gpus_only_those_without_a_clock_or_figure_escape_that_check() -> None:
    vendors = ("NVIDIA", "AMD", "Apple")
    escaped = {row.name for row in table() if row.vendor in vendors and row not in CHECKED}
    assert escaped == {
        "B300 SXM",
        "GB300 (per GPU)",
        "GB10 (DGX Spark)",
        "Jetson AGX Orin 64GB",
        "H20",
        "MI308X",
        "RTX PRO 6000 Blackwell Server",
    }


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_a_row_is_complete_and_consistent(row: Row) -> None:
    assert row.source and row.verified in ("quoted", "peer+fp", "fp", "secondary")
    assert row.driver_names
    assert not set(row.absent) & set(row.flops_per_s)
    assert set(row.flops_per_s) <= set(DTYPES)
    rates = row.flops_per_s
    if "fp8" in rates and "bf16" in rates:
        assert rates["fp8"] >= rates["bf16"]


def test_every_figure_is_exactly_what_the_file_says() -> None:
    text = (resources.files("mfu_torch") / "data" / "peaks.csv").read_text(encoding="utf-8")
    for row, cells in zip(table(), csv.DictReader(text.splitlines()), strict=True):
        for dtype, rate in row.flops_per_s.items():
            cell = cells.get(f"{dtype}_matrix") or cells[dtype]
            assert rate == float(Fraction(cell) * 10**12), (row.name, dtype)
        for value, column, unit in (
            (row.clock_hz, "clock_mhz", 10**6),
            (row.memory_bytes, "memory_gb", 2**30),
            (row.bytes_per_s, "mem_bw_gbs", 10**9),
            (row.flops_per_clock_per_sm, "flops_per_clk_per_sm", 1),
        ):
            stated = float(Fraction(cells[column]) * unit) if cells[column] else None
            assert value == stated, (row.name, column)


def test_a_figure_with_a_fraction_is_not_off_by_a_rounding() -> None:
    # 66.9 * 1e12 is 66900000000000.01.
    (h100,) = find_rows(Device(name="NVIDIA H100 80GB HBM3", kind="cuda"))
    assert h100.flops_per_s["fp64"] == 66_900_000_000_000


def test_each_name_of_a_row_finds_that_row() -> None:
    for row in table():
        for name in (row.name, *row.driver_names, *row.short_names):
            assert row in find_rows(Device(name=name, kind="cuda"))


def test_only_names_known_to_be_shared_are_shared() -> None:
    assert {key for key, rows in _index().items() if len(rows) > 1} == {
        "v100",
        "a100",
        "a100 40gb",
        "a100 80gb",
        "a100 pcie",
        "a100 sxm",
        "a100 sxm4",
        "a800",
        "a800 80gb",
        "h100",
        "geforce rtx 3080",
        "rtx 3080",
        "rtx pro 6000",
        "instinct mi250x / mi250",
        "apple m1",
        "apple m1 pro",
        "apple m1 max",
        "apple m2",
    }
