"""The peak of a card that the table lacks: SMs x FLOP per clock x clock, where that is certain.

The rate depends on the architecture *and* on the product line: the tensor cores of a GeForce run
at half the rate of the same chip on a professional card, an H20 is an H100 at a seventh. The line
can only be told from the name; where it cannot, nothing is derived. The rates, each with the
document that it was checked against, are in ``data/rates.csv``.

The clock is the highest that the driver states, and vendors state peaks at lower ones, so a
derived figure is rather too high (an MFU rather too low), by up to its ``uncertainty``.
"""

from __future__ import annotations

import csv
import functools
import re
from importlib import resources
from typing import NamedTuple

from mfu_torch.peak.mig import why_not_of
from mfu_torch.peak.names import DTYPES, is_laptop, mig_profile, split_mig
from mfu_torch.records import Device, Peak

_ABSENT = "-"
"""Cell of a dtype that the architecture has no units for; an empty one is not certain."""

UNCERTAINTY = {"data centre": 0.16, "GeForce": 0.35, "professional": 0.6, "Instinct": 0.05}
"""How far from a figure at the driver's highest clock the true one may be, as a fraction of it.

Data centre: H100 NVL 1545 MHz, driver 1785. GeForce: RTX 4090 2520 of 3105, RTX 5090 2407 of
3135. Professional: RTX A6000 1800 of 2100, and low-power cards of its architecture are rated a
third lower still (RTX A2000: 1200); RTX PRO 4000 Blackwell SFF Edition: 24 TFLOP/s in fp32 is
70 x 256 x 1340 MHz, and drivers of its siblings state 3105: 57 % off. Instinct: peaks are stated
at the highest engine clock.
"""

UNCERTAINTY_LAPTOP = 0.7
"""The maker of a laptop sets the power: a GeForce RTX 4090 Laptop GPU is rated 1455 to 2040 MHz, an
RTX 4070 Laptop GPU 1230 to 2175, and the driver states 3105 for both: up to 60.4 % off. Cards of
low power for thin laptops are rated lower still."""

_CLOCK_RANGE_HZ = (3e8, 6e9)
"""What can be the highest clock of a GPU; outside it somebody mistook the unit."""

# The driver's spelling, without "NVIDIA", whole -> (architecture that the name promises, product).
# Left out on purpose: L and A cards other than the A100's (A10 and A10G, L40 and L40S differ
# twofold), H20, H800, L20, RTX 6000D, RTX 5880 and "D" editions (cut for export), CMP, vGPU.
_NAMES: tuple[tuple[str, str, str], ...] = (
    (r"Tesla V100-(SXM2|SXM3|PCIE|FHHL|DGXS)-\d+GB(-LS|-H)?", "7.0", "data centre"),
    (r"A[18]00(-SXM4?-\d+GB|-PCIE-\d+GB|-PG509-\d+)", "8.0", "data centre"),
    (r"A[18]00 \d+GB (PCIe( LC)?|Active)", "8.0", "data centre"),
    (r"H100( \d+GB)?( HBM\d\w?| PCIe)?", "9.0", "data centre"),
    (r"Quadro RTX [34568]000( with Max-Q Design)?", "7.5", "professional"),
    (r"RTX A\d{3,4}( \d+GB)?( Laptop GPU| Embedded GPU)?", "8.6", "professional"),
    (
        r"RTX (?!5880)\d{3,4}( SFF)? Ada Generation( Laptop GPU| Embedded GPU)?",
        "8.9",
        "professional",
    ),
    (
        r"RTX PRO \d{3,4}( \d+GB)? Blackwell( (Max-Q )?Workstation Edition| SFF Edition"
        r"| Generation Laptop GPU| Embedded GPU)?",
        "12.0",
        "professional",
    ),
    (
        r"GeForce RTX 20[678]0( Ti)?( SUPER| Super)?( with Max-Q Design)?",
        "7.5",
        "GeForce",
    ),
    (r"GeForce RTX 30[5-9]0( ?Ti)?( \d+GB| OEM)?( Laptop GPU)?", "8.6", "GeForce"),
    (r"GeForce RTX 40[5-9]0( Ti)?( SUPER)?( Laptop GPU)?", "8.9", "GeForce"),
    (r"GeForce RTX 50[5-9]0( Ti)?( Laptop GPU)?", "12.0", "GeForce"),
    (r"Instinct MI(210|250X?|250X ?/ ?MI250)( OAM| HF| VF)*", "gfx90a", "Instinct"),
    (r"Instinct M[iI](300A|300X|325X?)( OAM| HF| VF)*", "gfx942", "Instinct"),
    (r"Instinct M[iI](350X?|355X)( OAM| HF| VF)*", "gfx950", "Instinct"),
)

_VIRTUAL = re.compile(r"(NVIDIA )?GRID |NVIDIA .*-\d+(-\d+)?[ABCQ]?(ME)?$")
"""NVIDIA vGPU: "GRID A100D-80C", "NVIDIA A10-24Q", "NVIDIA H20-1-12CME"."""

_FOR_EXPORT = r"\b(h20|h800|l20y?|l2|b20)\b|\d{4} ?d\b|\brtx 5880\b"
"""NVIDIA H20, H800, L20, GeForce RTX 5090 D and D v2, RTX 6000D."""

_NO_TENSOR_CORES = r"\bgtx\b|\bmx ?\d|(tesla|quadro) [pkm]\d|\bt([456]00|1000|1200|2000)\b|titan x"


_NVIDIA = r"nvidia|geforce|quadro|tesla|titan|grid |rtx|gtx|(gh|gb|[abhltpv])\d"
"""How NVIDIA's names start, with the vendor's and without."""


class _Rates(NamedTuple):
    flops_per_clock: dict[str, float]  # by dtype, of one SM or CU, dense
    absent: tuple[str, ...]
    source: str
    most_sms: int  # of the largest chip of the architecture, those that no product enables too
    most_sms_source: str


def derived_peak(device: Device, dtype: str) -> Peak | str:
    """The peak by arithmetic, or, as text, why there is none.

    An A100-SXM-64GB has 124 SMs, and every A100 does 2048 FLOP per clock and SM in bf16: at
    1395 MHz 354 TFLOP/s.

    Args:
        device: With multiprocessors, architecture and highest clock, as ``detect_device`` tells.
        dtype: One of ``DTYPES``.
    """
    line = _line(device.name)
    if line is None:
        return _why_no_line(device.name)
    architecture, product = line
    missing = _missing(device)
    if missing:
        return missing
    rates = _rates()[architecture, product]
    contradiction = _contradiction(device, architecture, rates)
    if contradiction:
        return contradiction
    if dtype in rates.absent:
        return f"architecture {architecture} has no {dtype} units"
    if dtype not in rates.flops_per_clock:
        return f"the {dtype} rate of architecture {architecture} is not certain"
    return _peak(device, dtype, product, rates)


def _line(name: str) -> tuple[str, str] | None:
    """The architecture and product line that a name promises, if it promises any."""
    whole = split_mig(name)[0].strip()
    vendor = next((one for one in ("NVIDIA", "AMD") if whole.startswith(f"{one} ")), None)
    bare = whole.removeprefix(f"{vendor} ")
    for pattern, architecture, product in _NAMES:
        if re.fullmatch(pattern, bare):
            return (architecture, product) if vendor in (None, _vendor(architecture)) else None
    return None


def _vendor(architecture: str) -> str:
    return "AMD" if architecture.startswith("gfx") else "NVIDIA"


def _contradiction(device: Device, architecture: str, rates: _Rates) -> str:
    """Which of a device's facts no card of its name can have; empty if there is none."""
    reported = (device.compute_capability or "").partition(":")[0]
    if reported != architecture:
        return (
            f"a card of that name is of architecture {architecture}, and this one reports "
            f"{reported}"
        )
    kind = {"AMD": "rocm", "NVIDIA": "cuda"}[_vendor(architecture)]
    if device.kind not in ("", kind):
        return f"a card of that name is of kind {kind!r}, and this device is of {device.kind!r}"
    sms, mig = device.sm_count or 0, mig_profile(device)
    if sms > rates.most_sms:
        return (
            f"it reports {sms} multiprocessors, and the largest chip of architecture "
            f"{architecture} has {rates.most_sms} ({rates.most_sms_source})"
        )
    if mig is None:
        return ""
    # A slice reports its own memory; of the card's there is only what the name says.
    memory = re.search(r"(\d+)GB", split_mig(device.name)[0])
    memory_bytes = int(memory[1]) * 2**30 if memory else None
    whole = f"at most {rates.most_sms} SMs ({rates.most_sms_source})"
    return why_not_of(mig, sms, rates.most_sms, memory_bytes, whole)


def _peak(device: Device, dtype: str, product: str, rates: _Rates) -> Peak:
    assert device.sm_count is not None and device.max_clock_hz is not None  # not _missing
    rate = rates.flops_per_clock[dtype]
    # Laptops of the Turing generation report the desktop cards' names.
    laptop = is_laptop(device.name) or device.compute_capability == "7.5"
    uncertainty = UNCERTAINTY_LAPTOP if laptop else UNCERTAINTY[product]
    unit = "CUs" if product == "Instinct" else "SMs"
    return Peak(
        flops_per_s=device.sm_count * rate * device.max_clock_hz,
        dtype=dtype,
        source=(
            f"{device.sm_count} {unit} x {rate:g} FLOP/clock x {device.max_clock_hz / 1e6:.0f} MHz "
            "(the driver's highest clock; vendors state peaks at lower ones, up to "
            f"{100 * uncertainty:.0f} % lower); rate of {product} cards: {rates.source}"
        ),
        provenance="derived",
        device=device.name,
        clock_hz=device.max_clock_hz,
        uncertainty=uncertainty,
    )


def _missing(device: Device) -> str:
    facts = {
        "the number of multiprocessors": device.sm_count,
        "the architecture": device.compute_capability,
        "the highest clock": device.max_clock_hz,
    }
    absent = [what for what, fact in facts.items() if not fact]
    if absent:
        return f"it takes {', '.join(absent)}, which detect_device() tells on its machine"
    low, high = _CLOCK_RANGE_HZ
    if not low < (device.max_clock_hz or 0) < high or (device.sm_count or 0) < 0:
        return (
            f"it reports {device.sm_count} multiprocessors at {device.max_clock_hz} Hz, "
            "which no GPU has"
        )
    return ""


def is_for_export(name: str) -> bool:
    """Whether a name looks like that of an edition that is cut for export."""
    return re.search(_FOR_EXPORT, name.casefold()) is not None


def _why_no_line(name: str) -> str:
    folded = name.casefold()
    if not folded.strip():
        return "the name is empty"
    board = re.search(r"\bpg5(03|06|09)-\d", folded)
    if board:
        chip = "V100" if board[1] == "03" else "A100"
        return f"it is the name of a board of the {chip}'s class, not of a card"
    if _VIRTUAL.match(name):
        return "it looks like a virtual GPU (vGPU), and its host decides what share it gets"
    if re.search(r"orin|thor|xavier|jetson|tegra", folded):
        return "the clock of a Jetson depends on its module and power mode"
    if is_for_export(name):
        return (
            "it looks like an edition cut for export, whose rates are not those of the other cards "
            "of its architecture"
        )
    if re.search(_NO_TENSOR_CORES, folded):
        return "it has no tensor cores, and no rate is certain for every dtype"
    if "instinct" in folded:
        return (
            "of AMD Instinct, the rates of the MI200, MI300 and MI350 series alone are certain, "
            "not those of other or of cut editions"
        )
    if not re.match(_NVIDIA, folded.strip()):
        return "its product line is neither NVIDIA's nor AMD Instinct, and others are not derived"
    return (
        "its product line cannot be told from the name, and lines of one architecture differ "
        "up to sevenfold (A10 and A10G, L40 and L40S, H100 and H20)"
    )


@functools.cache
def _rates() -> dict[tuple[str, str], _Rates]:
    text = (resources.files("mfu_torch") / "data" / "rates.csv").read_text(encoding="utf-8")
    return {
        (cells["architecture"], cells["product"]): _Rates(
            {dtype: float(cells[dtype]) for dtype in DTYPES if cells[dtype] not in ("", _ABSENT)},
            tuple(dtype for dtype in DTYPES if cells[dtype] == _ABSENT),
            cells["source"],
            int(cells["most_sms"]),
            cells["most_sms_source"],
        )
        for cells in csv.DictReader(text.splitlines())
    }
