"""Laws for inputs that differ only in their sizes, held against every further observation."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from typing import NamedTuple

from mfu_torch.flops.shapes.columns import SEARCHES, Columns, CountedCall, Key, Terms
from mfu_torch.flops.shapes.domain import Domain, Sizes
from mfu_torch.flops.shapes.laws import fitting_laws
from mfu_torch.flops.shapes.totals import Polynomial
from mfu_torch.records import FlopCount

CONFIRMATIONS = 2
"""Shapes in a row that were foretold right, before any is evaluated."""

STRIDED_CONFIRMATIONS = 5
"""The same, where sizes come divided: those laws are so many that one can fit by chance."""

PIECES = 3
"""Laws that hold for a part of the sizes each; if more were needed, there is no law."""

PIECE = 4
"""Observations that a piece has at least."""


class Observation(NamedTuple):
    """What was counted for inputs of some sizes: in all, and call by call."""

    sizes: Sizes
    total: FlopCount
    calls: Sequence[CountedCall]


class Fit:
    """Laws that hold for all observations.

    Args:
        strides: Look for laws with strides, and for polynomials, where plain ones do not fit.

    Attributes:
        domain: The sizes that were observed.
        columns: The counts call by call.
    """

    def __init__(self, *, strides: bool) -> None:
        self.domain = Domain()
        self.columns = Columns(strides=strides)
        self._strides = strides
        self._full, self._causal = Polynomial(0), Polynomial(0)
        self._observed: list[Observation] = []
        self._confirmed = [0, 0]

    @property
    def is_trusted(self) -> bool:
        """Whether enough shapes were foretold right."""
        return any(n >= needed for n, needed in zip(self._confirmed, self._needed, strict=True))

    @property
    def _needed(self) -> tuple[int, int]:
        return STRIDED_CONFIRMATIONS if self.columns.strided else CONFIRMATIONS, CONFIRMATIONS

    @property
    def explains(self) -> bool:
        """Whether every op call has a law, in both attention conventions."""
        return not self.columns.broken and not self.columns.unexplained

    def add(self, new: Observation) -> None:
        """Add an observation."""
        foretold: list[Terms | None] = []
        if self._observed and self.domain.is_like(new.sizes):
            foretold = self._foretold(new.sizes)
        domain = self.domain.extended(new.sizes)
        is_like, self.domain = domain.varies_like(self.domain), domain
        self._observed.append(new)
        if is_like:
            self._learn(new)
        else:  # other sizes vary than before: look for laws in all that was observed
            self.columns = Columns(strides=self._strides)
            self._full, self._causal = (Polynomial(len(domain.variables)) for _ in range(2))
            for observation in self._observed:
                self._learn(observation)
        self._confirm(foretold, flops_of(new.total))

    def evaluate(self, sizes: Sizes) -> Terms | None:
        """The terms of inputs of these sizes, if enough is known to foretell them."""
        if self.is_trusted and self.domain.contains(sizes):
            foretold = self._foretold(sizes)
            for n, needed, terms in zip(self._confirmed, self._needed, foretold, strict=True):
                if terms is not None and n >= needed:
                    return terms
        return None

    def _learn(self, observation: Observation) -> None:
        point = self.domain.point(observation.sizes)
        self.columns.add(point, observation.calls)
        if self._strides:
            terms = flops_of(observation.total)
            self._full.add(point, {key: full for key, (full, _) in terms.items()})
            self._causal.add(point, {key: causal for key, (_, causal) in terms.items()})

    def _foretold(self, sizes: Sizes) -> list[Terms | None]:
        point = self.domain.point(sizes)
        terms = self.columns.foretold(point)
        if terms is not None and self._confirmed[0] >= self._needed[0]:
            return [terms, None]
        full, causal = self._full.foretold(point), self._causal.foretold(point)
        if full is None:
            return [terms, None]
        # How many calls there are can differ at equal sizes here, and is not foretold: 0.
        known = None if causal is None else {key: causal.get(key, 0) for key in full}
        return [terms, {key: (n, known[key] if known else None, 0) for key, n in full.items()}]

    def _confirm(
        self, foretold: Sequence[Terms | None], counted: dict[Key, tuple[int, int]]
    ) -> None:
        if not foretold:
            self._confirmed = [0, 0]
        for place, terms in enumerate(foretold):
            if terms is not None:
                right = is_right(terms, counted)
                self._confirmed[place] = self._confirmed[place] + 1 if right else 0


class Pieces:
    """Several laws, each for a range of one size, where none holds for all.

    Attention with a window is quadratic in the length up to the window, and linear beyond.
    """

    def __init__(self) -> None:
        self._fits: list[Fit] = []
        self._confirmed = 0

    @property
    def is_trusted(self) -> bool:
        """Whether enough shapes were foretold right."""
        return self._confirmed >= CONFIRMATIONS

    def add(self, observed: Sequence[Observation]) -> None:
        """Find the pieces of these observations, of which the last one is new."""
        new = observed[-1]
        counted = flops_of(new.total)
        right = wrong = False
        for fit in self._fits:
            terms = None
            if fit.domain.is_like(new.sizes):
                terms = fit.columns.foretold(fit.domain.point(new.sizes))
            if terms is not None and is_right(terms, counted):
                fit.add(new)
                right = fit.explains
                break
            wrong = wrong or terms is not None
        if right:
            self._confirmed += 1
        elif wrong:
            self._confirmed = 0
        if not right and len(observed) in SEARCHES:  # finding pieces takes a while
            self._fits = pieces_of(observed, PIECES) or []
        elif wrong and any(fit.domain.contains(new.sizes) for fit in self._fits):
            self._fits = []

    def evaluate(self, sizes: Sizes) -> Terms | None:
        """The terms of inputs of these sizes, if enough is known to foretell them."""
        if not self.is_trusted:
            return None
        found = [
            fit.columns.foretold(fit.domain.point(sizes))
            for fit in self._fits
            if fit.domain.contains(sizes)
        ]
        return found[0] if found and all(terms == found[0] for terms in found) else None


def pieces_of(observed: Sequence[Observation], limit: int) -> list[Fit] | None:
    """Laws that each hold for a range of one size and together for all observations."""
    fit = Fit(strides=False)
    for observation in observed:
        fit.add(observation)
    if fit.explains:
        return [fit]
    if limit == 1 or fit.columns.broken:
        return None
    for place in fit.domain.variables:
        ordered = sorted(observed, key=lambda one: one.sizes[place])
        first = _explained_start(ordered, place, fit)
        if first >= PIECE and len(ordered) - first >= PIECE:
            left, right = pieces_of(ordered[:first], 1), pieces_of(ordered[first:], limit - 1)
            if left and right:
                return [*left, *right]
    return None


def _explained_start(ordered: Sequence[Observation], place: int, fit: Fit) -> int:
    """How many of the observations, from the first on, have laws in all columns."""
    rank = {sizes: number for number, sizes in enumerate(fit.domain.observed)}
    order = [rank[observation.sizes] for observation in ordered]
    points = [fit.domain.point(observation.sizes) for observation in ordered]
    columns = [[column[number] for number in order] for column in fit.columns.unexplained]

    def fails(length: int) -> bool:
        if (
            length < len(ordered)
            and ordered[length - 1].sizes[place] == ordered[length].sizes[place]
        ):
            length += 1  # equal sizes are in one piece
        return not all(
            all(column[:length]) and fitting_laws(points[:length], column[:length], strides=False)
            for column in columns
        )

    start = bisect.bisect_left(range(1, len(ordered) + 1), x=True, key=fails)
    while (
        0 < start < len(ordered) and ordered[start - 1].sizes[place] == ordered[start].sizes[place]
    ):
        start -= 1
    return start


def flops_of(count: FlopCount) -> dict[Key, tuple[int, int]]:
    """FLOPs and causal FLOPs of a count by term, as far as there are any."""
    return {
        (term.phase, term.op, term.dtype): (term.flops, term.causal_flops)
        for term in count.terms
        if term.flops or term.causal_flops
    }


def is_right(terms: Terms, counted: dict[Key, tuple[int, int]]) -> bool:
    """Whether what was foretold is what was counted."""
    foretold = {key: (full, causal) for key, (full, causal, _) in terms.items() if full or causal}
    return foretold.keys() == counted.keys() and all(
        full == counted[key][0] and causal in (None, counted[key][1])
        for key, (full, causal) in foretold.items()
    )
