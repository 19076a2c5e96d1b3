"""Devices that a user adds, in TOML files that ``MFU_TORCH_PEAKS`` names.

    [[device]]
    name = "My GPU 9000"          # or names = ["My GPU 9000", "my-gpu"]
    bf16 = "500 TFLOP/s"          # dense, whole device; text, or a number of FLOP/s
    fp8 = 1e15
    sm_count = 128                # optional: a part of the device then gets its share
    clock_hz = 1.8e9              # optional: at which the figures hold
    bandwidth = 4.8e12            # optional: bytes/s
    source = "where it is from"

The variable holds one path, or several, separated as in ``PATH``. A file that is not valid is
refused as a whole, in one line: half of a table would be another table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from mfu_torch.peak.names import DTYPES, split_vendor
from mfu_torch.peak.rows import Index, Row, index_of
from mfu_torch.units import parse_flops_per_s

VARIABLE = "MFU_TORCH_PEAKS"
"""The environment variable that names user tables."""

TablePaths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | None
"""One file, several, or ``None`` for those of :data:`VARIABLE`."""


class UserTableError(ValueError):
    """A user table that cannot be used; one line with the file, the entry and what to change."""


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    name: str = ""
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

    Raises:
        UserTableError: If a file cannot be read, is no such table, or names a device twice.
    """
    rows: list[Row] = []
    where: dict[str, str] = {}
    for path in _paths(paths):
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
    return [Path(path).expanduser() for path in paths]


def _read(path: Path) -> list[tuple[str, Row]]:
    try:
        content = msgspec.toml.decode(path.read_bytes())
    except OSError as error:
        raise UserTableError(
            f"the table of peaks {path} cannot be read ({error.strerror}); correct {VARIABLE}"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserTableError(f"{path} is not TOML: {error}") from error
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
    try:
        entry = msgspec.convert(device, _Entry)
    except msgspec.ValidationError as error:
        raise UserTableError(f"{place}: {error}") from error
    names = (entry.name, *entry.names) if entry.name else entry.names
    if not names or not all(split_vendor(name)[1] for name in names):
        raise UserTableError(f'{place}: no name; expected name = "..." as the driver reports it')
    if len({split_vendor(name)[1] for name in names}) < len(names):
        raise UserTableError(f"{place}: two of its names are the same ({', '.join(names)})")
    for what in ("sm_count", "clock_hz", "bandwidth"):
        value = getattr(entry, what)
        if value is not None and not 0 < value < float("inf"):
            raise UserTableError(f"{place}: {what} is {value}; expected a positive number")
    return Row(
        vendor="",
        name=names[0],
        driver_names=names,
        short_names=(),
        unit="GPU",
        sm_count=entry.sm_count,
        flops_per_clock_per_sm=None,
        clock_hz=entry.clock_hz,
        memory_bytes=None,
        bytes_per_s=entry.bandwidth,
        flops_per_s=_figures(place, entry),
        absent=(),
        provenance="given",
        verified="user",
        source=f"user table {path}: {entry.source}",
        notes="",
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
    if not figures:
        raise UserTableError(
            f'{place}: no figure; expected at least one, e.g. bf16 = "500 TFLOP/s"'
        )
    return figures
