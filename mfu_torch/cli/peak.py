"""``mfu-torch peak``: what a device could do; without a name, those of this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from mfu_torch.cli.dtypes import add_dtypes, canonical
from mfu_torch.cli.output import print_json, wrong_usage

if TYPE_CHECKING:
    from mfu_torch.insight.peak_table import DeviceView, Line, RowView
    from mfu_torch.peak.table import Row
    from mfu_torch.records import Device, PeakEntry

DTYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "fp4")
"""Those of :data:`mfu_torch.peak.names.DTYPES`, here so that the help is instant."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch peak``."""
    add = parser.add_argument
    add(
        "name",
        metavar="NAME",
        nargs="*",
        help="as the driver reports it, with or without quotes, or short: h100-sxm. Several words "
        "are one name where there is one; else each is a name",
    )
    add_dtypes(parser, DTYPES)
    add(
        "--list",
        action="store_true",
        help="all devices, with a column for each --dtype; by default bf16, or fp16, marked",
    )
    add(
        "--table",
        metavar="FILE",
        help="a table of yours (TOML), before the built-in one; by default those that "
        "MFU_TORCH_PEAKS names",
    )
    parser.epilog = (
        "Exit codes: 0 a peak is known (for each --dtype that was asked for, of each name); 1 one "
        "is not, or a name is not in the table or shared by several devices; without a name: the "
        "device that a Meter takes has none; 2 wrong usage, or a table of yours that is not valid."
    )


def run(args: argparse.Namespace) -> int:
    """Print the row of a name, or the devices of this machine; 1 if there is no such peak."""
    from mfu_torch.peak.user_table import UserTableError, user_index

    try:
        user_index(args.table)  # a table that is not valid is said before anything is shown
    except UserTableError as problem:
        return wrong_usage(args, str(problem))
    if args.list:
        return _list(args)
    return _named(args) if args.name else _machine(args)


def _list(args: argparse.Namespace) -> int:
    from mfu_torch.insight.peak_table import render_list
    from mfu_torch.peak.rows import unique_rows
    from mfu_torch.peak.table import table
    from mfu_torch.peak.user_table import user_index

    if args.name:
        return wrong_usage(args, "--list shows all devices; leave out the name")
    own = user_index(args.table)
    if args.json:
        print_json((*unique_rows(own), *table()))
    else:
        dtypes = () if args.dtype == DTYPES else args.dtype
        print(render_list(table(), dtypes, own), end="")
    return 0


def _named(args: argparse.Namespace) -> int:
    """The rows of a name of several words, or, where that is none, of several names."""
    from mfu_torch.insight.peak_table import render_rows, row_summary

    joined = " ".join(args.name)
    found = {joined: _rows(joined, args)}
    if not found[joined] and len(args.name) > 1:
        each = {name: _rows(name, args) for name in args.name}
        if all(each.values()):
            found = each
        elif set(map(canonical, args.name)) <= set(DTYPES):
            given = ",".join((*args.dtype, *args.name) if args.dtype != DTYPES else args.name)
            return wrong_usage(
                args, f"{joined!r} is no device; for several dtypes: --dtype {given}"
            )
    if not all(found.values()):
        print(f"mfu-torch peak: {_why_not(joined, args)}", file=sys.stderr)
        return 1
    # Of several rows the name alone does not say which.
    views = [
        [_row_view(row, name if len(rows) == 1 else row.name, args) for row in rows]
        for name, rows in found.items()
    ]
    if args.json:
        print_json([row_summary(view) for one in views for view in one])
    else:
        print("\n".join(map(render_rows, views)), end="")
    return 0 if all(_is_answer(one, args) for one in views) else 1


def _is_answer(views: Sequence[RowView], args: argparse.Namespace) -> bool:
    known = [line.entry.peak is not None for view in views for line in view.lines]
    asked_for_some = tuple(args.dtype) != DTYPES
    return (all(known) if asked_for_some else any(known)) and len(views) == 1


def _rows(name: str, args: argparse.Namespace) -> tuple[Row, ...]:
    from mfu_torch.peak.rows import find_rows
    from mfu_torch.peak.table import rows_named
    from mfu_torch.peak.user_table import user_index
    from mfu_torch.records import Device

    device = Device(name=name, kind="")  # any kind: the name alone is looked up
    return find_rows(device, user_index(args.table)) or rows_named(name)


def _why_not(name: str, args: argparse.Namespace) -> str:
    """Why a name is none of the table's, and what to do."""
    from mfu_torch.peak.derive import is_for_export
    from mfu_torch.peak.names import is_laptop, reason_of, split_mig
    from mfu_torch.peak.table import peak_for, similar_names, table
    from mfu_torch.peak.user_table import VARIABLE, user_index
    from mfu_torch.records import UnknownPeak

    text = f"{name!r} is none of the {len(table())} devices of the table"
    why = ""
    try:
        peak_for(name, args.dtype[0], table=args.table)
    except UnknownPeak as error:
        first, found, derived = reason_of(str(error)).partition("; nor can it be derived: ")
        text += "" if first.startswith("the table of ") else f"; {first}"
        why = f". Nor can it be derived from the name: {derived}" if found else ""
    similar = similar_names(split_mig(name)[0], own=user_index(args.table))
    if similar and not is_laptop(name) and not is_for_export(name):  # meant as they are
        text += f"; did you mean {', '.join(similar)}"
    return f'{text}{why}. A run on it takes peak="... TFLOP/s", or a table of yours ({VARIABLE})'


def _row_view(row: Row, name: str, args: argparse.Namespace) -> RowView:
    from mfu_torch.insight.peak_table import RowView
    from mfu_torch.peak.resolve import resolve_peak
    from mfu_torch.records import Device

    device = Device(name=name, kind="")
    entries = [resolve_peak(device, dtype, table=args.table) for dtype in args.dtype]
    return RowView(row=row, lines=tuple(_lines(device, entries)))


def _lines(device: Device, entries: list[PeakEntry]) -> Iterator[Line]:
    from mfu_torch.insight.peak_table import Line
    from mfu_torch.peak.published import published_for

    for entry in entries:
        yield Line(entry=entry, published=published_for(device, entry.dtype))


def _machine(args: argparse.Namespace) -> int:
    from mfu_torch.insight.peak_table import device_summary, render_machine
    from mfu_torch.peak.devices import devices_here

    views = [
        _device_view(device, args, used=number == 0) for number, device in enumerate(devices_here())
    ]
    if args.json:
        print_json([device_summary(view) for view in views])
    else:
        print(render_machine(views), end="")
    # On a CPU a peak that is not there yet is measured when it is needed; nothing is missing.
    return 0 if any(view.used and _has_peak(view) for view in views) else 1


def _has_peak(view: DeviceView) -> bool:
    return view.device.kind == "cpu" or any(line.entry.peak is not None for line in view.lines)


def _device_view(device: Device, args: argparse.Namespace, *, used: bool) -> DeviceView:
    from mfu_torch.insight.peak_table import DeviceView
    from mfu_torch.peak.bench import driver_version
    from mfu_torch.peak.matmuls import reduced_fp32
    from mfu_torch.peak.nvml import nvml_handle
    from mfu_torch.peak.resolve import look_up_peak
    from mfu_torch.peak.rows import find_rows
    from mfu_torch.peak.user_table import user_index

    entries = [look_up_peak(device, dtype, table=args.table) for dtype in args.dtype]
    own = find_rows(device, user_index(args.table))
    return DeviceView(
        device=device,
        used=used,
        problem=nvml_handle(device).problem if device.kind == "cuda" else "",
        fp32_runs_as=reduced_fp32(device) or "fp32",
        driver=driver_version(device),
        rows=(*(f"{row.name} (yours)" for row in own), *(row.name for row in find_rows(device))),
        lines=tuple(_lines(device, entries)),
    )
