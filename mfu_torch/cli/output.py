"""What every command may print besides its own text."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def print_json(value: Any) -> None:
    """Print records and plain values as JSON."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def wrong_usage(args: argparse.Namespace, problem: str) -> int:
    """Say what is wrong with the arguments; the exit code for that."""
    print(f"mfu-torch {args.command}: {problem}", file=sys.stderr)
    return 2
