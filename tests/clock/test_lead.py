"""How far a device is behind the host, against a device whose lead is known."""

from __future__ import annotations

import random

import pytest

from mfu_torch.clock.lead import BLOCK, DRIFT, Lead, later


def test_a_lead_is_what_it_is_above_the_lowest() -> None:
    lead = Lead()
    moments = [lead.moves(3.0, 1.0), lead.moves(1.0, 4.0), lead.moves(2.0, 0.5)]
    assert moments == [(2.0, 3.0), (-1.0, 4.0), (0.5, 6.0)]
    # Less what clocks may have drifted in the 1 s and 2 s to the lowest.
    expected = [3.0 - 1.0 * DRIFT, 0.0, 1.5 - 2.0 * DRIFT]
    assert [lead.at_least_s(moment) for moment in moments] == pytest.approx(expected)


def test_without_any_mark_that_was_seen_nothing_is_claimed() -> None:
    assert Lead().at_least_s((5.0, 1.0)) == 0.0


def test_a_mark_beside_the_chain_can_be_the_lowest() -> None:
    lead = Lead()
    here = lead.moves(3.0, 1.0)
    lead.sees(later(here, 1.0, 8.0))  # 2 + 1 - 8
    assert lead.at_least_s((2.0, 4.0)) == 7.0


def test_the_lowest_is_forgotten_after_two_blocks() -> None:
    lead = Lead()
    lead.sees((-100.0, 0.0))
    for _ in range(2 * BLOCK):
        now = lead.moves(1.0, 1.0)
    assert lead.at_least_s(now) == 0.0


def test_it_is_remembered_for_a_block_at_least() -> None:
    lead = Lead()
    for _ in range(BLOCK - 1):
        lead.moves(1e-3, 1e-3)
    lead.sees((-3.0, lead.now[1]))
    for _ in range(BLOCK):
        now = lead.moves(1e-3, 1e-3)
    assert lead.at_least_s(now) == pytest.approx(3.0 - BLOCK * 1e-3 * DRIFT)


def test_a_mark_that_was_not_reached_yet_gives_a_lead_that_lasts() -> None:
    lead = Lead()
    lead.moves(0.5, 0.0)
    for number in range(4 * BLOCK):
        moment = lead.moves(0.125, 0.125)
        if number % 20 == 0:  # asked 0.375 s after it was taken, the GPU was not there
            lead.sees(moment, 0.375)
    assert lead.at_least_s(moment) == pytest.approx(0.375, abs=20 * 0.125 * DRIFT)  # 0.5 in truth


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("drift", [0.0, 2e-5, -2e-5, DRIFT, -DRIFT])
def test_of_a_device_with_a_queue_it_is_never_too_much(seed: int, drift: float) -> None:
    """The clocks drift, and the host is held up at any moment, between its readings too."""
    chance = random.Random(seed)
    host_s = busy_until_s = at_s = read_s = 0.0
    lead, worst_s, oldest_s = Lead(), 0.0, 0.0
    for number in range(4 * BLOCK):
        host_s += chance.expovariate(1.0)
        busy_until_s = max(busy_until_s, host_s) + chance.expovariate(1.1)
        host_s += chance.expovariate(4.0)
        before_s = host_s
        host_s += chance.choice([0.0, 0.0, 0.01, 0.5])
        reached_s = max(busy_until_s, host_s)
        host_s += chance.choice([0.0, 0.0, 0.01, 0.5])
        device_s = (reached_s - at_s) * (1 + drift)
        moment = lead.moves(device_s, host_s - read_s, host_s - before_s)
        at_s, read_s = reached_s, host_s
        true_s = max(0.0, reached_s - host_s)
        assert lead.at_least_s(moment) <= true_s + 1e-9
        oldest_s = max(oldest_s, lead.now[1])
        if number > BLOCK:
            worst_s = max(worst_s, true_s - lead.at_least_s(moment))
    assert worst_s < 1.0 + 2 * DRIFT * oldest_s  # it ran dry now and then, where all is known


def test_a_device_that_always_runs_dry_has_no_lead_however_clocks_drift() -> None:
    for drift in (2e-5, -2e-5):
        lead = Lead()
        for _ in range(4 * BLOCK):
            assert lead.at_least_s(lead.moves(1.0 + drift, 1.0)) == 0.0
