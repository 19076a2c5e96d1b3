"""Pipelines in the sends and receives of a job: the bubble, and the least that it can be.

Between neighbouring stages every micro-batch sends one message forward and one back. So stages and
micro-batches follow from who sends how much to whom.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from mfu_torch.insight.breakdown.collectives import Call, RankTrace
from mfu_torch.insight.trace.events import Ints
from mfu_torch.records import Record
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.utilization import pipeline_bubble

RING = "every rank sends equally much, as around a ring: these are not the stages of a pipeline"
_UNEVEN = "the numbers of messages between stages differ, or those of steps"
_NOT_ALL = "of some of its stages no rank is given"
_UNNAMED = "the trace names neither the peers of its messages nor the ranks of its process group"


class Pipeline(Record, frozen=True, kw_only=True):
    """Ranks that send to each other.

    Attributes:
        group: What their process group is called.
        ranks: Of its stages, as far as they are known; not all may be given.
        given: Of them, the ranks whose traces are given.
        bubble_ns: Of the given ranks: time in, or idle time ended by, a send or receive, beyond
            the transfer.
        wall_ns: Of the given ranks.
        outside_ns: By how much the steps of the given ranks are shorter than the longest ones: for
            so long a stage idles before its first and after its last work. 0 where the ranks do
            not have the same steps.
        work_ns: Of each given rank, what is neither bubble nor other exposed communication.
        stages: p, ``None`` where they cannot be told.
        micro_batches: m of a step, ``None`` where they cannot be told.
        chunks: v, stages of a rank that are interleaved.
        floor: ``(p - 1) / (v m + p - 1)`` of a step that is nothing but a pipeline of even
            stages (1F1B, GPipe); ``None`` where it cannot be told.
        unknown: Why it cannot.
    """

    group: str
    ranks: tuple[int, ...]
    given: tuple[int, ...]
    bubble_ns: int
    wall_ns: int
    outside_ns: int
    work_ns: tuple[int, ...]
    stages: int | None
    micro_batches: int | None
    chunks: int
    floor: float | None
    unknown: str

    @property
    def share(self) -> float:
        """Bubble of the time, both with what is outside of the steps."""
        return (self.bubble_ns + self.outside_ns) / max(1, self.wall_ns + self.outside_ns)

    @property
    def is_ring(self) -> bool:
        """Whether it is no pipeline at all."""
        return self.unknown == RING


class Shape(NamedTuple):
    """p, m and v; 0 where they cannot be told, and why."""

    stages: int = 0
    micro_batches: int = 0
    chunks: int = 1
    unknown: str = ""


class Chain(NamedTuple):
    """Ranks that are connected by sends and receives: places of the given ones, and their calls."""

    group: str
    ranks: tuple[int, ...]
    calls: dict[int, list[int]]
    links: dict[tuple[int, int], list[int]]
    """Sender and receiver -> messages of each step and size; empty where peers are not named."""
    sends: dict[int, list[int]]
    """Place -> messages that it sends, of each step and size."""


# --- bubble ----------------------------------------------------------------------------------


def pipeline_of(
    chain: Chain, ranks: Sequence[RankTrace], waiting_ns: Sequence[Ints], exposed_ns: Sequence[Ints]
) -> Pipeline:
    """What a chain is, and its bubble.

    Args:
        chain: Of these ranks.
        ranks: Of the job.
        waiting_ns: Of each rank and call, exposed time in which it waited.
        exposed_ns: Of each rank and call, exposed time.
    """
    shape = shape_of(chain)
    bubbles = {
        at: int((waiting_ns[at] + ranks[at].idle_ns)[calls].sum())
        for at, calls in chain.calls.items()
    }
    work = [
        sum(_work(ranks[at], exposed_ns[at], calls).values()) for at, calls in chain.calls.items()
    ]
    p, m, v, unknown = shape
    return Pipeline(
        group=chain.group,
        ranks=chain.ranks,
        given=tuple(_rank(ranks[at]) for at in chain.calls),
        bubble_ns=sum(bubbles.values()),
        wall_ns=sum(ranks[at].breakdown.wall_ns for at in chain.calls),
        outside_ns=_outside_ns([ranks[at].breakdown for at in chain.calls]),
        work_ns=tuple(work),
        stages=p or None,
        micro_batches=m or None,
        chunks=v,
        floor=pipeline_bubble(p, m, v) if p and m else None,
        unknown=unknown,
    )


def _outside_ns(ranks: Sequence[Breakdown]) -> int:
    if len({one.steps for one in ranks}) > 1:
        return 0
    return sum(max(one.wall_ns for one in ranks) - one.wall_ns for one in ranks)


def _rank(one: RankTrace) -> int:
    return -1 if one.rank is None else one.rank


def stage_waits(
    chain: Chain, ranks: Sequence[RankTrace], exposed_ns: Sequence[Ints]
) -> dict[int, dict[str, int]]:
    """Of each given stage and step, by how much it works less than the one that works most.

    A stage that works longer makes all others wait; how long depends on where in the trace the
    steps of a rank begin, and what it works does not.
    """
    work = {
        _rank(ranks[at]): _work(ranks[at], exposed_ns[at], of) for at, of in chain.calls.items()
    }
    most: dict[str, int] = {}
    for steps in work.values():
        for step, ns in steps.items():
            most[step] = max(ns, most.get(step, ns))
    common = [step for step in most if all(step in steps for steps in work.values())]
    return {
        rank: {step: most[step] - steps[step] for step in common} for rank, steps in work.items()
    }


def _work(one: RankTrace, exposed_ns: Ints, sends: Sequence[int]) -> dict[str, int]:
    found = dict(zip(one.breakdown.steps, one.breakdown.step_ns, strict=True))
    bubble_ns = exposed_ns.copy()
    bubble_ns[sends] += one.idle_ns[sends]
    for call, ns in zip(one.calls, bubble_ns.tolist(), strict=True):
        if call.began_in in found:
            found[call.began_in] -= ns
    return found


# --- who sends to whom -----------------------------------------------------------------------


def chains(ranks: Sequence[RankTrace]) -> Iterator[Chain]:
    """Ranks that are connected by sends; by process group where the peers are not named."""
    groups: dict[tuple[str, tuple[int, ...]], dict[int, list[int]]] = defaultdict(dict)
    for at, one in enumerate(ranks):
        for index, call in enumerate(one.calls):
            if call.is_point_to_point and one.step_of(call) is not None:
                groups[call.group, call.members].setdefault(at, []).append(index)
    for (group, members), calls in groups.items():
        yield from _chains(ranks, members, calls, group)


def _chains(
    ranks: Sequence[RankTrace], members: tuple[int, ...], calls: dict[int, list[int]], group: str
) -> Iterator[Chain]:
    pairs = {
        at: [peers(ranks[at].calls[i], _rank(ranks[at]), members) for i in of]
        for at, of in calls.items()
    }
    label = next(ranks[at].calls[of[0]].label for at, of in calls.items()) or group
    if not all(pair for of in pairs.values() for pair in of):
        sends = {at: _messages(ranks[at], of) for at, of in calls.items()}
        yield Chain(label, members, calls, {}, sends)
        return
    for names in _connected([pair for of in pairs.values() for pair in of if pair]):
        mine = {at: of for at, of in calls.items() if _rank(ranks[at]) in names}
        links: dict[tuple[int, int], list[int]] = {}
        for at, of in mine.items():
            alike: dict[tuple[int, int], list[int]] = defaultdict(list)
            for index, pair in zip(of, pairs[at], strict=True):
                if pair is not None:
                    alike[pair].append(index)
            for pair, indices in alike.items():
                name = "send" if pair[0] == _rank(ranks[at]) else "recv"
                if name == "send" or pair not in links:
                    links[pair] = _messages(ranks[at], indices, name)
        yield Chain(label, tuple(sorted(names)), mine, links, {})


def peers(call: Call, rank: int, members: tuple[int, ...]) -> tuple[int, int] | None:
    """Sender and receiver, as ranks of the job; the trace may number them within the group."""
    if call.pair is None:
        return None
    if rank in call.pair and (not members or set(call.pair) <= set(members)):
        return call.pair
    if rank in members and members.index(rank) in call.pair and max(call.pair) < len(members):
        return members[call.pair[0]], members[call.pair[1]]
    return None


def _messages(one: RankTrace, calls: Sequence[int], name: str = "send") -> list[int]:
    """How many there are of each step and size."""
    found = Counter(
        (one.step_of(one.calls[i]), one.calls[i].size_bytes)
        for i in calls
        if one.calls[i].name == name
    )
    return list(found.values())


def _connected(pairs: Sequence[tuple[int, int]]) -> list[set[int]]:
    found: list[set[int]] = []
    for pair in dict.fromkeys(pairs):
        touching = [one for one in found if one & set(pair)]
        found = [one for one in found if not one & set(pair)]
        found.append(set(pair).union(*touching))
    return found


# --- stages and micro-batches ----------------------------------------------------------------


def shape_of(chain: Chain) -> Shape:
    """p, m and v by the messages of a step; with one chunk of layers (v = 1) a rank has one stage.

    A path of p ranks sends m messages over every link, forward and (in training) back. Interleaved
    stages go around: v m over a link to the next rank, (v - 1) m over the one that closes the ring.
    """
    if chain.links:
        return _of_links(chain)
    if len(chain.ranks) < 2:
        return Shape(unknown=_UNNAMED)
    return _of_sends(chain)


def _of_links(chain: Chain) -> Shape:
    counts = {link: set(of) for link, of in chain.links.items()}
    if any(len(of) != 1 for of in counts.values()):
        return Shape(unknown=_UNEVEN)
    number = {link: next(iter(of)) for link, of in counts.items()}
    p, sides = len(chain.ranks), {frozenset(link) for link in number}
    if len(chain.calls) < p:  # who is not given may send to others still
        return Shape(unknown=_NOT_ALL)
    if any(number.get((b, a), number[a, b]) != number[a, b] for a, b in number):
        return Shape(unknown=_UNEVEN)
    degrees = Counter(rank for side in sides for rank in side)
    low, high = min(number.values()), max(number.values())
    if len(sides) == p - 1 and max(degrees.values()) <= 2:
        return Shape(p, high) if low == high else Shape(unknown=_UNEVEN)
    if len(sides) == p and set(degrees.values()) == {2}:
        closing = {frozenset(link) for link, count in number.items() if count == low}
        return _interleaved(p, high - low, high, len(closing) == 1)
    return Shape(unknown="its ranks are not connected one after another")


def _interleaved(p: int, m: int, most: int, closes_once: bool) -> Shape:
    if not m:
        return Shape(unknown=RING)
    if not closes_once or most % m or most // m < 2:
        return Shape(unknown=_UNEVEN)
    return Shape(p, m, most // m)


def _of_sends(chain: Chain) -> Shape:
    """The first and the last stage send m (2v - 1) messages, those between them 2 v m."""
    counts = [set(of) for of in chain.sends.values()]
    if any(len(of) != 1 for of in counts):
        return Shape(unknown=_UNEVEN)
    p, numbers = len(chain.ranks), Counter(next(iter(of)) for of in counts)
    low, high = min(numbers), max(numbers)
    if len(chain.sends) < p:
        return Shape(unknown=_NOT_ALL)
    if p == 2:
        return Shape(p, high) if low == high else Shape(unknown=_UNEVEN)
    if low == high:
        return Shape(unknown=RING)
    m = high - low
    if numbers[low] != 2 or len(numbers) != 2 or high % (2 * m):
        return Shape(unknown=_UNEVEN)
    return Shape(p, m, high // (2 * m))
