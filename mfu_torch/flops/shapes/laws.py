"""How a count follows from sizes: every law of a family that fits what was observed.

A contraction's FLOPs are a product of dimensions, and a dimension is a constant, a size, or a size
after strides, padding and windows::

    value = K * f(x) * g(y) * ..       f: 1, x, x^2, x (x + 1) / 2            plain
                                          a quadratic in x                    windows, prefixes
                                          floor((x + c) / m)                  strides, padding
                                          a quadratic in floor((x + c) / m)   chunks, blocks

Nested strides stay in the family: floor((floor((x + a) / m) + b) / n) = floor((x + a + b m) / mn).

No law is picked. All that fit are kept, and a value is foretold only where they agree: from square
images alone, height x width and height^2 both fit, and disagree on the first image that is not
square.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import numpy as np

Point = tuple[int, ...]
"""The sizes that vary, in a fixed order."""

POINTS_FOR_STRIDES = 6
"""Observations before laws with strides are looked for: with fewer, too many of them fit."""

LAWS_LIMIT = 300
"""More laws than this that fit: too little was observed to tell anything."""

SHIFTS = range(-12, 13)
"""Added to a size that is not divided: a kernel without padding, a prefix."""

DIVISORS = (*range(2, 65), 72, 80, 84, 96, 112, 128, 144, 160, 168, 192, 224, 256)
"""Products of strides and windows: up to 64 all, beyond it those that networks have."""

SEARCH_S = 0.5
"""Seconds after which a search is given up, and no law found."""

_PRIME = 2**31 - 1  # products of two residues fit 62 bits

Divisions = tuple[tuple[int, int], ...]

_Array = np.ndarray[Any, np.dtype[np.int64]]


Quadratic = tuple[Fraction, Fraction, Fraction]


class Factor(NamedTuple):
    """What one size contributes to a law: a function of ``u = floor((x + shift) / divisor)``.

    Attributes:
        power: ``u`` to this power; -1 stands for the triangle, u (u + 1) / 2.
        quadratic: Coefficients (1, u, u^2), in place of a power.
    """

    power: int
    shift: int = 0
    divisor: int = 1
    quadratic: Quadratic | None = None

    def __call__(self, size: int) -> int | Fraction:
        """Its value for a size."""
        u = (size + self.shift) // self.divisor
        if self.power == 1:
            return u
        if self.quadratic is not None:
            constant, linear, square = self.quadratic
            return constant + (linear + square * u) * u
        return u * (u + 1) // 2 if self.power < 0 else u**self.power


ONE = Factor(0)
PLAIN = (ONE, Factor(1), Factor(2), Factor(-1))


class Law:
    """A constant times one factor for each size that matters."""

    __slots__ = ("_denominator", "_factors", "_numerator")

    def __init__(self, scale: Fraction, factors: Iterable[tuple[int, Factor]]) -> None:
        self._numerator, self._denominator = scale.numerator, scale.denominator
        self._factors = tuple(factors)

    @property
    def is_strided(self) -> bool:
        """Whether a size comes divided in it."""
        return any(factor.divisor > 1 for _, factor in self._factors)

    def __call__(self, point: Point) -> int | Fraction:
        """What it foretells for these sizes."""
        value: int | Fraction = self._numerator
        for place, factor in self._factors:
            value *= factor(point[place])
        if self._denominator == 1:
            return value
        # Integers are several times as fast, and nearly always enough.
        if type(value) is int and not value % self._denominator:
            return value // self._denominator
        return Fraction(value) / self._denominator

    def times(self, ratio: Fraction) -> Law:
        """The same law for a column that is a multiple."""
        return Law(Fraction(self._numerator, self._denominator) * ratio, self._factors)


def fitting_laws(
    points: Sequence[Point], values: Sequence[int], *, strides: bool = True
) -> list[Law]:
    """Every law of the family that gives these values at these points.

    Plain ones, if one fits; else quadratics; else those with strides. Empty if none fits or far
    too many do.

    Args:
        points: Sizes, one tuple per observation.
        values: What was counted there; positive.
        strides: Whether to look for laws with strides.
    """
    count = len(points[0])
    plain = [
        law
        for factors in itertools.product(PLAIN, repeat=count)
        if (law := _scaled(factors, points, values)) is not None
    ]
    laws = plain or [law for law in _laws_with(1, ((0, 1),), points, values) if law is not None]
    if laws or not strides or len(points) < POINTS_FOR_STRIDES:
        return laws
    search = (_laws_with(n, _divisions(), points, values) for n in (1, 2))
    until_s = time.perf_counter() + SEARCH_S
    found = []
    for law in itertools.chain.from_iterable(search):
        if law is not None:
            found.append(law)
        if len(found) > LAWS_LIMIT or time.perf_counter() > until_s:
            return []  # some of the laws would be none: what all agree on could not be told
    return found


def foretold(laws: Sequence[Law], point: Point) -> int | Fraction | None:
    """The value at a point if there are laws, and all of them agree on it."""
    if not laws:
        return None
    value = laws[0](point)
    return value if all(law(point) == value for law in laws[1:]) else None


def _scaled(
    factors: Sequence[Factor], points: Sequence[Point], values: Sequence[int | Fraction]
) -> Law | None:
    """The law with these factors that gives all the values, if there is one."""
    active = [(place, factor) for place, factor in enumerate(factors) if factor != ONE]
    unit = Law(Fraction(1), active)
    first = unit(points[0])
    if not first:
        return None
    for point, value in zip(points, values, strict=True):
        if unit(point) * values[0] != value * first:
            return None
    return Law(Fraction(values[0]) / first, active)


def _laws_with(
    special: int, divisions: Divisions, points: Sequence[Point], values: Sequence[int]
) -> Iterator[Law | None]:
    """Laws in which one size comes in a quadratic, or two come divided; the others are plain.

    ``None`` in between, so that a long search can be given up.
    """
    count = len(points[0])
    places = range(count)
    for chosen in itertools.combinations(places, special):
        others = [place for place in places if place not in chosen]
        for plain in itertools.product(PLAIN[:3], repeat=len(others)):
            rest = [
                _product(factor(point[place]) for factor, place in zip(plain, others, strict=True))
                for point in points
            ]
            if not all(rest):
                continue
            targets = [Fraction(value) / part for value, part in zip(values, rest, strict=True)]
            sizes = [[point[place] for point in points] for place in chosen]
            search = _quadratics if special == 1 else _products
            yield None
            for found in search(sizes, targets, divisions):
                factors = [ONE] * count
                for place, factor in zip((*others, *chosen), (*plain, *found), strict=True):
                    factors[place] = factor
                yield _scaled(factors, points, values)


def _product(values: Iterator[int | Fraction]) -> int | Fraction:
    total: int | Fraction = 1
    for value in values:
        total *= value
    return total


def _quadratics(
    sizes: list[list[int]], targets: list[Fraction], divisions: Divisions
) -> Iterator[tuple[Factor, ...]]:
    """Quadratics in floor((x + c) / m), for one size."""
    (xs,) = sizes
    for shift, divisor in _not_excluded(xs, targets, divisions):
        known: dict[int, Fraction] = {}
        for x, target in zip(xs, targets, strict=True):
            if known.setdefault((x + shift) // divisor, target) != target:
                break
        else:
            # Three points fix a quadratic; one more has to lie on it.
            if len(known) > 3 and (quadratic := _through(known)) is not None:
                yield (Factor(0, shift, divisor, quadratic),)


def _not_excluded(
    xs: list[int], targets: list[Fraction], divisions: Divisions
) -> Iterator[tuple[int, int]]:
    """The divisions after which four neighbouring points can lie on a quadratic, modulo a prime.

    They do if the determinant of (1, u, u^2, target) is 0 for each four of them.
    """
    u = (np.array(xs, dtype=np.int64) + _column(divisions, 0)) // _column(divisions, 1)
    goal = [_residue(target) for target in targets]
    possible = np.full(len(divisions), len(xs) > 3)
    for start in range(len(xs) - 3):
        four = range(start, start + 4)
        determinant = np.zeros(len(divisions), dtype=np.int64)
        for sign, i in zip((1, -1, 1, -1), four, strict=True):
            a, b, c = (u[:, j] for j in four if j != i)
            minor = (b - a) * (c - a) % _PRIME * (c - b) % _PRIME
            determinant += sign * (minor * goal[i] % _PRIME)
        possible &= determinant % _PRIME == 0
    for place in np.flatnonzero(possible):
        yield divisions[place]


def _through(known: dict[int, Fraction]) -> tuple[Fraction, Fraction, Fraction] | None:
    """The quadratic through all of these points, by Newton's divided differences."""
    (u0, y0), (u1, y1), (u2, y2), *others = known.items()
    slope = (y1 - y0) / (u1 - u0)
    square = ((y2 - y1) / (u2 - u1) - slope) / (u2 - u0)
    for u, y in others:
        if y0 + (slope + square * (u - u1)) * (u - u0) != y:
            return None
    return y0 - slope * u0 + square * u0 * u1, slope - square * (u0 + u1), square


def _products(
    sizes: list[list[int]], targets: list[Fraction], divisions: Divisions
) -> Iterator[tuple[Factor, ...]]:
    """Products floor((x + c) / m) * floor((y + d) / n), for two sizes.

    Every pair of divisions would be millions: instead the quotients that the first one leaves
    to be explained are looked up among what the second ones give, all relative to the first
    observation, modulo a prime. What matches still has to be checked exactly.
    """
    (f, of_f), (g, of_g) = (_quotients(values, divisions) for values in sizes)
    goal = np.array([_residue(target / targets[0]) for target in targets], dtype=np.int64)
    wanted = goal * _relative(f, inverse=True) % _PRIME
    given: dict[bytes, list[int]] = {}
    for j, row in enumerate(_relative(g)):
        given.setdefault(row.tobytes(), []).append(j)
    for i, row in enumerate(wanted):
        for j in given.get(row.tobytes(), ()):
            yield Factor(1, *of_f[i]), Factor(1, *of_g[j])


def _quotients(sizes: list[int], divisions: Divisions) -> tuple[_Array, Divisions]:
    """floor((x + c) / m) for each division that leaves no zero, and these divisions."""
    u = (np.array(sizes, dtype=np.int64) + _column(divisions, 0)) // _column(divisions, 1)
    kept = np.flatnonzero(u.all(axis=1))
    return u[kept], tuple(divisions[place] for place in kept)


def _column(divisions: Divisions, place: int) -> _Array:
    return np.array([[division[place]] for division in divisions], dtype=np.int64)


def _residue(value: Fraction) -> int:
    return value.numerator * pow(value.denominator, -1, _PRIME) % _PRIME


def _relative(values: _Array, *, inverse: bool = False) -> _Array:
    """Rows divided by their first element (or the reverse), modulo the prime."""
    unique, places = np.unique(values, return_inverse=True)
    inverses = np.array([pow(int(value), -1, _PRIME) for value in unique], dtype=np.int64)
    inverted: _Array = inverses[places].reshape(values.shape)
    over, under = (inverted, values[:, :1]) if inverse else (values, inverted[:, :1])
    relative: _Array = over % _PRIME * (under % _PRIME) % _PRIME
    return relative


@cache
def _divisions() -> Divisions:
    """Pairs (shift, divisor) that are told apart; a shift of m more only adds 1."""
    undivided = [(shift, 1) for shift in SHIFTS]
    divided = [(shift, m) for m in DIVISORS for shift in range(-min(m, 12), m)]
    return (*undivided, *divided)
