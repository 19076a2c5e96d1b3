"""How far a device is behind the host, against a device whose lead is known."""

from __future__ import annotations

import random

import pytest

from mfu_torch.clock.lead import BLOCK, Lead


def test_a_lead_is_what_it_is_above_the_lowest() -> None:
    lead = Lead()
    positions = [lead.moves(3.0, 1.0), lead.moves(1.0, 4.0), lead.moves(2.0, 0.5)]
    assert positions == [2.0, -1.0, 0.5]
    assert [lead.at_least_s(position) for position in positions] == [3.0, 0.0, 1.5]


def test_a_mark_beside_the_chain_can_be_the_lowest() -> None:
    lead = Lead()
    lead.moves(3.0, 1.0)
    lead.sees(-5.0)
    assert lead.at_least_s(2.0) == 7.0


def test_the_lowest_is_forgotten_as_clocks_drift() -> None:
    lead = Lead()
    lead.sees(-100.0)
    for _ in range(2 * BLOCK):
        lead.moves(1.0, 1.0)
    assert lead.at_least_s(0.0) == 0.0


def test_it_is_remembered_for_a_block_at_least() -> None:
    lead = Lead()
    for _ in range(BLOCK - 1):
        lead.moves(1.0, 1.0)
    lead.sees(-3.0)
    for _ in range(BLOCK):
        lead.moves(1.0, 1.0)
    assert lead.at_least_s(0.0) == 3.0


def test_a_mark_that_was_not_reached_yet_gives_a_lead_that_lasts() -> None:
    lead = Lead()
    lead.moves(0.5, 0.0)
    for number in range(4 * BLOCK):
        position_s = lead.moves(0.125, 0.125)
        if number % 20 == 0:  # asked 0.375 s after it was taken, the GPU was not there
            lead.sees(position_s, 0.375)
    assert lead.at_least_s(position_s) == 0.375  # 0.5 s in truth


@pytest.mark.parametrize("seed", range(8))
def test_of_a_device_with_a_queue_it_is_never_too_much_and_exact_once_it_ran_dry(seed: int) -> None:
    chance = random.Random(seed)
    host_s = busy_until_s = 0.0
    lead, at_s, before, dry = Lead(), 0.0, 0.0, False
    for _ in range(300):
        host_s += chance.expovariate(1.0)
        busy_until_s = max(busy_until_s, host_s) + chance.expovariate(1.1)
        host_s += chance.expovariate(4.0)
        reached_s = max(busy_until_s, host_s)
        position_s = lead.moves(reached_s - at_s, host_s - before)
        at_s, before = reached_s, host_s
        true_s = reached_s - host_s
        dry = dry or true_s == 0.0
        assert lead.at_least_s(position_s) <= true_s + 1e-9
        if dry:
            assert lead.at_least_s(position_s) == pytest.approx(true_s, abs=1e-9)
    assert dry
