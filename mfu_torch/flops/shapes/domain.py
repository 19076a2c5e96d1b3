"""Which sizes of the inputs vary, and how far what was observed reaches."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import gcd, prod
from typing import NamedTuple

Sizes = tuple[int, ...]


class Reach(NamedTuple):
    """The values of one size that observations speak for.

    Attributes:
        low: The smallest that was observed.
        high: The largest.
        step: All that were observed are multiples of it apart: multiples of 32 say nothing of 100.
    """

    low: int
    high: int
    step: int


class Domain:
    """The sizes that were observed, taken apart into those that vary and those that do not.

    Sizes that have been equal in every observation are one: a batch of ids and its mask. If they
    come apart later, they are two from then on.

    Attributes:
        observed: All sizes of every observation, in order.
        variables: Places of the sizes that vary, the first of each set of equal ones.
    """

    def __init__(self, observed: tuple[Sizes, ...] = ()) -> None:
        self.observed = observed
        columns = list(zip(*observed, strict=True))
        first = {column: place for place, column in reversed(list(enumerate(columns)))}
        varies = [len(set(column)) > 1 for column in columns]
        self.variables = tuple(
            [
                place
                for place, column in enumerate(columns)
                if varies[place] and first[column] == place
            ]
        )
        self._reaches = [(place, *_reach(columns[place])) for place in self.variables]
        products = [prod(self.point(sizes)) for sizes in observed]
        self._product = (min(products, default=0), max(products, default=0))
        self._orders = [
            (one, other, {_order(a, b) for a, b in zip(columns[one], columns[other], strict=True)})
            for one, other in itertools.combinations(self.variables, 2)
        ]
        self._constant = [(p, column[0]) for p, column in enumerate(columns) if not varies[p]]
        self._equal = [
            (place, first[column])
            for place, column in enumerate(columns)
            if varies[place] and first[column] != place
        ]

    def extended(self, sizes: Sizes) -> Domain:
        """With one more observation."""
        return Domain((*self.observed, sizes))

    def varies_like(self, other: Domain) -> bool:
        """Whether the same sizes vary, and the same are equal."""
        return bool(other.observed) and (self.variables, self._equal) == (
            other.variables,
            other._equal,
        )

    def point(self, sizes: Sizes) -> Sizes:
        """The sizes that vary."""
        return tuple([sizes[place] for place in self.variables])

    def points(self) -> list[Sizes]:
        """The sizes that vary, of every observation."""
        return [self.point(sizes) for sizes in self.observed]

    def is_like(self, sizes: Sizes) -> bool:
        """Whether no other sizes vary in these than in those that were observed."""
        for place, size in self._constant:
            if sizes[place] != size:
                return False
        return all([sizes[place] == sizes[leader] for place, leader in self._equal])

    def spans(self, sizes: Sizes) -> bool:
        """Whether each of these sizes lies between two that were observed."""
        columns = ((sizes[place], low, high) for place, low, high, _ in self._reaches)
        return self.is_like(sizes) and all(low <= size <= high for size, low, high in columns)

    def contains(self, sizes: Sizes) -> bool:
        """Whether these sizes lie among those that were observed.

        Each of them, and their product: what is dropped above so many tokens is dropped by it. And
        none is larger than another where it never was: the longer of two may be what counts.
        """
        for place, low, high, step in self._reaches:
            if not low <= sizes[place] <= high or (sizes[place] - low) % step:
                return False
        for one, other, orders in self._orders:
            if _order(sizes[one], sizes[other]) not in orders:
                return False
        low, high = self._product
        return low <= prod(self.point(sizes)) <= high and self.is_like(sizes)


def _order(one: int, other: int) -> int:
    return (one > other) - (one < other)


def _reach(values: Sequence[int]) -> Reach:
    low = min(values)
    return Reach(low, max(values), gcd(*[value - low for value in values]))
