"""What connects devices, from ``data/interconnects.csv``: vendors' figures, in one direction."""

from __future__ import annotations

import csv
import functools
from importlib import resources
from typing import Literal

from mfu_torch.peak.rows import number
from mfu_torch.records import Record

Reach = Literal["node", "network"]


class Interconnect(Record, frozen=True, kw_only=True):
    """A link of one device.

    Attributes:
        devices: Names of the rows of the table of peaks that have it.
        reach: ``node``: to the devices of its node; ``network``: out of it, as the vendor's own
            machines have it.
        technology: What it is.
        bytes_per_s: In one direction, of one device.
        source: Document.
    """

    devices: tuple[str, ...]
    reach: Reach
    technology: str
    bytes_per_s: float
    source: str


def interconnect_of(row_name: str, reach: Reach) -> Interconnect | None:
    """That of a device, by the name of its row: ``H100 SXM5``."""
    fitting = (one for one in interconnects() if row_name in one.devices and one.reach == reach)
    return next(fitting, None)


@functools.cache
def interconnects() -> tuple[Interconnect, ...]:
    """All of them, read once."""
    text = (resources.files("mfu_torch") / "data" / "interconnects.csv").read_text("utf-8")
    return tuple(
        Interconnect(
            devices=tuple(cells["devices"].split("|")),
            reach="node" if cells["reach"] == "node" else "network",
            technology=cells["technology"],
            bytes_per_s=number(cells["gb_per_s"], 9) or 0.0,
            source=cells["source"],
        )
        for cells in csv.DictReader(text.splitlines())
    )
