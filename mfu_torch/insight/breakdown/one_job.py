"""Whether traces are of ranks of one job, and what to say where not all of it is there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mfu_torch.insight.breakdown.collectives import HOST, STREAM, NotOneJob, RankTrace
from mfu_torch.records.breakdown import Breakdown

_NAMED = 6  # ranks in a sentence


def check(ranks: Sequence[RankTrace]) -> int | None:
    """The size of the job, where a trace says it.

    Raises:
        NotOneJob: If a rank is missing or there twice, if the sizes of their worlds differ, or if
            their steps are delimited in other ways or none is common.
    """
    seen: dict[int, str] = {}
    for one in ranks:
        rank, file = one.rank, one.file
        if rank is None:
            raise NotOneJob(
                f"{file} does not say which rank it is of, so it cannot be joined with others; "
                "explain it alone"
            )
        if rank in seen:
            files = f"{seen[rank]} and {file}"
            if file == seen[rank]:
                files = f"{file}, given twice, or in two folders"
            raise NotOneJob(f"rank {rank} is there twice ({files}); give one trace of each")
        seen[rank] = file
    worlds = {one.world_size for one in ranks if one.world_size is not None}
    if len(worlds) > 1:
        sizes = ", ".join(f"{one.file}: {one.world_size}" for one in _of_each_size(ranks))
        raise NotOneJob(f"the ranks are of jobs of different size ({sizes})")
    _check_steps([one.breakdown for one in ranks])
    return worlds.pop() if worlds else None


def _of_each_size(ranks: Sequence[RankTrace]) -> list[RankTrace]:
    first: dict[int | None, RankTrace] = {}
    for one in ranks:
        first.setdefault(one.world_size, one)
    return list(first.values())[:4]


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


# --- what is said ----------------------------------------------------------------------------


def notes_on(ranks: Sequence[RankTrace], world: int | None) -> Iterator[str]:
    """What limits the figures of these ranks."""
    if world is not None and len(ranks) < world:
        yield (
            f"{len(ranks)} of {world} ranks are given: whom they wait for may be another one, and "
            "the transfer may be shorter than the shortest that is seen"
        )
    yield from _unequal_steps([one.breakdown for one in ranks])
    calls = [call for one in ranks for call in one.calls]
    if not calls:
        yield "no collectives are in these traces: who waits for whom is not known"
    if any(call.group == HOST for call in calls):
        yield (
            "the trace does not say of which process group a collective of the host is: they are "
            "matched by their order among those of their kind"
        )
    if any(call.group.startswith(STREAM) for call in calls):
        yield (
            "the trace does not name process groups: a stream stands for one, and collectives are "
            "matched by their order among those of their kind on it"
        )
    both = sum(call.name == "send_recv" for call in calls)
    if both:
        yield (
            f"{both:,} kernels send and receive at once (batch_isend_irecv), and the trace does "
            "not say with whom: what of them is the bubble of a pipeline is not known"
        )


def _unequal_steps(ranks: Sequence[Breakdown]) -> Iterator[str]:
    """The sums take every step of every rank; collectives are matched in common ones."""
    if ranks[0].edges == "trace":
        return
    common = set(ranks[0].steps).intersection(*(one.steps for one in ranks))
    every = {step for one in ranks for step in one.steps}
    if every == common:
        return
    counts = {one.rank: len(one.steps) for one in ranks}
    least, most = min(counts.values()), max(counts.values())
    fewer = [rank for rank, count in counts.items() if count < most]
    named = ", ".join(map(str, fewer[:_NAMED])) + ", ..." * (len(fewer) > _NAMED)
    what = (
        f"the ranks have from {least} to {most} steps (fewer than {most}: rank {named})"
        if fewer
        else f"the ranks have {most} steps each, but not the same ones"
    )
    yield (
        f"{what}; {len(common)} of {len(every)} are of all ranks. Each step counts once, so a rank "
        "with more of them counts for more, and only in common ones it is told who waits for whom; "
        "--steps A:B takes the same of all"
    )


def unmatched_note(calls: int, told: int) -> Iterator[str]:
    """Kernels that only one of the given ranks has.

    Args:
        calls: Kernels of collectives.
        told: Of them, those with a counterpart.
    """
    if told < calls:
        yield (
            f"{calls - told:,} of {calls:,} collectives have no counterpart on another "
            "given rank; their time is not split into transfer and waiting"
        )
