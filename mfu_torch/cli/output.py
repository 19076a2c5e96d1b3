"""What every command may print besides its own text."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn


def print_json(value: Any) -> None:
    """Print records and plain values as JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def errors_in_one_line(parser: argparse.ArgumentParser) -> None:
    """Make a parser say what is wrong with a flag in a line, not below all flags there are."""

    def error(message: str) -> NoReturn:
        parser.exit(2, f"{parser.prog}: {message}; {parser.prog} --help has the flags\n")

    parser.error = error  # type: ignore[method-assign]


def unnamed(*names: str | None) -> bool:
    """Whether one is empty, as that of a variable of the shell that is not set: it means ``.``."""
    return any(name is not None and not name.strip() for name in names)


def wrong_usage(args: argparse.Namespace, problem: str) -> int:
    """Say what is wrong with the arguments; the exit code for that."""
    print(f"mfu-torch {args.command}: {problem}", file=sys.stderr)
    return 2
