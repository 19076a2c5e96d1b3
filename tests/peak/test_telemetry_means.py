"""Means of readings: exact where they are equal, and of numbers only."""

from __future__ import annotations

import itertools

import pytest

from mfu_torch.peak.telemetry.means import Means
from mfu_torch.peak.telemetry.source import Reading

NAN, INF = float("nan"), float("inf")


def means(*readings: tuple[float, dict[str, float]]) -> Means:
    """Of ``(seconds, values)``."""
    found = Means()
    for elapsed_s, values in readings:
        found.add(Reading(dict(values)), elapsed_s)
    return found


@pytest.mark.parametrize("clock_hz", [1.755e9, 1.41e9, 1.98e9])
def test_the_mean_of_equal_readings_is_that_reading(clock_hz: float) -> None:
    noise = 0
    for times_s in itertools.product((0.1, 0.3, 0.7, 1.1), repeat=3):
        found = means(*((elapsed_s, {"sm_clock_hz": clock_hz}) for elapsed_s in times_s)).record(1)
        assert found.sm_clock_hz == found.sm_clock_min_hz == clock_hz
        weighted = clock_hz * times_s[0] + clock_hz * times_s[1] + clock_hz * times_s[2]
        noise += weighted / (times_s[0] + times_s[1] + times_s[2]) != clock_hz
    assert noise > 10  # what the quotient of the sums would be, this often


def test_a_mean_lies_between_the_lowest_and_the_highest_reading() -> None:
    found = means((1.0, {"sm_clock_hz": 1.2e9}), (3.0, {"sm_clock_hz": 1.6e9})).record(1)
    assert (found.sm_clock_hz, found.sm_clock_min_hz) == (1.5e9, 1.2e9)


def test_a_lowest_reading_of_zero_is_the_lowest() -> None:
    """Of a source that does not check what it reads."""
    for clocks_hz in ((0.0, 1e9), (1e9, 0.0)):
        found = means(*((1.0, {"sm_clock_hz": clock_hz}) for clock_hz in clocks_hz)).record(1)
        assert (found.sm_clock_hz, found.sm_clock_min_hz) == (0.5e9, 0.0)


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
@pytest.mark.parametrize("field", ["power_w", "sm_clock_hz", "temperature_c", "memory_used_bytes"])
def test_what_is_no_number_takes_no_part(field: str, odd: float) -> None:
    only = means((3.0, {field: odd})).record(1)
    assert (getattr(only, field), only.absent[field]) == (None, f"{odd} was reported")
    assert ("sm_clock_min_hz" in only.absent) and only.sm_clock_min_hz is None
    for order in ((odd, 60.0, odd), (60.0, odd, odd), (odd, odd, 60.0)):
        found = means(*((1.0, {field: value}) for value in order)).record(1)
        assert getattr(found, field) == 60.0 and field not in found.absent
        assert (found.samples, found.time_s) == (3, 3.0)
