"""Which facts of a device cannot be those of the table's row that has its name.

A name alone can be wrong: spoofed by a virtual machine, typed by hand, or given to another card
by a later driver. A figure is handed out only if the other facts do not speak against it, and if
it is that of the device and not of a larger unit or of a clock that the device may not have.
"""

from __future__ import annotations

import re

from mfu_torch.peak.names import mig_profile, split_mig, split_vendor
from mfu_torch.peak.rows import Row
from mfu_torch.records import Device
from mfu_torch.units import bytes_

_VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple"}
"""Kind of a device -> whose it is."""

_MEMORY_TOLERANCE = 0.25
"""Drivers report up to 8 % less than the nominal size (ECC: a T4 has 14.7 of 16 GiB)."""

_FEWER, _MORE = 0.9, 1.02
"""Editions of one name differ by a few SMs: an "A100" of 104 of 108. Other numbers are another
device: the RTX 4090 has 128 SMs, and its laptop part 76."""

_PARTITIONED = ("gfx942", "gfx950")
"""AMD's architectures whose devices can be divided: MI300X in CPX mode is 8 devices of 38 CUs."""

_SAME_CLOCK = 0.97
"""A highest clock that is lower than a figure's by more is that of another card or power mode."""

_NAMES_OF_SEVERAL = {
    "orin": "every Jetson Orin module reports it, and their clocks differ with module and power "
    "mode (the AGX Orin 64GB is jetson-agx-orin)",
    "thor": "Jetson T5000 and T4000 report it; with all 20 multiprocessors it is the T5000 "
    "(jetson-agx-thor)",
}
"""Names of several modules with different clocks: processors alone do not scale the figure."""

_LEAST_CLOCK_HZ = {"Gaudi 3": (1.7e9, 1.75e9, 1.6e9)}
"""Row -> (what the device has to state, clock of the figures, clock that shipping parts report)."""


def contradiction(device: Device, row: Row) -> str:
    """What speaks against a device being the row's, as a phrase; empty if nothing does.

    A "NVIDIA A100-SXM4-40GB" that reports compute capability 7.0 is no A100. Facts that are not
    known on either side speak against nothing.
    """
    vendor = _VENDORS.get(device.kind)
    if vendor is not None and row.vendor not in ("", vendor):
        return (
            f"its facts contradict each other: the {row.name} is made by {row.vendor}, and a "
            f"device of kind {device.kind!r} by {vendor}"
        )
    reported = (device.compute_capability or "").partition(":")[0]  # gfx942:sramecc+:xnack-
    if reported and row.architectures and reported not in row.architectures:
        return (
            f"its facts contradict each other: the {row.name} is of architecture "
            f"{row.architectures[0]}, and this device reports {reported}"
        )
    if device.memory_bytes is not None and not _can_have(device, row, device.memory_bytes):
        return (
            f"its facts contradict each other: the {row.name} has "
            f"{bytes_(row.memory_bytes or 0)} of memory, and this device reports "
            f"{bytes_(device.memory_bytes)}"
        )
    return ""


def _can_have(device: Device, row: Row, memory_bytes: int) -> bool:
    if row.memory_bytes is None or mig_profile(device) is not None:
        return True
    if None not in (device.sm_count, row.sm_count) and not _is_edition(device, row):
        return True  # a part of the device has a part of the memory
    nominal = [row.memory_bytes]
    if row.name.startswith("GeForce"):
        nominal.append(2 * row.memory_bytes)  # sold with twice the memory: RTX 4090, 48 GB
    return any(abs(memory_bytes / size - 1) <= _MEMORY_TOLERANCE for size in nominal)


def why_not_by_name(device: Device, row: Row, dtype: str) -> str:
    """Why the figure of the row that has a device's name need not be the device's; empty if it is.

    A "TPU v3" does 123 TFLOP/s, and what a framework calls a device is one of its two cores.
    """
    key = split_vendor(split_mig(device.name)[0])[1]
    several = _NAMES_OF_SEVERAL.get(key)
    if several is not None and (key == "orin" or device.sm_count != row.sm_count):
        return f"the name says too little: {several}"
    if re.search(r" vf$", key) and device.sm_count is None:
        return (
            "it is a virtual function, and how many CUs that has is not known here; "
            "detect_device() on its machine tells"
        )
    if row.devices_per_unit > 1:
        rate = row.flops_per_s[dtype]
        return (
            f"the documented figure is that of the whole {row.unit}, and a device of a framework "
            f"is a part of it: one of {row.devices_per_unit}, "
            f"{rate / row.devices_per_unit / 1e12:.6g} TFLOP/s each"
        )
    return _why_not_at_its_clock(device, row, dtype)


def _why_not_at_its_clock(device: Device, row: Row, dtype: str) -> str:
    clocks = _LEAST_CLOCK_HZ.get(row.name)
    if clocks is not None and (device.max_clock_hz or 0) < clocks[0]:
        return (
            f"the documented figure is at {_mhz(clocks[1])}, and shipping parts run at "
            f"{_mhz(clocks[2])}"
        )
    shortfall = clock_shortfall(device, row.implied_clock_hz(dtype))
    if shortfall is not None and row.name.startswith("Jetson"):
        return (
            f"its highest clock is {_mhz(device.max_clock_hz or 0)}, in this power mode or module, "
            f"and the documented figure is at {_mhz(row.implied_clock_hz(dtype) or 0)}"
        )
    return ""


def clock_shortfall(device: Device, clock_hz: float | None) -> float | None:
    """By how much a device's highest clock is below a figure's, as a fraction, if it is clearly.

    An MI300X that is set to 1900 MHz is 9.5 % below the 2100 MHz of its figures.
    """
    if not device.max_clock_hz or not clock_hz:
        return None
    share = device.max_clock_hz / clock_hz
    return None if share >= _SAME_CLOCK else 1 - share


def shortfall_text(device: Device, clock_hz: float | None, others_hz: float | None) -> str:
    """What a source says of it.

    Args:
        device: Whose highest clock is lower.
        clock_hz: Of the figure; ``None`` where that is not known.
        others_hz: Of the other figures of the row.
    """
    text = f"this device's highest clock is {_mhz(device.max_clock_hz or 0)}"
    if clock_hz is None:
        return f"{text}, and other figures of the document are at {_mhz(others_hz or 0)}"
    return f"{text}, and the figure is at {_mhz(clock_hz)}"


def can_be_part(device: Device, row: Row) -> bool:
    """Whether a device that is no MIG slice, with its multiprocessors, can be (part of) the row's.

    True of an edition with a few more or fewer, of a partition of an AMD Instinct, and of what a
    user's own table describes.
    """
    assert device.sm_count is not None and row.sm_count is not None
    if _is_edition(device, row):
        return True
    if not 0 < device.sm_count < row.sm_count:
        return False
    if row.verified == "user":
        return True
    whole, rest = divmod(row.sm_count, device.sm_count)
    return rest == 0 and whole <= 8 and any(one in _PARTITIONED for one in row.architectures)


def _is_edition(device: Device, row: Row) -> bool:
    assert device.sm_count is not None and row.sm_count is not None
    return _FEWER <= device.sm_count / row.sm_count <= _MORE


def _mhz(clock_hz: float) -> str:
    return f"{clock_hz / 1e6:.0f} MHz"
