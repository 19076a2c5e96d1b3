"""What drivers say: whether a figure can be true is decided here and nowhere else.

Drivers give what they cannot read as 0, as all ones (4294967295 MHz) or as NaN. None of these is a
figure of the device, and a mean with one of them in it is none either.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

_ALL_ONES = frozenset({2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1})
"""How C says "not known", in the widths that drivers use. 65535 is out of every range below that
it is given for, and may be a true number of bytes."""

_TOLERANCE = 0.02
"""So much a share may be above 1, or below 0, by the rounding of its counters."""


class Raw(NamedTuple):
    """What a driver said, in its own unit.

    Attributes:
        value: As it came, of whatever type.
        factor: To the unit of :class:`~mfu_torch.records.Telemetry`.
        unit: The driver's.
    """

    value: Any
    factor: float = 1.0
    unit: str = ""


class _Range(NamedTuple):
    """From ``least`` to ``most``, both included; ``above`` leaves out ``least``."""

    least: float
    most: float
    above: bool = False

    def has(self, value: float) -> bool:
        return self.least <= value <= self.most and not (self.above and value == self.least)


_SHARE = _Range(-_TOLERANCE, 1 + _TOLERANCE)
_CLOCK_HZ = _Range(0.0, 10e9, above=True)
_BYTES = _Range(0.0, 2.0**60)
_SHARES = ("gpu_util", "cpu_util", "sm_active", "tensor_active", "dram_active")

_RANGES: dict[str, _Range] = {
    **dict.fromkeys(_SHARES, _SHARE),
    "sm_clock_hz": _CLOCK_HZ,
    "memory_clock_hz": _CLOCK_HZ,
    "power_w": _Range(0.0, 10e3),
    "power_limit_w": _Range(0.0, 10e3, above=True),
    "power_default_w": _Range(0.0, 10e3, above=True),
    "temperature_c": _Range(-50.0, 200.0),
    "memory_used_bytes": _BYTES,
    "pcie_rx_bytes_per_s": _BYTES,
    "pcie_tx_bytes_per_s": _BYTES,
    "nvlink_rx_bytes_per_s": _BYTES,
    "nvlink_tx_bytes_per_s": _BYTES,
    "other_processes": _Range(0.0, 2.0**22),  # the most that Linux has
}


def checked(field: str, raw: Raw, who: str) -> float | str:
    """The value in the unit of a field, or the reason why there is none.

    ``Raw(1755, 1e6, "MHz")`` of ``sm_clock_hz`` is 1.755e9; of ``Raw(4294967295, 1e6, "MHz")`` the
    reason is "NVML reported 4294967295 MHz". A share a hair outside 0 to 1 is put inside.

    Args:
        field: Of :class:`~mfu_torch.records.Telemetry`.
        raw: What came.
        who: It came from.
    """
    try:
        value = float(raw.value) * raw.factor if not isinstance(raw.value, str) else math.nan
    except (TypeError, ValueError, OverflowError):  # None, a structure, an int beyond a float
        value = math.nan
    if all_ones(raw.value) or not _RANGES[field].has(value):
        return f"{who} reported {_text(raw)}"
    return min(max(value, 0.0), 1.0) if field in _SHARES else value


def all_ones(value: Any) -> bool:
    """Whether it is C's word for "not known" and no number."""
    return isinstance(value, int) and value in _ALL_ONES


def checked_bits(bits: Any, who: str) -> int | str:
    """A set of bits, or the reason why it is none: all 32 or 64 of them, or no such number."""
    if type(bits) is int and 0 <= bits < 2**64 and not all_ones(bits):
        return bits
    return f"{who} reported {_text(Raw(bits))} as a set of bits"


def process_ids(pids: set[int]) -> set[int]:
    """Those that can be one of a process."""
    return {pid for pid in pids if 0 < pid < 2**31 - 1}


def said(error: BaseException) -> str:
    """What an exception says, on one line; at least its name."""
    try:
        text = " ".join(str(error).split())
    # pynvml asks the driver for the text of an error that it does not know.
    except Exception:
        text = ""
    return text or type(error).__name__


def _text(raw: Raw) -> str:
    value = raw.value
    if not isinstance(value, (int, float)):
        return str(value)[:60]
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return f"{text} {raw.unit}" if raw.unit else text
