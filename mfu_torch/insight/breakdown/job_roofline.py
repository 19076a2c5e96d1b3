"""Rooflines of several ranks as one: each op stands against the roofs of its own rank's device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from mfu_torch.insight.breakdown.roofline import NEAR_ROOF, Roof, Roofline
from mfu_torch.records import Record
from mfu_torch.records.breakdown import Breakdown


class DeviceRoofs(Record, frozen=True, kw_only=True):
    """The roofs of some ranks.

    Attributes:
        device: Its name; ``None`` where the traces name none.
        ranks: Those with these roofs.
        dtype: Of the peak.
        peak_flops_per_s: As in :class:`~mfu_torch.insight.breakdown.roofline.Roofline`.
        bytes_per_s: As there.
    """

    device: str | None
    ranks: tuple[int, ...]
    dtype: str | None
    peak_flops_per_s: float | None
    bytes_per_s: float | None


class JobRoofline(Record, frozen=True, kw_only=True):
    """Of several ranks.

    Attributes:
        total: Sums over ranks: times, FLOPs, bytes, and times at the roof. Its own roofs are
            ``None`` where those of the ranks differ.
        devices: The roofs, each with its ranks.
    """

    total: Roofline
    devices: tuple[DeviceRoofs, ...]


def joined(ranks: Sequence[tuple[Breakdown, Roofline]]) -> JobRoofline:
    """The sum over ranks.

    A matmul that takes 30 ms on rank 0 (18 at its roof) and 40 ms on rank 1 (18 at its roof): 70 ms
    in two steps, 36 at the roof.
    """
    devices = _devices(ranks)
    parts = [one for _, one in ranks]
    peaks = {one.peak_flops_per_s for one in devices}
    rates = {one.bytes_per_s for one in devices}
    total = Roofline(
        peak_flops_per_s=peaks.pop() if len(peaks) == 1 else None,
        bytes_per_s=rates.pop() if len(rates) == 1 else None,
        compute_ns=sum(one.compute_ns for one in parts),
        memory_ns=sum(one.memory_ns for one in parts),
        neither_ns=sum(one.neither_ns for one in parts),
        unknown_ns=sum(one.unknown_ns for one in parts),
        roofs=tuple(sorted(_roofs(parts), key=lambda roof: -roof.time_ns)),
        notes=tuple(dict.fromkeys(note for one in parts for note in one.notes)),
    )
    return JobRoofline(total=total, devices=devices)


def _devices(ranks: Sequence[tuple[Breakdown, Roofline]]) -> tuple[DeviceRoofs, ...]:
    same: dict[tuple[str | None, str | None, float | None, float | None], list[int]]
    same = defaultdict(list)
    for one, found in ranks:
        dtype = None if one.peak is None else one.peak.dtype
        key = (one.device, dtype, found.peak_flops_per_s, found.bytes_per_s)
        same[key].append(-1 if one.rank is None else one.rank)
    return tuple(
        DeviceRoofs(
            device=device,
            ranks=tuple(of),
            dtype=dtype,
            peak_flops_per_s=peak,
            bytes_per_s=rate,
        )
        for (device, dtype, peak, rate), of in same.items()
    )


def _roofs(ranks: Sequence[Roofline]) -> Iterator[Roof]:
    same: dict[tuple[str, str, str | None, bool, bool], list[Roof]] = defaultdict(list)
    for one in ranks:
        for roof in one.roofs:
            # A sum with what is not known is not known.
            key = (roof.op, roof.shapes, roof.dtype, roof.least_ns is None, roof.bytes is None)
            same[key].append(roof)
    return map(_sum, same.values())


def _sum(same: Sequence[Roof]) -> Roof:
    first = same[0]
    if len(same) == 1:
        return first
    time_ns, flops = sum(one.time_ns for one in same), sum(one.flops for one in same)
    moved = None if first.bytes is None else sum(one.bytes or 0 for one in same)
    least = None if first.least_ns is None else sum(one.least_ns or 0 for one in same)
    seconds = time_ns / 1e9
    return Roof(
        op=first.op,
        family=first.family,
        shapes=first.shapes,
        dtype=first.dtype,
        calls=sum(one.calls for one in same),
        time_ns=time_ns,
        flops=flops,
        bytes=moved,
        intensity=flops / moved if moved else None,
        attainable_flops_per_s=flops / least * 1e9 if least else None,
        flops_per_s=flops / seconds,
        bytes_per_s=None if moved is None else moved / seconds,
        least_ns=least,
        bound=_bound(same, least, time_ns),
    )


def _bound(same: Sequence[Roof], least_ns: int | None, time_ns: int) -> str:
    """What bounds most of the time, as the times at the roof do on the whole."""
    if least_ns is None:
        return "unknown"
    if least_ns < NEAR_ROOF * time_ns:
        return "neither"
    sums = {bound: 0 for bound in ("compute", "memory")}
    for one in same:
        if one.bound in sums:
            sums[one.bound] += one.time_ns
    return max(sums, key=lambda bound: sums[bound])
