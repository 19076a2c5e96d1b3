"""Which facts of a device cannot be those of the table's row that has its name.

A name alone can be wrong: spoofed by a virtual machine, typed by hand, or given to another card
by a later driver. A figure is handed out only if the other facts do not speak against it.
"""

from __future__ import annotations

from mfu_torch.peak.names import mig_profile
from mfu_torch.peak.rows import Row
from mfu_torch.records import Device
from mfu_torch.units import bytes_

_VENDORS = {"cuda": "NVIDIA", "rocm": "AMD", "mps": "Apple"}
"""Kind of a device -> whose it is."""

_MEMORY_TOLERANCE = 0.25
"""Drivers report up to 8 % less than the nominal size (ECC: a T4 has 14.7 of 16 GiB)."""


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
    if None not in (device.sm_count, row.sm_count) and device.sm_count != row.sm_count:
        return True  # a part of the device has a part of the memory
    nominal = [row.memory_bytes]
    if row.name.startswith("GeForce"):
        nominal.append(2 * row.memory_bytes)  # sold with twice the memory: RTX 4090, 48 GB
    return any(abs(memory_bytes / size - 1) <= _MEMORY_TOLERANCE for size in nominal)
