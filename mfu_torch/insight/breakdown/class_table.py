"""The user's own classes: regular expressions of kernel names, which come before all rules.

[classes]
"my_fused_mlp.*" = "gemm"
"^ring_exchange" = "communication"
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import msgspec

from mfu_torch.insight.breakdown.codes import CLASS_NAMES
from mfu_torch.insight.trace.user_patterns import TooSlow, searched
from mfu_torch.records import MFUError

Classes = str | PathLike[str] | Mapping[str, str]
"""Path of a TOML file, or regular expression -> class."""


class ClassTableError(MFUError):
    """A user's table of classes cannot be read; the message says what is wrong with it."""


class ClassTable:
    """Which class the user gives to a name; without a table none."""

    def __init__(self, classes: Classes | None = None) -> None:
        """Reads it.

        Raises:
            ClassTableError: The file cannot be read, a pattern is no regular expression, or a
                class is none of :data:`~mfu_torch.insight.breakdown.codes.CLASS_NAMES`.
        """
        where, rows = "classes", {} if classes is None else classes
        if not isinstance(rows, Mapping):
            where, rows = os.fspath(rows), _read(Path(rows))
        self._where = where
        self._rules = [_rule(where, *row) for row in rows.items()]

    def __len__(self) -> int:
        return len(self._rules)

    def of(self, names: Sequence[str]) -> list[int | None]:
        """For each name the class of the first pattern that is found anywhere in it.

        Raises:
            ClassTableError: A pattern takes too long on them.
        """
        codes: list[int | None] = [None] * len(names)
        try:
            found = searched([pattern for pattern, _ in self._rules], names)
        except TooSlow as error:
            raise ClassTableError(f"{self._where}: {error}") from error
        for hits, (_, code) in reversed(list(zip(found, self._rules, strict=True))):
            codes = [code if hit else had for hit, had in zip(hits, codes, strict=True)]
        return codes


def _read(path: Path) -> dict[str, str]:
    try:
        # Editors on Windows put a byte-order mark first.
        content = msgspec.toml.decode(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise ClassTableError(f"{path} cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClassTableError(f"{path} is not TOML: {error}") from error
    rows = content.get("classes")
    if not isinstance(rows, dict) or not rows or len(content) > 1:
        seen = ", ".join(sorted(content)) or "nothing"
        raise ClassTableError(
            f"{path} holds {seen}; expected one table [classes] with lines like "
            '"my_kernel.*" = "gemm"'
        )
    return rows


def _rule(where: str, pattern: str, name: object) -> tuple[re.Pattern[str], int]:
    if name not in CLASS_NAMES:
        raise ClassTableError(
            f"{where}: {pattern!r} is given the class {name!r}; expected one of "
            f"{', '.join(CLASS_NAMES)}"
        )
    try:
        return re.compile(pattern), CLASS_NAMES.index(str(name))
    except (re.error, OverflowError, RecursionError) as error:
        raise ClassTableError(f"{where}: {pattern!r} is no regular expression: {error}") from error
