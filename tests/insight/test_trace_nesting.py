"""Which interval encloses which: against a search of all of them."""

from __future__ import annotations

import random

import numpy as np

from mfu_torch.insight.trace.nesting import _crossing, _nested, innermost, parents

Interval = tuple[int, int, int]


def nested(rng: random.Random, begin: int, end: int, thread: int, depth: int) -> list[Interval]:
    """Random intervals, properly nested; touching and empty ones among them."""
    found: list[Interval] = []
    at = begin
    while at < end and len(found) < 40:
        start = rng.randint(at, end)
        stop = rng.randint(start, end)
        found.append((start, stop, thread))
        if depth and stop > start:
            found += nested(rng, start, stop, thread, depth - 1)
        at = max(stop, at + 1)
    return found


def columns(intervals: list[Interval]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ordered = sorted(intervals, key=lambda one: (one[0], -one[1]))
    start, end, thread = np.array(ordered, np.int64).T
    return start, end, thread


def test_the_innermost_interval_is_the_shortest_of_those_around_a_moment() -> None:
    rng = random.Random(7)
    for _ in range(60):
        intervals = [one for thread in (3, 8) for one in nested(rng, 0, 60, thread, 3)]
        start, end, thread = columns(intervals)
        parent = parents(start, end, thread)
        moment = np.arange(62)
        for on in (3, 8, 5):
            found = innermost(moment, np.full(62, on), start, end, thread, parent)
            for at, one in zip(moment.tolist(), found.tolist(), strict=True):
                around = (thread == on) & (start <= at) & (end > at)
                if around.any():
                    assert around[one]
                    assert end[one] - start[one] == (end - start)[around].min()
                elif one >= 0:  # touches only
                    assert thread[one] == on
                    assert end[one] == at


def test_a_parent_encloses_its_child_and_nothing_lies_between() -> None:
    rng = random.Random(11)
    for _ in range(60):
        start, end, thread = columns([o for t in (1, 2) for o in nested(rng, 0, 50, t, 3)])
        parent = parents(start, end, thread)
        for child in np.flatnonzero(end > start).tolist():
            before = np.arange(len(start)) < child
            around = before & (thread == thread[child]) & (start <= start[child])
            around &= end >= end[child]
            if parent[child] < 0:
                assert not around.any()
                continue
            assert around[parent[child]]
            assert end[parent[child]] - start[parent[child]] == (end - start)[around].min()


def test_intervals_that_cross_or_are_instants_lie_in_the_last_that_is_open() -> None:
    rng = random.Random(13)
    for _ in range(200):
        begins = [rng.randint(0, 20) for _ in range(12)]
        start, end, thread = columns([(b, b + rng.choice([0, 0, 1, 3, 9]), 1) for b in begins])
        open_: list[int] = []
        expected = []
        for i in range(len(start)):
            at_its_end = start[i] == end[i]
            while open_ and not (
                end[open_[-1]] > start[i]
                or (at_its_end and end[open_[-1]] == start[i] > start[open_[-1]])
            ):
                open_.pop()
            expected.append(open_[-1] if open_ else -1)
            open_.append(i)
        assert parents(start, end, thread).tolist() == expected


def test_ops_of_two_threads_do_not_enclose_each_other() -> None:
    start, end, thread = np.array([0, 10]), np.array([100, 20]), np.array([1, 2])
    assert parents(start, end, thread).tolist() == [-1, -1]


def test_of_intervals_that_only_touch_the_later_has_the_moment() -> None:
    start, end, thread = np.array([0, 5]), np.array([5, 8]), np.array([1, 1])
    parent = parents(start, end, thread)
    assert parent.tolist() == [-1, -1]
    found = innermost(np.array([5, 8, 9]), np.full(3, 1), start, end, thread, parent)
    assert found.tolist() == [1, 1, -1]


def test_nothing_encloses_anything_in_an_empty_trace() -> None:
    empty = np.zeros(0, np.int64)
    assert parents(empty, empty, empty).tolist() == []
    assert innermost(np.array([3]), np.array([1]), empty, empty, empty, empty).tolist() == [-1]


def test_counting_finds_the_same_parents_as_going_through_one_by_one() -> None:
    rng = random.Random(17)
    for _ in range(200):
        start, end, _thread = columns(nested(rng, 0, rng.choice([8, 50]), 1, 4))
        found = _nested(start, end)
        assert found is not None
        assert found.tolist() == _crossing(start, end).tolist()


def test_counting_finds_no_parents_of_intervals_that_cross() -> None:
    # The second ends after the first, beside which an interval in between lies properly.
    start, end = np.array([0, 2, 3, 5]), np.array([10, 12, 4, 6])
    assert _nested(start, end) is None
    start, end = np.array([0, 2, 3, 5]), np.array([10, 9, 4, 11])
    assert _nested(start, end) is None
    assert parents(start, end, np.zeros(4, np.int64)).tolist() == [-1, 0, 1, 1]
