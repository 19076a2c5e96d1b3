"""Text of people to numbers in SI base units; what is wrong with one is said in one line."""

from __future__ import annotations

import math
import re

_EXPONENTS = {"": 0, "k": 3, "K": 3, "M": 6, "G": 9, "B": 9, "T": 12, "P": 15, "E": 18}
# A comma stands between groups of three digits only: "1,5" is no 15.
_NUMBER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+(?:_[0-9]+)*|(?=\.[0-9]))(?:\.[0-9]*)?"
_QUANTITY = re.compile(rf"\s*([-+]?{_NUMBER})(?:[eE]([-+]?[0-9]{{1,6}}))?\s*(.*?)\s*", re.DOTALL)

_LEAST_WITHOUT_UNIT = 1e9  # FLOP/s; a phone has more
_MOST_TFLOPS = 1e6  # a rack has less
_LARGEST_WHOLE = 10**15

_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0, "secs": 1.0}
_SECONDS |= {"second": 1.0, "seconds": 1.0, "min": 60.0, "mins": 60.0, "minute": 60.0}
_SECONDS |= {"minutes": 60.0, "h": 3600.0, "hr": 3600.0, "hrs": 3600.0, "hour": 3600.0}
_SECONDS |= {"hours": 3600.0, "d": 86400.0, "day": 86400.0, "days": 86400.0}
_PER_TIME = {"s": 1, "sec": 1, "second": 1, "min": 60, "minute": 60, "h": 3600, "hour": 3600}
_PER_TIME |= {"d": 86400, "day": 86400}
_ITEMS = {
    "tokens": "toks?|tokens?",
    "samples": "samples?|seqs?|sequences?|images?|imgs?|examples?",
    "bytes": "bytes?|B",
}

_A_COUNT = "a number above 0, e.g. 70B, 2.4e15 or 8,192"
_A_WHOLE = "a whole number from 1 on"
_DAYS = 'a time above 0, e.g. 60 (days), "12 h" or "3 d"'
_A_TIME = 'a time above 0, e.g. 1.2 (seconds), "350 ms" or "2 h"'
_A_SHARE = 'a share, e.g. "40 %" or 0.40'
_A_BANDWIDTH = 'bytes per second, e.g. "3.35 TB/s" or 3.35e12'
_A_PEAK = 'TFLOP/s above 0, e.g. 989, "989 TFLOP/s" or "0.989 PFLOP/s"'


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
        rate, unit = _parse(value, _FLOPS_PER_S, "a rate in FLOP/s")
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


_FLOPS_PER_S = r"(?:FLOPs?/s(?:ec)?|FLOPS|flops?/s|flops)?"


def _parse(text: str, unit: str, expected: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text)
    if match is not None:
        suffix = re.fullmatch(rf"([kKMGBTPE]?){unit}", match.group(3))
        if suffix is not None:
            return _number(match, _EXPONENTS[suffix.group(1)]), suffix.group(0)
    raise ValueError(f'{text!r} is not {expected}; expected e.g. 989e12 or "989 TFLOP/s"')


def _number(match: re.Match[str], exponent: int = 0) -> float:
    # Not a product: 66.9 * 1e12 is 66900000000000.01.
    digits = match.group(1).replace(",", "").replace("_", "")
    return float(f"{digits}e{int(match.group(2) or 0) + exponent}")


def _above_0(value: float, given: float | str, expected: str) -> float:
    if math.isfinite(value) and value > 0:
        return value
    why = "is more than a number here can hold" if value == math.inf else "is not above 0"
    if not isinstance(given, str) and not math.isfinite(given):
        why = "is not a number"
    raise ValueError(f"{_shown(given)} {why}; expected {expected}")


def _shown(given: float | str) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _quantity(
    value: float | str, unit: str, expected: str, prefixes: str = "kKMGBTPE"
) -> tuple[float, str]:
    """The number above 0 in base units, and its unit, of those that the pattern ``unit`` allows."""
    if not isinstance(value, str):
        return _above_0(float(value), value, expected), ""
    match = _QUANTITY.fullmatch(value)
    suffix = match and re.fullmatch(rf"([{prefixes}]?)\s*({unit})", match.group(3), re.IGNORECASE)
    if not match or not suffix:
        raise ValueError(f"{_shown(value)} is not understood; expected {expected}")
    if suffix.group(1) == "e":  # "70e": an exponent whose digits were lost, and no exa
        raise ValueError(f"{_shown(value)} ends in its exponent; expected {expected}")
    exponent = _EXPONENTS.get(suffix.group(1), _EXPONENTS.get(suffix.group(1).upper(), 0))
    return _above_0(_number(match, exponent), value, expected), suffix.group(2)


def parse_count(value: float | str) -> float:
    """How many: ``"70B"`` -> 70e9, ``"15T tokens"``, ``"2.4e15"``, ``"8,192"``, ``"1_000"``.

    Raises:
        ValueError: If it is no number above 0.
    """
    return _quantity(value, "tokens?|params?|parameters?|samples?|sequences?|", _A_COUNT)[0]


def parse_whole(value: float | str) -> int:
    """A whole number: ``"8,192"`` -> 8192. ``"8k"`` is refused: 8000 or 8192.

    Raises:
        ValueError: If it is no whole number from 1 to 10^15.
    """
    if isinstance(value, str) and (short := re.fullmatch(r"\s*([0-9]{1,9})\s*[kK]\s*", value)):
        thousands = int(short.group(1))
        raise ValueError(
            f"{_shown(value)} may be {1000 * thousands} or {1024 * thousands}; expected the number "
            "itself"
        )
    number = _quantity(value, "", _A_WHOLE, prefixes=" ")[0]
    if number != int(number) or number > _LARGEST_WHOLE:
        raise ValueError(f"{_shown(value)} is no whole number from 1 to 10^15; expected {_A_WHOLE}")
    return int(number)


def parse_flops(value: float | str) -> float:
    """FLOPs, a number and no rate: ``"2.4e18"``, ``"2.4 EFLOP"``, ``"2.4 EFLOPs"``.

    Raises:
        ValueError: If it is no number above 0.
    """
    return _quantity(value, "FLOPs?|", 'FLOPs above 0, e.g. 2.4e15 or "2.4 PFLOP"')[0]


def parse_seconds(value: float | str) -> float:
    """A time: ``"1.2"`` and ``"1.2 s"`` -> 1.2, ``"350ms"`` -> 0.35, ``"90 min"``, ``"3 d"``.

    Raises:
        ValueError: If it is no time above 0.
    """
    return _seconds(value, _A_TIME)


def _seconds(value: float | str, expected: str) -> float:
    seconds, unit = _quantity(value, "|".join(("", *_SECONDS)), expected, prefixes=" ")
    size = _SECONDS[unit.lower() or "s"]
    return seconds * size if size >= 1 else seconds / round(1 / size)  # 350 * 1e-3 is not 0.35


def parse_days(value: float | str) -> float:
    """A time in seconds, in days where no unit is given: ``"60"`` -> 5,184,000.

    Raises:
        ValueError: If it is no time above 0.
    """
    is_bare = not isinstance(value, str) or not value.strip()[-1:].isalpha()
    return _seconds(value, _DAYS) * (_SECONDS["d"] if is_bare else 1)


def parse_share(value: float | str) -> float:
    """A share of 1: ``"40 %"`` and ``"0.4"`` -> 0.4. ``"40"`` is refused: it has no unit.

    Raises:
        ValueError: If it is no share above 0, at most 1.
    """
    share, unit = _quantity(value, "%|percent|", _A_SHARE, prefixes=" ")
    if not unit and share > 1:
        number = str(value).strip()
        hundredth = f" or {_as_fraction(share)}" if share <= 100 else ""
        raise ValueError(f'{_shown(value)} is no share of 1; expected "{number} %"{hundredth}')
    share = share / 100 if unit else share
    if not 0 < share <= 1:
        raise ValueError(
            f"{_shown(value)} is no share above 0 and up to 100 %; expected {_A_SHARE}"
        )
    return share


def _as_fraction(percents: float) -> str:
    """``40`` -> ``"0.40"``, ``1.4`` -> ``"0.014"``."""
    share = round(percents / 100, 12)
    return f"{share:.2f}" if share == round(share, 2) else f"{share:.10g}"


def parse_per_s(value: float | str, of: str = "tokens", *, per_device: bool = False) -> float:
    """Tokens or samples per second: ``"2000"``, ``"1.2M tokens/s"``, ``"272.8B tokens/day"``.

    Args:
        value: The text, or a number per second.
        of: ``"tokens"`` or ``"samples"``: what is counted.
        per_device: Whether it is that of one device: ``"866.77 tok/s/GPU"`` is refused where not.

    Raises:
        ValueError: If it is no such rate above 0.
    """
    item, per = _ITEMS[of], "|".join(_PER_TIME)
    unit = rf"(?:(?:{item})?\s*(?:/|per)\s*(?:{per})(?:\s*(?:/|per)\s*(?:gpu|device|chip|tpu))?)?"
    expected = f'{of} per second above 0, e.g. 2000, "1.2M {of}/s" or "90B {of}/day"'
    if of == "tokens" and isinstance(value, str):  # "24.5 t/s": tokens; tera is a capital
        value = re.sub(r"(?<=[0-9 kKMB])t(?=\s*(?:/|per\b))", "tok", value)
    rate, found = _quantity(value, unit, expected)
    words = re.split(r"\s*(?:/|\bper\b)\s*", found.lower())
    if len(words) > 2 and not per_device:
        raise ValueError(f"{_shown(value)} is the rate of one device; expected {of}/s of all")
    return rate / _PER_TIME[words[1]] if len(words) > 1 else rate


def parse_bytes_per_s(value: float | str) -> float:
    """A bandwidth: ``"3.35 TB/s"``, ``"900 GB/s"``, ``3.35e12``; no bits.

    Raises:
        ValueError: If it is no bandwidth above 0, or a text without a unit.
    """
    rate, unit = _quantity(value, r"(?:B|bytes?)\s*(?:/|per)\s*s(?:ec|econd)?|", _A_BANDWIDTH)
    if isinstance(value, str) and (re.search(r"[kKMGTP]b\s*/", value) or (not unit and rate < 1e6)):
        raise ValueError(f"{_shown(value)} is not in bytes per second; expected {_A_BANDWIDTH}")
    return rate


def parse_tflops_per_s(value: float | str) -> float:
    """A peak in FLOP/s, from TFLOP/s where no unit is given: ``"989"`` -> 989e12.

    Raises:
        ValueError: If it is no rate above 0, or FLOP/s were given without their unit.
    """
    rate, unit = _quantity(value, "FLOPs?(?:/s(?:ec)?)?|", _A_PEAK)
    if unit or (isinstance(value, str) and value.strip()[-1:].isalpha()):
        return rate
    if rate >= _MOST_TFLOPS:
        raise ValueError(f"{_shown(value)} TFLOP/s is the peak of no device; expected {_A_PEAK}")
    return float(f"{rate!r}e12") if "e" not in repr(rate) else rate * 1e12


def parse_money(value: float | str) -> float:
    """An amount: ``"2.50"`` and ``"$2.50"`` -> 2.5.

    Raises:
        ValueError: If it is no amount above 0.
    """
    text = value.strip().removeprefix("$") if isinstance(value, str) else value
    try:
        return _quantity(text, "USD|", 'an amount above 0, e.g. 2.50 or "$2.50"', prefixes=" ")[0]
    except ValueError as problem:
        raise ValueError(str(problem).replace(_shown(text), _shown(value), 1)) from None
