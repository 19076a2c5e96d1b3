"""The table of a benchmark: every rate with its conditions, every blank with its reason."""

from __future__ import annotations

import msgspec

from mfu_torch.insight.bench_table import render, summary
from mfu_torch.peak.bench import BenchEntry, BenchResult
from mfu_torch.peak.published import Published
from mfu_torch.peak.sustained import Sustained
from mfu_torch.records import Device, Peak, Telemetry

H100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", sm_count=132)
CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2)
PEAK = Peak(
    flops_per_s=989.4e12,
    dtype="bf16",
    source="NVIDIA H100 whitepaper V1.04 Table 3",
    provenance="datasheet",
    clock_hz=1.83e9,
)
SEEN = Telemetry(
    after_step=0,
    samples=9,
    time_s=0.9,
    sm_clock_hz=1.4125e9,
    power_w=697.6,
    power_limit_w=700.0,
    power_default_w=700.0,
    temperature_c=61.0,
    other_processes=0,
)
PUBLISHED = Published(
    device="NVIDIA H100 SXM",
    driver_names=("NVIDIA H100 80GB HBM3",),
    memory_bytes=None,
    dtype="bf16",
    flops_per_s=794.5e12,
    conditions="2048x2048x13312 torch 2.7 cu126",
    source="a table",
)
NO_PEAK = (
    "no {} peak for 'AMD EPYC': no document states it for a CPU; it has to be measured. "
    'Supply the dense figure yourself: peak="... TFLOP/s"'
)


def rate(dtype: str = "bf16", **fields: object) -> Sustained:
    values: dict[str, object] = {"dtype": dtype, "flops_per_s": 752e12, "time_s": 1.01}
    values |= {"burst_flops_per_s": 801e12, "shape": (2048, 2048, 13312), "calls": 6700}
    return Sustained(**values | {"shapes_tried": 34} | fields)  # type: ignore[arg-type]


def result(*entries: BenchEntry, device: Device = H100, driver: str = "575.57.08") -> BenchResult:
    return BenchResult(
        device=device,
        started="2026-11-30T12:00:00+00:00",
        torch="2.13.0",
        driver=driver,
        seconds=1.0,
        shapes="full",
        entries=entries,
    )


def bf16(**fields: object) -> BenchEntry:
    values: dict[str, object] = {"dtype": "bf16", "peak": PEAK, "published": (PUBLISHED,)}
    values["sustained"] = rate(telemetry=SEEN)
    return BenchEntry(**values | fields)  # type: ignore[arg-type]


def text(*entries: BenchEntry, **fields: object) -> str:
    """On one line, as the words are."""
    return " ".join(render(result(*entries, **fields)).split())  # type: ignore[arg-type]


def test_the_table_of_a_quiet_h100() -> None:
    shown = render(result(bf16(), BenchEntry(dtype="fp8", unknown="the matmul failed: no")))
    head, table, missing, peaks, conditions = shown.split("\n\n")
    assert " ".join(head.split()) == (
        "NVIDIA H100 80GB HBM3 | torch 2.13.0, driver 575.57.08 | full shapes, 1.00 s each for "
        "the best | 2026-11-30T12:00:00+00:00"
    )
    names, row = table.splitlines()
    assert names.split("  ")[0] == "dtype" and len(names) == len(row) == 100
    assert " ".join(row.split()) == (
        "bf16 752 TFLOP/s 801 TFLOP/s 76.0 % 2048x2048x13312 1412 MHz 698 W 794 TFLOP/s"
    )
    assert missing == "Not measured\n  - fp8: the matmul failed: no"
    assert peaks.splitlines()[1:] == [
        "  - bf16: 989.4 TFLOP/s, datasheet (NVIDIA H100 whitepaper V1.04 Table 3); stated at "
        "1830 MHz",
        "  - bf16: 794.5 TFLOP/s published for NVIDIA H100 SXM, 2048x2048x13312 torch 2.7 cu126 "
        "(a table)",
    ]
    assert conditions == (
        "While they were sustained\n"
        "  - bf16: 1.01 s, 6700 calls, the best of 34 shapes; at most 61 degrees Celsius; "
        "698 W of 700 W; no\n"
        "    other process on the device, the clock not held down\n"
    )


def test_no_line_is_wider_than_100_columns() -> None:
    wide = rate(
        flops_per_s=9.99e14,
        shape=(16384, 16384, 16384),
        telemetry=msgspec.structs.replace(SEEN, throttle={"software power cap": 0.987}),
    )
    shown = render(result(bf16(sustained=wide), bf16(dtype="int8", unknown="x" * 80)))
    assert max(map(len, shown.splitlines())) <= 100


def test_dtypes_without_a_peak_share_their_reason() -> None:
    entries = [
        BenchEntry(
            dtype=dtype, sustained=rate(dtype, flops_per_s=1e11), no_peak=NO_PEAK.format(dtype)
        )
        for dtype in ("bf16", "fp32")
    ]
    shown = text(*entries, device=CPU, driver="")
    assert (
        "- bf16, fp32: no peak for 'AMD EPYC': no document states it for a CPU; it has to be "
        "measured. While"
    ) in shown
    assert "driver" not in shown
    assert ("- not known: clock, power, throttling, other processes; no sample was taken") in shown


def test_throttling_and_other_processes_are_said_with_what_they_mean() -> None:
    seen = msgspec.structs.replace(SEEN, throttle={"power cap": 0.5}, other_processes=2)
    shown = text(bf16(sustained=rate(telemetry=seen)))
    assert "2 other processes were on the device; the clock was held down: power cap" in shown
    assert "what the device held under these conditions" in shown
    assert "no other process" not in shown
    assert "under these conditions" not in text(bf16())


def test_what_the_driver_does_not_tell_is_not_known_with_its_reason() -> None:
    absent = {"sm_clock_hz": "no permission", "power_w": "no permission", "throttle": "too old"}
    seen = Telemetry(after_step=0, samples=3, time_s=0.3, absent=absent)
    shown = text(bf16(sustained=rate(telemetry=seen)))
    assert "- not known: clock, power; no permission - not known: throttling; too old" in shown
    both = text(
        bf16(sustained=rate(telemetry=seen)),
        BenchEntry(dtype="fp16", sustained=rate("fp16", telemetry=SEEN)),
    )
    assert "not known: clock (bf16), power (bf16); no permission" in both
    row = next(
        line
        for line in render(result(bf16(sustained=rate(telemetry=seen)))).splitlines()
        if line.startswith("bf16")
    )
    assert row.split()[-4:] == ["-", "-", "794", "TFLOP/s"]
    assert "the clock not held down" not in shown


def test_more_than_the_peak_is_printed_as_measured_with_its_causes() -> None:
    shown = text(bf16(sustained=rate(flops_per_s=1.1 * 989.4e12, telemetry=SEEN)))
    assert "110.0 %" in shown
    assert "more than 100 % of a peak: the clock was above" in shown
    assert "more than 100 %" not in text(bf16())
    kept = Peak(flops_per_s=7e14, dtype="bf16", source="a matmul", provenance="measured")
    shown = text(bf16(peak=kept))
    assert "more than 100 % of a measured peak: the run that measured it tried fewer" in shown
    assert "the clock was above" not in shown


def test_nothing_measured_is_only_reasons() -> None:
    shown = render(result(BenchEntry(dtype="bf16", unknown="no such device")))
    assert shown.split("\n\n")[1:] == ["Not measured\n  - bf16: no such device\n"]


def test_the_summary_keeps_what_is_not_known_as_none() -> None:
    found = summary(result(bf16(), BenchEntry(dtype="fp8", unknown="no", no_peak="none")))
    assert found["dtypes"]["bf16"]["share_of_peak"] == 752 / 989.4
    assert found["dtypes"]["bf16"]["sustained"].shape == (2048, 2048, 13312)
    fp8 = found["dtypes"]["fp8"]
    assert (fp8["sustained"], fp8["share_of_peak"], fp8["unknown"]) == (None, None, "no")
    assert (found["driver"], found["device"]) == ("575.57.08", H100)
    assert summary(result(driver=""))["driver"] is None
    msgspec.json.encode(found)
