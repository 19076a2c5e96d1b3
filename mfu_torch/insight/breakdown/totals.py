"""Breakdowns of several ranks as one: sums, in whole nanoseconds."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mfu_torch.insight.breakdown.rank_hints import hint_of
from mfu_torch.records.breakdown import BUCKETS, Breakdown, Bucket, Coverage, Kernel

PEAKS_DIFFER = "the peaks of the ranks differ: matrix time is not divided"
"""The warning on ranks of unlike devices."""

_MATRIX = "matrix"
_TOP = 10
_FIGURE = re.compile(r"\d[\d.,]*")


def total(ranks: Sequence[Breakdown]) -> Breakdown:
    """The sum over ranks. Its steps are those of every rank, one after another.

    Two ranks with steps of 100 and 110 ns: two steps, 210 ns of wall time, 105 ns per step.
    """
    first = ranks[0]
    peak = first.peak if all(one.peak == first.peak for one in ranks) else None
    merged = peak is None and any(one.peak is not None for one in ranks)
    devices = {one.device for one in ranks}
    differ = (PEAKS_DIFFER,) if merged else ()
    return Breakdown(
        file=f"{len(ranks)} ranks: {first.file} ... {ranks[-1].file}",
        device=first.device if len(devices) == 1 else "several devices",
        rank=None,
        edges=first.edges,
        steps=tuple(f"rank {one.rank} {step}" for one in ranks for step in one.steps),
        step_ns=tuple(ns for one in ranks for ns in one.step_ns),
        wall_ns=sum(one.wall_ns for one in ranks),
        buckets=tuple(_bucket(name, ranks, merged) for name in _names(ranks, merged)),
        peak=peak,
        model_flops=_sum([one.model_flops for one in ranks]),
        hardware_flops=_sum([one.hardware_flops for one in ranks]),
        communication_ns=sum(one.communication_ns for one in ranks),
        overlapped_ns=sum(one.overlapped_ns for one in ranks),
        coverage=Coverage(
            launches=sum(one.coverage.launches for one in ranks),
            work=sum(one.coverage.work for one in ranks),
            matrix_known_ns=sum(one.coverage.matrix_known_ns for one in ranks),
            matrix_ns=sum(one.coverage.matrix_ns for one in ranks),
        ),
        warnings=(*differ, *_said(ranks, "warnings")),
        notes=_said(ranks, "notes"),
        precision=_precision(ranks),
    )


def _precision(ranks: Sequence[Breakdown]) -> Bucket | None:
    found = [(one, one.precision) for one in ranks if one.precision is not None]
    per_step = [
        ns
        for one in ranks
        for ns in (one.precision.per_step_ns if one.precision else (0,) * len(one.step_ns))
    ]
    if not found:
        return None
    return Bucket(
        name=found[0][1].name,
        time_ns=sum(b.time_ns for _, b in found),
        per_step_ns=tuple(per_step),
        hint=hint_of(found, len(ranks)),
    )


def merged_name(name: str, merged: bool) -> str:
    """``matrix`` for its parts where they do not compare."""
    return _MATRIX if merged and name.partition("/")[0] == _MATRIX else name


def in_bucket_order(names: set[str]) -> list[str]:
    """As :data:`~mfu_torch.records.breakdown.BUCKETS` has them."""
    known = {name: at for at, name in enumerate((_MATRIX, *BUCKETS))}
    return sorted(names, key=lambda name: (known.get(name, len(known)), name))


def _names(ranks: Sequence[Breakdown], merged: bool) -> list[str]:
    return in_bucket_order({merged_name(b.name, merged) for one in ranks for b in one.buckets})


def _bucket(name: str, ranks: Sequence[Breakdown], merged: bool) -> Bucket:
    per_step: list[int] = []
    found: list[tuple[Breakdown, Bucket]] = []
    for one in ranks:
        mine = [b for b in one.buckets if merged_name(b.name, merged) == name]
        found += [(one, b) for b in mine]
        columns = [b.per_step_ns for b in mine] or [(0,) * len(one.step_ns)]
        per_step += [sum(column) for column in zip(*columns, strict=True)]
    return Bucket(
        name=name,
        time_ns=sum(b.time_ns for _, b in found),
        per_step_ns=tuple(per_step),
        top=_top([kernel for _, b in found for kernel in b.top]),
        hint=hint_of(found, len(ranks)),
    )


def _top(kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    same: dict[tuple[str, str | None], list[Kernel]] = {}
    for kernel in kernels:
        same.setdefault((kernel.name, kernel.op), []).append(kernel)
    joined = [
        Kernel(
            name=name,
            op=op,
            count=sum(one.count for one in of),
            time_ns=sum(one.time_ns for one in of),
        )
        for (name, op), of in same.items()
    ]
    return tuple(sorted(joined, key=lambda one: -one.time_ns)[:_TOP])


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _said(ranks: Sequence[Breakdown], what: str) -> tuple[str, ...]:
    """Each sentence once, however many ranks say it, and whatever its figures are."""
    alike: dict[str, dict[int | None, str]] = {}
    for one in ranks:
        for text in getattr(one, what):
            alike.setdefault(_FIGURE.sub("#", text), {}).setdefault(one.rank, text)
    return tuple(_joined(of, len(ranks)) for of in alike.values())


def _joined(of: dict[int | None, str], ranks: int) -> str:
    (rank, text), *others = of.items()
    if not others:
        return text if ranks == 1 else f"rank {rank}: {text}"
    shown = ", ".join(str(one) for one, _ in others[:8]) + (", ..." if len(others) > 8 else "")
    if all(other == text for _, other in others):
        return text if len(of) == ranks else f"ranks {rank}, {shown}: {text}"
    return f"rank {rank}: {text} (the same, with other figures, of rank {shown})"
