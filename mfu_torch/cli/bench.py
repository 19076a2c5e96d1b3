"""``mfu-torch bench``: its arguments, and what it does with them."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from mfu_torch.cli.dtypes import add_dtypes
from mfu_torch.cli.output import print_json, wrong_usage

if TYPE_CHECKING:
    from mfu_torch.peak.bench import BenchResult
    from mfu_torch.records import Device

DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
"""Those of :data:`mfu_torch.peak.bench.BENCH_DTYPES`, here so that the help is instant."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``mfu-torch bench``; ``--json`` is the command line's own."""
    add = parser.add_argument
    add_dtypes(parser, DTYPES)
    add(
        "--seconds",
        metavar="S",
        type=_seconds,
        default=1.0,
        help="for each promising shape; 1 by default. Heat shows only after minutes",
    )
    add("--shapes", choices=("quick", "full"), default="full", help="full by default")
    add("--device", metavar="cuda:0|cpu", type=_device, help="by default what torch would use")
    add("--save", action="store_true", help="keep the result for the runs of this machine")


INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""


def run(args: argparse.Namespace) -> int:
    """Measure, print, and save if asked to; 1 if nothing could be measured or saved.

    After Ctrl-C what was measured by then is printed, and not saved: 130.
    """
    try:
        return _run(args)
    except KeyboardInterrupt:  # before anything was measured, or once more
        return _interrupted("")


def _run(args: argparse.Namespace) -> int:
    from mfu_torch.peak.bench import Interrupted, run_bench
    from mfu_torch.peak.devices import detect_device
    from mfu_torch.peak.user_table import UserTableError

    kind, index = args.device or (None, None)
    try:
        device = detect_device(index, kind)
    except ValueError as problem:  # no such device here
        return wrong_usage(args, str(problem))
    try:
        found = run_bench(
            *(device, args.dtype),
            seconds=args.seconds,
            shapes=args.shapes,
            progress=_progress(device),
        )
    except UserTableError as problem:  # the user's own peaks, in MFU_TORCH_PEAKS
        return wrong_usage(args, str(problem))
    except Interrupted as stop:
        done = len(stop.found.entries)
        if done:
            _show(stop.found, args, ())
        lost = "; nothing was saved" if args.save else ""
        of_all = f"{done} of {len(dict.fromkeys(args.dtype))} dtypes had been measured"
        return _interrupted(f" while {stop.dtype} was measured; {of_all}{lost}")
    try:
        saved, lost = _save(found) if args.save else ((), "")
    except KeyboardInterrupt:
        _show(found, args, None)
        return _interrupted(" while the result was saved; nothing, or not all, was saved")
    _show(found, args, saved)
    if lost:
        print(f"mfu-torch bench: {lost}", file=sys.stderr)
    return 0 if any(entry.sustained for entry in found.entries) and not lost else 1


def _interrupted(when: str) -> int:
    print(f"mfu-torch bench: interrupted{when}", file=sys.stderr)
    return INTERRUPTED


def _show(found: BenchResult, args: argparse.Namespace, saved: tuple[str, ...] | None) -> None:
    """Print it; ``saved`` is ``None`` where it is not known which dtypes were."""
    from mfu_torch.insight.bench_table import render, summary

    if args.json:
        print_json({**summary(found), "saved": saved if args.save else None})
        return
    print(render(found), end="")
    if args.save and saved is not None:
        kept = ", ".join(saved) or "nothing"
        print(f"\nSaved, to stand beside the peak that MFU divides by: {kept}")


def _save(found: BenchResult) -> tuple[tuple[str, ...], str]:
    """The dtypes that were saved, and what has to be said of the others."""
    from mfu_torch.peak.saved import save, saved_folder

    try:
        saved = save(found)
    except OSError as error:
        return (), f"{saved_folder()} cannot be written ({error}); nothing, or not all, was saved"
    lost = [one.dtype for one in found.entries if one.sustained and one.dtype not in saved]
    if lost:
        return saved, (
            f"not saved: {', '.join(lost)}; other work kept the CPU busy meanwhile, so these rates "
            "are not what it can do. Run again when it is idle"
        )
    return saved, ""


def _progress(device: Device) -> Callable[[str], None]:
    def show(dtype: str) -> None:
        if sys.stderr.isatty():
            print(f"measuring {dtype} on {device.name} ...", file=sys.stderr)

    return show


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 3600:
        raise argparse.ArgumentTypeError(f"{text[:40]!r}; expected seconds, up to 3600")
    return value


def _device(text: str) -> tuple[str, int | None]:
    found = re.fullmatch(r"(cuda|rocm|mps|cpu)(?::(\d{1,4}))?", text)
    if found is None:
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r}; expected cuda, cuda:1, rocm:0, mps or cpu"
        )
    return found[1], None if found[2] is None else int(found[2])
