"""The interval of a difference: as wide as the steps vary, and with the coverage that it claims."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from mfu_torch.insight.compare.blocks import autocovariances, block_length, of_waves, widening
from mfu_torch.insight.compare.bootstrap import (
    Interval,
    Resampled,
    interval,
    resample,
    student_t,
)

Floats = NDArray[np.float64]


def series(generator: np.random.Generator, n: int, correlation: float) -> Floats:
    """Step times around 1 s that vary by 5 %, each correlated with the one before."""
    noise = np.zeros(n + 50)
    for index, shock in enumerate(generator.normal(size=n + 50)):
        noise[index] = correlation * noise[index - 1] * (index > 0) + shock
    found: Floats = np.exp(0.05 * noise[50:] * np.sqrt(1 - correlation**2))
    return found


def resampled(times: Floats, seed: int = 0, replicates: int = 500) -> Resampled | str:
    columns = np.stack([np.ones(len(times)), times], axis=1)
    return resample(columns, [(0, 1)], seed, replicates)


def rate_change(
    one: Floats, other: Floats, seed: int = 0, replicates: int = 500
) -> Interval | None:
    """Of steps per second, from one series of step times to another; none for too few steps."""
    a, b = resampled(one, 2 * seed, replicates), resampled(other, 2 * seed + 1, replicates)
    if isinstance(a, str) or isinstance(b, str):
        return None
    change = (len(other) / other.sum()) / (len(one) / one.sum()) - 1
    return interval(a, b, (0, 1), (0, 1), change=change, relative=True)


def known(found: Interval | None) -> Interval:
    assert found is not None
    return found


def several(
    n: int, correlation: float, pairs: int, faster: float = 1.0, first: int = 1
) -> list[Interval]:
    """Of pairs of runs that differ by a factor in truth; those with too few steps are left out."""
    generator = np.random.default_rng(first)
    found = []
    for seed in range(pairs):
        one, other = (series(generator, n, correlation) for _ in "ab")
        found.append(rate_change(one, other / faster, seed))
    return [each for each in found if each is not None]


@pytest.mark.parametrize(
    ("n", "correlation", "pairs", "least", "most"),
    [
        (20, 0.0, 400, 0.93, 0.98),  # few steps: Student's t
        (60, 0.0, 400, 0.93, 0.98),
        (100, 0.5, 400, 0.92, 0.98),
        (300, 0.8, 200, 0.90, 0.98),
    ],
)
def test_the_interval_holds_the_truth_in_95_of_100_pairs_of_runs(
    n: int, correlation: float, pairs: int, least: float, most: float
) -> None:
    found = several(n, correlation, pairs)
    assert len(found) > 0.8 * pairs
    held = sum(each.low <= 0 <= each.high for each in found)
    assert least <= held / len(found) <= most


@pytest.mark.parametrize(("n", "correlation"), [(20, 0.0), (60, 0.0), (60, 0.7), (200, 0.7)])
def test_of_200_pairs_of_equal_runs_about_5_in_100_are_called_different(
    n: int, correlation: float
) -> None:
    found = several(n, correlation, 200, first=3)
    called = sum(each.low > 0 or each.high < 0 for each in found)
    assert called <= 0.05 * len(found) + 2 * np.sqrt(0.05 * 0.95 * len(found))
    assert len(found) >= 100


def test_blocks_alone_would_call_the_noise_of_few_correlated_steps_a_difference(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mfu_torch.insight.compare.bootstrap.widening", lambda *_, drifts: 1.0)
    found = several(60, 0.7, 200)
    assert sum(each.low > 0 or each.high < 0 for each in found) > 0.08 * len(found)


def test_without_blocks_the_interval_of_correlated_steps_would_be_too_narrow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mfu_torch.insight.compare.bootstrap.block_length", lambda _: 1)
    monkeypatch.setattr("mfu_torch.insight.compare.bootstrap.widening", lambda *_, drifts: 1.0)
    found = several(300, 0.8, 200)
    assert sum(each.low <= 0 <= each.high for each in found) < 0.75 * len(found)


@pytest.mark.parametrize(("n", "correlation", "least"), [(200, 0.0, 0.98), (600, 0.7, 0.90)])
def test_a_change_by_3_percent_is_seen(n: int, correlation: float, least: float) -> None:
    found = several(n, correlation, 100, faster=1.03)
    assert sum(each.low > 0 for each in found) >= least * len(found)


def test_a_slow_drift_below_the_noise_of_steps_makes_the_interval_wider() -> None:
    generator = np.random.default_rng(9)
    factors = []
    for _ in range(20):
        drift = series(generator, 400, 0.95) ** 0.6  # 3 %, beside 5 % of noise
        factors.append(widening(drift * series(generator, 400, 0.0), 8))
    assert 1.3 < np.mean(factors) < 4


def test_steps_that_do_not_depend_on_each_other_are_hardly_widened() -> None:
    generator = np.random.default_rng(10)
    for n, most in ((20, 1.2), (60, 1.1), (200, 1.1)):
        values = [series(generator, n, 0.0) for _ in range(40)]
        factors = [widening(each, block_length(each)) for each in values]
        assert min(factors) >= 1 and np.mean(factors) < most


def test_the_variance_of_an_autoregression_is_that_of_its_formula() -> None:
    # Around the mean 0: 1, 1, -1, -1, 1, 1, -1, -1: g(0) = 1, g(1) = 1/8, so r = 1/8 of 8 values,
    # freed of its bias 1/8 + 11/64 = 19/64. 8/7 (1 + 19/64) / (1 - 19/64) = 8/7 83/45; blocks
    # of 1: 1, and 8/7 for their number.
    values = np.array([1.0, 1.0, -1.0, -1.0] * 2)
    assert widening(values, 1) == pytest.approx(np.sqrt(83 / 45))


@pytest.mark.parametrize("values", [[], [1.0], [3.0] * 50, [1.0, -1.0] * 30])
def test_what_does_not_stay_alike_is_not_widened(values: list[float]) -> None:
    assert widening(np.array(values), 2) == 1


def test_a_change_of_the_smallest_size_is_seen_in_4_of_5_pairs() -> None:
    smallest = float(np.mean([each.smallest for each in several(60, 0, 20)]))
    found = several(60, 0, 200, faster=1 + smallest, first=2)
    assert 0.72 <= sum(each.low > 0 for each in found) / len(found) <= 0.90


def test_the_interval_of_independent_steps_is_that_of_the_textbook(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = (series(np.random.default_rng(seed), 200, 0) for seed in (3, 4))
    monkeypatch.setattr("mfu_torch.insight.compare.bootstrap.widening", lambda *_, drifts: 1.0)
    found = known(rate_change(one, other, replicates=9999))
    # Standard error of the logarithm of a mean: sd / (mean sqrt(n)).
    error = np.sqrt(sum((x.std(ddof=1) / x.mean()) ** 2 / len(x) for x in (one, other)))
    centre = np.log(one.mean() / other.mean())
    assert np.log1p(found.low) == pytest.approx(centre - 1.96 * error, abs=0.15 * error)
    assert np.log1p(found.high) == pytest.approx(centre + 1.96 * error, abs=0.15 * error)
    assert found.smallest == pytest.approx(2.8 * error, rel=0.1)


def test_the_same_steps_and_seed_give_the_same_interval() -> None:
    one, other = (series(np.random.default_rng(seed), 40, 0.3) for seed in (5, 6))
    assert known(rate_change(one, other)) == rate_change(one, other)
    assert rate_change(one, other) != rate_change(one, other, seed=1)


def test_steps_that_never_vary_leave_no_doubt() -> None:
    found = known(rate_change(np.full(20, 1.0), np.full(20, 0.95)))
    assert (found.low, found.high) == pytest.approx((1 / 0.95 - 1, 1 / 0.95 - 1))
    assert found.smallest == pytest.approx(0, abs=1e-9)


def test_too_few_steps_have_no_interval() -> None:
    said = resampled(np.ones(9))
    assert said == "9 steady steps are too few for an interval; at least 10"


def test_steps_that_drift_have_a_wide_interval() -> None:
    found = resampled(np.linspace(1.0, 2.0, 50))
    assert not isinstance(found, str) and found.drifts
    assert (found.block, found.blocks, found.independent((0, 1))) == (10, 5, 4)
    # It goes away and does not come back: the mean may be off by twice the spread of 29 %, so by
    # 19 % with each of both, times the 3.18 of Student's t with 3 degrees of freedom.
    both = known(rate_change(np.linspace(1.0, 2.0, 50), np.linspace(1.0, 2.0, 50)))
    assert both.high > 1


def test_of_pairs_that_stay_alike_for_a_tenth_of_the_run_few_are_called_different() -> None:
    found = several(174, 0.95, 200, first=7)  # a step is forgotten after some 20
    called = sum(each.low > 0 or each.high < 0 for each in found)
    assert len(found) == 200 and called <= 16  # 5 in 100, and twice its standard error


def test_the_slowest_waves_are_those_of_the_formula() -> None:
    # cos 22.5 - cos 157.5 = 1.848, its square halved (2 / n) 1.707; the second wave is even: 0; the
    # third: cos 67.5 - cos 472.5 = 0.765, halved square 0.293. Mean of three: 2/3.
    assert of_waves(np.array([1.0, 0.0, 0.0, -1.0])) == pytest.approx(2 / 3)


def test_a_step_time_that_is_no_number_has_no_interval() -> None:
    said = resampled(np.array([1.0] * 19 + [np.nan]))
    assert said == "a step has a time or an amount that is not finite"


def test_a_long_run_is_drawn_in_sums_over_several_steps() -> None:
    found = resampled(series(np.random.default_rng(7), 25_000, 0.0), replicates=200)
    assert not isinstance(found, str)
    assert found.block % 25 == 0
    assert found.sums[:, 0] == pytest.approx(25_000)


def test_draws_keep_the_number_of_steps_and_spread_around_the_sum() -> None:
    times = series(np.random.default_rng(8), 103, 0.5)  # no multiple of its blocks
    found = resampled(times, replicates=2000)
    assert not isinstance(found, str) and found.block > 1
    assert set(found.sums[:, 0]) == {103.0}
    assert found.sums[:, 1].mean() == pytest.approx(times.sum(), rel=2e-3)


def test_a_figure_that_some_draws_lack_has_no_interval() -> None:
    tokens = np.array([0.0] * 19 + [1.0])
    drawn = resample(np.stack([tokens, np.ones(20)], axis=1), [(0, 1)], 0, 500)
    assert not isinstance(drawn, str)
    assert interval(drawn, drawn, (0, 1), (0, 1), change=0.0, relative=True) is None


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(4, 2.776), (10, 2.228), (30, 2.042), (1e6, 1.960)]
)
def test_student_t_is_that_of_the_tables(freedom: float, quantile: float) -> None:
    assert student_t(0.975, freedom) == pytest.approx(quantile, abs=1.5e-3)


# --- blocks --------------------------------------------------------------------------------------


def test_autocovariances_are_the_sums_of_products() -> None:
    # Around the mean 2: -1, 0, 2, -1. Lag 0: 6/4, lag 1: (0 + 0 - 2)/4, lag 2: (-2 + 0)/4, 3: 1/4.
    found = autocovariances(np.array([1.0, 2.0, 4.0, 1.0]))
    assert found == pytest.approx([1.5, -0.5, -0.5, 0.25])


def test_blocks_grow_with_the_correlation_of_steps() -> None:
    lengths = [
        np.mean([block_length(series(np.random.default_rng(s), 500, c)) for s in range(20)])
        for c in (0.0, 0.5, 0.9)
    ]
    assert lengths[0] < 9  # about the cube root of 500, the least
    assert lengths[0] < lengths[1] < lengths[2]


@pytest.mark.parametrize("values", [[], [1.0], [3.0] * 50, [0.1 + 0.2] * 50])
def test_steps_that_are_all_the_same_are_their_own_blocks(values: list[float]) -> None:
    assert block_length(np.array(values)) == 1
