"""Regular expressions that a user gives, and names that a trace gives.

Together they can take for ever: ``(a+)+$`` takes 2^n steps on n letters and another character, and
nothing ends a search but the end of its process. So a search that may take long is made in a
process of its own, which is ended.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

LIMIT_S = 5.0
"""Of the search in a process of its own."""
MOST_STEPS = 10_000_000
"""Of a search in this process: some 0.1 s."""

_INSIGNIFICANT = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]", re.DOTALL)
"""Escapes and sets of characters: one character each."""
_HARD = re.compile(r"\)[*+{]|\\[1-9]|\(\?(?:P=|\(|#|[aimsLu]*x)")
"""Repeated groups and back references, whose steps grow as 2^n; what hides them in comments."""
_REPEAT = re.compile(r"[*+]|\{\d*,\d*\}|(?<![(*+?}])\?")

_SEARCH = """
import json, re, sys
asked = json.load(sys.stdin)
found = [re.compile(one).search for one in asked["patterns"]]
print(json.dumps([[search(name) is not None for name in asked["names"]] for search in found]))
"""


class TooSlow(Exception):
    """The patterns take longer than the limit on the names; the message says which."""


def searched(patterns: Sequence[re.Pattern[str]], names: Sequence[str]) -> list[list[bool]]:
    """For each pattern, in which of the names it is found.

    Raises:
        TooSlow: It takes longer than :data:`LIMIT_S`.
    """
    quick = [_is_quick(pattern.pattern, names) for pattern in patterns]
    slow = [
        pattern.pattern for pattern, is_quick in zip(patterns, quick, strict=True) if not is_quick
    ]
    elsewhere = iter(_elsewhere(slow, names) if slow and names else [[]] * len(slow))
    return [
        [pattern.search(name) is not None for name in names] if is_quick else next(elsewhere)
        for pattern, is_quick in zip(patterns, quick, strict=True)
    ]


def _is_quick(pattern: str, names: Sequence[str]) -> bool:
    """Whether a search takes few steps on any names that are as long.

    Without a repeated group, k repeats and j alternatives in groups take at most n^(k + 1) 2^j
    steps on n characters.
    """
    if _HARD.search(pattern.replace("\\\\", "")):
        return False
    bare = _INSIGNIFICANT.sub("x", pattern)
    if _HARD.search(bare):
        return False
    power = min(1 + len(_REPEAT.findall(bare)), 40)
    ways = 2.0 ** min(bare.count("|"), 40) if "(" in bare else 1.0 + bare.count("|")
    return sum(float(len(name)) ** power for name in names) * ways <= MOST_STEPS


def found_in(
    pattern: re.Pattern[str], names: Sequence[str], used: npt.NDArray[np.integer]
) -> npt.NDArray[np.bool_]:
    """For each entry of ``used``, a number of a name, whether the pattern is found in it.

    Raises:
        TooSlow: As :func:`searched`.
    """
    distinct = np.flatnonzero(np.bincount(used, minlength=1))
    hit = np.zeros(len(distinct), bool)
    hit[:] = searched([pattern], [names[number] for number in distinct.tolist()])[0]
    found: npt.NDArray[np.bool_] = hit[np.searchsorted(distinct, used)]
    return found


def _elsewhere(patterns: list[str], names: Sequence[str]) -> list[list[bool]]:
    """As :func:`searched`, in a process that is ended at the limit."""
    import subprocess  # slow to import, and rarely needed

    said = ", ".join(map(repr, patterns))[:80]
    try:
        done = subprocess.run(
            [sys.executable or "python", "-I", "-S", "-W", "ignore", "-c", _SEARCH],
            input=json.dumps({"patterns": patterns, "names": list(names)}),
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=True,
        )
    except subprocess.TimeoutExpired as error:
        raise TooSlow(
            f"{said} takes longer than {LIMIT_S:g} s on the names of this trace; write it without "
            "a repetition inside another, as in (a+)+"
        ) from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise TooSlow(
            f"{said} may take for ever, and no process to try it in could be run; write it without "
            "a repetition inside another, as in (a+)+"
        ) from error
    found: list[list[bool]] = json.loads(done.stdout)
    return found
