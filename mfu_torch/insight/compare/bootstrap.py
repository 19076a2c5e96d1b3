"""How sure a difference between two runs is: an interval from a bootstrap over their steps.

Sources:
    Künsch 1989, "The jackknife and the bootstrap for general stationary observations".
    Politis & Romano 1992, "A circular block-resampling procedure for stationary data": the blocks
        go round, so that the first and last steps are drawn as often as any other.
    Politis & White 2004 and Patton, Politis & White 2009: how long the blocks are
        (:mod:`mfu_torch.insight.compare.blocks`).
    Hesterberg 2015, "What teachers should know about the bootstrap", section 3.2: of few values the
        percentile interval is too narrow, by sqrt((m - 1) / m) and for want of Student's t.
    Kendall 1954, "Note on bias in the estimation of autocorrelation".
    Welch 1947: the degrees of freedom of a difference.
    Bloom 1995, "Minimum detectable effects".
    Müller 2004, "A theory of robust long-run variance estimation"; Lazarus, Lewis, Stock & Watson
        2018, "HAR inference": where steps stay alike for longer than blocks can be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from mfu_torch.insight.compare.blocks import WAVES, Floats, block_length, widening
from mfu_torch.insight.text import plural

LEVEL = 0.95
"""Of the interval."""
POWER = 0.8
"""Share of the pairs of runs in which the smallest difference that can be seen would be seen."""
REPLICATES = 9999
SEED = 2024
"""Of the draws, so that the same two runs always give the same interval."""

FEWEST_STEPS = 10
FEWEST_BLOCKS = 5.0
_FEWEST_INDEPENDENT = 4.0
"""For Student's t: its series begins to be right at 3 degrees of freedom."""

_MOST_PIECES = 1000
_DRAWN_AT_ONCE = 10**6

_NORMAL = NormalDist()


class Interval(NamedTuple):
    """Of a difference.

    Attributes:
        low, high: Between them it is, in 95 of 100 pairs of such runs.
        smallest: A true difference of this size would have been seen in 4 of 5 pairs.
    """

    low: float
    high: float
    smallest: float


class Resampled(NamedTuple):
    """Sums over the steps of one run, drawn anew many times.

    Attributes:
        sums: (replicates, columns).
        blocks: How many independent blocks the run is made of.
        block: Steps in each.
        wider: Factor of the standard error of each ratio, by its two columns.
        drifts: Steps stay alike for longer than a block, which is a fifth of the run: how far they
            may be off is read from the run's slowest waves.
    """

    sums: Floats
    blocks: float
    block: int
    wider: Mapping[tuple[int, int], float]
    drifts: bool = False

    def independent(self, ratio: tuple[int, int]) -> float:
        """How many values the standard error of a ratio is known from: fewer if it is widened."""
        if self.drifts:
            return WAVES + 1
        return max(self.blocks / self.wider.get(ratio, 1.0), _FEWEST_INDEPENDENT)


def resample(
    columns: Floats, ratios: list[tuple[int, int]], seed: int, replicates: int = REPLICATES
) -> Resampled | str:
    """Draw the steps of a run anew, in blocks; or why that says nothing.

    Args:
        columns: (steps, columns): what each step adds to each sum.
        ratios: Column that is divided, column that it is divided by, of every figure: their
            blocks are as long as that figure needs which needs the longest.
        seed: Of the draws.
        replicates: How often.
    """
    steps = len(columns)
    if steps < FEWEST_STEPS:
        said = f"{plural(steps, 'steady step')} {'is' if steps == 1 else 'are'} too few"
        return f"{said} for an interval; at least {FEWEST_STEPS}"
    if not np.isfinite(columns).all():
        return "a step has a time or an amount that is not finite"
    size = -(-steps // _MOST_PIECES)  # of long runs, sums over so many steps at a time
    pieces = np.add.reduceat(columns, np.arange(0, steps, size), axis=0)
    if steps % size:
        pieces = pieces[:-1]  # the last one is shorter than the others
    influence = {ratio: _influence(pieces, *ratio) for ratio in ratios}
    block = max(map(block_length, influence.values()), default=1)
    drifts = len(pieces) / block < FEWEST_BLOCKS
    if drifts:
        block = int(len(pieces) // FEWEST_BLOCKS)
    wider = {ratio: widening(each, block, drifts=drifts) for ratio, each in influence.items()}
    sums = _draw(pieces, block, seed, replicates)
    return Resampled(sums, len(pieces) / block, block * size, wider, drifts)


def _influence(pieces: Floats, of: int, over: int) -> Floats:
    """How much each piece moves a ratio of sums: its numerator less what the ratio foretells."""
    above, below = pieces[:, of], pieces[:, over]
    total = float(below.sum())
    found: Floats = above - (float(above.sum()) / total if total else 0.0) * below
    return found


def _draw(pieces: Floats, block: int, seed: int, replicates: int) -> Floats:
    """Sums over as many pieces as there are, in blocks that begin anywhere and go round."""
    n, columns = pieces.shape
    whole, rest = divmod(n, block)
    twice = np.concatenate([np.zeros((1, columns)), np.cumsum(np.tile(pieces, (2, 1)), axis=0)])
    of_block = twice[block : block + n] - twice[:n]
    of_rest = twice[rest : rest + n] - twice[:n]
    generator = np.random.Generator(np.random.PCG64(seed))
    sums = np.empty((replicates, columns))
    at_once = max(1, _DRAWN_AT_ONCE // (whole + 1))
    for first in range(0, replicates, at_once):
        part = sums[first : first + at_once]
        starts = generator.integers(0, n, size=(len(part), whole + 1))
        for column in range(columns):
            part[:, column] = of_block[starts[:, :-1], column].sum(axis=1)
            part[:, column] += of_rest[starts[:, -1], column]
    return sums


def interval(
    a: Resampled,
    b: Resampled,
    in_a: tuple[int, int],
    in_b: tuple[int, int],
    *,
    change: float,
    relative: bool,
) -> Interval | None:
    """Of a change from run A to run B; ``None`` where a draw has no such figure.

    Args:
        a: Sums of run A.
        b: Sums of run B.
        in_a: Column that is divided in the sums of A, and the one that it is divided by.
        in_b: Likewise in the sums of B.
        change: B / A - 1 of the two figures, or with ``relative=False`` B - A.
        relative: Which of them.
    """
    drawn = [_deviations(*each, relative) for each in ((a, *in_a), (b, *in_b))]
    if not all(np.isfinite(each).all() for each in drawn):
        return None
    variances = [float(each.var()) for each in drawn]
    freedom = _degrees_of_freedom(variances, (a.independent(in_a), b.independent(in_b)))
    centre = math.log1p(change) if relative else change
    tail = _NORMAL.cdf(-student_t(0.5 + LEVEL / 2, freedom))
    low, high = np.quantile(centre + drawn[1] - drawn[0], [tail, 1 - tail])
    error = math.sqrt(sum(variances))
    smallest = error * (student_t(0.5 + LEVEL / 2, freedom) + _NORMAL.inv_cdf(POWER))
    values = (float(low), float(high), smallest)
    return Interval(*(round(math.expm1(v) if relative else v, 12) for v in values))


def _deviations(run: Resampled, of: int, over: int, relative: bool) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = run.sums[:, of] / run.sums[:, over]
        values = np.log(ratios) if relative else ratios
        spread: Floats = values - values.mean()
    return spread * run.wider.get((of, over), 1.0) * math.sqrt(run.blocks / (run.blocks - 1))


def _degrees_of_freedom(variances: list[float], blocks: tuple[float, float]) -> float:
    """Of the difference of two means with variances of their own (Welch 1947)."""
    below = sum(v**2 / (m - 1) for v, m in zip(variances, blocks, strict=True))
    return sum(variances) ** 2 / below if below > 0 else sum(blocks) - 2


def student_t(share: float, freedom: float) -> float:
    """Quantile of Student's t (Abramowitz & Stegun 1964, 26.7.5): 0.975 with 4: 2.776.

    Args:
        share: Of the distribution below it.
        freedom: Degrees of freedom, from 3 on.
    """
    x = _NORMAL.inv_cdf(share)
    return x + sum(
        numerator / freedom**power
        for power, numerator in enumerate(
            (
                (x**3 + x) / 4,
                (5 * x**5 + 16 * x**3 + 3 * x) / 96,
                (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
                (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
            ),
            start=1,
        )
    )
