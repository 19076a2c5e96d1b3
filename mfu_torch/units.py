"""Numbers to text and back: the only place where either happens.

Inside mfu_torch everything is SI base units and fractions; ``"989 TFLOP/s"`` and ``"41.2 %"``
exist only here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
_PREFIXES |= {"P": 10**15, "E": 10**18}
_STEPS = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_QUANTITY = re.compile(r"^\s*([-+]?[0-9][0-9_,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)\s*(.*?)\s*$")


_LEAST_WITHOUT_UNIT = 1e9  # FLOP/s; a phone has more


def parse_flops_per_s(value: float | str) -> float:
    """A rate as people write it: ``989e12``, ``"989 TFLOP/s"``, ``"989 TFLOPS"``, ``"312T"``.

    A text without a unit or prefix is FLOP/s, too, from 1e9 on: ``"989e12"``. Below that its unit
    was forgotten: ``"989"`` is meant to be TFLOP/s by most, and taken for FLOP/s the MFU would be
    10^12 times too high. Numbers are what they are.

    Raises:
        ValueError: If the text is not a rate, lacks its unit, or the number is not positive and
            finite.
    """
    if isinstance(value, str):
        rate, unit = _parse(value, r"(?:FLOPs?/s(?:ec)?|FLOPS|flops?/s|flops)?", "a rate in FLOP/s")
    else:
        rate, unit = float(value), ""
    if not (0 < rate < math.inf):
        raise ValueError(f'{value!r} is no rate; expected FLOP/s, e.g. 989e12 or "989 TFLOP/s"')
    if isinstance(value, str) and not unit and rate < _LEAST_WITHOUT_UNIT:
        raise ValueError(
            f"{value!r} has no unit, and no device runs at so few FLOP/s; expected e.g. "
            f'"{value.strip()} TFLOP/s" or 989e12'
        )
    return rate


def _parse(text: str, unit: str, expected: str) -> tuple[float, str]:
    match = _QUANTITY.match(text)
    if match is not None:
        suffix = re.fullmatch(rf"([kKMGBTPE]?){unit}", match.group(2))
        if suffix is not None:
            number = match.group(1).replace(",", "").replace("_", "")
            return float(number) * _PREFIXES[suffix.group(1)], suffix.group(0)
    raise ValueError(f'{text!r} is not {expected}; expected e.g. 989e12 or "989 TFLOP/s"')


def scaled(value: float, unit: str, digits: int = 3) -> str:
    """``scaled(9.89e14, "FLOP/s")`` -> ``"989 TFLOP/s"``; with no unit, ``"13.1k"``."""
    if abs(value) < 1000 and value == int(value):
        return f"{int(value)}{' ' if unit else ''}{unit}"
    for prefix, size in _STEPS:
        if _round(abs(value), digits) >= size:
            return f"{significant(value / size, digits)}{' ' if unit else ''}{prefix}{unit}"
    return f"{significant(value, digits)}{' ' if unit else ''}{unit}"


def significant(value: float, digits: int = 3) -> str:
    """``digits`` significant digits, no exponent: 989.4 -> ``"989"``, 0.0412 -> ``"0.0412"``."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    value = _round(value, digits)
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _round(value: float, digits: int) -> float:
    return float(f"{value:.{digits - 1}e}")


def percent(share: float) -> str:
    """``0.4123`` -> ``"41.2 %"``; small shares keep two digits: ``0.00042`` -> ``"0.042 %"``."""
    value = share * 100
    if value != 0 and abs(_round(value, 2)) < 1:
        return f"{significant(value, 2)} %"
    return f"{value:.1f} %"


def margin(uncertainty: float | None) -> str:
    """``0.09`` -> ``" (up to 9.0 % off)"``; nothing where there is none."""
    return "" if uncertainty is None else f" (up to {percent(uncertainty)} off)"


def seconds(value: float) -> str:
    """``0.3124`` -> ``"312 ms"``; ``75`` -> ``"75.0 s"``; ``7260`` -> ``"2 h 01 min"``."""
    if value < 0 or not math.isfinite(value):
        return f"-{seconds(-value)}" if value < 0 else f"{value} s"
    if round(value) >= 3600:
        hours, minutes = divmod(round(value / 60), 60)
        return f"{hours} h {minutes:02d} min"
    if value >= 600:
        minutes, rest = divmod(round(value), 60)
        return f"{minutes} min {rest:02d} s"
    if value == 0:
        return "0 s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if _round(value, 3) >= size:
            return f"{significant(value / size)} {unit}"
    return f"{significant(value / 1e-9)} ns"


def bytes_(value: float) -> str:
    """``85e9`` -> ``"85.0 GB"`` (powers of 1000)."""
    return scaled(value, "B")


def rounded_parts(parts: Sequence[float], decimals: int) -> list[str]:
    """Parts of a whole as text that adds up: the printed parts sum to the printed total.

    Largest remainder: every part is rounded down, then those that lost most are rounded up until
    the sum is right. Thirds of 1 with one decimal: ``["0.4", "0.3", "0.3"]``. Parts that are not
    finite are ``"-"``; then nothing can add up, and the others are just rounded.
    """
    if not all(map(math.isfinite, parts)):
        return [f"{part:.{decimals}f}" if math.isfinite(part) else "-" for part in parts]
    unit = 10**decimals
    # Rounding first removes float noise, which rounding down would turn into a whole unit:
    # 0.29 * 100 is 28.999999999999996.
    exact = [round(part * unit, 6) for part in parts]
    whole = [math.floor(part) for part in exact]
    missing = round(math.fsum(parts) * unit) - sum(whole)
    by_loss = sorted(range(len(parts)), key=lambda i: whole[i] - exact[i])
    for i in by_loss[: max(0, missing)]:
        whole[i] += 1
    return [f"{part / unit:.{decimals}f}" for part in whole]
