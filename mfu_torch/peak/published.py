"""What others measured a device to reach, from ``data/mamf.csv``: to stand beside a figure.

Such a figure is no peak: it holds for one shape, library and cooling. A device is matched as in
the table of peaks, by its whole name, and only where it is a whole device of that kind.
"""

from __future__ import annotations

import csv
import functools
import re
from importlib import resources

from mfu_torch.peak.matmuls import Shape
from mfu_torch.peak.table import find_rows
from mfu_torch.records import Device, Record

_MEMORY_TOLERANCE = 0.1


class Published(Record, frozen=True):
    """The best matmul that someone measured on a device.

    Attributes:
        device: As its source calls it.
        driver_names: Of the devices that this is.
        memory_bytes: Where the name is shared by devices of other memories.
        conditions: Shape (MxNxK), versions, clock, as far as the source says.
        source: Repository and commit, or document.
    """

    device: str
    driver_names: tuple[str, ...]
    memory_bytes: float | None
    dtype: str
    flops_per_s: float
    conditions: str
    source: str

    @property
    def shape(self) -> Shape | None:
        """The shape in the conditions: ``(2048, 2048, 13312)`` of 2048x2048x13312."""
        found = re.match(r"(\d+)x(\d+)x(\d+)\b", self.conditions)
        return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def published_for(device: Device, dtype: str) -> tuple[Published, ...]:
    """What was published for this device and dtype, the highest first; never for a similar one.

    ``NVIDIA H100 80GB HBM3`` and bf16: 794.5 TFLOP/s. A slice of a GPU has no figure.
    """
    found = [one for one in published() if one.dtype == dtype and _is_of(one, device)]
    return tuple(sorted(found, key=lambda one: -one.flops_per_s))


def _is_of(one: Published, device: Device) -> bool:
    rows = find_rows(device)
    if not rows or device.mig is not None or re.search(r"\sMIG\s", device.name):
        return False
    if device.sm_count is not None and any(row.sm_count != device.sm_count for row in rows):
        return False
    if one.memory_bytes is not None:
        if device.memory_bytes is None:
            return False
        if abs(device.memory_bytes / one.memory_bytes - 1) > _MEMORY_TOLERANCE:
            return False
    # Every device that this may be has to be the one that was measured.
    return {row.name for row in rows} <= _row_names(one.driver_names)


@functools.cache
def _row_names(driver_names: tuple[str, ...]) -> frozenset[str]:
    devices = [Device(name=name, kind="cuda") for name in driver_names]
    return frozenset(row.name for device in devices for row in find_rows(device))


@functools.cache
def published() -> tuple[Published, ...]:
    """All of them, read once."""
    text = (resources.files("mfu_torch") / "data" / "mamf.csv").read_text(encoding="utf-8")
    return tuple(
        Published(
            device=cells["device"],
            driver_names=tuple(cells["driver_names"].split("|")),
            memory_bytes=float(cells["memory_gb"] + "e9") if cells["memory_gb"] else None,
            dtype=cells["dtype"],
            flops_per_s=float(cells["tflops"] + "e12"),
            conditions=cells["shape_or_conditions"],
            source=cells["source"],
        )
        for cells in csv.DictReader(text.splitlines())
    )
