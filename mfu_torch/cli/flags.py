"""What is wrong with a flag that a command does not have."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Sequence
from typing import Any


def name_unknown_flags(parser: argparse.ArgumentParser) -> None:
    """Make a subcommand's parser refuse what it does not know, with the flag that is nearest.

    Else it hands that to the parser above it, which knows none of its flags.
    """
    parse = parser.parse_known_args

    def parse_known_args(
        args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        found, left = parse(args, namespace)
        if left:
            parser.error(_unknown(left, list(parser._option_string_actions)))
        return found, left

    parser.parse_known_args = parse_known_args  # type: ignore[assignment, method-assign]


def _unknown(left: list[str], flags: list[str]) -> str:
    flag = next((word for word in left if word.startswith("-")), None)
    if flag is None:
        return f"{left[0][:40]!r} belongs to no flag"
    name = flag.partition("=")[0]
    near = " or ".join(difflib.get_close_matches(name, flags, 2, 0.7))
    return f"{name[:40]} is no flag{', did you mean ' if near else ''}{near}"
