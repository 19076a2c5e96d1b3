"""Climbing out of nested intervals: level by level, and in leaps where they nest deep."""

from __future__ import annotations

import numpy as np
import pytest

from mfu_torch.insight.trace import climbing
from mfu_torch.insight.trace.climbing import first_open, topmost
from mfu_torch.insight.trace.events import Ints


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def by_hand(at: int, least_end: int, end: Ints, parent: Ints) -> int:
    while at >= 0 and end[at] < least_end:
        at = int(parent[at])
    return at


def test_the_first_that_ends_late_enough_is_found() -> None:
    end, parent = ints(100, 50, 30, 90), ints(-1, 0, 1, 0)
    at = ints(2, 2, 2, 2, 3, -1)
    assert first_open(at, ints(30, 31, 51, 101, 91, 0), end, parent).tolist() == [
        2,
        1,
        0,
        -1,
        0,
        -1,
    ]
    assert at.tolist() == [2, 2, 2, 2, 3, -1]


@pytest.mark.parametrize("steps", [0, 1, 64])
def test_leaps_find_what_single_steps_find(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(climbing, "_STEPS", steps)
    random = np.random.default_rng(7)
    for nodes in (1, 2, 3, 50, 400):
        # Ends are of any order: damaged traces hold ops that outlast the one around them.
        parent = np.array([int(random.integers(max(i - 3, -1), i)) for i in range(nodes)], np.int64)
        end = random.integers(0, 1_000, nodes)
        at, least = random.integers(-1, nodes, 300), random.integers(0, 1_100, 300)
        found = first_open(at, least, end, parent)
        assert found.tolist() == [
            by_hand(*pair, end, parent) for pair in zip(at, least, strict=True)
        ]


def test_a_hundred_thousand_levels_are_climbed_in_few_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    levels = 100_000
    turns = []
    flat = np.flatnonzero
    monkeypatch.setattr(climbing.np, "flatnonzero", lambda x: turns.append(1) or flat(x))
    parent, end = np.arange(-1, levels - 1), np.arange(levels, 0, -1)
    at = np.full(levels, levels - 1)
    assert first_open(at, np.arange(1, levels + 1), end, parent).tolist() == list(
        range(levels - 1, -1, -1)
    )
    assert len(turns) < 100


def test_a_question_goes_up_to_the_first_that_answers() -> None:
    parent = ints(-1, 0, 1, 2, -1)
    asks = np.array([True, False, True, True, True])
    assert topmost(asks, parent).tolist() == [0, 1, 1, 1, 4]


def test_ops_that_enclose_each_other_in_a_circle_end_the_climb() -> None:
    assert len(topmost(np.array([True, True]), ints(1, 0))) == 2
