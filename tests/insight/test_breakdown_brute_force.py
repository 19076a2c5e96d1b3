"""Random traces: the labels are those that a loop over every moment gives."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import brute_force
import numpy as np
import pytest
from hand_trace import (
    ATTENTION,
    AUTOGRAD,
    CONV,
    COPY,
    GEMM,
    MAIN,
    MEMSET_NAME,
    NCCL,
    OTHER,
    WORKER,
    Hand,
    Span,
    Work,
)

from mfu_torch.insight.breakdown.codes import BASE_BUCKETS, IDLE
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.partition import labels_of

SEEDS = range(300)
NAMES = (GEMM, CONV, ATTENTION, OTHER, NCCL, COPY, MEMSET_NAME)


def random_hand(seed: int) -> tuple[Hand, int]:
    """A trace, and the unit that all its times are multiples of."""
    rng = random.Random(seed)
    unit = rng.choice((500, 1000, 2500, 5000))
    length = rng.randint(20, 90)

    def span(most: int, threads: tuple[str, ...], name: str = "span") -> Span:
        start = rng.randint(0, length)
        end = start + rng.randint(0, most)
        return Span(start * unit, end * unit, name, rng.choice(threads))

    def work() -> Work:
        start = rng.randint(0, length)
        end = start + rng.choice((0, 1, 1, 2, 3, 5, 12))
        # Some are launched after they start: host and device disagree about the time.
        launch = -1 if rng.random() < 0.15 else max(start - rng.randint(-2, 25), 0) * unit
        name, thread = rng.choice(NAMES), rng.choice((MAIN, MAIN, AUTOGRAD))
        more = {"stream": rng.randint(7, 10), "call": rng.choice((0, 1, 2, 15)) * unit}
        return Work(name, start * unit, end * unit, launch, thread, **more)

    def some(most: int) -> range:
        return range(rng.randint(0, most))

    every = (MAIN, AUTOGRAD, WORKER)
    hand = Hand(
        work=[work() for _ in range(rng.randint(1, 14))],
        syncs=[span(8, every) for _ in some(3)],
        allocs=[span(8, every) for _ in some(3)],
        data_waits=[span(12, every) for _ in some(2)],
    )
    cuts = sorted(rng.sample(range(length + 1), rng.randint(2, 5)))
    if rng.random() < 0.9:
        hand.steps = [
            Span(a * unit, b * unit, f"ProfilerStep#{i}") for i, (a, b) in enumerate(pairwise(cuts))
        ]
    return hand, unit


def expected_edges(hand: Hand, mode: str) -> tuple[list[str], list[int]]:
    if mode == "trace" or not hand.steps:
        bounds = [min(one.start for one in hand.work), max(one.end for one in hand.work)]
        return ["trace"], bounds
    found = brute_force.gpu_edges(hand) if mode == "gpu" else brute_force.cpu_edges(hand)
    return found if found[1] else brute_force.cpu_edges(hand)


def moments(labels: Labels, unit: int) -> dict[int, int]:
    """Segment of each moment."""
    low, high = labels.bounds_ns[0], labels.bounds_ns[-1]
    times = np.arange(low, high, unit)
    at = np.searchsorted(labels.bounds_ns, times, side="right") - 1
    return dict(zip(times.tolist(), at.tolist(), strict=True))


def differences(seed: int, mode: str, seen: Counter[str]) -> list[str]:
    hand, unit = random_hand(seed)
    names, bounds = expected_edges(hand, mode)
    if bounds[0] == bounds[-1]:
        return []
    trace = hand.trace()
    labels = labels_of(trace, edges=mode)
    wrong = []
    if (list(labels.edges.names), labels.edges.bounds_ns.tolist()) != (names, bounds):
        wrong.append(f"{seed}: edges {labels.edges} instead of {names} {bounds}")
        return wrong
    for t, segment in moments(labels, unit).items():
        bucket = BASE_BUCKETS[labels.bucket[segment]]
        wanted = brute_force.bucket_at(hand, t)
        step = sum(bound <= t for bound in bounds) - 1
        seen[wanted] += 1
        if (bucket, labels.step[segment]) != (wanted, step):
            wrong.append(f"{seed} at {t}: {bucket} in {labels.step[segment]}: {wanted}, {step}")
        communicates = any(w.name == NCCL and w.start <= t < w.end for w in hand.work)
        if labels.communicates[segment] != communicates:
            wrong.append(f"{seed} at {t}: communicates")
        if labels.time_class[segment] == IDLE:
            ender = brute_force.ender_at(hand, t)
            start = trace.work.start_ns[labels.work[segment]] if labels.work[segment] >= 0 else None
            if (ender and ender.start) != start:
                wrong.append(f"{seed} at {t}: ended at {start}, not by {ender}")
    return wrong


@pytest.mark.parametrize("mode", ["gpu", "cpu", "trace"])
def test_every_moment_of_random_traces_goes_where_the_rules_say(mode: str) -> None:
    seen: Counter[str] = Counter()
    wrong = [text for seed in SEEDS for text in differences(seed, mode, seen)]
    assert wrong == []
    # Every rule was put to the test, not only the frequent ones.
    assert {name for name in BASE_BUCKETS if seen[name] < 20} == set()


def test_kernels_on_top_are_of_the_class_of_their_segment_and_run_in_it() -> None:
    for seed in SEEDS[:100]:
        trace = random_hand(seed)[0].trace()
        if trace.work.start_ns.min() == trace.work.end_ns.max():
            continue
        labels = labels_of(trace, edges="trace")
        busy = labels.time_class != IDLE
        top = labels.work[busy]
        assert (labels.work_class[top] == labels.time_class[busy]).all()
        assert (trace.work.start_ns[top] <= labels.bounds_ns[:-1][busy]).all()
        assert (trace.work.end_ns[top] >= labels.bounds_ns[1:][busy]).all()


@pytest.mark.parametrize("mode", ["gpu", "cpu"])
def test_time_by_step_and_time_by_kernel_are_the_wall_time(mode: str) -> None:
    for seed in SEEDS[:100]:
        hand, _ = random_hand(seed)
        bounds = expected_edges(hand, mode)[1]
        if bounds[0] == bounds[-1]:
            continue
        labels = labels_of(hand.trace(), edges=mode)
        whole = np.ones(len(labels.time_class), bool)
        assert labels.per_step_ns(whole).tolist() == np.diff(bounds).tolist()
        no_work = int(labels.length_ns[labels.work < 0].sum())
        assert labels.per_work_ns(whole).sum() + no_work == bounds[-1] - bounds[0]


def random_ops(rng: random.Random, start: int, end: int, thread: str, depth: int) -> list[Span]:
    """Ops side by side in [start, end), each with others in it."""
    found = []
    while start < end and rng.random() < 0.9:
        begin = start + rng.randint(0, 4)
        start = begin + rng.randint(0, 12)
        if start > end:
            break
        name = rng.choice(("aten::mm", "aten::conv2d", "aten::mul", "aten::einsum", "MyFunction"))
        found.append(Span(begin, start, name, thread))
        if depth:
            found += random_ops(rng, begin, start, thread, depth - 1)
    return found


def test_every_moment_of_random_traces_of_a_cpu_goes_where_the_rules_say() -> None:
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        rng = random.Random(seed)
        ops = [one for thread in (MAIN, WORKER) for one in random_ops(rng, 0, 100, thread, 3)]
        waits = [
            Span(at, at + rng.randint(0, 9), "loader", MAIN) for at in (20, rng.randint(0, 99))
        ]
        steps = [Span(0, 50, "ProfilerStep#1"), Span(50, 110, "ProfilerStep#2")]
        hand = Hand(ops=ops or [Span(0, 1, "aten::mul")], steps=steps, data_waits=waits)
        labels = labels_of(hand.trace())
        assert labels.edges.bounds_ns.tolist() == [0, 50, 110]
        for t, segment in moments(labels, 1).items():
            wanted = brute_force.host_bucket_at(hand, t)
            seen[wanted] += 1
            assert (BASE_BUCKETS[labels.bucket[segment]], seed, t) == (wanted, seed, t)
            assert labels.step[segment] == (t >= 50)
    assert min(seen[name] for name in ("matrix", "other_compute", "idle/data_wait")) > 1000
