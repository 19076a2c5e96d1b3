"""Devices that a user adds, in TOML files that ``MFU_TORCH_PEAKS`` names.

    [[device]]
    name = "My GPU 9000"          # or names = ["My GPU 9000", "my-gpu"]
    bf16 = "500 TFLOP/s"          # dense, whole device; text, or a number of FLOP/s
    fp8 = 1e15
    sm_count = 128                # optional: a part of the device then gets its share
    clock_hz = 1.8e9              # optional: at which the figures hold, whole device or part
    bandwidth = 4.8e12            # optional: bytes/s
    source = "where it is from"

The name of a MIG slice (``NVIDIA H100 80GB HBM3 MIG 1g.10gb``) is that slice, with figures of its
own. An entry needs a name that a driver reports: a short name of the built-in table (``h100-sxm``)
is none. The variable holds one path, or several, separated as in ``PATH``. A file that is not valid
is refused as a whole, in one line: half of a table would be another table.
"""

from __future__ import annotations

import difflib
import errno
import functools
import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from mfu_torch.peak.names import DTYPES, split_mig, split_vendor
from mfu_torch.peak.rows import Index, Row, index_of, rows_named
from mfu_torch.units import parse_flops_per_s

VARIABLE = "MFU_TORCH_PEAKS"
"""The environment variable that names user tables."""

TablePaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""One file, several, or ``None`` for those of :data:`VARIABLE`."""


_CLOCK_RANGE_HZ = (1e8, 1e10)
"""Outside it somebody took another unit: 1830 is meant as MHz."""

_RANGE_FLOPS_PER_S = (1e9, 1e21)
"""A phone has more; below it the prefix was forgotten, above it there was one too many."""


class UserTableError(ValueError):
    """A user table that cannot be used; one line with the file, the entry and what to change."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    name: str | None = None
    names: tuple[str, ...] = ()
    sm_count: int | None = None
    clock_hz: float | None = None
    bandwidth: float | None = None
    fp64: float | str | None = None
    fp32: float | str | None = None
    tf32: float | str | None = None
    fp16: float | str | None = None
    bf16: float | str | None = None
    fp8: float | str | None = None
    int8: float | str | None = None
    fp4: float | str | None = None


def user_index(paths: TablePaths = None) -> Index:
    """Compared name -> the row that a user table has for it.

    A file is parsed again only after it changed.

    Raises:
        UserTableError: If a file cannot be read, is no such table, or names a device twice.
    """
    try:
        return _index(tuple(map(_stamp, _paths(paths))))
    except OSError as error:
        raise UserTableError(
            f"the table of peaks {error.filename} cannot be read ({error.strerror}); "
            f"correct {VARIABLE if paths is None else 'that path'}"
        ) from error


class _Stamp(NamedTuple):
    """A file as it is now."""

    path: Path
    device: int
    inode: int
    mtime_ns: int
    size: int


def _stamp(path: Path) -> _Stamp:
    try:
        found = path.stat()
    except ValueError as error:  # a path with a NUL
        raise OSError(errno.EINVAL, str(error), repr(str(path))) from error
    if not stat.S_ISREG(found.st_mode):  # to read from a FIFO or a terminal would wait for ever
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return _Stamp(path, found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=8)
def _index(stamps: tuple[_Stamp, ...]) -> Index:
    rows: list[Row] = []
    where: dict[str, str] = {}
    for path in (one.path for one in stamps):
        for place, row in _read(path):
            for name in row.driver_names:
                key = split_vendor(name)[1]
                if key in where:
                    raise UserTableError(
                        f"{place}: {name!r} is already the name of {where[key]}; keep one of them"
                    )
            where |= {split_vendor(name)[1]: place for name in row.driver_names}
            rows.append(row)
    return index_of(rows)


def _paths(paths: TablePaths) -> list[Path]:
    if paths is None:
        paths = [path for path in os.environ.get(VARIABLE, "").split(os.pathsep) if path.strip()]
    elif isinstance(paths, (str, os.PathLike)):
        paths = [paths]
    found = []
    for path in paths:
        if not os.fspath(path).strip():
            raise UserTableError("the path of the table of peaks is empty; name a TOML file")
        try:
            found.append(Path(path).expanduser())
        except RuntimeError as error:  # ~nobody
            raise OSError(errno.ENOENT, f"{error}", os.fspath(path)) from error
    return found


def _read(path: Path) -> list[tuple[str, Row]]:
    try:
        # Editors on Windows put a byte-order mark first.
        content = msgspec.toml.decode(path.read_bytes().decode("utf-8-sig"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserTableError(f"{path} is not TOML: {error}") from error
    except RecursionError as error:
        raise UserTableError(
            f"{path} nests too deeply; expected a list of [[device]] and nothing else"
        ) from error
    devices = content.pop("device", None)
    if content or not isinstance(devices, list) or not devices:
        seen = f"the key {min(content)!r}" if content else "no [[device]]"
        raise UserTableError(f"{path} has {seen}; expected a list of [[device]] and nothing else")
    rows = []
    for number, device in enumerate(devices, start=1):
        place = _place(path, number, device)
        rows.append((place, _row(place, path, device)))
    return rows


def _place(path: Path, number: int, device: object) -> str:
    name = device.get("name") or device.get("names") if isinstance(device, Mapping) else None
    return f"{path}, [[device]] {number}" + (f" ({name!r})" if name else "")


def _row(place: str, path: Path, device: object) -> Row:
    _check_fields(place, device)
    try:
        entry = msgspec.convert(device, _Entry)
    except msgspec.ValidationError as error:
        raise UserTableError(f"{place}: {error}") from error
    if not entry.source.strip():
        raise UserTableError(f"{place}: source is empty; expected where the figures are from")
    names = entry.names if entry.name is None else (entry.name, *entry.names)
    if not names or not all(split_vendor(name)[1] for name in names):
        raise UserTableError(f'{place}: no name; expected name = "..." as the driver reports it')
    if len({split_vendor(name)[1] for name in names}) < len(names):
        raise UserTableError(f"{place}: two of its names are the same ({', '.join(names)})")
    if len({_is_slice(place, name) for name in names}) > 1:
        raise UserTableError(
            f"{place}: it names a MIG slice beside a whole device ({', '.join(names)}); "
            "make them two entries"
        )
    _check_drivers(place, names)
    _check_numbers(place, entry)
    return Row(
        vendor="",
        name=names[0],
        driver_names=names,
        short_names=(),
        unit="GPU",
        architectures=(),
        sm_count=entry.sm_count,
        flops_per_clock_per_sm=None,
        clock_hz=entry.clock_hz,
        memory_bytes=None,
        bytes_per_s=entry.bandwidth,
        flops_per_s=_figures(place, entry),
        absent=(),
        provenance="given",
        verified="user",
        source=f"user table {path}: {' '.join(entry.source.split())}",
        notes="",
        file=str(path),
    )


def _check_fields(place: str, device: object) -> None:
    accepted = tuple(msgspec.structs.asdict(_Entry(source="")))
    for field in device if isinstance(device, Mapping) else ():
        if field not in accepted:
            near = difflib.get_close_matches(field.casefold(), accepted, n=1)
            meant = f" (did you mean `{near[0]}`?)" if near else ""
            raise UserTableError(
                f"{place}: unknown field `{field}`{meant}; expected {', '.join(accepted)}"
            )


def _check_drivers(place: str, names: tuple[str, ...]) -> None:
    """Refuse names that no driver reports: a run would silently go on without the entry."""
    reported: dict[str, None] = {}
    for name in names:
        vendor, key = split_vendor(name)
        rows = rows_named(name)
        drivers = [one for row in rows for one in row.driver_names]
        if vendor is not None or not rows or key in {split_vendor(one)[1] for one in drivers}:
            return
        reported |= dict.fromkeys(drivers)
    wanted = " or ".join(f'"{one}"' for one in reported)
    raise UserTableError(
        f"{place}: {names[0]!r} is a short name, which no driver reports, so no run would use the "
        f"entry; expected name = {wanted}"
    )


def _is_slice(place: str, name: str) -> bool:
    if re.search(r"\bMIG\b", name, re.IGNORECASE) is None:
        return False
    whole, profile = split_mig(name)
    if not whole.strip() or not profile:
        raise UserTableError(
            f'{place}: {name!r} is no name of a MIG slice; expected "NVIDIA H100 80GB HBM3 MIG '
            '1g.10gb", as torch reports it'
        )
    return True


def _check_numbers(place: str, entry: _Entry) -> None:
    for what in ("sm_count", "clock_hz", "bandwidth"):
        value = getattr(entry, what)
        if value is not None and not 0 < value < float("inf"):
            raise UserTableError(f"{place}: {what} is {value}; expected a positive number")
    low, high = _CLOCK_RANGE_HZ
    if entry.clock_hz is not None and not low <= entry.clock_hz <= high:
        raise UserTableError(
            f"{place}: clock_hz is {entry.clock_hz:g}, which is no GPU's clock in Hz; expected "
            "e.g. 1.83e9 for 1830 MHz"
        )


def _figures(place: str, entry: _Entry) -> dict[str, float]:
    figures = {}
    for dtype in DTYPES:
        value = getattr(entry, dtype)
        if value is None:
            continue
        try:
            figures[dtype] = parse_flops_per_s(value)
        except ValueError as error:
            raise UserTableError(f"{place}: {dtype} = {error}") from error
        low, high = _RANGE_FLOPS_PER_S
        if not low <= figures[dtype] <= high:
            raise UserTableError(
                f"{place}: {dtype} = {value!r} is {figures[dtype]:g} FLOP/s, which no device has; "
                'expected e.g. "500 TFLOP/s" or 500e12'
            )
    if not figures:
        raise UserTableError(
            f'{place}: no figure; expected at least one, e.g. bf16 = "500 TFLOP/s"'
        )
    return figures
