"""Which peak a run divides by, and what counts as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mfu_torch.peak import resolve
from mfu_torch.peak.resolve import Given, check_given, look_up_peak, resolve_peak
from mfu_torch.records import Device, Peak, PeakEntry, UnknownPeak

H100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", sm_count=132)
MYSTERY = Device(name="Imaginary GPU 9000", kind="cuda")
CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
BF16 = Peak(flops_per_s=5e12, dtype="bf16", source="a colleague", provenance="given")


def test_a_gpu_is_looked_up_in_the_table() -> None:
    entry = resolve_peak(H100, "bf16")
    assert entry.peak is not None
    assert entry.peak.flops_per_s == 989.4e12
    assert (entry.dtype, entry.unknown) == ("bf16", "")


@pytest.mark.parametrize("given", [400e12, "400 TFLOP/s", "400T", 400 * 10**12])
def test_what_the_user_gives_wins_over_the_table(given: float | str) -> None:
    assert resolve_peak(H100, "bf16", given) == PeakEntry(
        dtype="bf16",
        peak=Peak(
            flops_per_s=400e12,
            dtype="bf16",
            source="Meter(peak=...)",
            provenance="given",
            device="NVIDIA H100 80GB HBM3",
        ),
    )


def test_a_bare_figure_holds_for_every_dtype_and_device() -> None:
    for device in (H100, MYSTERY, CPU):
        for dtype in ("fp32", "fp8", "complex64"):
            peak = resolve_peak(device, dtype, 1e12).peak
            assert peak is not None
            assert (peak.flops_per_s, peak.dtype) == (1e12, dtype)


def test_a_peak_holds_for_its_own_dtype_as_it_is() -> None:
    assert resolve_peak(MYSTERY, "bf16", BF16).peak == BF16


def test_a_peak_without_a_source_is_whoever_made_its() -> None:
    peak = resolve_peak(H100, "bf16", Peak(flops_per_s=400e12, dtype="bf16")).peak
    assert peak is not None
    assert (peak.flops_per_s, peak.device) == (400e12, "")
    assert (peak.source, peak.provenance) == ("whoever made this Peak", "given")


def test_a_peak_of_another_dtype_is_not_used() -> None:
    entry = resolve_peak(H100, "fp32", BF16)
    assert entry.peak is None
    assert entry.unknown == (
        "no fp32 peak for 'NVIDIA H100 80GB HBM3': the one given is for bf16. Give both: "
        'peak={"bf16": ..., "fp32": "... TFLOP/s"}'
    )


def test_a_mapping_gives_some_dtypes_and_leaves_the_others_to_the_table() -> None:
    given: Given = {"bf16": BF16, "fp8": "2 PFLOP/s"}
    rates = {}
    for dtype in ("bf16", "fp8", "tf32"):
        peak = resolve_peak(H100, dtype, given).peak
        assert peak is not None
        rates[dtype] = peak.flops_per_s
    assert rates == {"bf16": 5e12, "fp8": 2e15, "tf32": 494.7e12}


def test_an_unknown_device_is_a_reason_with_the_line_that_helps() -> None:
    entry = resolve_peak(MYSTERY, "bf16")
    assert entry.peak is None
    assert "Imaginary GPU 9000" in entry.unknown
    assert 'peak="... TFLOP/s"' in entry.unknown


def test_a_dtype_that_no_peak_is_stated_for_is_a_reason() -> None:
    entry = resolve_peak(H100, "complex64")
    assert entry.unknown.startswith("no complex64 peak for 'NVIDIA H100 80GB HBM3': peaks are")


def test_a_cpu_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[object] = []

    def measure(device: Device, dtype: str, *, cache_dir: object) -> Peak:
        asked.append((device, dtype, cache_dir))
        return Peak(flops_per_s=1e11, dtype=dtype, source="measured", provenance="measured")

    monkeypatch.setattr(resolve, "measured_peak", measure)
    entry = resolve_peak(CPU, "fp32", cache_dir=tmp_path)
    assert entry.peak is not None
    assert entry.peak.provenance == "measured"
    assert asked == [(CPU, "fp32", tmp_path)]


def test_a_measurement_that_fails_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(device: Device, dtype: str, *, cache_dir: object) -> Peak:
        raise UnknownPeak("no kernel")

    monkeypatch.setattr(resolve, "measured_peak", refuse)
    assert resolve_peak(CPU, "fp16") == PeakEntry(dtype="fp16", unknown="no kernel")


@pytest.mark.parametrize(
    "given", [None, 989e12, 989 * 10**12, "989 TFLOP/s", BF16, {"bf16": BF16, "fp8": 1e15}, {}]
)
def test_usable_peaks_pass_the_check(given: Any) -> None:
    check_given(given)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (0, ValueError, "0.0 is no rate"),
        (-1e12, ValueError, "is no rate"),
        (float("nan"), ValueError, "is no rate"),
        (1e-300, ValueError, "peak is 1e-300, less than 1 FLOP/s; expected FLOP/s, e.g. 989e12"),
        ("1e-300 FLOP/s", ValueError, "less than 1 FLOP/s"),
        ({"bf16": 0.5}, ValueError, "peak is 0.5, less than 1 FLOP/s"),
        (Peak(flops_per_s=1e-9, dtype="bf16"), ValueError, "less than 1 FLOP/s"),
        ("fast", ValueError, "'fast' is not a rate"),
        (True, TypeError, "peak is True; expected FLOP/s"),
        ([1e12], TypeError, r"peak is \[1000000000000.0\]; expected"),
        ({"bfloat16": 1e12}, ValueError, "dtype is 'bfloat16'; expected one of fp64"),
        ({"bf16": None}, TypeError, "peak is None; expected"),
        ({"fp16": BF16}, ValueError, r"peak\['fp16'\] is a bf16 peak"),
    ],
)
def test_what_is_no_peak_is_refused_in_one_line(
    given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        check_given(given)
    assert "\n" not in str(caught.value)
    with pytest.raises(error, match=message):
        resolve_peak(H100, "bf16", given)


def test_a_card_that_the_table_lacks_is_computed_and_says_so() -> None:
    card = Device(
        name="NVIDIA A800-SXM4-40GB",
        kind="cuda",
        sm_count=108,
        compute_capability="8.0",
        max_clock_hz=1.41e9,
    )
    peak = resolve_peak(card, "bf16").peak
    assert peak is not None
    # 108 SMs x 2048 FLOP/clock x 1410 MHz
    assert peak.flops_per_s == pytest.approx(311.9e12, rel=1e-3)
    assert (peak.provenance, peak.uncertainty) == ("derived", 0.16)


def test_a_mapping_leaves_other_dtypes_to_a_user_table(tmp_path: Path) -> None:
    table = tmp_path / "peaks.toml"
    table.write_text('[[device]]\nname = "Imaginary GPU 9000"\nfp8 = "9T"\nsource = "s"\n')
    rates = [resolve_peak(MYSTERY, d, {"bf16": BF16}, table=table).peak for d in ("bf16", "fp8")]
    assert [peak.flops_per_s for peak in rates if peak is not None] == [5e12, 9e12]


# --- beside the peak -------------------------------------------------------------------------


def test_what_the_device_was_measured_to_sustain_stands_beside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sustained = Peak(flops_per_s=744e12, dtype="bf16", source="a GEMM", provenance="measured")
    monkeypatch.setattr(resolve, "saved_peak", lambda device, dtype, cache_dir: sustained)
    entry = resolve_peak(H100, "bf16")
    assert entry.peak is not None
    assert (entry.peak.flops_per_s, entry.measured) == (989.4e12, sustained)
    unknown = resolve_peak(MYSTERY, "bf16")
    assert (unknown.peak, unknown.measured) == (None, sustained)


def test_a_dtype_without_peaks_is_not_looked_for_among_the_measured() -> None:
    assert resolve_peak(H100, "complex64").measured is None


def test_looking_up_never_measures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(*_: Any, **__: Any) -> Peak:
        raise AssertionError("it measures")

    monkeypatch.setattr(resolve, "measured_peak", never)
    assert look_up_peak(H100, "bf16", tmp_path) == resolve_peak(H100, "bf16", cache_dir=tmp_path)
    assert look_up_peak(CPU, "fp32", tmp_path).unknown.startswith(
        "no fp32 peak for 'AMD EPYC': the CPU's peak is not determined yet; the first run that "
    )


@pytest.mark.parametrize("given", [989, 312.0, {"bf16": 989}])
def test_a_bare_number_of_tflops_is_refused_with_what_it_would_mean(given: Any) -> None:
    with pytest.raises(ValueError, match=r"would be \d+(\.0)? FLOP/s; expected FLOP/s: peak=\d+"):
        check_given(given)
    check_given({"bf16": "989 FLOP/s"})  # with its unit it is the user's to give
