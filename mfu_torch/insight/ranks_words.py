"""Sentences on a :class:`Job`: who waits for whom, and the bubble of its pipelines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from mfu_torch.insight.breakdown.late import Late
from mfu_torch.insight.breakdown.pipeline import Pipeline
from mfu_torch.insight.breakdown.printed import short_share
from mfu_torch.insight.breakdown.ranks import Exchange, Job
from mfu_torch.insight.breakdown_words import bucket_of, fix_first, ms_per_step, steps_of
from mfu_torch.insight.text import plural
from mfu_torch.records.breakdown import Breakdown
from mfu_torch.records.losses import first_loss, label, printable
from mfu_torch.units import percent

COMMUNICATION = "exposed_communication"
_NO_OPERATOR = "idle/unknown"  # what that is on a CPU
_LATES = 3  # in a sentence
_RANKS = 6  # in a list
_ALSO = 0.3  # of the largest excess; what is less is not named
_PART = 0.2  # of the lateness; an excess below it is no cause
_MOSTLY = 0.5  # waiting, of the exposed communication
_NOT_LITTLE = 0.05  # of the time
_LITTLE = 0.01  # of the time
_POINTS = 0.5  # of a share in percent; by so much, it is not the closed form
_UNEVEN = 0.02  # of the mean work of a stage


def first(job: Job) -> str:
    """What to fix first; for communication, whether it is the transfer or a rank that is late."""
    total, told = job.total, whose(job)
    worst = first_loss(total)
    exposed, waiting = _sums(job.exchanges)
    if worst is None or worst.name != COMMUNICATION or not told:
        return f"{fix_first(total)}{_besides(job, waiting)}"
    share = short_share(total, worst.name)
    # Who waits for a late rank need not communicate less.
    hint = "" if job.late and waiting > _MOSTLY * exposed else printable(worst.hint)
    return f"Fix first: {label(worst.name)}, {share} of the time. {told} {hint}".rstrip()


def _besides(job: Job, waiting_ns: int) -> str:
    share = waiting_ns / max(1, job.total.wall_ns)
    if not job.late or share < _NOT_LITTLE:
        return ""
    named = _named(job.late[0].ranks)
    return f" Besides, for {percent(share)} of the time ranks wait for others, first for {named}."


# --- who is late -----------------------------------------------------------------------------


def whose(job: Job) -> str:
    """Transfer or waiting, and for whom."""
    exposed, waiting = _sums(job.exchanges)
    if not exposed or not any(one.matched for one in job.exchanges):
        return ""
    text = f"{percent(waiting / exposed)} of exposed communication is waiting for other ranks."
    if job.late:
        shown = " ".join(_late(job, one) for one in job.late[:_LATES])
        more = len(job.late) - _LATES
        return f"{text} {shown}" + (f" ({more} more: --json)" if more > 0 else "")
    if waiting <= _LITTLE * job.total.wall_ns:
        return f"{text} No rank is late: the transfers themselves take the time."
    if job.world_size == len(job.ranks):
        return f"{text} No single rank is late: they wait for each other in turn."
    return f"{text} None of the given ranks is late by itself."


def _late(job: Job, one: Late) -> str:
    several = len(job.late) > 1 or len({exchange.group for exchange in job.exchanges}) > 1
    where = f" in {_listed(map(printable, one.groups))}" if several else ""
    is_whole = job.world_size in (None, len(job.ranks))
    they = "They" if is_whole else "Of the given ranks, they"
    subject = f"{they} wait{where} for {_named(one.ranks)}"
    chance = " (in the one step that is traced)" if one.steps == 1 else ""
    if len(one.ranks) == 1:
        return f"{subject}, which itself waits least{chance}{_more(job, one)}."
    return f"{subject}, which themselves wait least{chance}{_more(job, one)}."


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _RANKS:
        return f"{len(ranks)} ranks ({', '.join(map(str, ranks[:_RANKS]))}, ...)"
    return f"ranks {_listed(map(str, ranks))}"


def _more(job: Job, late: Late) -> str:
    """In what the late ranks take longer than the mean of those that wait for them."""
    ranks = [one for one in job.ranks if one.rank in late.ranks]
    peers = [one for one in job.ranks if one.rank in late.peers]
    names = {b.name for one in ranks for b in one.buckets if b.name != COMMUNICATION}
    excess = {name: _mean_ms(ranks, name) - _mean_ms(peers, name) for name in names}
    order = sorted((name for name in names if excess[name] > 0), key=lambda name: -excess[name])
    late_ms = late.late_ns / late.steps / 1e6
    if not order or excess[order[0]] < _PART * late_ms:
        return ": no part of the step alone explains it"
    shown = [name for name in order[:2] if excess[name] >= _ALSO * excess[order[0]]]
    verb = "it takes" if len(ranks) == 1 else "they take"
    parts = [f"{excess[name]:.3g} ms per step more than the others in" for name in shown]
    text = f"{parts[0]} {_part_of(ranks, shown[0])}"
    if len(shown) > 1:
        text += f", and {excess[shown[1]]:.3g} ms in {_part_of(ranks, shown[1])}"
    return f": {verb} {text}"


def _part_of(ranks: Sequence[Breakdown], name: str) -> str:
    if name == _NO_OPERATOR and not any(one.coverage.work for one in ranks):
        return "Python or a pause, in which the main thread runs no operator and no collective"
    return label(name)


def _mean_ms(ranks: Sequence[Breakdown], name: str) -> float:
    found = [bucket_of(one, name) for one in ranks]
    times = [
        ms_per_step(b.time_ns, one) if b is not None else 0.0
        for one, b in zip(ranks, found, strict=True)
    ]
    return sum(times) / max(1, len(times))


def _sums(exchanges: Sequence[Exchange]) -> tuple[int, int]:
    return sum(one.exposed_ns for one in exchanges), sum(one.waiting_ns for one in exchanges)


def _listed(parts: Iterable[str]) -> str:
    *before, last = parts
    return f"{', '.join(before)} and {last}" if before else last


# --- pipelines -------------------------------------------------------------------------------


def bubbles(job: Job, decimals: int) -> Iterator[str]:
    """The bubble of all pipelines, and beside it what it is by the closed form."""
    if job.bubble_ns is None:
        return
    steps = sum(steps_of(one) for one in job.ranks if _is_stage(job, one))
    wall_ns = sum(one.wall_ns for one in job.pipelines)
    ms = f"{job.bubble_ns / max(1, steps) / 1e6:.{decimals}f} ms per step of a stage"
    share = job.bubble_ns / max(1, wall_ns)
    yield (
        f"Pipeline bubble: {ms} ({percent(share)}), the time in a send or receive beyond its "
        "transfer, and the idle time that one ended."
    )
    same: dict[tuple[int | None, int | None, int, str], list[Pipeline]] = {}
    for one in job.pipelines:
        key = (one.stages, one.micro_batches, one.chunks, one.unknown)
        same.setdefault(key, []).append(one)
    yield from (_floor(of, len(same) > 1) for of in same.values())
    yield from filter(None, (_uneven(one) for one in job.pipelines[:_LATES]))


def _is_stage(job: Job, one: Breakdown) -> bool:
    return any(one.rank in pipeline.given for pipeline in job.pipelines)


def _floor(same: Sequence[Pipeline], several: bool) -> str:
    first = same[0]
    whose = f" of ranks {_ranks_of(same)}" if several else ""
    if first.floor is None or first.stages is None or first.micro_batches is None:
        return f"How large it has to be{whose} is not known: {first.unknown}."
    share = sum(one.share for one in same) / len(same)
    outside = sum(one.outside_ns for one in same)
    times, m = "", first.micro_batches
    schedule, formula = "1F1B or GPipe", "(p-1)/(m+p-1)"
    if first.chunks > 1:
        schedule, formula = "interleaved 1F1B", "(p-1)/(v m+p-1)"
        times = f" and {first.chunks} chunks of layers per rank"
    text = (
        f"Closed form{whose}: {schedule} with {first.stages} even stages{times} and "
        f"{plural(m, 'micro-batch').replace('batchs', 'batches')} ({plural(m, 'message')} per step "
        f"between neighbours) idles for {formula} = {percent(first.floor)} of a step"
    )
    if first.stages == 2:
        text += ", if a rank has one chunk of layers (between two ranks the messages do not tell)"
    text += f"; measured are {percent(share)}"
    if outside:
        text += ", with the idle time of stages before their first and after their last work"
    points = 100 * (share - first.floor)
    if points >= _POINTS:
        return f"{text}. What is more comes from uneven stages, or sends and receives."
    if points <= -_POINTS:
        return (
            f"{text}. Less is possible where not all of a step is the pipeline (optimizer, "
            "collectives that the stages wait in), and with other schedules (zero-bubble)."
        )
    return f"{text}: the stages are even."


def _ranks_of(same: Sequence[Pipeline]) -> str:
    ranks = sorted({rank for one in same for rank in one.given})
    return ", ".join(map(str, ranks[:_RANKS])) + ", ..." * (len(ranks) > _RANKS)


def _uneven(one: Pipeline) -> str:
    """The stage that works most, where that is clearly more than the mean."""
    mean = sum(one.work_ns) / max(1, len(one.work_ns))
    if mean <= 0:
        return ""
    most, rank = max(zip(one.work_ns, one.given, strict=True))
    if len(one.given) < 2 or most <= (1 + _UNEVEN) * mean:
        return ""
    ranks = _named(one.given).replace("rank", "Of rank", 1)
    return f"{ranks}, rank {rank} works longest: {percent(most / mean - 1)} more than their mean."
