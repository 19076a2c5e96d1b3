"""What is to be said of the counts of a run, summed up: a run can have thousands of them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from mfu_torch.records import CountEntry

LIMIT = 12
"""Ops, notes and reasons that are named; of the others there is the number."""

_LETTERS = 500  # of a note or a reason
_STEPS = 3  # numbers of steps that are named

_ON_STEP = re.compile(r"counted on step (?P<step>\d+)(?P<rest>.*)", re.DOTALL)
_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")  # and not that of bf16 or v1.2
_ANY = "\0"  # in its place

_NOTHING = "nothing: every op that looks like a contraction has a formula"


class Counted:
    """How FLOPs were counted, what was not, and what has to be known of it.

    Texts that differ in their numbers only are of one kind and are said once: 2000 shapes counted
    on 2000 steps are ``counted on steps 0, 3, 5 and 1,997 others as they trained``.
    """

    def __init__(self, entries: Iterable[CountEntry] = ()) -> None:
        self._steps: dict[str, set[int]] = {}  # that were counted, by what else is said of them
        self._methods, self._unknown, self._notes = _Kinds(), _Kinds(), _Kinds()
        self._uncounted: dict[str, None] = {}
        self._any = False  # something was counted
        for entry in entries:
            self.add(entry)

    def add(self, entry: CountEntry) -> None:
        """Take in the next count."""
        if entry.count is None:
            self._unknown.add(entry.unknown)
            return
        self._any = True
        self._uncounted.update(dict.fromkeys(entry.count.uncounted))
        for note in entry.count.notes:
            self._notes.add(note)
        found = _ON_STEP.fullmatch(entry.count.method)
        if found is not None:
            self._steps.setdefault(found["rest"], set()).add(int(found["step"]))
        elif entry.count.method:
            self._methods.add(entry.count.method)

    def kinds(self) -> tuple[tuple[str, ...], ...]:
        """The same as long as there is nothing to say but other numbers."""
        said = (self._steps, self._methods, self._unknown, self._uncounted, self._notes)
        return tuple(tuple(itertools.islice(kinds, LIMIT)) for kinds in said)

    def rows(self) -> list[tuple[str, str]]:
        """A row of a table for each; with an empty text where there is nothing to say."""
        methods = [_on_steps(steps, rest) for rest, steps in self._steps.items()]
        methods += self._methods.texts()
        ops = [*sorted(list(self._uncounted)[:LIMIT]), *list(self._uncounted)[LIMIT:]]
        left_out = f"{', '.join(_first(ops, 'other ops'))}: no FLOP formula, so that MFU is a lower"
        return [
            ("FLOPs", "; ".join(_first(methods, "other ways"))),
            ("FLOPs unknown", "; ".join(_first(self._unknown.texts(), "other reasons"))),
            ("not counted", f"{left_out} bound" if ops else _NOTHING if self._any else ""),
            ("notes", " ".join(_first(self._notes.texts(), "other notes."))),
        ]


class _Kinds(dict[str, list[tuple[str, str]]]):
    """Texts without their numbers -> the smallest and the largest of each number."""

    def add(self, text: str) -> None:
        numbers = _NUMBER.findall(text)
        known = self.setdefault(_NUMBER.sub(_ANY, text), [(one, one) for one in numbers])
        for at, number in enumerate(numbers):
            low, high = known[at]
            known[at] = min(low, number, key=float), max(high, number, key=float)

    def texts(self) -> list[str]:
        """``within 5 % of it`` and ``within 9 % of it``: ``within 5 to 9 % of it``."""
        found = []
        for kind, numbers in self.items():
            ranges = [low if low == high else f"{low} to {high}" for low, high in numbers]
            pieces = itertools.zip_longest(kind.split(_ANY), ranges, fillvalue="")
            found.append("".join(itertools.chain.from_iterable(pieces)))
        return found


def _first(texts: list[str], name: str) -> list[str]:
    """As many as are named, and how many others there are."""
    named = [text if len(text) <= _LETTERS else f"{text[:_LETTERS]}..." for text in texts[:LIMIT]]
    more = len(texts) - len(named)
    return [*named, f"and {more:,} {name}"] if more else named


def _on_steps(counted: set[int], rest: str) -> str:
    steps = [str(step) for step in sorted(counted)]
    if len(steps) == 1:
        return f"counted on step {steps[0]}{rest}"
    more = len(steps) - _STEPS
    *some, last = [*steps[:_STEPS], f"{more:,} others"] if more > 1 else steps
    rest = rest.replace(" as it trained", " as they trained")
    return f"counted on steps {', '.join(some)} and {last}{rest}"
