"""What ``mfu-torch explain`` is asked: its flags, read from texts."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


class UsageError(Exception):
    """What is wrong with the arguments. A ValueError of anything else is a fault of ours."""


def analysis_options(args: argparse.Namespace) -> dict[str, Any]:
    """Of ``analyse``, read from texts; what is wrong with one names its flag."""
    from mfu_torch.units import parse_flops, parse_flops_per_s

    options: dict[str, Any] = {"edges": args.edges, "steps": args.steps}
    if args.peak is not None:
        options["peak"] = read("--peak", parse_flops_per_s, args.peak)
    if args.dtype is not None:
        options["dtype"] = read("--dtype", _dtype, args.dtype)
    if args.device is not None:
        read("--device", _known_device, args.device)
    if args.model_flops is not None:
        options["model_flops"] = round(read("--model-flops", parse_flops, args.model_flops))
    if args.recompute_flops is not None:
        again = read("--recompute-flops", parse_flops, args.recompute_flops)
        options["recompute_flops"] = round(again)
    if args.classes is not None:
        options["classes"] = args.classes
    return options


def reading_options(args: argparse.Namespace) -> dict[str, Any]:
    """Of ``read_trace``."""
    options: dict[str, Any] = {}
    if args.step_name is not None:
        options["step_name"] = read("--step-name", _pattern, args.step_name)
    if args.max_raw_bytes is not None:
        options["max_raw_bytes"] = read("--max-raw-bytes", _bytes, args.max_raw_bytes)
    return options


def top_of(args: argparse.Namespace) -> int:
    """How many kernels of each loss."""
    return int(read("--top", _whole, args.top))


def read(flag: str, reader: Callable[[Any], Any], text: Any) -> Any:
    """The value of a flag.

    Raises:
        UsageError: The text has none.
    """
    try:
        return reader(text)
    except (ValueError, OverflowError) as problem:
        raise UsageError(f"{flag}: {problem}") from None


def _dtype(text: str) -> str:
    from mfu_torch.peak.names import canonical_dtype

    return canonical_dtype(text)


def _known_device(name: str) -> None:
    from mfu_torch.peak.rows import find_rows
    from mfu_torch.records import Device

    if not find_rows(Device(name=name, kind="")):
        raise ValueError(
            f"{name[:60]!r} is not in the table of devices; mfu-torch peak --list has all, and "
            "--peak takes the figure itself"
        )


def _pattern(text: str) -> str:
    import re

    if not text:
        raise ValueError("it is empty, and would be found in every annotation")
    try:
        re.compile(text)
    except re.error as problem:
        raise ValueError(f"{text[:40]!r} is no regular expression: {problem}") from None
    return text


def _whole(text: str) -> int:
    if not text.strip().isdecimal():
        raise ValueError(f"{text[:40]!r} is no whole number; expected e.g. 5")
    return int(text)


def _bytes(text: str) -> int:
    import re

    said = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:e\+?[0-9]{1,2})?)\s*([kmgt]?)(i?)b?\s*", text, re.I)
    if said is None:
        raise ValueError(f'{text[:40]!r} is no number of bytes; expected e.g. "8 GB" or 8e9')
    number, prefix, binary = said.groups()
    if binary and not prefix:
        raise ValueError(f'{text[:40]!r} is no number of bytes; expected e.g. "8 GiB"')
    found = float(number) * (1024 if binary else 1000) ** " kmgt".index(prefix.lower() or " ")
    if found < 1:
        raise ValueError(f"{text[:40]!r} is less than a byte")
    return int(found)
