"""The table of peaks: whole names, dense figures, reasons where there is none."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from mfu_torch.peak.table import peak_for, rows_named
from mfu_torch.records import Device, UnknownPeak

T = 1e12


def gpu(name: str, **facts: object) -> Device:
    return Device(name=name, kind="cuda", **facts)  # type: ignore[arg-type]


def amd(name: str, **facts: object) -> Device:
    return Device(name=name, kind="rocm", **facts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "bf16", 312),
        ("NVIDIA A100-SXM4-40GB", "bf16", 312),
        ("NVIDIA A100-PCIE-40GB", "bf16", 312),
        ("NVIDIA A100 80GB PCIe", "bf16", 312),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4),
        ("NVIDIA H100 PCIe", "bf16", 756),
        ("NVIDIA H100 NVL", "bf16", 835.5),
        ("NVIDIA H200", "bf16", 989.5),
        ("NVIDIA H200 NVL", "bf16", 835.5),
        ("NVIDIA GH200 480GB", "bf16", 989.5),
        ("NVIDIA B200", "bf16", 2250),
        ("NVIDIA GB200", "bf16", 2500),
        ("NVIDIA B300 SXM6 AC", "bf16", 2250),
        ("NVIDIA GB300", "bf16", 2500),
        ("NVIDIA L4", "bf16", 121),
        ("NVIDIA L40", "bf16", 181.05),
        ("NVIDIA L40S", "bf16", 362.05),
        ("NVIDIA A2", "bf16", 18),
        ("NVIDIA A10", "bf16", 125),
        ("NVIDIA A10G", "bf16", 70),
        ("NVIDIA A30", "bf16", 165),
        ("NVIDIA A40", "bf16", 149.7),
        ("NVIDIA RTX A2000 12GB", "bf16", 31.9),
        ("NVIDIA RTX A4000", "bf16", 76.7),
        ("NVIDIA RTX A6000", "bf16", 154.8),
        ("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "bf16", 503.8),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "bf16", 438.9),
        ("Quadro RTX 6000", "fp16", 130.5),
        ("NVIDIA GeForce RTX 3090", "bf16", 71),
        ("NVIDIA GeForce RTX 4080", "bf16", 97.5),
        ("NVIDIA GeForce RTX 4080 SUPER", "bf16", 104.4),
        ("NVIDIA GeForce RTX 4090", "bf16", 165.2),
        ("NVIDIA GeForce RTX 4090 D", "bf16", 147.1),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5),
        ("Tesla T4", "fp16", 65),
        ("Tesla V100-SXM2-16GB", "fp16", 125),
        ("Tesla V100-PCIE-16GB", "fp16", 112),
        ("AMD Instinct MI300X", "bf16", 1307.4),
        ("AMD Instinct MI250X", "bf16", 191.5),  # one GCD: what torch calls a device
        ("AMD Instinct MI355X", "bf16", 2516.6),
        ("TPU v4", "bf16", 275),
        ("NVIDIA H100 80GB HBM3", "fp8", 1978.9),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156),
        ("NVIDIA B200", "fp4", 9000),
    ],
)
def test_a_driver_name_gives_the_dense_peak_of_exactly_that_card(
    name: str, dtype: str, tflops: float
) -> None:
    assert peak_for(name, dtype).flops_per_s == float(f"{tflops}e12")


@pytest.mark.parametrize(
    ("name", "dtype", "tflops"),
    [
        ("NVIDIA A100-SXM4-80GB", "fp64", 19.5),  # DMMA; the vector units do 9.7
        ("NVIDIA H100 80GB HBM3", "fp64", 66.9),
        ("NVIDIA H800", "fp64", 1),  # fused off for export
        ("Tesla V100-SXM2-16GB", "fp64", 7.8),  # no tensor cores for fp64
        ("AMD Instinct MI300X", "fp64", 163.4),
        ("AMD Instinct MI250X", "fp32", 47.85),  # vector units: 23.95
        ("NVIDIA A100-SXM4-80GB", "fp32", 19.5),
    ],
)
def test_fp64_and_fp32_are_the_rates_of_matrix_multiplies(
    name: str, dtype: str, tflops: float
) -> None:
    assert peak_for(name, dtype).flops_per_s == float(f"{tflops}e12")


def test_a_peak_names_its_document_device_and_provenance() -> None:
    peak = peak_for("NVIDIA L40S", "bf16")
    assert peak.source == "NVIDIA L40S datasheet (362.05 | 733 sparse)"
    assert peak.provenance == "datasheet"
    assert (peak.device, peak.dtype) == ("NVIDIA L40S", "bf16")


def test_figures_per_chip_or_half_a_board_say_so() -> None:
    assert peak_for("TPU v4", "bf16").source.endswith("; per chip")
    assert peak_for("AMD Instinct MI250X", "bf16").source.endswith("; per GCD (1/2 OAM)")


def test_a_row_without_a_vendor_figure_is_derived() -> None:
    assert peak_for("NVIDIA GeForce RTX 3090 Ti", "bf16").provenance == "derived"


@pytest.mark.parametrize(
    "name",
    [
        "nvidia h100 80gb hbm3",
        "  NVIDIA  H100 80GB\tHBM3 ",
        "H100 80GB HBM3",
        "h100-sxm",
        "h100_sxm",
        "H100 SXM5",
    ],
)
def test_case_white_space_and_vendor_prefix_do_not_matter_and_short_names_do(name: str) -> None:
    assert peak_for(name, "bf16").flops_per_s == 989.4 * T


@pytest.mark.parametrize(
    ("short", "dtype", "tflops"),
    [
        ("a100", "bf16", 312),  # all four editions agree
        ("a100-80gb", "bf16", 312),
        ("h100-pcie", "bf16", 756),
        ("h100-nvl", "bf16", 835.5),
        ("h200", "bf16", 989.5),
        ("l40s", "bf16", 362.05),
        ("v100-sxm2", "fp16", 125),
        ("rtx-4090", "bf16", 165.2),
        ("mi300x", "bf16", 1307.4),
        ("mi250x", "bf16", 191.5),
        ("tpu-v4", "bf16", 275),
    ],
)
def test_short_names_are_accepted(short: str, dtype: str, tflops: float) -> None:
    assert peak_for(short, dtype).flops_per_s == pytest.approx(tflops * T)


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA RTX A1000",  # contains A100
        "NVIDIA A1",
        "NVIDIA A200X",
        "NVIDIA L4S",
        "NVIDIA H20 NVL",
        "NVIDIA H800 NVL",
        "NVIDIA RTX PRO 6000 Blackwell",
        "NVIDIA RTX 6000",
        "NVIDIA GeForce RTX 5090 D",
        "Imaginary GPU 9000",
        "NVIDIA",
        "",
    ],
)
def test_a_name_that_only_resembles_one_is_unknown(name: str) -> None:
    with pytest.raises(UnknownPeak, match=r"does not have that name.*peak=\"\.\.\. TFLOP/s\""):
        peak_for(name, "bf16")


def test_the_message_repeats_the_name_that_was_seen() -> None:
    with pytest.raises(UnknownPeak) as caught:
        peak_for("Imaginary GPU 9000", "bf16")
    assert str(caught.value) == (
        "no bf16 peak for 'Imaginary GPU 9000': the table of 122 devices does not have that "
        "name, and a similar name is often another device; nor can it be derived: its product "
        "line is neither NVIDIA's nor AMD Instinct, and others are not derived. Supply the dense "
        'figure yourself: peak="... TFLOP/s"'
    )


def test_a_laptop_part_is_not_its_desktop_card() -> None:
    with pytest.raises(UnknownPeak, match="laptop parts share a desktop card's name"):
        peak_for("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16")


@pytest.mark.parametrize(
    ("name", "has"),
    [("Tesla V100-SXM2-16GB", "fp64, fp32, fp16"), ("Tesla T4", "fp32, fp16, int8")],
)
def test_a_dtype_without_hardware_is_refused_with_the_dtypes_there_are(name: str, has: str) -> None:
    with pytest.raises(UnknownPeak, match=f"has no bf16 units; the table has its {has}") as caught:
        peak_for(name, "bf16")
    assert str(caught.value).endswith(". Contractions in this dtype have no peak here")
    assert "Supply" not in str(caught.value)


def test_a_card_that_is_derived_lacks_units_like_one_of_the_table() -> None:
    facts = {"sm_count": 108, "compute_capability": "8.0", "max_clock_hz": 1.41e9}
    with pytest.raises(UnknownPeak, match=r"8\.0 has no fp8 units\. Contractions in this dtype"):
        peak_for(gpu("NVIDIA A800-SXM4-40GB", **facts), "fp8")


def test_no_refusal_states_the_figure_of_a_card() -> None:
    for name in ("NVIDIA B100", "h100", "NVIDIA H20", "Orin", "NVIDIA GB10"):
        with pytest.raises(UnknownPeak) as caught:
            peak_for(name, "tf32")
        assert str(caught.value).endswith('Supply the dense figure yourself: peak="... TFLOP/s"')


def test_an_unpublished_dtype_is_not_called_missing_hardware() -> None:
    with pytest.raises(UnknownPeak, match=r"no trustworthy bf16 figure of the GB10"):
        peak_for("NVIDIA GB10", "bf16")


def test_an_unknown_dtype_is_misuse_and_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="dtype is 'float99'; expected one of fp64, fp32, tf32"):
        peak_for("NVIDIA L4", "float99")


@pytest.mark.parametrize("device", [None, 3, ["NVIDIA L4"]])
def test_what_is_no_device_is_misuse(device: object) -> None:
    with pytest.raises(TypeError, match=r"device is .*; expected a Device, as detect_device\(\)"):
        peak_for(device, "bf16")  # type: ignore[arg-type]


def test_a_cpu_is_measured_not_looked_up() -> None:
    with pytest.raises(UnknownPeak, match=r"a Meter does that.*resolve_peak\(device, dtype\) now"):
        peak_for(Device(name="AMD EPYC", kind="cpu"), "fp32")


def test_a_name_shared_by_cards_with_different_peaks_is_refused() -> None:
    with pytest.raises(UnknownPeak, match=r"rtx-3080-10gb \(GeForce RTX 3080 10GB, 59.50") as one:
        peak_for("NVIDIA GeForce RTX 3080", "bf16")
    assert "rtx-3080-12gb (GeForce RTX 3080 12GB, 61.30 TFLOP/s); say which" in str(one.value)
    with pytest.raises(UnknownPeak, match=r"by h100-sxm \(.*, h100-pcie \(.*, h100-nvl \("):
        peak_for("h100", "bf16")
    with pytest.raises(UnknownPeak, match=r"rtx-pro-6000-server \(.* Server, no figure\)"):
        peak_for("rtx-pro-6000", "bf16")


@pytest.mark.parametrize(
    ("device", "dtype", "tflops"),
    [
        (gpu("NVIDIA GeForce RTX 3080", sm_count=68), "bf16", 59.5),
        (gpu("NVIDIA GeForce RTX 3080", sm_count=70), "bf16", 61.3),
        (gpu("NVIDIA GeForce RTX 3080", memory_bytes=10_500_000_000), "bf16", 59.5),
        (gpu("NVIDIA GeForce RTX 3080", memory_bytes=12_600_000_000), "bf16", 61.3),
        (amd("AMD Instinct MI250X / MI250", sm_count=104), "bf16", 181.05),
        (amd("AMD Instinct MI250X / MI250", sm_count=110), "bf16", 191.5),
        (amd("AMD Instinct MI250X/MI250", sm_count=104), "bf16", 181.05),
        (amd("Instinct MI250X /MI250", sm_count=110), "bf16", 191.5),
        (Device(name="Apple M1", kind="mps", sm_count=8), "fp32", 2.6),
        (Device(name="Apple M1", kind="mps", sm_count=7), "fp32", 2.3),
    ],
)
def test_multiprocessors_or_memory_tell_editions_of_one_name_apart(
    device: Device, dtype: str, tflops: float
) -> None:
    assert peak_for(device, dtype).flops_per_s == pytest.approx(tflops * T)


def test_a_mig_slice_has_its_share_of_the_peak() -> None:
    # 14 of 108 SMs: 312 * 14 / 108 = 40.44
    name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    peak = peak_for(gpu(name, sm_count=14), "bf16")
    assert peak.flops_per_s == pytest.approx(40.444 * T, rel=1e-4)
    assert peak.provenance == "derived"
    assert peak.source.endswith("datasheet r4; scaled to 14 of 108 SMs (MIG 1g.5gb)")
    assert peak.device == name
    device = gpu("NVIDIA A100-SXM4-40GB", sm_count=14, mig="1g.5gb")
    assert peak_for(device, "bf16").flops_per_s == peak.flops_per_s


def test_a_mig_slice_of_unknown_size_has_no_peak() -> None:
    with pytest.raises(UnknownPeak, match=r"MIG slice 3g\.40gb, and how many SMs"):
        peak_for("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "bf16")


@pytest.mark.parametrize(
    ("mig", "sm_count"),
    [("1g.5gb", 108), ("3g.20gb", 98), ("1c.3g.20gb", 98)],
)
def test_a_slice_that_reports_the_whole_gpu_is_refused(mig: str, sm_count: int) -> None:
    device = gpu("NVIDIA A100-SXM4-40GB", sm_count=sm_count, mig=mig)
    with pytest.raises(UnknownPeak, match=f"{sm_count} of the 108 SMs .* the MIG slice {mig}"):
        peak_for(device, "bf16")


@pytest.mark.parametrize(
    ("name", "mig", "sm_count"),
    [
        ("NVIDIA A100-SXM4-40GB", "7g.40gb", 98),
        ("NVIDIA A100-SXM4-40GB", "1c.3g.20gb", 14),
        ("NVIDIA A30", "2g.12gb", 28),
        ("NVIDIA H100 80GB HBM3", "3g.40gb", 60),
        ("NVIDIA H100 80GB HBM3", "7g.80gb", 132),
        ("NVIDIA GH200 480GB", "1g.12gb", 16),
    ],
)
def test_slices_as_drivers_cut_them_are_accepted(name: str, mig: str, sm_count: int) -> None:
    whole = peak_for(name, "bf16")
    part = peak_for(gpu(f"{name} MIG {mig}", sm_count=sm_count), "bf16")
    full = {"NVIDIA A100-SXM4-40GB": 108, "NVIDIA A30": 56}.get(name, 132)
    assert part.flops_per_s == pytest.approx(whole.flops_per_s * sm_count / full)
    assert part.clock_hz == whole.clock_hz
    assert part.provenance == "derived"


@pytest.mark.parametrize("name", ["AMD Instinct MI300X", "AMD Instinct MI300X VF"])
@pytest.mark.parametrize(("cus", "tflops"), [(38, 163.425), (76, 326.85), (152, 653.7)])
def test_a_partition_has_its_share_of_the_peak(name: str, cus: int, tflops: float) -> None:
    # CPX, QPX and DPX mode: an eighth, a quarter, half of 304 CUs and 1307.4
    peak = peak_for(Device(name=name, kind="rocm", sm_count=cus), "bf16")
    assert peak.flops_per_s == pytest.approx(tflops * T)
    assert peak.source.endswith(f"; scaled to {cus} of 304 CUs")
    assert peak.provenance == "derived"


def test_a_virtual_function_has_the_peak_of_the_units_that_it_shows() -> None:
    device = Device(name="AMD Instinct MI300X VF", kind="rocm", sm_count=304)
    assert peak_for(device, "bf16").flops_per_s == 1307.4 * T
    with pytest.raises(UnknownPeak, match="a virtual function, and how many CUs"):
        peak_for("AMD Instinct MI300X VF", "bf16")


def test_one_half_of_an_mi250x_is_a_device() -> None:
    device = Device(name="AMD Instinct MI250X", kind="rocm", sm_count=110)
    assert peak_for(device, "bf16").flops_per_s == 191.5 * T  # the board: 383


def test_a_name_that_several_modules_report_needs_its_processors() -> None:
    with pytest.raises(UnknownPeak, match="Jetson T5000 and T4000 report it"):
        peak_for("NVIDIA Thor", "fp8")
    with pytest.raises(UnknownPeak, match="Jetson T5000 and T4000 report it"):
        peak_for(gpu("NVIDIA Thor", sm_count=12), "fp8")
    assert peak_for(gpu("NVIDIA Thor", sm_count=20), "fp8").flops_per_s == 517 * T
    with pytest.raises(UnknownPeak, match="every Jetson Orin module reports it"):
        peak_for(gpu("Orin", sm_count=16), "fp32")
    assert peak_for("jetson-agx-orin", "fp32").flops_per_s == 5.3 * T


def test_memory_does_not_turn_a_fourth_h100_into_one_of_three() -> None:
    # "NVIDIA H100" is an SXM5 part with 94 GB (device id 2339); the H100 NVL has 94 GB, too.
    with pytest.raises(UnknownPeak, match="that name is shared by h100-sxm"):
        peak_for(gpu("NVIDIA H100", sm_count=132, memory_bytes=94 * 2**30), "bf16")


def test_the_laptop_part_that_differs_in_case_alone_is_not_the_desktop_card() -> None:
    assert peak_for("NVIDIA GeForce RTX 2080 SUPER", "fp16").flops_per_s == 44.6 * T
    assert peak_for("rtx-2080-super", "fp16").flops_per_s == 44.6 * T
    for name in (
        *("NVIDIA GeForce RTX 2080 Super", "nvidia geforce rtx 2070 super"),
        *("RTX 2080 Super", "rtx 2070 super", "NVIDIA RTX 2080 Super"),
    ):
        with pytest.raises(UnknownPeak, match="laptop parts share"):
            peak_for(name, "fp16")


def test_a_desktop_figure_that_laptops_of_the_name_do_not_reach_says_so() -> None:
    for name in ("NVIDIA GeForce RTX 2080", "Quadro RTX 5000", "Quadro RTX 6000"):
        source = peak_for(name, "fp16").source
        assert re.search(r"laptops( \(.*\))? report the same name", source)
    for name in ("Quadro RTX 8000", "Quadro RTX 6000"):
        assert re.search("the passive one|passive ones", peak_for(name, "fp16").source)


def test_the_prefix_of_another_vendor_is_another_name() -> None:
    for name in ("AMD H100 NVL", "NVIDIA Instinct MI300X", "AMD TPU v4"):
        with pytest.raises(UnknownPeak, match="does not have that name"):
            peak_for(name, "bf16")


def test_rows_are_found_by_any_name_and_editions_stay_together() -> None:
    assert [row.name for row in rows_named("h100")] == ["H100 SXM5", "H100 PCIe", "H100 NVL"]
    (row,) = rows_named("NVIDIA L40S")
    assert (row.sm_count, row.verified) == (142, "quoted")
    assert rows_named("h1000") == ()


def test_a_whole_device_is_not_scaled() -> None:
    peak = peak_for(gpu("NVIDIA H100 80GB HBM3", sm_count=132), "bf16")
    assert (peak.flops_per_s, peak.provenance) == (989.4 * T, "datasheet")


def test_rdna_is_counted_in_the_workgroup_processors_that_torch_reports() -> None:
    device = Device(name="AMD Radeon RX 7900 XTX", kind="rocm", sm_count=48)
    assert peak_for(device, "bf16").flops_per_s == pytest.approx(122.8 * T)


def test_no_processors_at_all_is_no_device() -> None:
    with pytest.raises(UnknownPeak, match="reports 0 multiprocessors"):
        peak_for(gpu("NVIDIA L4", sm_count=0), "bf16")


def test_far_more_multiprocessors_than_the_table_has_is_another_device() -> None:
    with pytest.raises(UnknownPeak, match="reports 264 multiprocessors and the H100 SXM5 has 132"):
        peak_for(gpu("NVIDIA H100 80GB HBM3", sm_count=264), "bf16")


def test_looking_up_a_peak_does_not_import_torch() -> None:
    code = (
        "import sys; from mfu_torch.peak.resolve import resolve_peak; "
        "from mfu_torch.records import Device; "
        "resolve_peak(Device(name='NVIDIA L4', kind='cuda'), 'bf16'); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
