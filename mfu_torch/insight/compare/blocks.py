"""How long steps stay alike: the block length of a bootstrap over a series.

Neighbouring steps are not independent: a clock that sinks or a slow shard of data lasts for many of
them. A bootstrap that drew single steps would promise too narrow an interval, so it draws blocks
of consecutive ones (Künsch 1989), about as long as the steps stay alike.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_CRITICAL = 2.0
"""Times sqrt(log10 n / n): below that an autocorrelation is taken for noise (Politis 2003)."""
_HIGHEST = 0.97
"""Autocorrelation: with 1 there is no mean that the steps vary around."""
_SCALES = (1, 3, 9)
_FEWEST_SUMS = 12
WAVES = 3
"""How many of the slowest are looked at: each more lasts for less of the run."""
_MORE_ALIKE = 1.645
"""Times 1 / sqrt(n): by more, the autocorrelation of 5 of 100 series is larger by chance."""


def autocovariances(series: Floats) -> Floats:
    """Of lags 0, 1, ... n - 1, with n as the divisor of each.

    Args:
        series: n values.
    """
    n: int = len(series)
    centred = series - series.mean()
    spectrum = np.fft.rfft(centred, 2 * n)  # twice as long: no value meets one across the end
    return np.fft.irfft(spectrum * spectrum.conj(), 2 * n)[:n] / n


def block_length(series: Floats) -> int:
    """How many consecutive values belong together: 1 where they are independent.

    Twice the length with the least error of the variance of the mean, for a circular block
    bootstrap: (2 G^2 / D)^(1/3) n^(1/3), of Politis & White 2004, section 3.2, with D = 4/3 g(0)^2
    as corrected by Patton, Politis & White 2009, at most min(3 sqrt(n), n/3) as there. Twice, since
    an interval needs longer blocks than a variance does: of 300 simulated pairs of runs with
    autocorrelations of 0.3 to 0.9, intervals from the single length cover the truth in 88 to 92 of
    100, from the double one in 92 to 95. At least the cube root of n.

    Args:
        series: n values.
    """
    n: int = len(series)
    if n < 2 or _is_constant(series):
        return 1
    covariances = autocovariances(series)
    last = _last_correlated_lag(covariances / covariances[0])
    least = int(n ** (1 / 3) + 1e-9)
    if last == 0:
        return least
    window = min(2 * last, n - 1)
    lags = np.arange(1, window + 1)
    flat_top = np.minimum(1.0, 2 * (1 - lags / window))
    weighted = flat_top * covariances[1 : window + 1]
    g = 2 * float(np.sum(lags * weighted))
    spectral = float(covariances[0] + 2 * np.sum(weighted))  # g(0)
    longest = max(1, math.ceil(min(3 * math.sqrt(n), n / 3)))
    if spectral <= covariances[0]:  # steps that make up for each other: every tenth is slow
        return max(min(2 * last, n // 6), least)
    length = float((2 * g**2 / (4 / 3 * spectral**2)) ** (1 / 3) * n ** (1 / 3))
    return max(2 * min(math.ceil(length), longest), least)


def widening(series: Floats, block: int, *, drifts: bool = False) -> float:
    """By how much an interval from blocks is too narrow for few values that stay alike for long.

    A block cuts what reaches beyond it. So the variance of the mean is also taken from a model,
    the first-order autoregression, and the larger of the two counts. Sums over 3 and 9 values are
    looked at, too, where these are more alike than the model lets them be: there a slow drift
    stands out of the noise of single steps. Of simulated pairs of runs of 60 steps with an
    autocorrelation of 0.7 and no true difference, blocks alone call 10 in 100 significant, and with
    this factor 4.

    Args:
        series: n values.
        block: How many consecutive ones are drawn together.
        drifts: They stay alike for so long that the block is shorter than that. The slowest waves
            of the series then take the place of sums over several values.

    Returns:
        A factor of the standard error, at least 1.
    """
    n: int = len(series)
    if n < 2 or _is_constant(series):
        return 1.0
    around = np.concatenate([np.zeros(1), np.cumsum(np.tile(series - series.mean(), 2))])
    sums = around[block : block + n] - around[:n]
    # As the bootstrap itself makes up for few blocks: m / (m - 1) of m.
    of_blocks = float(np.mean(sums**2)) / block * n / max(n - block, 1)
    if not of_blocks > 0:
        return 1.0
    if drifts:
        # Up to that of a run that goes away and does not come back: its mean may be off by twice
        # the spread of its steps.
        of_model = max(_of_model(series, 1, 1 - 1 / (2 * n)), of_waves(series))
    else:
        of_model = max(_of_model(series, scale) for scale in _SCALES)
    return math.sqrt(max(1.0, of_model / of_blocks))


def of_waves(series: Floats) -> float:
    """Variance of the mean of n values, times n, from the three slowest waves of the series.

    The mean of the squares of its first three cosine transforms (Müller 2004; Lazarus, Lewis, Stock
    & Watson 2018). A drift that lasts for a third of the run or longer is in them, as it is in the
    mean. They are three numbers, so Student's t has 3 degrees of freedom: for [1, 0, 0, -1] it is
    ((cos 22.5° - cos 157.5°)^2 + (cos 67.5° - cos 472.5°)^2) / 2 / 3 = 2/3; the second is 0.

    Args:
        series: n values.
    """
    n = len(series)
    angles = np.pi * (np.arange(n) + 0.5) / n  # (n,)
    waves = math.sqrt(2 / n) * np.cos(np.outer(np.arange(1, WAVES + 1), angles))  # (WAVES, n)
    return float(np.mean((waves @ (series - series.mean())) ** 2))


def _of_model(series: Floats, scale: int, highest: float = _HIGHEST) -> float:
    """Variance of the mean of n values, times n, if sums of them are an autoregression.

    g(0) (1 + r) / (1 - r), with r freed of its bias (1 + 3 r) / n (Kendall 1954). 0 where sums are
    too few, or no more alike than the autocorrelation of single values lets them be.
    """
    n = len(series) // scale
    sums = series[: n * scale].reshape(n, scale).sum(axis=1)
    if n < 2 or (scale > 1 and n < _FEWEST_SUMS) or _is_constant(sums):
        return 0.0
    r = _correlation(sums, highest)
    if scale > 1:
        foreseen = _of_sums(_correlation(series), scale)
        if r < foreseen + _MORE_ALIKE / math.sqrt(n):
            return 0.0
    variance = float(np.var(sums)) * n / (n - 1)
    return variance * (1 + r) / (1 - r) / scale


def _correlation(series: Floats, highest: float = _HIGHEST) -> float:
    covariances = autocovariances(series)
    r = float(covariances[1] / covariances[0])
    return min(r + (1 + 3 * r) / len(series), highest)


def _of_sums(r: float, scale: int) -> float:
    """Autocorrelation of sums over so many values of an autoregression (Amemiya & Wu 1972)."""
    if r <= 0:
        return 0.0
    left = 1 - r**scale
    return r * left**2 / (scale * (1 - r**2) - 2 * r * left)


def _is_constant(series: Floats) -> bool:
    return not float(np.var(series)) > 1e-24 * float(np.max(np.abs(series))) ** 2


def _last_correlated_lag(correlations: Floats) -> int:
    """The lag after which the next five or more are all noise."""
    n = len(correlations)
    bound = _CRITICAL * math.sqrt(math.log10(n) / n)
    quiet = max(5, math.ceil(math.sqrt(math.log10(n))))
    correlated = np.flatnonzero(np.abs(correlations[1:]) >= bound) + 1
    last = 0
    for lag in correlated:
        if lag > last + quiet:
            break
        last = int(lag)
    return last
