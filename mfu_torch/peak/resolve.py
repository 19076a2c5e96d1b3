"""Which peak a run divides by.

In this order: what the user gave, a user table, the built-in table, arithmetic, and, on a CPU,
a measurement in place of the last two.

A peak that is not known is a reason, not an error: a run without one reports FLOP/s and no MFU.
"""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Protocol

from mfu_torch.peak.benchmark import kept_peak, measured_peak
from mfu_torch.peak.cache import CacheDir
from mfu_torch.peak.names import unknown
from mfu_torch.peak.saved import saved_peak
from mfu_torch.peak.table import DTYPES, SUPPLY_PEAK, check_dtype, peak_for, user_peak
from mfu_torch.peak.user_table import TablePaths, UserTableError
from mfu_torch.records import Device, Peak, PeakEntry, UnknownPeak
from mfu_torch.units import parse_flops_per_s

GivenPeak = float | str | Peak
"""One peak as a user gives it: FLOP/s, ``"989 TFLOP/s"``, or a :class:`Peak`."""

Given = GivenPeak | Mapping[str, GivenPeak] | None
"""What ``peak=`` accepts: a figure for every dtype, or one for each dtype by name."""


NOT_DETERMINED = "the CPU's peak is not determined yet"
"""The reason of a CPU that can be measured and was not."""


class _Measure(Protocol):
    def __call__(self, device: Device, dtype: str, *, cache_dir: CacheDir) -> Peak: ...


def resolve_peak(
    device: Device,
    dtype: str,
    given: Given = None,
    cache_dir: CacheDir = None,
    table: TablePaths = None,
) -> PeakEntry:
    """The peak of a device for one dtype, or the reason why there is none.

    Args:
        device: From :func:`detect_device`.
        dtype: That contractions ran in; one without peaks (``complex64``) is unknown.
        given: What the user passed as ``peak=``. A number or text holds for every dtype, a
            :class:`Peak` for its own only; dtypes that a mapping leaves out are looked up.
        cache_dir: Of measured peaks, see :func:`measured_peak`.
        table: User tables, see :func:`peak_for`. One that is not valid gives no peak: the reason
            is its error.

    Raises:
        ValueError, TypeError: If ``given`` is not a peak, as in :func:`check_given`.
    """
    check_given(given)
    return _entry(device, dtype, given, cache_dir, table, measured_peak)


def look_up_peak(
    device: Device, dtype: str, cache_dir: CacheDir = None, table: TablePaths = None
) -> PeakEntry:
    """What :func:`resolve_peak` would give, without measuring anything."""
    return _entry(device, dtype, None, cache_dir, table, _kept)


def _kept(device: Device, dtype: str, *, cache_dir: CacheDir) -> Peak:
    peak = kept_peak(device, dtype, cache_dir=cache_dir)
    if peak is None:
        raise unknown(
            device,
            dtype,
            f"{NOT_DETERMINED}; the first run that needs it measures it",
        )
    return peak


def _entry(
    device: Device,
    dtype: str,
    given: Given,
    cache_dir: CacheDir,
    table: TablePaths,
    measure: _Measure,
) -> PeakEntry:
    measured = saved_peak(device, dtype, cache_dir) if dtype in DTYPES else None
    try:
        peak = _resolve(device, dtype, given, cache_dir, table, measure)
    except (UnknownPeak, UserTableError) as error:
        return PeakEntry(dtype=dtype, unknown=str(error), measured=measured)
    return PeakEntry(dtype=dtype, peak=peak, measured=measured)


SLOWEST = 10_000
"""A bare number below it is no rate in FLOP/s: it is one in TFLOP/s, or in units of a datasheet."""


def check_given(given: Given) -> None:
    """Refuse a ``peak=`` that cannot be used, before anything runs.

    Raises:
        ValueError: If it is no positive rate, or one below 1 FLOP/s, or a mapping has a key that
            is no dtype or a :class:`Peak` of another dtype than its key.
        TypeError: If it is none of the types of :data:`Given`.
    """
    if given is None:
        return
    if not isinstance(given, Mapping):
        _check_one(given)
        return
    for dtype, one in given.items():
        check_dtype(dtype)
        _check_one(one)
        if isinstance(one, Peak) and one.dtype != dtype:
            raise ValueError(
                f"peak[{dtype!r}] is a {one.dtype} peak; expected one of {dtype}, "
                f"or the key {one.dtype!r}"
            )


def _check_one(given: object) -> None:
    if isinstance(given, Peak):
        _check_rate(given, given.flops_per_s)
        return
    # bool is a number to Python, but no rate.
    if isinstance(given, bool) or not isinstance(given, (str, Real)):
        raise TypeError(
            f'peak is {given!r}; expected FLOP/s (989e12), text ("989 TFLOP/s"), a Peak, '
            "or a mapping of dtype to any of these"
        )
    _check_rate(given, parse_flops_per_s(given if isinstance(given, str) else float(given)))
    if not isinstance(given, str) and float(given) < SLOWEST:
        raise ValueError(
            f"peak is {given!r}, which would be {given} FLOP/s; expected FLOP/s: "
            f'peak={given}e12 or peak="{given} TFLOP/s", if that is meant'
        )


def _check_rate(given: object, flops_per_s: float) -> None:
    # A figure of a made-up device is the user's to give; below this it is none, and what is divided
    # by it overflows.
    if flops_per_s < 1:
        raise ValueError(
            f'peak is {given!r}, less than 1 FLOP/s; expected FLOP/s, e.g. 989e12 or "989 TFLOP/s"'
        )


def _resolve(
    device: Device,
    dtype: str,
    given: Given,
    cache_dir: CacheDir,
    table: TablePaths,
    measure: _Measure,
) -> Peak:
    one = given.get(dtype) if isinstance(given, Mapping) else given
    if isinstance(one, Peak):
        if one.dtype != dtype:
            raise UnknownPeak(
                f"no {dtype} peak for {device.name!r}: the one given is for {one.dtype}. Give "
                f'both: peak={{"{one.dtype}": ..., "{dtype}": "... TFLOP/s"}}'
            )
        return one
    if one is not None:
        return Peak(
            flops_per_s=parse_flops_per_s(one),
            dtype=dtype,
            source="Meter(peak=...)",
            provenance="given",
            device=device.name,
        )
    if dtype not in DTYPES:
        raise UnknownPeak(
            f"no {dtype} peak for {device.name!r}: peaks are stated only for "
            f"{', '.join(DTYPES)}. {SUPPLY_PEAK}"
        )
    if device.kind == "cpu":
        own = user_peak(device, dtype, table=table)
        return measure(device, dtype, cache_dir=cache_dir) if own is None else own
    return peak_for(device, dtype, table=table)
