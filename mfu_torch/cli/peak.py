"""``mfu-torch peak``: what a device could do; without a name, those of this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mfu_torch.cli.dtypes import add_dtypes
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
    add("name", metavar="NAME", nargs="*", help="as the driver reports it, or short: h100-sxm")
    add_dtypes(parser, DTYPES)
    add("--list", action="store_true", help="all devices of the table")
    add("--table", metavar="FILE", help="a table of yours (TOML), before the built-in one")


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
    from mfu_torch.peak.table import table

    if args.name:
        return wrong_usage(args, "--list shows all devices; leave out the name")
    if args.json:
        print_json(table())
    else:
        print(render_list(table()), end="")
    return 0


def _named(args: argparse.Namespace) -> int:
    from mfu_torch.insight.peak_table import render_rows, row_summary
    from mfu_torch.peak.names import split_mig
    from mfu_torch.peak.rows import find_rows
    from mfu_torch.peak.table import rows_named, similar_names, table
    from mfu_torch.peak.user_table import user_index
    from mfu_torch.records import Device

    name = " ".join(args.name)
    device = Device(name=name, kind="")  # any kind: the name alone is looked up
    rows = find_rows(device, user_index(args.table)) or rows_named(name)
    if not rows and set(args.name) <= set(DTYPES):
        given = ",".join((*args.dtype, *args.name) if args.dtype != DTYPES else args.name)
        return wrong_usage(args, f"{name!r} is no device; for several dtypes: --dtype {given}")
    if not rows:
        text = f"{name!r} is none of the {len(table())} devices of the table"
        if similar := similar_names(split_mig(name)[0]):
            text += f"; did you mean {', '.join(similar)}"
        text += '. A run on it takes peak="989 TFLOP/s", or a table of yours (MFU_TORCH_PEAKS)'
        print(f"mfu-torch peak: {text}", file=sys.stderr)
        return 1
    whole = len(rows) == 1  # else the name alone does not say which
    views = [_row_view(row, name if whole else row.name, args) for row in rows]
    if args.json:
        print_json([row_summary(view) for view in views])
    else:
        print(render_rows(views), end="")
    known = [line.entry.peak is not None for view in views for line in view.lines]
    asked_for_some = tuple(args.dtype) != DTYPES
    return 0 if (all(known) if asked_for_some else any(known)) and whole else 1


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

    entries = [look_up_peak(device, dtype, table=args.table) for dtype in args.dtype]
    return DeviceView(
        device=device,
        used=used,
        problem=nvml_handle(device).problem if device.kind == "cuda" else "",
        fp32_runs_as=reduced_fp32(device) or "fp32",
        driver=driver_version(device),
        rows=tuple(row.name for row in find_rows(device)),
        lines=tuple(_lines(device, entries)),
    )
