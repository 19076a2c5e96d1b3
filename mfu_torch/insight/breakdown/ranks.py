"""Several ranks of one job: what they lost together, and who waited for whom.

Only durations are compared between ranks, never times: no clock has to be synchronised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mfu_torch.insight.breakdown.collectives import NotOneJob, RankTrace, transfers
from mfu_torch.insight.breakdown.intervals import covered_ns
from mfu_torch.insight.breakdown.job_roofline import JobRoofline, joined
from mfu_torch.insight.breakdown.late import Group, Late, late
from mfu_torch.insight.breakdown.one_job import check, notes_on, unmatched_note
from mfu_torch.insight.breakdown.pipeline import (
    Pipeline,
    chains,
    pipeline_of,
    stage_waits,
)
from mfu_torch.insight.breakdown.rank_calls import rank_trace
from mfu_torch.insight.breakdown.totals import total
from mfu_torch.records import Record
from mfu_torch.records.breakdown import Breakdown

if TYPE_CHECKING:
    from mfu_torch.insight.trace.events import Ints

__all__ = ["Exchange", "Job", "NotOneJob", "RankTrace", "RankWait", "combine", "rank_trace"]


class Exchange(Record, frozen=True, kw_only=True):
    """Communication of one process group and collective, of all ranks and steps together.

    ``exposed_ns == transfer_ns + waiting_ns + unsplit_ns``.

    Attributes:
        group: What the program calls it (``"mesh_tp"``), all groups of this name together; else
            its name; ``"stream N"`` where the trace names none.
        groups: How many process groups that are.
        collective: E.g. ``"all_reduce"``.
        calls: Kernels.
        matched: Of them, those that were found on another rank, too.
        exposed_ns: Time in which only communication ran.
        transfer_ns: Of it, the last part of each kernel: as long as the shortest one of the ranks.
        waiting_ns: Of it, what comes before: the peers had not come yet.
        unsplit_ns: Of it, that of kernels that are not matched.
    """

    group: str
    groups: int = 1
    collective: str
    calls: int
    matched: int
    exposed_ns: int
    transfer_ns: int
    waiting_ns: int
    unsplit_ns: int


class RankWait(Record, frozen=True, kw_only=True):
    """How long a rank waited in collectives, also beside its own compute.

    Attributes:
        rank: Of the job.
        waited_ns: Of each matched collective, its duration less the shortest one, where several
            wait side by side once; of sends and receives, what is part of the bubble.
        exposed_ns: Of the exposed communication, waiting.
        matched: Its kernels of collectives whose waiting is known; with none, 0 ns say nothing.
    """

    rank: int
    matched: int
    waited_ns: int
    exposed_ns: int


class Job(Record, frozen=True, kw_only=True):
    """Ranks of one job.

    Attributes:
        total: Sums over ranks: its steps are those of every rank, so a mean step is that of a
            mean rank, and ``wall_ns`` is ranks x time.
        ranks: Each by itself, by rank.
        world_size: Of the job; ``None`` where no trace says it.
        exchanges: By process group and collective, the most exposed first.
        waits: Of each rank.
        late: The ranks that others wait for, and not because they waited themselves; empty where
            none stands out.
        pipelines: Ranks that send to each other; rings are none.
        roofline: Of all ranks.
        notes: What limits these figures, as sentences.
    """

    total: Breakdown
    ranks: tuple[Breakdown, ...]
    world_size: int | None
    exchanges: tuple[Exchange, ...]
    waits: tuple[RankWait, ...]
    late: tuple[Late, ...]
    pipelines: tuple[Pipeline, ...]
    roofline: JobRoofline
    notes: tuple[str, ...] = ()

    @property
    def culprit(self) -> int | None:
        """The rank that the others wait for, where it is one."""
        ranks = {rank for one in self.late for rank in one.ranks}
        return ranks.pop() if len(ranks) == 1 else None

    @property
    def bubble_ns(self) -> int | None:
        """Time in, or idle time ended by, a send or receive of a pipeline, beyond its transfer.

        ``None`` where there is no pipeline.
        """
        return sum(one.bubble_ns for one in self.pipelines) if self.pipelines else None


def combine(given: Sequence[RankTrace]) -> Job:
    """Join several ranks, of each what :func:`rank_trace` keeps.

    Raises:
        NotOneJob: If a rank is missing or there twice, if the sizes of their worlds differ, if
            their steps are delimited in other ways or none is common, or if they call different
            collectives.
    """
    ranks = sorted(given, key=lambda one: -1 if one.rank is None else one.rank)
    world = check(ranks)
    known = transfers(ranks)
    splits = [_split(one, of) for one, of in zip(ranks, known, strict=True)]
    exposed = [one.exposed_ns for one in splits]
    pairs = [
        (one, pipeline_of(one, ranks, [of.waiting_ns for of in splits], exposed))
        for one in chains(ranks)
    ]
    stages = [(chain, found) for chain, found in pairs if not found.is_ring]
    groups = [
        *_groups(ranks, known, splits),
        *(Group(one.group, stage_waits(one, ranks, exposed)) for one, _ in stages),
    ]
    exchanges = _exchanges(ranks, splits)
    calls, told = (sum(getattr(one, name) for one in exchanges) for name in ("calls", "matched"))
    return Job(
        total=total([one.breakdown for one in ranks]),
        ranks=tuple(one.breakdown for one in ranks),
        world_size=world,
        exchanges=exchanges,
        waits=tuple(map(_wait, ranks, known, splits)),
        late=late(groups, sum(one.breakdown.wall_ns for one in ranks) / len(ranks)),
        pipelines=tuple(found for _, found in stages),
        roofline=joined([(one.breakdown, one.roofline) for one in ranks]),
        notes=(*notes_on(ranks, world), *unmatched_note(calls, told)),
    )


# --- transfer and waiting --------------------------------------------------------------------


class _Split(NamedTuple):
    """Of each call of a rank.

    Attributes:
        exposed_ns: While nothing else ran.
        waiting_ns: Of it, before the last peer came.
        transfer_ns: Of the whole call; -1 where it cannot be told.
    """

    exposed_ns: Ints
    waiting_ns: Ints
    transfer_ns: Ints


def _split(one: RankTrace, known: dict[int, int]) -> _Split:
    transfer = np.full(len(one.calls), -1, np.int64)
    transfer[list(known.keys())] = list(known.values())
    lasts = transfer[one.exposed_call]  # the last part of the kernel
    waiting = np.clip(one.to_end_ns - lasts, 0, one.exposed_ns)
    waiting[lasts < 0] = 0
    return _Split(one.per_call(one.exposed_ns), one.per_call(waiting), transfer)


def _exchanges(ranks: Sequence[RankTrace], splits: Sequence[_Split]) -> tuple[Exchange, ...]:
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * 5)
    groups: dict[tuple[str, str], set[tuple[str, tuple[int, ...]]]] = defaultdict(set)
    for one, split in zip(ranks, splits, strict=True):
        rows = zip(one.calls, *(column.tolist() for column in split), strict=True)
        for call, exposed, waiting, transfer in rows:
            if not exposed and call.launched_in is None and call.began_in is None:
                continue  # outside of the steps
            told = transfer >= 0
            added = (1, int(told), exposed, waiting, 0 if told else exposed)
            groups[call.label, call.name].add((call.group, call.members))
            of = sums[call.label, call.name]
            of[:] = [a + b for a, b in zip(of, added, strict=True)]
    found = [
        Exchange(
            group=group,
            groups=len(groups[group, name]),
            collective=name,
            calls=calls,
            matched=told,
            exposed_ns=exposed,
            transfer_ns=exposed - waiting - unsplit,
            waiting_ns=waiting,
            unsplit_ns=unsplit,
        )
        for (group, name), (calls, told, exposed, waiting, unsplit) in sums.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.exposed_ns))


def _wait(one: RankTrace, known: dict[int, int], split: _Split) -> RankWait:
    # A send or receive may be posted early, beside compute, and wait for nobody's loss.
    bubble = sum(
        int(split.waiting_ns[index] + one.idle_ns[index])
        for index in known
        if one.calls[index].is_point_to_point
    )
    spans = [
        (call.begin_ns, call.begin_ns + call.duration_ns - transfer)
        for call, transfer in ((one.calls[index], ns) for index, ns in known.items())
        if not call.is_point_to_point
    ]
    waited = bubble + _length_of_union(spans)
    assert one.rank is not None  # checked
    exposed = int(split.waiting_ns.sum())
    return RankWait(rank=one.rank, matched=len(known), waited_ns=waited, exposed_ns=exposed)


def _length_of_union(spans: Sequence[tuple[int, int]]) -> int:
    begin, end = np.array(sorted(spans), np.int64).reshape(-1, 2).T
    last = np.array([np.iinfo(np.int64).max])
    return int(covered_ns(begin, end, last)[0])


def _groups(
    ranks: Sequence[RankTrace], known: Sequence[dict[int, int]], splits: Sequence[_Split]
) -> list[Group]:
    """Exposed waits in collectives of each process group; in a pipeline the work tells.

    A collective that one rank begins early, beside its compute, makes nobody late.
    """
    waits: dict[tuple[str, tuple[int, ...]], dict[int, dict[str, int]]] = {}
    labels: dict[tuple[str, tuple[int, ...]], str] = {}
    for one, of, split in zip(ranks, known, splits, strict=True):
        assert one.rank is not None  # checked
        for index in of:
            call, step = one.calls[index], one.step_of(one.calls[index])
            if call.is_point_to_point or step is None:
                continue
            group = (call.group, call.members)
            labels[group] = call.label
            mine = waits.setdefault(group, {}).setdefault(one.rank, {})
            mine[step] = mine.get(step, 0) + int(split.waiting_ns[index])
    return [Group(labels[group], of) for group, of in waits.items()]
