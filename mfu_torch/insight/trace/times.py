"""Time stamps in whole nanoseconds, exactly.

Kineto writes microseconds with three decimals. A float holds them below 2**43 us, where newer
versions keep them by subtracting a base; microseconds since 1970 it holds to 0.25 us only, so the
text is read. (The decoder would also be slow with those that end in ``.0`` or ``.5``.)
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.decode import Stamped, decode_stamps, texts

Floats = npt.NDArray[np.float64]

if TYPE_CHECKING:
    from mfu_torch.insight.trace.decode import Event, Text
    from mfu_torch.insight.trace.events import Ints

DAY_US = 86_400_000_000
"""No trace is longer: what lies further away is a broken time stamp."""
_LATEST_US = 4e15
_EXACT_US = float(1 << 43)
_PROBED = 1000
_LONGEST = 24
"""Bytes of a time stamp, with three decimals and room for more."""
_DECIMALS = re.compile(rb'"ts"\s*:\s*"?\d{13,}\.\d{3}')  # fewer: from floats, by another tool
_POINT = (ord(".") - ord("0")) % 256
_FRACTION = re.compile(rb'"ts"\s*:\s*\d{13,}\.\d')


@dataclass
class Origin:
    """The whole microsecond that times are counted from: that of an early event.

    Attributes:
        us: It; ``None`` before there are events.
        of_text: Whether the text of time stamps says more than a float, or is read sooner.
    """

    us: int | None = None
    of_text: bool = False
    _has_decimals: bool | None = None

    def shifted(self, events: list[Event], text: Text) -> bool:
        """Makes ``ts`` of events relative to the origin where a float holds it only so.

        Returns whether it did: then they are exact, and small.
        """
        self._set(events)
        if self.us is None or abs(self.us) < _EXACT_US:
            return False
        if self._has_decimals is None:
            self._has_decimals = _DECIMALS.search(text) is not None
            self.of_text = _FRACTION.search(text) is not None
        if not self._has_decimals or any(isinstance(event, Stamped) for event in events):
            return False
        stamps = decode_stamps(text)
        if stamps is None or len(stamps) != len(events):
            return False
        if not any(map(_has_three, stamps)):
            return False  # written from floats by another tool: no more is known
        for event, us in zip(events, _relative_us(stamps, self.us), strict=True):
            if event.cat != "":  # not read
                event.ts = us
        return True

    def times(
        self, events: list[Event], shifted: bool
    ) -> tuple[Ints, Ints, npt.NDArray[np.bool_] | None]:
        """Start and end in ns since the origin, and which are possible (``None``: all)."""
        if isinstance(events[0], Stamped):
            found, shifted = self._read([event.ts for event in events])
            ts = np.fromiter(found, np.float64, len(events))
        else:
            ts = np.fromiter([event.ts for event in events], np.float64, len(events))
        dur = np.fromiter([event.dur for event in events], np.float64, len(events))
        valid = None
        possible = ts.min() > -_LATEST_US and ts.max() < _LATEST_US  # false for what is no number
        if not (possible and dur.min() >= 0 and dur.max() < DAY_US):
            valid = (np.abs(ts) < _LATEST_US) & (dur >= 0) & (dur < DAY_US)
            ts, dur = ts[valid], dur[valid]
        us = np.floor(ts)
        origin_us = 0 if shifted else self.us or 0
        start = (us.astype(np.int64) - origin_us) * 1000
        start += np.rint((ts - us) * 1000).astype(np.int64)
        return start, start + np.rint(dur * 1000).astype(np.int64), valid

    def _read(self, raws: list[Any]) -> tuple[Floats | list[float], bool]:
        """Time stamps from their text, and whether they are relative to the origin."""
        origin_us = self.us or 0
        parts = _uniform(raws)
        if parts is not None:
            us, thousandths, decimals = parts
            if self._has_decimals and decimals == 3:
                return us - origin_us + thousandths / 1000, True
            return us + thousandths / 1000, False  # rounded once, as the decoder does
        stamps = texts(raws)
        if self._has_decimals and any(_has_three(stamp) for stamp in stamps):
            return _relative_us(stamps, origin_us), True
        return [_float(stamp) for stamp in stamps], False

    def _set(self, events: list[Event]) -> None:
        if self.us is None:
            probed = (event.ts for event in events[:_PROBED] if event.ph in ("X", "B"))
            stamps = sorted(ts for ts in probed if abs(ts) < _LATEST_US)
            self.us = math.floor(stamps[len(stamps) // 2]) if stamps else None


def _has_three(stamp: bytes) -> bool:
    return b"." in stamp and len(stamp.rpartition(b".")[2]) >= 3


def _uniform(raws: list[Any]) -> tuple[Ints, Ints, int] | None:
    """Whole microseconds, thousandths of one, and decimals, if all have as many digits; else none.

    ``[b"1700000000000001.2"]`` -> 1700000000000001, 200, 1.
    """
    first, joined = bytes(raws[0]), b"".join(raws)
    point, length = first.find(b"."), len(first)
    decimals = length - point - 1
    if not 0 < point <= 18 or not 1 <= decimals <= 3 or len(joined) != length * len(raws):
        return None
    digits = np.frombuffer(joined, np.uint8).reshape(len(raws), length) - ord("0")  # wraps
    whole, fraction = digits[:, :point], digits[:, point + 1 :]
    if (digits[:, point] != _POINT).any() or max(whole.max(), fraction.max()) > 9:
        return None
    us, thousandths = np.zeros((2, len(raws)), np.int64)
    for place in range(point):
        us = us * 10 + whole[:, place]
    for place in range(decimals):
        thousandths += fraction[:, place] * np.int64(10 ** (2 - place))
    return us, thousandths, decimals


def _float(stamp: bytes) -> float:
    try:
        return float(stamp.strip(b'"'))
    except ValueError:
        return math.nan


def _relative_us(stamps: list[bytes], origin_us: int) -> list[float]:
    """``b"1700000000000001.250"`` from 1700000000000000 -> 1.25."""
    point = next(stamp.find(b".") for stamp in stamps if b"." in stamp)
    if point > 18 or max(map(len, stamps)) > _LONGEST:
        return [_one_relative_us(stamp, origin_us) for stamp in stamps]
    text = np.array(stamps, f"S{_LONGEST}").view(np.uint8).reshape(len(stamps), _LONGEST)
    digits = text.astype(np.int64) - ord("0")
    shape = digits[:, [*range(point), *range(point + 1, point + 4)]]
    regular = ((shape >= 0) & (shape <= 9)).all(axis=1)
    regular &= (text[:, point] == ord(".")) & (text[:, point + 4] == 0)
    us = digits[:, :point] @ 10 ** np.arange(point)[::-1] - origin_us  # (n, point) @ (point,)
    found: list[float] = (us + digits[:, point + 1 : point + 4] @ [100, 10, 1] / 1000).tolist()
    for i in np.flatnonzero(~regular).tolist():
        found[i] = _one_relative_us(stamps[i], origin_us)
    return found


def _one_relative_us(stamp: bytes, origin_us: int) -> float:
    text = stamp.strip(b'"')
    whole, _, fraction = text.partition(b".")
    if len(whole) > 18:
        return math.nan
    if not whole.isdigit() or (fraction and not fraction.isdigit()):
        try:
            return float(text) - origin_us
        except ValueError:
            return math.nan
    return int(whole) - origin_us + int((fraction + b"000")[:3]) / 1000
