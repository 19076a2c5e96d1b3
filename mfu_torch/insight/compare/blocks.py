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
    covariances = autocovariances(series) if n else series
    if n < 2 or not covariances[0] > 1e-24 * float(np.max(np.abs(series))) ** 2:
        return 1  # one value, or always the same
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
