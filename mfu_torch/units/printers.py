"""Numbers in SI base units to text."""

from __future__ import annotations

import math
from collections.abc import Sequence

_STEPS = (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3))
_SCALE = (1e-9, 1e24)  # beyond it a number without an exponent is a row of zeros
_LEAST_PERCENT, _MOST_PERCENT = 1e-9, 1e12
_SHORTEST_S, _LONGEST_S = 1e-12, 1e9  # a thousandth of a nanosecond, 32 years


def scaled(value: float, unit: str, digits: int = 3) -> str:
    """``scaled(9.89e14, "FLOP/s")`` -> ``"989 TFLOP/s"``; with no unit, ``"13.1k"``."""
    if abs(value) < 1000 and value == int(value):
        return f"{int(value)}{' ' if unit else ''}{unit}"
    if not _SCALE[0] <= abs(value) < _SCALE[1]:
        return f"{value:.{digits - 1}e}{' ' if unit else ''}{unit}"
    for prefix, size in _STEPS:
        if _round(abs(value), digits) >= size:
            return f"{significant(value / size, digits)}{' ' if unit else ''}{prefix}{unit}"
    return f"{significant(value, digits)}{' ' if unit else ''}{unit}"


def count_text(value: float, digits: int = 4) -> str:
    """As people write counts, with B for 10^9: ``"70B"``, ``"70.55B"``, ``"15T"``, ``"8,192"``."""
    if value < 1e6:
        return f"{value:,.{0 if value == int(value) else 2}f}"
    number, prefix = scaled(value, "", digits)[:-1], scaled(value, "", digits)[-1]
    short = number.rstrip("0").rstrip(".") if "." in number else number
    return short + prefix.replace("G", "B")


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
    if value != 0 and not _LEAST_PERCENT <= abs(value) < _MOST_PERCENT:
        return f"{value:.1e} %"
    if value != 0 and abs(_round(value, 2)) < 1:
        return f"{significant(value, 2)} %"
    return f"{value:.1f} %"


def percent_exact(share: float) -> str:
    """With two decimals, as published tables have: ``0.28311`` -> ``"28.31 %"``.

    What that would show as nothing keeps two digits: ``0.0000042`` -> ``"0.00042 %"``.
    """
    value = share * 100
    if value != 0 and not _LEAST_PERCENT <= abs(value) < _MOST_PERCENT:
        return f"{value:.1e} %"
    return f"{value:.2f} %" if abs(value) >= 0.01 or value == 0 else f"{significant(value, 2)} %"


def margin(uncertainty: float | None) -> str:
    """``0.09`` -> ``" (up to 9.0 % off)"``; nothing where there is none."""
    return "" if uncertainty is None else f" (up to {percent(uncertainty)} off)"


def seconds(value: float) -> str:
    """``0.3124`` -> ``"312 ms"``; ``75`` -> ``"75.0 s"``; ``7260`` -> ``"2 h 01 min"``."""
    if value < 0 or not math.isfinite(value):
        return f"-{seconds(-value)}" if value < 0 else f"{value} s"
    if value >= _LONGEST_S or 0 < value < _SHORTEST_S:  # else a row of digits, or of zeros
        return f"{value:.3g} s"
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
