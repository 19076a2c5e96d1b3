"""Peaks by arithmetic: only where it is certain, and as far off as it says, no farther."""

from __future__ import annotations

import re

import msgspec
import pytest

from mfu_torch.peak.derive import UNCERTAINTY, UNCERTAINTY_LAPTOP, _rates, derived_peak
from mfu_torch.peak.table import DTYPES, Row, handle, peak_for, rows_named, table
from mfu_torch.records import Device, Peak, UnknownPeak

T = 1e12

ARCHITECTURES = (
    (r"V100", "7.0"),
    (r"Quadro RTX|GeForce RTX 20", "7.5"),
    (r"A[18]00 ", "8.0"),
    (r"RTX A\d|GeForce RTX 30", "8.6"),
    (r"RTX \d000 Ada|GeForce RTX 40", "8.9"),
    (r"H100", "9.0"),
    (r"RTX PRO|GeForce RTX 50", "12.0"),
    (r"MI2", "gfx90a"),
    (r"MI3[02][05]", "gfx942"),
    (r"MI35", "gfx950"),
)
"""Start of a row's name -> the architecture that torch reports for it."""

NOT_DERIVED = {
    # The driver's name does not settle the product line, or the family has cut-down members.
    *("P100 SXM2", "P100 PCIe", "GeForce GTX 1080 Ti", "V100S PCIe", "T4", "Titan RTX"),
    *("A30", "A10", "A10G", "A40", "A2", "A16 (per GPU, 4 on a board)", "L4", "L40", "L40S"),
    *("H800 SXM5", "H200 SXM", "H200 NVL", "GH200 96GB/144GB", "H20", "H100 NVL"),
    *("B200 SXM", "GB200 (per GPU)", "B300 SXM", "GB300 (per GPU)", "GB10 (DGX Spark)"),
    *(
        "A100X",
        "L20",
        "RTX 5880 Ada",
        "H800 PCIe",
        "GeForce RTX 4090 D",
        "RTX PRO 6000 Blackwell Server",
    ),
    *("Jetson AGX Orin 64GB", "Jetson AGX Thor T5000", "MI100", "MI308X"),
}

DRIVERS_HIGHEST_MHZ = {
    # As nvidia-smi prints it, in public logs and issues; the H100 figures are NVIDIA's.
    "NVIDIA H100 80GB HBM3": 1980,
    "NVIDIA H100 PCIe": 1755,
    "NVIDIA A100-SXM4-80GB": 1410,
    "Tesla V100-PCIE-16GB": 1380,
    "NVIDIA RTX A6000": 2100,
    "NVIDIA GeForce RTX 3090": 2100,
    "NVIDIA GeForce RTX 4080": 3105,
    "NVIDIA GeForce RTX 4090": 3105,
    "NVIDIA GeForce RTX 5060 Ti": 3090,
    "NVIDIA GeForce RTX 5070 Ti": 3090,
    "NVIDIA GeForce RTX 5090": 3135,
}


def card(name: str, architecture: str | None, sms: int | None, mhz: float | None) -> Device:
    return Device(
        name=name,
        kind="rocm" if (architecture or "").startswith("gfx") else "cuda",
        sm_count=sms,
        compute_capability=architecture,
        max_clock_hz=None if mhz is None else mhz * 1e6,
    )


def architecture_of(row: Row) -> str | None:
    return next((found for start, found in ARCHITECTURES if re.match(start, row.name)), None)


def derived(row: Row, dtype: str, clock_hz: float) -> Peak | str:
    driver = row.driver_names[0]
    device = card(driver, architecture_of(row), row.sm_count, clock_hz / 1e6)
    return derived_peak(device, dtype)


DERIVED = [
    row
    for row in table()
    if row.vendor in ("NVIDIA", "AMD") and row.name not in NOT_DERIVED and "Radeon" not in row.name
]


def test_of_the_listed_gpus_those_with_a_certain_line_and_no_others_can_be_derived() -> None:
    assert len(DERIVED) >= 50
    for row in table():
        if row.name in NOT_DERIVED or row.vendor not in ("NVIDIA", "AMD"):
            for architecture in {found for _, found in ARCHITECTURES}:
                device = card(row.driver_names[0], architecture, row.sm_count or 80, 2000)
                assert isinstance(derived_peak(device, "fp32"), str), row.name


@pytest.mark.parametrize("row", DERIVED, ids=handle)
def test_each_rate_reproduces_each_documented_figure_at_its_own_clock(row: Row) -> None:
    for dtype, stated in row.flops_per_s.items():
        clock_hz = row.implied_clock_hz(dtype)
        if clock_hz is None:  # H100: fp64 and fp32 are stated at the highest clock, not bf16's
            assert row.name.startswith("H100") and dtype in ("fp64", "fp32")
            clock_hz = DRIVERS_HIGHEST_MHZ[row.driver_names[0]] * 1e6
        peak = derived(row, dtype, clock_hz)
        assert isinstance(peak, Peak), (dtype, peak)
        # Documents round: "FP64 9.7 TFLOPS"; RTX A2000: 8.0, 15.9 and 31.9.
        assert peak.flops_per_s == pytest.approx(stated, rel=0.025), dtype


@pytest.mark.parametrize("row", DERIVED, ids=handle)
def test_a_dtype_is_absent_from_a_rate_exactly_where_it_is_from_the_row(row: Row) -> None:
    for dtype in DTYPES:
        peak = derived(row, dtype, 2e9)
        lacks = isinstance(peak, str) and f"has no {dtype} units" in peak
        assert lacks == (dtype in row.absent), (dtype, peak)


@pytest.mark.parametrize("row", DERIVED, ids=handle)
def test_every_listed_card_at_its_rated_clock_is_within_the_stated_uncertainty(row: Row) -> None:
    assert row.clock_hz is not None
    for dtype, stated in row.flops_per_s.items():
        peak = derived(row, dtype, row.clock_hz)
        assert isinstance(peak, Peak) and peak.uncertainty is not None
        assert abs(stated / peak.flops_per_s - 1) <= peak.uncertainty, dtype


@pytest.mark.parametrize("driver", DRIVERS_HIGHEST_MHZ)
def test_at_the_drivers_clock_a_listed_card_is_within_the_stated_uncertainty(driver: str) -> None:
    (row,) = rows_named(driver)
    for dtype, stated in row.flops_per_s.items():
        peak = derived(row, dtype, DRIVERS_HIGHEST_MHZ[driver] * 1e6)
        assert isinstance(peak, Peak) and peak.uncertainty is not None
        assert -peak.uncertainty <= stated / peak.flops_per_s - 1 <= 0.02, dtype


def test_the_worst_data_centre_part_is_within_the_uncertainty_of_its_line() -> None:
    # H100 NVL: 835.5 TFLOP/s documented; 132 x 4096 x 1785 MHz = 965.1
    assert pytest.approx(0.134, abs=1e-3) == 1 - 835.5 / 965.1
    assert UNCERTAINTY["data centre"] >= 0.134
    # and the lowest-powered professional one, were its driver's clock that of its siblings
    assert UNCERTAINTY["professional"] > 1 - 1200 / 2100
    # RTX PRO 4000 Blackwell SFF: 24 TFLOP/s in fp32 / (70 x 256) = 1339 MHz, siblings state 3105
    assert UNCERTAINTY["professional"] > 1 - 24e12 / (70 * 256 * 3105e6) > 0.56
    # GeForce RTX 4070 Laptop GPU: rated 1230 to 2175 MHz, the driver states 3105
    assert UNCERTAINTY_LAPTOP > 1 - 1230 / 3105 == pytest.approx(0.604, abs=1e-3)


@pytest.mark.parametrize(
    ("name", "architecture", "sms", "mhz", "dtype", "tflops"),
    [
        # 18 x 1024 x 1462 MHz; datasheet: 53.8 sparse
        ("NVIDIA RTX A1000", "8.6", 18, 1462, "bf16", 26.95),
        # 22 x 2048 x 2130 MHz; datasheet: 191.9 sparse
        ("NVIDIA RTX 2000 Ada Generation", "8.9", 22, 2130, "fp8", 95.97),
        # 60 x 2048 x 2580 MHz; datasheet: 634 sparse
        ("NVIDIA RTX 4500 Ada Generation", "8.9", 60, 2580, "fp8", 317.0),
        # 124 x 2048 x 1395 MHz
        ("NVIDIA A100-SXM-64GB", "8.0", 124, 1395, "bf16", 354.3),
        ("NVIDIA A100-SXM-64GB", "8.0", 124, 1395, "fp64", 22.1),
        ("Tesla V100-SXM2-32GB-LS", "7.0", 80, 1440, "fp16", 118.0),
        ("NVIDIA GeForce RTX 3050", "8.6", 20, 1777, "bf16", 18.2),
        ("NVIDIA GeForce RTX 4060 Laptop GPU", "8.9", 24, 2370, "bf16", 29.1),
        ("NVIDIA GeForce RTX 2080 Super", "7.5", 48, 1560, "fp16", 38.3),
        ("NVIDIA RTX PRO 5000 72GB Blackwell", "12.0", 110, 2617, "fp4", 1179.1),
        ("AMD Instinct MI300X HF", "gfx942", 304, 2100, "bf16", 1307.4),
    ],
)
def test_a_card_that_the_table_lacks_is_computed(
    name: str, architecture: str, sms: int, mhz: float, dtype: str, tflops: float
) -> None:
    peak = peak_for(card(name, architecture, sms, mhz), dtype)
    assert peak.flops_per_s == pytest.approx(tflops * T, rel=2e-3)
    assert peak.provenance == "derived"
    assert peak.clock_hz == mhz * 1e6
    assert peak.uncertainty is not None and 0 < peak.uncertainty < 1
    assert peak.device == name


def test_the_source_shows_the_arithmetic_and_where_the_rate_is_from() -> None:
    peak = peak_for(card("NVIDIA GeForce RTX 4060 Laptop GPU", "8.9", 24, 3105), "bf16")
    assert peak.source == (
        "24 SMs x 512 FLOP/clock x 3105 MHz (the driver's highest clock; vendors state peaks at "
        "lower ones, up to 70 % lower); rate of GeForce cards: Ada whitepaper v2.1 App. A/B "
        "(fp32 accumulation is halved)"
    )
    assert peak.uncertainty == UNCERTAINTY_LAPTOP


def test_an_h100_that_is_none_of_three_is_computed_from_its_own_facts() -> None:
    # Device id 2339, 94 GB: 132 x 4096 x 1980 MHz
    device = card("NVIDIA H100", "9.0", 132, 1980)
    peak = peak_for(device, "bf16")
    assert (peak.provenance, peak.uncertainty) == ("derived", 0.16)
    assert peak.flops_per_s == pytest.approx(1070.5 * T, rel=1e-4)


def test_the_table_comes_before_arithmetic() -> None:
    peak = peak_for(card("NVIDIA H100 80GB HBM3", "9.0", 132, 1980), "bf16")
    assert (peak.flops_per_s, peak.provenance) == (989.4 * T, "datasheet")


@pytest.mark.parametrize(
    ("architecture", "name", "dtype"),
    [
        ("7.0", "Tesla V100-SXM3-32GB", "bf16"),
        ("7.0", "Tesla V100-SXM3-32GB", "tf32"),
        ("7.5", "NVIDIA GeForce RTX 2060", "bf16"),
        ("8.0", "NVIDIA A800-SXM4-40GB", "fp8"),
        ("8.6", "NVIDIA GeForce RTX 3050", "fp8"),
        ("8.9", "NVIDIA RTX 4500 Ada Generation", "fp4"),
        ("9.0", "NVIDIA H100 64GB HBM2e", "fp4"),
        ("gfx90a", "AMD Instinct MI210 VF", "fp8"),
        ("gfx950", "AMD Instinct MI350 OAM", "tf32"),
    ],
)
def test_a_dtype_that_the_architecture_lacks_is_refused(
    architecture: str, name: str, dtype: str
) -> None:
    with pytest.raises(UnknownPeak, match=f"architecture {architecture} has no {dtype} units"):
        peak_for(card(name, architecture, 60, 1500), dtype)


def test_a_rate_that_is_not_certain_is_refused() -> None:
    with pytest.raises(UnknownPeak, match=r"the int8 rate of architecture 7\.0 is not certain"):
        peak_for(card("Tesla V100-SXM3-32GB", "7.0", 80, 1597), "int8")


@pytest.mark.parametrize(
    ("name", "architecture", "why"),
    [
        ("NVIDIA L2", "8.9", "an edition cut for export"),
        ("NVIDIA A10M", "8.6", "product line cannot be told"),
        ("NVIDIA H20-3e", "9.0", "an edition cut for export"),
        ("NVIDIA H20 NVL16", "9.0", "an edition cut for export"),
        ("NVIDIA H800 NVL", "9.0", "an edition cut for export"),
        ("AMD A100-SXM-64GB", "8.0", "product line is neither NVIDIA's nor AMD Instinct"),
        ("NVIDIA RTX 6000D", "12.0", "an edition cut for export"),
        ("NVIDIA RTX 5890 Ada", "8.9", "product line cannot be told"),
        ("NVIDIA GeForce RTX 5090 D", "12.0", "an edition cut for export"),
        ("NVIDIA GeForce RTX 5090 D v2", "12.0", "an edition cut for export"),
        ("NVIDIA CMP 170HX", "8.0", "product line cannot be told"),
        ("NVIDIA Graphics Device", "9.0", "product line cannot be told"),
        ("NVIDIA B100", "10.0", "product line cannot be told"),
        ("NVIDIA H100XM-80C", "9.0", "a virtual GPU"),
        ("GRID A100D-3-40C", "8.0", "a virtual GPU"),
        ("NVIDIA A10-24Q", "8.6", "a virtual GPU"),
        ("NVIDIA L40-48", "8.9", "a virtual GPU"),
        ("Xavier", "7.2", "the clock of a Jetson depends"),
        ("NVIDIA GeForce GTX 1660 Ti", "7.5", "no tensor cores"),
        ("Quadro P6000", "6.1", "no tensor cores"),
        ("Tesla P40", "6.1", "no tensor cores"),
        ("NVIDIA GeForce RTX 2050", "8.6", "product line cannot be told"),  # an RTX 30 chip
        ("NVIDIA GeForce RTX 3050 Laptop GPU", "8.9", "of architecture 8.6, and this one reports"),
        ("AMD Radeon RX 7900 GRE", "gfx1100", "product line is neither NVIDIA's nor AMD"),
        ("AMD Instinct MI308X HF", "gfx942", "of AMD Instinct, the rates of the MI200, MI300"),
        ("NVIDIA PG506-232", "8.0", "the name of a board of the A100's class, not of a card"),
        ("NVIDIA PG509-210", "8.0", "the name of a board of the A100's class, not of a card"),
        ("Tesla PG503-216", "7.0", "the name of a board of the V100's class, not of a card"),
        (" ", "8.0", "the name is empty"),
        ("Intel(R) Arc(TM) A770 Graphics", "8.0", "product line is neither NVIDIA's nor AMD"),
    ],
)
def test_a_card_whose_line_is_not_certain_is_refused_with_all_its_facts_at_hand(
    name: str, architecture: str, why: str
) -> None:
    with pytest.raises(UnknownPeak, match=why) as caught:
        peak_for(card(name, architecture, 80, 2000), "fp16")
    assert str(caught.value).endswith('peak="... TFLOP/s"')


@pytest.mark.parametrize(
    ("sms", "architecture", "mhz", "missing"),
    [
        (None, "8.9", 2000, "the number of multiprocessors"),
        (60, None, 2000, "the architecture"),
        (60, "8.9", None, "the highest clock"),
        (None, "8.9", None, "the number of multiprocessors, the highest clock"),
    ],
)
def test_a_missing_fact_is_named(
    sms: int | None, architecture: str | None, mhz: float | None, missing: str
) -> None:
    device = card("NVIDIA RTX 4500 Ada Generation", architecture, sms, mhz)
    with pytest.raises(UnknownPeak, match=rf"it takes {missing}, which detect_device\(\) tells"):
        peak_for(device, "bf16")


@pytest.mark.parametrize("mhz", [2.0, 2e6])
def test_a_clock_in_the_wrong_unit_is_no_clock(mhz: float) -> None:
    with pytest.raises(UnknownPeak, match="which no GPU has"):
        peak_for(card("NVIDIA RTX 4500 Ada Generation", "8.9", 60, mhz), "bf16")


def test_a_slice_of_a_card_that_is_computed_is_as_large_as_its_processors() -> None:
    whole = peak_for(card("NVIDIA A800-SXM4-40GB", "8.0", 108, 1410), "bf16")
    part = peak_for(card("NVIDIA A800-SXM4-40GB MIG 3g.20gb", "8.0", 42, 1410), "bf16")
    assert part.flops_per_s == pytest.approx(whole.flops_per_s * 42 / 108)


@pytest.mark.parametrize(
    ("name", "sms", "mhz"),
    [
        ("NVIDIA A800-SXM4-40GB MIG 1g.5gb", 108, 1410),
        ("NVIDIA A800-SXM4-40GB MIG 3g.20gb", 98, 1410),
        ("NVIDIA A800-SXM4-40GB MIG 1c.3g.20gb", 42, 1410),
        ("NVIDIA H100 64GB HBM2e MIG 1g.8gb", 114, 1980),
    ],
)
def test_a_slice_of_a_card_that_is_computed_cannot_report_the_whole_of_it(
    name: str, sms: int, mhz: float
) -> None:
    architecture = "9.0" if "H100" in name else "8.0"
    with pytest.raises(UnknownPeak, match=rf"{sms} of at most \d+ SMs \(full G.100: .*too many"):
        peak_for(card(name, architecture, sms, mhz), "bf16")


def test_why_a_shared_name_could_not_be_computed_either_is_said() -> None:
    with pytest.raises(UnknownPeak, match=r"shared by h100-sxm.*132 of at most 144 SMs"):
        peak_for(card("NVIDIA H100 MIG 1g.8gb", "9.0", 132, 1980), "bf16")
    # 16 x 4096 x 1980 MHz
    part = peak_for(card("NVIDIA H100 MIG 1g.12gb", "9.0", 16, 1980), "bf16")
    assert part.flops_per_s == pytest.approx(129.8 * T, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "architecture", "most"),
    [
        ("NVIDIA H100", "9.0", 144),
        ("NVIDIA A100-SXM-64GB", "8.0", 128),
        ("NVIDIA RTX A500 Laptop GPU", "8.6", 84),
        ("AMD Instinct MI300X HF", "gfx942", 320),
    ],
)
def test_no_card_has_more_multiprocessors_than_the_largest_chip_of_its_architecture(
    name: str, architecture: str, most: int
) -> None:
    peak_for(card(name, architecture, most, 1700), "bf16")
    for sms in (most + 1, 10**6):
        with pytest.raises(UnknownPeak, match=f"largest chip of architecture {architecture} has"):
            peak_for(card(name, architecture, sms, 1700), "bf16")


def test_a_card_of_another_kind_of_device_is_not_computed() -> None:
    for kind in ("rocm", "mps"):
        device = msgspec.structs.replace(card("NVIDIA A100-SXM-64GB", "8.0", 124, 1395), kind=kind)
        with pytest.raises(UnknownPeak, match=f"is of kind 'cuda', and this device is of '{kind}'"):
            peak_for(device, "bf16")


def test_both_spellings_of_the_driver_for_half_a_board_are_computed() -> None:
    # 104 x 1024 x 1700 MHz
    for name in ("AMD Instinct MI250X / MI250 OAM", "AMD Instinct MI250X/MI250 OAM"):
        peak = peak_for(card(name, "gfx90a", 104, 1700), "bf16")
        assert peak.flops_per_s == pytest.approx(181.05 * T, rel=1e-3)


def test_each_line_of_rates_belongs_to_a_line_with_an_uncertainty() -> None:
    assert {product for _, product in _rates()} == set(UNCERTAINTY)
