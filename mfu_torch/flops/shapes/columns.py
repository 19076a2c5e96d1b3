"""Counts call by call: each op call of a step has a law of its own in the sizes.

::

    call         S = 32    S = 48    S = 80          law
    q_proj        65536     98304    163840          2048 S
    scores        16384     36864    102400            16 S^2
    k_proj        65536     98304    163840          the same as q_proj: found once, used twice
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from math import gcd
from typing import NamedTuple

from mfu_torch.flops.shapes.laws import Law, Point, fitting_laws, foretold
from mfu_torch.flops.shapes.totals import Key as Key

VARIABLES_LIMIT = 4
"""Sizes that vary: with more, too many laws would have to be tried."""

SEARCHES = (6, 8, 11, 15, 20, 27, 36, 48)
"""Numbers of observations at which laws with strides are looked for."""

CLASSES_LIMIT = 64
"""Laws that are looked for in one step."""

Terms = dict[Key, tuple[int, int | None, int]]
"""FLOPs, causal FLOPs and calls by term. Causal FLOPs can be data, that of an attention mask; then
they follow from no sizes, and are ``None``."""

Figures = tuple[int, ...]

_Parts = tuple[tuple[int, int], ...]


class CountedCall(NamedTuple):
    """What one op call added to a count.

    Attributes:
        key: Phase, op and dtype.
        flops: Every attention score counted.
        causal_flops: Only the scores that the mask keeps.
    """

    key: Key
    flops: int
    causal_flops: int


class Columns:
    """The counts of equal sequences of op calls at several sizes.

    Args:
        strides: Look for laws with strides where others do not fit.

    Attributes:
        broken: Other ops were called, or more sizes vary than can be dealt with.
    """

    def __init__(self, *, strides: bool) -> None:
        self.broken = False
        self._strides = strides
        self._points: list[Point] = []
        self._keys: list[Key] = []
        self._calls: Counter[Key] = Counter()
        self._groups: list[int] = []  # of each call's two figures: the column that it is in
        self._columns: list[Figures] = []  # the distinct columns, one figure per point
        self._laws: dict[Figures, list[Law]] = {}  # by column in lowest terms
        self._terms: list[tuple[Key, list[_Parts]]] = []

    @property
    def strided(self) -> bool:
        """Whether some column has laws with strides: there are many of them, and some mislead."""
        return any(law.is_strided for laws in self._laws.values() for law in laws[:1])

    @property
    def unexplained(self) -> list[Figures]:
        """The columns that no law fits."""
        return [column for column, laws in self._laws.items() if not laws]

    def add(self, point: Point, calls: Sequence[CountedCall]) -> None:
        """Add an observation."""
        keys = [call.key for call in calls]
        if not self._points:
            self._keys, self._calls = keys, Counter(keys)
            self._groups, self._columns = [0] * (2 * len(keys)), [()]
        self.broken = self.broken or keys != self._keys or len(point) > VARIABLES_LIMIT
        if self.broken:
            return
        self._points.append(point)
        self._split([figure for call in calls for figure in call[1:]])
        self._find_laws()
        self._terms = self._add_up()

    def foretold(self, point: Point) -> Terms | None:
        """The terms, if the laws of all columns tell."""
        if self.broken or not self._points:
            return None
        values = [foretold(laws, point) for laws in self._laws.values()]
        terms: Terms = {}
        for key, (full_parts, causal_parts) in self._terms:
            full = _added_up(full_parts, values)
            if full is None:
                return None
            terms[key] = full, _added_up(causal_parts, values), self._calls[key]
        return terms

    def _split(self, figures: list[int]) -> None:
        """Calls that had equal figures so far, and have others now, part."""
        numbers: dict[tuple[int, int], int] = {}
        self._groups = [
            numbers.setdefault((group, figure), len(numbers))
            for group, figure in zip(self._groups, figures, strict=True)
        ]
        self._columns = [(*self._columns[group], figure) for group, figure in numbers]

    def _find_laws(self) -> None:
        """The laws of every column in lowest terms; those that are known need only be sifted."""
        before, self._laws = self._laws, {}
        for column in self._columns:
            lowest, _ = _in_lowest_terms(column)
            if any(lowest) and lowest not in self._laws:
                # Where there are too many columns nothing is looked for, and nothing foretold.
                few = len(self._laws) < CLASSES_LIMIT
                self._laws[lowest] = self._laws_of(lowest, before) if few else []

    def _laws_of(self, lowest: Figures, before: dict[Figures, list[Law]]) -> list[Law]:
        if not all(lowest):
            return []
        earlier, _ = _in_lowest_terms(lowest[:-1])
        known = before.get(earlier)
        if known:
            ratio, point, value = Fraction(lowest[0], earlier[0]), self._points[-1], lowest[-1]
            kept = [law.times(ratio) for law in known if law(point) * ratio == value]
            if kept:
                return kept
        # A search for strides takes a while: it is made once in a while, and not where another
        # column has no law, so that nothing could be foretold anyway.
        hopeless = any(not laws for laws in self._laws.values())
        strides = self._strides and len(self._points) in SEARCHES and not hopeless
        return fitting_laws(self._points, lowest, strides=strides)

    def _add_up(self) -> list[tuple[Key, list[_Parts]]]:
        numbers = {column: number for number, column in enumerate(self._laws)}
        terms: dict[Key, list[Counter[int]]] = {}
        for place, key in enumerate(self._keys):
            parts = terms.setdefault(key, [Counter(), Counter()])
            for kind, part in enumerate(parts):
                lowest, times = _in_lowest_terms(self._columns[self._groups[2 * place + kind]])
                if times:
                    part[numbers[lowest]] += times
        return [(key, [tuple(part.items()) for part in parts]) for key, parts in terms.items()]


def _added_up(parts: _Parts, values: Sequence[int | Fraction | None]) -> int | None:
    total: int | Fraction = 0
    for law, times in parts:
        value = values[law]
        if value is None:
            return None
        total += value * times
    return int(total) if total == int(total) else None


def _in_lowest_terms(column: Figures) -> tuple[Figures, int]:
    """A column over its greatest common divisor, and that divisor (0: nothing but zeros)."""
    divisor = gcd(*column)
    return (tuple([figure // divisor for figure in column]) if divisor else column), divisor
