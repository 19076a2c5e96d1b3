"""Several ranks of one job: what they lost together, and who waited for whom.

Only durations are compared between ranks, never times: no clock has to be synchronised.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mfu_torch.insight.breakdown.collectives import (
    STREAM,
    NotOneJob,
    RankTrace,
    rank_trace,
    transfers,
)
from mfu_torch.insight.breakdown.totals import total
from mfu_torch.records import Record
from mfu_torch.records.breakdown import Breakdown

if TYPE_CHECKING:
    from mfu_torch.insight.trace.events import Ints

__all__ = ["Exchange", "Job", "NotOneJob", "RankTrace", "RankWait", "combine", "rank_trace"]

_CLEAR = 0.5  # a culprit waits less than half as long as the others do on average
_LEAST = 0.01  # of the time of a rank: who waits for less waits for nobody


class Exchange(Record, frozen=True, kw_only=True):
    """Communication of one process group and collective, of all ranks and steps together.

    ``exposed_ns == transfer_ns + waiting_ns + unsplit_ns``.

    Attributes:
        group: Its name; ``"stream N"`` where the trace names none.
        collective: E.g. ``"all_reduce"``.
        calls: Kernels.
        matched: Of them, those that were found on another rank, too.
        exposed_ns: Time in which only communication ran.
        transfer_ns: Of it, the last part of each kernel: as long as the shortest one of the ranks.
        waiting_ns: Of it, what comes before: the peers had not come yet.
        unsplit_ns: Of it, that of kernels that are not matched.
    """

    group: str
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
        waited_ns: Sum over matched collectives: its duration less the shortest one.
        exposed_ns: Of the exposed communication, waiting.
    """

    rank: int
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
        culprit: The rank that the others wait for: it waits less than half as long as they do on
            average, and they for more than 1 % of the time; ``None`` where no rank stands out.
        bubble_ns: Time in, or idle time ended by, a send or receive, beyond the transfer;
            ``None`` where nothing is sent to one rank.
        notes: What limits these figures, as sentences.
    """

    total: Breakdown
    ranks: tuple[Breakdown, ...]
    world_size: int | None
    exchanges: tuple[Exchange, ...]
    waits: tuple[RankWait, ...]
    culprit: int | None
    bubble_ns: int | None
    notes: tuple[str, ...] = ()


def combine(given: Sequence[RankTrace]) -> Job:
    """Join several ranks, of each what :func:`rank_trace` keeps.

    Raises:
        NotOneJob: If a rank is missing or there twice, if the sizes of their worlds differ, if
            their steps are delimited in other ways or none is common, or if they call different
            collectives.
    """
    ranks = sorted(given, key=lambda one: -1 if one.rank is None else one.rank)
    world = _check(ranks)
    known = transfers(ranks)
    splits = [_split(one, of) for one, of in zip(ranks, known, strict=True)]
    waits = tuple(map(_wait, ranks, known, splits))
    exchanges = _exchanges(ranks, splits)
    return Job(
        total=total([one.breakdown for one in ranks]),
        ranks=tuple(one.breakdown for one in ranks),
        world_size=world,
        exchanges=exchanges,
        waits=waits,
        culprit=_culprit(waits, sum(one.breakdown.wall_ns for one in ranks) / len(ranks)),
        bubble_ns=_bubble(ranks, splits),
        notes=_notes(ranks, world, exchanges),
    )


# --- whether they belong together ------------------------------------------------------------


def _check(ranks: Sequence[RankTrace]) -> int | None:
    seen: dict[int, str] = {}
    for one in ranks:
        rank, file = one.rank, one.file
        if rank is None:
            raise NotOneJob(
                f"{file} does not say which rank it is of, so it cannot be joined with others; "
                "explain it alone"
            )
        if rank in seen:
            raise NotOneJob(
                f"rank {rank} is there twice ({seen[rank]} and {file}); give one trace of each"
            )
        seen[rank] = file
    worlds = {one.world_size for one in ranks if one.world_size is not None}
    if len(worlds) > 1:
        sizes = ", ".join(f"{one.file}: {one.world_size}" for one in ranks[:4])
        raise NotOneJob(f"the ranks are of jobs of different size ({sizes})")
    _check_steps([one.breakdown for one in ranks])
    return worlds.pop() if worlds else None


def _check_steps(ranks: Sequence[Breakdown]) -> None:
    first = ranks[0]
    for other in ranks[1:]:
        if other.edges != first.edges:
            raise NotOneJob(
                f"the steps of {first.file} are delimited by {first.edges!r}, those of "
                f"{other.file} by {other.edges!r}; give the same --edges for all"
            )
        if not set(other.steps) & set(first.steps):
            raise NotOneJob(
                f"{first.file} and {other.file} have no step in common ({first.steps[0]} and "
                f"{other.steps[0]}, ...): they were recorded at different times of the job"
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
    for one, split in zip(ranks, splits, strict=True):
        rows = zip(one.calls, *(column.tolist() for column in split), strict=True)
        for call, exposed, waiting, transfer in rows:
            if not exposed and call.launched_in is None and call.began_in is None:
                continue  # outside of the steps
            told = transfer >= 0
            added = (1, int(told), exposed, waiting, 0 if told else exposed)
            of = sums[call.group, call.name]
            of[:] = [a + b for a, b in zip(of, added, strict=True)]
    found = [
        Exchange(
            group=group,
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
    waited = sum(one.calls[index].duration_ns - transfer for index, transfer in known.items())
    assert one.rank is not None  # checked
    return RankWait(rank=one.rank, waited_ns=waited, exposed_ns=int(split.waiting_ns.sum()))


def _culprit(waits: Sequence[RankWait], wall_ns: float) -> int | None:
    least, *others = sorted(waits, key=lambda one: one.waited_ns)
    mean = sum(one.waited_ns for one in others) / max(1, len(others))
    is_clear = mean > _LEAST * wall_ns and least.waited_ns < _CLEAR * mean
    return least.rank if is_clear else None


def _bubble(ranks: Sequence[RankTrace], splits: Sequence[_Split]) -> int | None:
    bubble, is_seen = 0, False
    for one, split in zip(ranks, splits, strict=True):
        sends = np.array([call.is_point_to_point for call in one.calls], bool)
        bubble += int(one.idle_ns[sends].sum()) + int(split.waiting_ns[sends].sum())
        is_seen = is_seen or bool(sends.any())
    return bubble if is_seen else None


def _notes(
    ranks: Sequence[RankTrace], world: int | None, exchanges: Sequence[Exchange]
) -> tuple[str, ...]:
    notes = []
    if world is not None and len(ranks) < world:
        notes.append(
            f"{len(ranks)} of {world} ranks are given: whom they wait for may be another one, and "
            "the transfer may be shorter than the shortest that is seen"
        )
    calls, told = (sum(getattr(one, name) for one in exchanges) for name in ("calls", "matched"))
    if calls and told < calls:
        notes.append(
            f"{calls - told:,} of {calls:,} kernels of collectives have no counterpart on another "
            "given rank; their time is not split into transfer and waiting"
        )
    if any(one.group.startswith(STREAM) for one in exchanges):
        notes.append(
            "the trace does not name process groups: a stream stands for one, and collectives are "
            "matched by their order among those of their kind on it"
        )
    return tuple(notes)
