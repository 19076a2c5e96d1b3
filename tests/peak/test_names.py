"""Names as drivers, runtimes, schedulers and people write them: the right figure, or none.

Gathered independently of the table. NVIDIA: the list of released names in NVIDIA's open kernel
modules 595.45.04 (``g_nv_name_released.h``), older spellings from public nvidia-smi and torch
logs, and the device names of vLLM's and SGLang's tuned configurations. AMD: libdrm's
``amdgpu.ids`` and rocm-smi logs. Figures: the vendors' data sheets and white papers, dense, with
fp32 accumulation, per device that torch sees.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from importlib import resources

import pytest
import torch

from mfu_torch.peak.names import NO_PEAK_HERE, canonical_dtype, check_dtype
from mfu_torch.peak.table import DTYPES, peak_for, similar_names
from mfu_torch.records import Device, UnknownPeak

KNOWN = {
    ("fp16", 125): "Tesla V100-SXM2-16GB; Tesla V100-SXM2-32GB; NVIDIA Tesla V100-SXM2-32GB",
    ("fp16", 112): "Tesla V100-PCIE-16GB; Tesla V100-PCIE-32GB; tesla v100-pcie-32gb",
    ("fp16", 130): "Tesla V100S-PCIE-32GB; v100s",
    ("fp16", 65): "Tesla T4; NVIDIA Tesla T4; NVIDIA T4; t4",
    ("fp16", 130.5): "TITAN RTX; NVIDIA TITAN RTX; Quadro RTX 8000; NVIDIA Quadro RTX 6000",
    ("fp16", 53.8): "GeForce RTX 2080 Ti; NVIDIA GeForce RTX 2080 Ti; rtx-2080-ti",
    ("fp16", 44.6): "GeForce RTX 2080 SUPER; NVIDIA GeForce RTX 2080 SUPER",
    ("fp16", 36.3): "NVIDIA GeForce RTX 2070 SUPER; GeForce RTX 2070 SUPER",
    ("fp32", 9.3): "Tesla P100-PCIE-16GB; Tesla P100-PCIE-12GB; p100-pcie",
    ("fp32", 10.6): "Tesla P100-SXM2-16GB",
    ("fp32", 11.3): "GeForce GTX 1080 Ti; NVIDIA GeForce GTX 1080 Ti",
    (
        "bf16",
        312,
    ): "NVIDIA A100-SXM4-40GB; NVIDIA A100-SXM4-80GB; NVIDIA A100-PCIE-40GB;"
    "A100-SXM4-40GB;"
    "NVIDIA A100 80GB PCIe; NVIDIA A100-PCIe-40GB; A100-PCIE-40GB; A100-SXM-80GB;"
    "NVIDIA A800-SXM4-80GB; NVIDIA A800 80GB PCIe; a100-40gb; a100-80gb; a100",
    ("fp64", 19.5): "NVIDIA A100-SXM4-80GB; NVIDIA A100 80GB PCIe",
    ("bf16", 165): "NVIDIA A30; a30",
    ("bf16", 125): "NVIDIA A10; a10",
    ("bf16", 70): "NVIDIA A10G; a10g",
    ("bf16", 149.7): "NVIDIA A40",
    ("bf16", 18): "NVIDIA A2",
    ("bf16", 17.9): "NVIDIA A16",
    ("bf16", 154.8): "NVIDIA RTX A6000; RTX A6000; rtx-a6000",
    ("bf16", 111.1): "NVIDIA RTX A5000; RTX A5000",
    ("bf16", 76.7): "NVIDIA RTX A4000; RTX A4000",
    ("bf16", 31.9): "NVIDIA RTX A2000; NVIDIA RTX A2000 12GB",
    ("bf16", 71): "NVIDIA GeForce RTX 3090; NVIDIA GeForce RTX 4070 SUPER",
    ("bf16", 80): "NVIDIA GeForce RTX 3090 Ti",
    ("bf16", 68.2): "NVIDIA GeForce RTX 3080 Ti",
    ("bf16", 59.5): "rtx-3080-10gb",
    ("bf16", 40.6): "NVIDIA GeForce RTX 3070",
    ("bf16", 43.5): "NVIDIA GeForce RTX 3070 Ti",
    ("bf16", 25.5): "NVIDIA GeForce RTX 3060",
    ("bf16", 32.4): "NVIDIA GeForce RTX 3060 Ti",
    ("bf16", 121): "NVIDIA L4; l4",
    ("bf16", 181.05): "NVIDIA L40; AMD Instinct MI250",
    ("bf16", 362.05): "NVIDIA L40S; l40s; NVIDIA  L40S",
    ("bf16", 364.2): "NVIDIA RTX 6000 Ada Generation; rtx-6000-ada",
    ("bf16", 277.1): "NVIDIA RTX 5880 Ada Generation",
    ("bf16", 119.5): "NVIDIA L20",
    ("bf16", 318.5): "NVIDIA A100X",
    ("bf16", 103.2): "AMD Radeon RX 7900 XT",
    ("bf16", 194.6): "AMD Radeon RX 9070 XT",
    ("bf16", 261.1): "NVIDIA RTX 5000 Ada Generation",
    ("bf16", 165.2): "NVIDIA GeForce RTX 4090; rtx-4090; rtx 4090; GEFORCE RTX 4090",
    ("bf16", 147.1): "NVIDIA GeForce RTX 4090 D",
    ("bf16", 97.5): "NVIDIA GeForce RTX 4080",
    ("bf16", 104.4): "NVIDIA GeForce RTX 4080 SUPER",
    ("bf16", 80.2): "NVIDIA GeForce RTX 4070 Ti",
    ("bf16", 88.2): "NVIDIA GeForce RTX 4070 Ti SUPER",
    ("bf16", 58.3): "NVIDIA GeForce RTX 4070",
    ("bf16", 44.1): "NVIDIA GeForce RTX 4060 Ti",
    ("bf16", 30.2): "NVIDIA GeForce RTX 4060",
    ("bf16", 209.5): "NVIDIA GeForce RTX 5090",
    ("bf16", 112.6): "NVIDIA GeForce RTX 5080",
    ("bf16", 87.9): "NVIDIA GeForce RTX 5070 Ti",
    ("bf16", 61.7): "NVIDIA GeForce RTX 5070",
    ("bf16", 503.8): "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    ("bf16", 438.9): "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    (
        "bf16",
        989.4,
    ): "NVIDIA H100 80GB HBM3; NVIDIA_H100_80GB_HBM3; h100-sxm; H100 SXM5;NVIDIA H800; H100 SXM",
    ("bf16", 756): "NVIDIA H100 PCIe; NVIDIA H800 PCIe; h100-pcie; NVIDIA_H100_PCIe",
    ("bf16", 835.5): "NVIDIA H100 NVL; NVIDIA H200 NVL; h100-nvl; NVIDIA_H100_NVL",
    (
        "bf16",
        989.5,
    ): "NVIDIA H200; NVIDIA GH200 480GB; NVIDIA GH200 120GB; NVIDIA GH200 144G HBM3e;"
    "NVIDIA GH200; gh200",
    ("fp64", 1): "NVIDIA H800",
    ("bf16", 2250): "NVIDIA B200; b200; NVIDIA B300 SXM6 AC",
    ("bf16", 2500): "NVIDIA GB200; gb200; NVIDIA GB300",
    ("int8", 4500): "NVIDIA B200",
    ("int8", 150): "NVIDIA B300 SXM6 AC",
    ("bf16", 92.3): "AMD Instinct MI100",
    ("bf16", 181): "AMD Instinct MI210",
    ("bf16", 191.5): "AMD Instinct MI250X; mi250x",
    ("bf16", 980.6): "AMD Instinct MI300A",
    ("bf16", 1307.4): "AMD Instinct MI300X; AMD Instinct MI300X OAM; AMD_Instinct_MI300X; mi300x;"
    "AMD Instinct MI325X; Instinct MI300X",
    ("bf16", 2306.9): "AMD Instinct MI350X",
    ("bf16", 2516.6): "AMD Instinct MI355X; AMD Instinct MI355X OAM",
    ("bf16", 122.8): "AMD Radeon RX 7900 XTX; Radeon RX 7900 XTX",
    ("bf16", 275): "TPU v4; tpu-v4",
    ("bf16", 197): "TPU v5 lite; TPU v5e",
    ("bf16", 459): "TPU v5p",
}

UNKNOWN = """
NVIDIA GeForce RTX 2060; NVIDIA GeForce RTX 2060 SUPER; NVIDIA GeForce RTX 2060 with Max-Q Design
NVIDIA GeForce RTX 2070; NVIDIA GeForce RTX 2070 Super; NVIDIA GeForce RTX 2080 Super
NVIDIA GeForce RTX 2070 Super with Max-Q Design; NVIDIA GeForce RTX 2080 with Max-Q Design
NVIDIA GeForce RTX 2080 Super with Max-Q Design; GeForce RTX 2080 Super with Max-Q Design
NVIDIA GeForce RTX 2050; NVIDIA GeForce RTX 3050; NVIDIA GeForce RTX 3050 OEM
NVIDIA GeForce RTX 3050 Laptop GPU; NVIDIA GeForce RTX 3050 6GB Laptop GPU
NVIDIA GeForce RTX 3050 A Laptop GPU; NVIDIA GeForce RTX 3050 Ti Laptop GPU
NVIDIA GeForce RTX 3050Ti Laptop GPU; NVIDIA GeForce RTX 3060 Laptop GPU
NVIDIA GeForce RTX 3070 Laptop GPU; NVIDIA GeForce RTX 3070 Ti Laptop GPU
NVIDIA GeForce RTX 3080; NVIDIA GeForce RTX 3080 Laptop GPU; NVIDIA GeForce RTX 3080 Ti Laptop GPU
NVIDIA GeForce RTX 4050 Laptop GPU; NVIDIA GeForce RTX 4060 Laptop GPU
NVIDIA GeForce RTX 4070 Laptop GPU; NVIDIA GeForce RTX 4080 Laptop GPU
NVIDIA GeForce RTX 4090 Laptop GPU; NVIDIA GeForce RTX 5050; NVIDIA GeForce RTX 5050 Laptop GPU
NVIDIA GeForce RTX 5060 Laptop GPU; NVIDIA GeForce RTX 5070 Laptop GPU
NVIDIA GeForce RTX 5070 Ti Laptop GPU; NVIDIA GeForce RTX 5080 Laptop GPU
NVIDIA GeForce RTX 5090 Laptop GPU; NVIDIA GeForce RTX 5090 D; NVIDIA GeForce RTX 5090 D v2
NVIDIA GeForce RTX 4090 Ti; NVIDIA GeForce RTX 4090D; NVIDIA GeForce RTX 409; RTX 4090 24GB
NVIDIA GeForce GTX 1060; NVIDIA GeForce GTX 1630; NVIDIA GeForce GTX 1650; GeForce GTX 1070
NVIDIA GeForce GTX 1650 SUPER; NVIDIA GeForce GTX 1650 Ti with Max-Q Design; GeForce GTX 1080
NVIDIA GeForce GTX 1660; NVIDIA GeForce GTX 1660 SUPER; NVIDIA GeForce GTX 1660 Ti
NVIDIA GeForce MX550; NVIDIA GeForce MX570; NVIDIA GeForce MX570 A; GeForce GTX TITAN X
TITAN V; NVIDIA TITAN V; TITAN Xp; NVIDIA TITAN X (Pascal); Quadro GV100; Quadro GP100; Quadro P6000
Quadro RTX 3000; Quadro RTX 3000 with Max-Q Design; Quadro RTX 4000; Quadro T1000; Quadro T2000
Quadro RTX 4000 with Max-Q Design; Quadro RTX 5000 with Max-Q Design; NVIDIA T1000 8GB
NVIDIA T400 4GB; NVIDIA T500; NVIDIA T550 Laptop GPU; NVIDIA T600; NVIDIA T1200 Laptop GPU
NVIDIA CMP 30HX; NVIDIA CMP 50HX; NVIDIA CMP 90HX; NVIDIA CMP 170HX; NVIDIA DGX Display
NVIDIA DRIVE P2021; NVIDIA Graphics Device; Orin; NVIDIA Thor; Xavier; NVIDIA Tegra X1; NVIDIA T4G
Tesla P4; Tesla P40; Tesla K80; Tesla M60; Tesla M40 24GB; Tesla P6; NVIDIA P100; NVIDIA V100
Tesla V100-SXM2-32GB-LS; NVIDIA V100-SXM2-32GB-LS; Tesla V100-SXM3-32GB; Tesla V100-SXM3-32GB-H
Tesla V100-DGXS-16GB; Tesla V100-DGXS-32GB; Tesla V100-FHHL-16GB; Tesla V100-SXM2; Tesla V100
Tesla PG503-216; NVIDIA PG506-232; NVIDIA PG509-210; NVIDIA A100-PG509-200; NVIDIA A100-SXM-64GB
NVIDIA A30X; NVIDIA AX800; NVIDIA A800 40GB Active; NVIDIA A800-SXM4-40GB
NVIDIA A800 80GB PCIe LC; NVIDIA A10M; NVIDIA A1; NVIDIA A100B; NVIDIA A1000; NVIDIA A400
NVIDIA H100; NVIDIA H100 80GB HBM2e; NVIDIA H100 80GB HBM3e; NVIDIA H100 64GB HBM2e; NVIDIA H100 CNX
NVIDIA H20; NVIDIA H20-3e; NVIDIA H20 NVL16; NVIDIA H800 NVL; NVIDIA H2O
NVIDIA GH200 96GB HBM3; NVIDIA GH200 144GB HBM3e; NVIDIA H200 141GB; NVIDIA H2000
NVIDIA B100; NVIDIA B20; NVIDIA GB202; NVIDIA GB200 NVL72; NVIDIA B300 PCIe; NVIDIA GB20; GB2000
NVIDIA L2; NVIDIA L20Y; NVIDIA L40G; NVIDIA L4S; NVIDIA L400; NVIDIA L40 S; NVIDIA L
NVIDIA RTX 500 Ada Generation Laptop GPU; NVIDIA RTX 1000 Ada Generation Laptop GPU
NVIDIA RTX 2000 Ada Generation; NVIDIA RTX 2000 Ada Generation Laptop GPU
NVIDIA RTX 2000 Ada Generation Embedded GPU; NVIDIA RTX 2000E Ada Generation
NVIDIA RTX 3500 Ada Generation Laptop GPU; NVIDIA RTX 4000 Ada Generation
NVIDIA RTX 4000 SFF Ada Generation; NVIDIA RTX 4500 Ada Generation
NVIDIA RTX 5000 Ada Generation Laptop GPU; NVIDIA RTX 5000 Ada Generation Embedded GPU
NVIDIA RTX 6000; NVIDIA RTX 6000D; NVIDIA RTX 6000 Blackwell; NVIDIA RTX A400; NVIDIA RTX A500
NVIDIA RTX A1000; NVIDIA RTX A1000 Laptop GPU; NVIDIA RTX A2000 Laptop GPU; NVIDIA RTX A2000 6GB
NVIDIA RTX A2000 8GB Laptop GPU; NVIDIA RTX A3000 Laptop GPU; NVIDIA RTX A4000 Laptop GPU
NVIDIA RTX A4000H; NVIDIA RTX A4500 Embedded GPU; NVIDIA RTX A5000 Laptop GPU; NVIDIA RTX A600
NVIDIA RTX A5500 Laptop GPU; NVIDIA RTX A6000 Ada; NVIDIA RTX PRO 500 Blackwell Embedded GPU
NVIDIA RTX PRO 2000 Blackwell; NVIDIA RTX PRO 4000 Blackwell; NVIDIA RTX PRO 4500 Blackwell
NVIDIA RTX PRO 4000 Blackwell SFF Edition; NVIDIA RTX PRO 5000 Blackwell
NVIDIA RTX PRO 5000 72GB Blackwell; NVIDIA RTX PRO 5000 Blackwell Generation Laptop GPU
NVIDIA RTX PRO 6000 Blackwell; NVIDIA RTX PRO 6000 Blackwell Server Edition; NVIDIA RTX PRO 6000
NVIDIA RTX Pro 6000 Blackwell DC-96; NVIDIA RTX Pro 6000 Blackwell DC-4-96Q; NVIDIA RTX 6000D-84
GRID A100-10C; GRID A100D-80C; GRID A100X-40C; GRID A100DX-80C; GRID A100-1-5C MIG 1g.5gb
GRID A800D-80C; GRID T4-16C; GRID T4-16Q; GRID V100D-32Q; GRID V100-16C; GRID P40-24Q; GRID K520
GRID A100-SXM4-40GB; NVIDIA A10-24; NVIDIA A10-24Q; NVIDIA A10-24C; NVIDIA A10-12A; NVIDIA A10G-24
NVIDIA A10G-24Q; NVIDIA A100-40C; NVIDIA A16-16Q; NVIDIA A2-16; NVIDIA A30-24C; NVIDIA A40-48
NVIDIA A40-48Q; NVIDIA A40-48C; NVIDIA B200X-180C; NVIDIA GB200-186C; NVIDIA GH200-96C
NVIDIA GH200L-144C; NVIDIA H100-80C; NVIDIA H100L-94C; NVIDIA H100XL-94C; NVIDIA H100XM-80C
NVIDIA H100XM-1-10CME; NVIDIA H200-141C; NVIDIA H200X-141C; NVIDIA H800-80C; NVIDIA H20-96C
NVIDIA L4-24Q; NVIDIA L4-24; NVIDIA L20-48C; NVIDIA L40-48Q; NVIDIA L40S-48C; NVIDIA L40S-48
NVIDIA RTX6000-Ada-48Q; NVIDIA RTX5880-Ada-48C; NVIDIA RTXA6000-48Q; NVIDIA RTXA5000-24
NVIDIA A100-SXM4-40GB MIG 1g.5gb; NVIDIA A100-SXM4-80GB MIG 3g.40gb; NVIDIA A30 MIG 2g.12gb
NVIDIA A100 80GB PCIe MIG 1c.3g.40gb; NVIDIA H100 80GB HBM3 MIG 7g.80gb; NVIDIA H200 MIG 1g.18gb
NVIDIA H100 NVL MIG 1g.12gb+me; NVIDIA B200 MIG 2g.45gb; NVIDIA A100-SXM4-40GB MIG; MIG 1g.5gb
NVIDIA A100-SXM4-40GB mig 1g.5gb; NVIDIA H100 80GB HBM3 (MIG 1g.10gb); 1g.5gb
AMD Instinct MI250X / MI250; AMD Instinct MI250X/MI250; AMD Instinct MI308X; AMD Instinct MI308X VF
AMD Instinct MI308X HF; AMD Instinct MI300X HF; AMD Instinct MI300X VF; AMD Instinct Mi325X VF
AMD Instinct MI325X VF; AMD Instinct MI325 OAM; AMD Instinct MI350 OAM; AMD Instinct MI350X VF
AMD Instinct MI355X VF; AMD Instinct MI300; AMD Instinct MI30; AMD Instinct MI60; AMD Instinct MI50
AMD Instinct MI210 VF; AMD Radeon Graphics; AMD Radeon RX 7900 GRE
AMD Radeon RX 7900M; AMD Radeon Pro W7900D; AMD Radeon Pro W7900 Dual Slot; AMD Radeon Pro W7800
RTX 2080 Super; AMD Radeon RX 6900 XT; AMD Radeon AI PRO R9700; AMD Radeon VII; Radeon 8060S
Intel(R) Data Center GPU Max 1550; Intel(R) Arc(TM) B580 Graphics; Intel(R) Arc(TM) A770 Graphics
GAUDI2D; HL-225D; HL-328; GAUDI; TPU v6; TPU; TPU v5e pod; trn3x; Apple M1; Apple M1 Ultra; Apple M4
NVIDIA; AMD; GeForce; Tesla; GPU; cuda; unknown; N/A; ; -; llvmpipe; Microsoft Basic Render Driver
AMD H100 NVL; NVIDIA Instinct MI300X; h100; v100; rtx-3080; rtx-pro-6000; H100-SXM-80GB
"""

SUFFIXES = (
    *(" Laptop GPU", " Mobile", " Max-Q", " with Max-Q Design", " Embedded GPU", " D", " D v2"),
    *(" Ti", " SUPER", " Super", "S", " S", "D", "G", "M", "X", "H", "E", "Y", "0", " v2", " OEM"),
    *(" VF", " HF", " OAM", " NVL", " PCIe", " SXM6", " CNX", " AC", " SFF", " Ada", " LC", " II"),
    *("-80C", "-24Q", "-48", "-1-5CME", "-8A", "-3e", "-LS", "-H", " 6GB", " 8GB", " 16GB"),
    *(" MIG 1g.5gb", " MIG 3g.40gb", " MIG 7g.80gb", "/PCIe/SSE2", " (rev a1)", " x8", " 64GB"),
)
PREFIXES = ("GRID ", "Quadro ", "GeForce ", "Tesla ", "Intel ", "NVIDIA G", "NVIDIA AMD ", "2x ")


def names(text: str) -> list[str]:
    return [name.strip() for name in re.split(r"[;\n]", text.strip("\n"))]


LISTED = [(n, *key) for key, text in KNOWN.items() for n in names(text) if n]


def test_the_lists_are_long_and_name_nothing_twice() -> None:
    unknown = names(UNKNOWN)
    assert len(LISTED) > 120 and len(unknown) > 250
    assert len(set(unknown)) == len(unknown)
    assert len({entry[:2] for entry in LISTED}) == len(LISTED)
    assert not {name for name, *_ in LISTED} & set(unknown)


@pytest.mark.parametrize(("name", "dtype", "tflops"), LISTED)
def test_a_known_name_has_its_documented_figure(name: str, dtype: str, tflops: float) -> None:
    assert peak_for(name, dtype).flops_per_s == float(f"{tflops}e12")


@pytest.mark.parametrize("name", names(UNKNOWN))
def test_an_unknown_name_has_no_figure_in_any_dtype_and_says_why(name: str) -> None:
    for dtype in DTYPES:
        with pytest.raises(UnknownPeak) as caught:
            peak_for(name, dtype)
        assert str(caught.value).startswith(f"no {dtype} peak for {name!r}: ")
        lacks = f"no {dtype} units" in str(caught.value)
        end = NO_PEAK_HERE if lacks else 'Supply the dense figure yourself: peak="... TFLOP/s"'
        assert str(caught.value).endswith(f". {end}")


FACTS = ((132, "9.0", 80), (108, "8.0", 40), (128, "8.9", 24), (48, "7.5", 8), (304, "gfx942", 192))


@pytest.mark.parametrize("name", names(UNKNOWN))
def test_with_the_facts_of_a_known_card_it_is_at_most_a_labelled_estimate(name: str) -> None:
    for sms, architecture, memory_gib in FACTS:
        device = Device(
            name=name,
            kind="rocm" if architecture.startswith("gfx") else "cuda",
            sm_count=sms,
            memory_bytes=memory_gib * 2**30,
            compute_capability=architecture,
            max_clock_hz=1.98e9,
        )
        for dtype in ("bf16", "fp16", "fp32"):
            try:
                peak = peak_for(device, dtype)
            except UnknownPeak:
                continue
            if "VF" in name or "MI250X / MI250" in name:  # known once their CUs are
                continue
            assert peak.provenance == "derived"
            assert peak.uncertainty is not None or "; scaled to " in peak.source


def spelled(name: str) -> str:
    """As two names are compared, written anew: without vendor, case and separators."""
    words = re.split(r"[\s_-]+", name.strip().lower())
    return " ".join(words[words[0] in ("nvidia", "amd") :])


def listed_names() -> dict[str, set[tuple[str, ...]]]:
    """Name -> the figures that any row of the file has for it, read without the package."""
    text = (resources.files("mfu_torch") / "data" / "peaks.csv").read_text(encoding="utf-8")
    found: dict[str, set[tuple[str, ...]]] = {}
    for row in csv.DictReader(text.splitlines()):
        figures = tuple(row.get(f"{dtype}_matrix") or row[dtype] for dtype in DTYPES)
        for name in (row["name"], *row["driver_names"].split("|"), *row["short_names"].split("|")):
            found.setdefault(spelled(name), set()).add(figures)
    return found


def variants(name: str) -> Iterator[str]:
    yield from (name + suffix for suffix in SUFFIXES)
    yield from (prefix + name for prefix in PREFIXES)
    words = re.split(r"(?<=[\s-])", name)
    yield from ("".join(words[:i] + words[i + 1 :]) for i in range(len(words)))
    for i, letter in enumerate(name):
        before, after = name[:i], name[i + 1 :]
        yield from (before, after, before + after)
        if letter.isdigit():
            yield from (before + digit + after for digit in "0123456789" if digit != letter)


def test_no_variant_of_a_listed_name_has_a_figure_unless_it_is_itself_listed() -> None:
    known = listed_names()
    asked = {v for name in known for form in (name, f"NVIDIA {name}") for v in variants(form)}
    assert len(asked) > 20_000
    for variant in asked:
        try:
            peak = peak_for(variant, "bf16")
        except UnknownPeak:
            continue
        figures = {row[DTYPES.index("bf16")] for row in known.get(spelled(variant), set())}
        assert figures, variant
        assert {peak.flops_per_s} == {float(f"{cell}e12") for cell in figures}, variant


def test_similar_names_are_offered_and_never_used() -> None:
    assert "rtx-4090" in similar_names("RTX 4090 Ti")
    assert "h100-sxm" in similar_names("h100-smx")
    assert similar_names("qqq") == ()
    for text, model in (
        *(("NVIDIA H100 80GB", "h100"), ("NVIDA H100", "h100"), ("A100 SXM5 80 GB", "a100")),
        *(("RTX4090", "4090"), ("GeForce 3070 8GB", "3070"), ("mi300", "mi300x")),
    ):
        assert model in similar_names(text)[0].casefold(), text
    assert not any("100 80gb" in n and "h100" not in n for n in similar_names("NVIDIA H100 80GB"))
    with pytest.raises(UnknownPeak):
        peak_for("RTX 4090 Ti", "bf16")


# --- dtypes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "dtype"),
    [
        *(("BF16", "bf16"), ("bfloat16", "bf16"), (torch.bfloat16, "bf16"), (" Fp8 ", "fp8")),
        *(("torch.half", "fp16"), ("float16", "fp16"), (torch.float32, "fp32"), ("float", "fp32")),
        *(("double", "fp64"), (torch.float8_e4m3fn, "fp8"), (torch.int8, "int8"), ("TF32", "tf32")),
    ],
)
def test_a_dtype_may_have_the_name_that_torch_gives_it(given: object, dtype: str) -> None:
    assert canonical_dtype(given) == dtype
    h100 = "NVIDIA H100 80GB HBM3"
    assert peak_for(h100, given) == peak_for(h100, dtype)  # type: ignore[arg-type]


def test_what_is_no_dtype_is_refused_and_what_was_meant_is_said() -> None:
    with pytest.raises(ValueError, match=r"dtype is 'int32'; expected one of fp64, .* fp4$"):
        canonical_dtype("int32")
    with pytest.raises(ValueError, match=r"torch\.complex64.*expected one of"):
        canonical_dtype(torch.complex64)
    with pytest.raises(TypeError, match="dtype is 16; expected text"):
        canonical_dtype(16)
    with pytest.raises(ValueError, match=r"'bfloat16'; .* fp4 \(here 'bf16'\)"):
        check_dtype("bfloat16")
