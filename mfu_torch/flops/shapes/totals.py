"""Counts as a polynomial in the sizes, exact and without picking a degree.

For steps whose ops come in another order, or number, each time: experts that are called if a token
is routed to them. Their totals can be a polynomial all the same. What is foretold is a linear
combination of what was observed::

    monomials of new sizes = sum of a_i * monomials of observed sizes i
    =>  count at new sizes = sum of a_i * count at sizes i

whatever the coefficients of the polynomial are, known or not. Where there is no such combination,
nothing is foretold.
"""

from __future__ import annotations

import itertools
from fractions import Fraction
from typing import NamedTuple

from mfu_torch.flops.shapes.laws import Point
from mfu_torch.records import Phase

Key = tuple[Phase, str, str]
"""Phase, op and dtype."""

MONOMIALS_LIMIT = 40
"""So many shapes would have to be counted before the first can be foretold."""

Totals = dict[Key, int]
"""FLOPs by term."""


class _Row(NamedTuple):
    """A combination of observations: one monomial is 1 in it, and 0 in all the others."""

    pivot: int
    monomials: list[Fraction]
    totals: dict[Key, Fraction]


class Polynomial:
    """Totals at some sizes, and what they imply for others.

    Args:
        variables: How many sizes vary.

    Attributes:
        refuted: Two observations contradict each other: the totals are no such polynomial.
    """

    def __init__(self, variables: int) -> None:
        self.refuted = False
        self._powers = _powers(variables)
        self._rows: list[_Row] = []

    def add(self, point: Point, totals: Totals) -> None:
        """Add an observation."""
        if self.refuted or not self._powers:
            self.refuted = True
            return
        monomials, rest = self._reduce(point, {key: Fraction(v) for key, v in totals.items()})
        pivot = next((place for place, value in enumerate(monomials) if value), None)
        if pivot is None:
            self.refuted = any(rest.values())
            return
        unit = 1 / monomials[pivot]
        row = _Row(
            pivot, [value * unit for value in monomials], {k: v * unit for k, v in rest.items()}
        )
        self._rows = [_without(old, row) for old in self._rows] + [row]

    def foretold(self, point: Point) -> Totals | None:
        """The totals at a point, if those that were observed imply them."""
        if self.refuted or not self._rows:
            return None
        monomials, rest = self._reduce(point, {})
        if any(monomials) or any(value.denominator != 1 for value in rest.values()):
            return None
        return {key: -int(value) for key, value in rest.items() if value}

    def _reduce(
        self, point: Point, totals: dict[Key, Fraction]
    ) -> tuple[list[Fraction], dict[Key, Fraction]]:
        row = _Row(-1, [Fraction(_monomial(powers, point)) for powers in self._powers], totals)
        for known in self._rows:
            row = _without(row, known)
        return row.monomials, row.totals


def _without(row: _Row, known: _Row) -> _Row:
    """The row with the other's pivot taken out of it."""
    times = row.monomials[known.pivot]
    if not times:
        return row
    totals = dict(row.totals)
    for key, value in known.totals.items():
        totals[key] = totals.get(key, Fraction(0)) - times * value
    monomials = [a - times * b for a, b in zip(row.monomials, known.monomials, strict=True)]
    return _Row(row.pivot, monomials, totals)


def _powers(variables: int) -> list[tuple[int, ...]]:
    """Exponents of the monomials; empty if they are too many."""
    # Squares at most, and of three sizes or more no more than three factors in all.
    if variables > 4:
        return []
    powers = itertools.product(range(3), repeat=variables)
    found = [p for p in powers if variables < 3 or sum(p) <= 3]
    return found if len(found) <= MONOMIALS_LIMIT else []


def _monomial(powers: tuple[int, ...], point: Point) -> int:
    value = 1
    for power, size in zip(powers, point, strict=True):
        value *= size**power
    return value
