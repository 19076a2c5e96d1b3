"""An estimate where FLOPs follow no law in the sizes, with how far off it may be.

What a step computes can depend on data: a loss on the labelled positions alone, experts with a
capacity. Then the totals at some sizes scatter around a smooth curve. The curve is found by least
squares, and each observation is held against the curve through all the others (leave one out):

    margin = max over observations i of |counted_i - foretold from the others| / foretold

A wide scatter is no estimate: such shapes go on being counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mfu_torch.flops.shapes.columns import Key
from mfu_torch.flops.shapes.domain import Domain, Sizes
from mfu_torch.records import MODEL_PHASES, FlopCount, FlopTerm
from mfu_torch.units import percent

MARGIN_LIMIT = 0.1
"""Widest margin of an estimate, relative to the model FLOPs."""

FROM = 32
"""Observations that an estimate is made from, at least."""

VARIABLES_LIMIT = 4
"""Sizes that vary: with more, the observations are too few for a curve."""

ALONE = 0.5
"""Leverage of a count that has no others near: it bends the curve to itself, and does not tell how
far off the curve is."""

FAR = 2.0
"""Leverage of sizes that are too far from all that were counted."""

NOTE = (
    "what a step computes depends on more than the sizes of its inputs: where a shape was not "
    "counted, its FLOPs are an estimate"
)

PER_COEFFICIENT = 3
"""Observations for each coefficient of the curve, at least."""


class Estimate:
    """A curve through what was counted, where it is good enough.

    Args:
        observed: Sizes, and what was counted at them; a size can come several times.

    Attributes:
        margin: How far off an observation was at most; ``None`` if there is no estimate.
    """

    def __init__(self, observed: Sequence[tuple[Sizes, FlopCount]]) -> None:
        self.margin: float | None = None
        self._observed = len(observed)
        self._domain = Domain(tuple([sizes for sizes, _ in observed]))
        self._last = observed[-1][1] if observed else FlopCount()
        variables = len(self._domain.variables)
        if len(observed) < FROM or variables > VARIABLES_LIMIT:
            return
        points = [self._domain.point(sizes) for sizes, _ in observed]
        self._scale = [max(column) for column in zip(*points, strict=True)]
        degree = 2 if _coefficients(variables, 2) * PER_COEFFICIENT <= len(observed) else 1
        self._powers = _powers(variables, degree)
        self._keys: list[Key] = sorted(
            {(t.phase, t.op, t.dtype) for _, count in observed for t in count.terms}
        )
        self._fit([self._monomials(point) for point in points], [count for _, count in observed])

    def evaluate(self, sizes: Sizes) -> FlopCount | None:
        """The FLOPs at these sizes, about; ``None`` outside of those that were counted."""
        if self.margin is None or not self._domain.spans(sizes):
            return None
        monomials = np.array(self._monomials(self._domain.point(sizes)))
        leverage = self._leverage(monomials)
        if leverage > FAR:
            return None
        # The curve is less sure away from what was counted: by the variance of a prediction.
        margin = self.margin * math.sqrt(1 + leverage)
        totals = monomials @ self._curves
        flops = [max(0, round(total)) for total in totals.tolist()]
        half = len(self._keys)
        within = (
            f"estimated from {self._observed} shapes that were counted, each within "
            f"{percent(self.margin)} of it"
        )
        return FlopCount(
            terms=tuple(
                FlopTerm(phase=p, op=o, dtype=d, flops=full, causal_flops=causal, calls=0)
                for (p, o, d), full, causal in zip(
                    self._keys, flops[:half], flops[half:], strict=True
                )
                if full
            ),
            uncounted=self._last.uncounted,
            elementwise=None,
            notes=(*self._last.notes, NOTE),
            method=within,
            uncertainty=margin,
        )

    def _fit(self, monomials: list[list[float]], counts: Sequence[FlopCount]) -> None:
        # Sizes can depend on each other (a batch of packed texts), so that monomials do, too: what
        # their combinations span is all that is known.
        left, strengths, right = np.linalg.svd(np.array(monomials), full_matrices=False)
        rank = int((strengths > 1e-9 * strengths[0]).sum())
        self._span: Any = right[:rank]
        self._strengths: Any = strengths[:rank]
        totals: Any = np.array([self._figures(count) for count in counts], dtype=float)
        known = left[:, :rank]
        self._curves: Any = self._span.T @ ((known.T @ totals) / self._strengths[:, None])
        # What an observation is off the curve through the others is its residual over 1 - h, where
        # h, its leverage, is from the diagonal of the hat matrix.
        is_model = np.array([phase in MODEL_PHASES for phase, _, _ in self._keys])
        counted = totals[:, : len(self._keys)][:, is_model].sum(axis=1)
        foretold = (known @ (known.T @ totals))[:, : len(self._keys)][:, is_model].sum(axis=1)
        leverage = (known**2).sum(axis=1)
        near = leverage <= ALONE
        if near.sum() < FROM // 2 or not (foretold > 0).all():
            return
        off = np.abs(counted - foretold)[near] / (1 - leverage[near]) / foretold[near]
        self.margin = float(off.max()) if off.max() <= MARGIN_LIMIT else None

    def _leverage(self, monomials: Any) -> float:
        along = self._span @ monomials
        outside = monomials - self._span.T @ along
        if np.linalg.norm(outside) > 1e-6 * np.linalg.norm(monomials):
            return math.inf  # these sizes depend on each other in another way
        return float(((along / self._strengths) ** 2).sum())

    def _figures(self, count: FlopCount) -> list[int]:
        terms = {(term.phase, term.op, term.dtype): term for term in count.terms}
        found = [terms.get(key) for key in self._keys]
        full = [term.flops if term else 0 for term in found]
        return full + [term.causal_flops if term else 0 for term in found]

    def _monomials(self, point: Sizes) -> list[float]:
        scaled = [size / scale for size, scale in zip(point, self._scale, strict=True)]
        return [
            float(prod(size**power for size, power in zip(scaled, powers, strict=True)))
            for powers in self._powers
        ]


def _powers(variables: int, degree: int) -> list[tuple[int, ...]]:
    """Exponents of the monomials up to a degree."""
    every = itertools.product(range(degree + 1), repeat=variables)
    return [powers for powers in every if sum(powers) <= degree]


def _coefficients(variables: int, degree: int) -> int:
    return len(_powers(variables, degree))
