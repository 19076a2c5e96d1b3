"""Every row of the table of peaks, held against arithmetic and against the other rows."""

from __future__ import annotations

import csv
import math
import re
from fractions import Fraction
from importlib import resources

import pytest

from mfu_torch.peak.derive import _rates
from mfu_torch.peak.rows import _index
from mfu_torch.peak.table import DTYPES, Row, find_rows, handle, peak_for, rows_named, table
from mfu_torch.records import Device, UnknownPeak

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


def at_its_clock(row: Row) -> Device:
    """The row's device by its short name, and at the clock that the Gaudi 3's figures are at."""
    gaudi = row.name == "Gaudi 3"
    return Device(name=handle(row), kind="", max_clock_hz=1.75e9 if gaudi else None)


def test_each_name_of_a_row_finds_that_row() -> None:
    for row in table():
        for name in (row.name, *row.driver_names, *row.short_names):
            assert row in find_rows(Device(name=name, kind="cuda"))


@pytest.mark.parametrize("row", table(), ids=lambda row: row.name)
def test_each_row_has_a_short_name_of_its_own(row: Row) -> None:
    assert rows_named(handle(row)) == (row,)
    assert handle(row) == handle(row).lower() and " " not in handle(row)


@pytest.mark.parametrize("row", CHECKED, ids=lambda row: row.name)
def test_the_clock_of_a_peak_gives_its_figure_but_for_its_rounding(row: Row) -> None:
    for dtype in row.flops_per_s:
        peak = peak_for(at_its_clock(row), dtype)
        assert row.sm_count and row.flops_per_clock_per_sm and peak.uncertainty == row.deviation
        if peak.clock_hz is None:
            continue
        times = peak.flops_per_s / (row.sm_count * row.flops_per_clock_per_sm * peak.clock_hz)
        power = round(math.log2(times))
        assert times / 2**power == pytest.approx(1, abs=0.018), dtype


@pytest.mark.parametrize(
    ("name", "dtype", "mhz"),
    [
        ("a100-sxm-80gb", "bf16", 1410),  # 312e12 / (108 x 2048) = 1410.6, above its maximum
        ("a100-sxm-80gb", "fp64", 1410),
        ("h100-pcie", "bf16", 1620),  # 756e12 / (114 x 4096) = 1619.0
        ("t4", "fp16", 1590),
        ("l40s", "bf16", 2489.9),  # 362.05e12 / (142 x 1024); its document says 2520
        ("l40s", "fp8", 2520),  # 733e12 / (142 x 2048) = 2520.5
        ("h100-nvl", "bf16", 1545.3),  # the driver's highest is 1785
        ("h200-nvl", "fp8", 1545.3),
        ("b200", "bf16", 1855.8),
        ("gb200", "bf16", 2007.7),
        ("gaudi3", "bf16", 1750.0),
        ("v100-pcie", "fp16", 1370),  # 112e12 / (80 x 1024) = 1367
        ("m2-8core", "fp32", 1398),  # 2.9 has two digits
    ],
)
def test_a_clock_is_the_documents_where_it_fits_the_figure(
    name: str, dtype: str, mhz: float
) -> None:
    (row,) = rows_named(name)
    clock_hz = peak_for(at_its_clock(row), dtype).clock_hz
    assert clock_hz is not None and clock_hz / 1e6 == pytest.approx(mhz, abs=0.05)


def test_a_figure_at_another_clock_than_the_known_one_has_no_clock() -> None:
    # 132 x 256 x 1980 MHz = 66.9 TFLOP/s, but 132 x 4096 x 1830 MHz = 989.4
    h100 = "NVIDIA H100 80GB HBM3"
    clocks = {dtype: peak_for(h100, dtype).clock_hz for dtype in ("fp64", "fp32", "tf32", "fp8")}
    assert clocks["fp64"] is None and clocks["fp32"] is None
    assert clocks["tf32"] == clocks["fp8"] == 1.83e9


def test_a_row_whose_figure_is_derived_says_how_far_that_can_be_trusted() -> None:
    rows = [row for row in table() if row.provenance == "derived"]
    assert len(rows) == 10
    for row in rows:
        assert " to 0.3 %" in row.source or "rounded figure: 2 %" in row.source, row.name
    # The arithmetic of the derived GeForce cards, on those of the same white paper.
    for name, figure in (("rtx-3090", 71.0), ("rtx-3080-10gb", 59.5), ("rtx-3070", 40.6)):
        (row,) = rows_named(name)
        assert row.excess is not None and abs(row.excess) < 0.003
        assert row.flops_per_s["bf16"] == figure * 1e12


def test_a_row_that_is_not_trusted_says_why_first() -> None:
    rows = [row for row in table() if row.verified == "secondary"]
    assert len(rows) == 6
    for row in rows:
        assert re.match(r"NVIDIA publishes|AMD publishes|Intel|its datasheet", row.notes), row.name


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("NVIDIA H20", "no figure of the H20 is trusted: NVIDIA publishes no datasheet of this"),
        ("AMD Instinct MI308X", "AMD publishes no peak figure of this export edition"),
        ("max-1550", r"Intel's own sources differ \(832 to 839"),
        ("max-1100", "Intel's sources for its sibling"),
        ("rtx-pro-6000-server", "its datasheet gives only rounded figures"),
        ("b580", r"Intel publishes only INT8 \(233 TOPS\)"),
    ],
)
def test_figures_that_are_not_trusted_are_no_peaks_for_a_reason_of_their_own(
    name: str, why: str
) -> None:
    with pytest.raises(UnknownPeak, match=why) as caught:
        peak_for(name, "bf16")
    assert " is trusted: " in str(caught.value)
    assert "publishes no figure" not in str(caught.value)


def test_what_has_no_processors_or_rate_has_no_clock() -> None:
    assert peak_for("tpu-v4", "bf16").clock_hz is None
    assert peak_for("gb10", "fp4").clock_hz is None


LACKS = {
    # What the architecture has no units for, whatever the product line.
    "V100": ("tf32", "bf16", "fp8", "fp4"),
    "P100": ("tf32", "bf16", "fp8", "int8", "fp4"),
    "GTX": ("tf32", "bf16", "fp8", "fp4"),
    "T4": ("tf32", "bf16", "fp8", "fp4"),
    "RTX 20": ("tf32", "bf16", "fp8", "fp4"),
    "Quadro RTX": ("tf32", "bf16", "fp8", "fp4"),
    "RTX 30": ("fp8", "fp4"),
    "A1": ("fp8", "fp4"),
    "A30": ("fp8", "fp4"),
    "A40": ("fp8", "fp4"),
    "A800": ("fp8", "fp4"),
    "RTX A": ("fp8", "fp4"),
    "RTX 40": ("fp4",),
    "L4": ("fp4",),
    "H100": ("fp4",),
    "H200": ("fp4",),
    "MI2": ("tf32", "fp8", "fp4"),
    "MI300": ("fp4",),
    "MI35": ("tf32",),
}


@pytest.mark.parametrize("start", LACKS)
def test_what_an_architecture_lacks_is_absent_from_each_of_its_rows(start: str) -> None:
    rows = [row for row in table() if row.name.removeprefix("GeForce ").startswith(start)]
    assert rows
    for row in rows:
        assert set(LACKS[start]) == set(row.absent), row.name


def test_fp8_of_a_geforce_50_says_which_of_three_rates_it_is() -> None:
    rows = [row for row in table() if row.name.startswith("GeForce RTX 50")]
    assert len(rows) == 6
    for row in rows:
        assert "rate of MXFP8 with FP32 accumulation: plain fp8 with FP32 acc" in row.source
        assert "mxf8 with f32 accumulation 737, f8 with f32 370, f8 with f16 737" in row.notes
        # The rate with fp16 accumulation, four times bf16's with fp32.
        assert row.flops_per_s["fp8"] == pytest.approx(4 * row.flops_per_s["bf16"], rel=1e-3)


def test_every_rate_has_its_document_beside_it() -> None:
    assert all(rates.source for rates in _rates().values())


def test_only_names_known_to_be_shared_are_shared() -> None:
    assert {key for key, rows in _index().items() if len(rows) > 1} == {
        "p100",
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
