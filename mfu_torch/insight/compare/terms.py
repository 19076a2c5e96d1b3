"""Whether two MFUs divide by the same: convention, peak, device, ranks, and how time was taken."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.figures import ABOVE_PEAK
from mfu_torch.insight.compare.facet import Facet
from mfu_torch.insight.compare.record import EVERYTHING, SPEEDS, UTILIZATIONS, Difference
from mfu_torch.insight.report import status
from mfu_torch.insight.text import plural, share_text
from mfu_torch.ladder import sampled
from mfu_torch.records import Device, Peak
from mfu_torch.units import percent, scaled

_SAME_RATE = 1e-3
_CLOCK = 0.02
"""Relative: clocks vary by less from minute to minute."""
_LENGTH = 0.1
_LONGEST = 60


def term_differences(a: Facet, b: Facet) -> Iterator[Difference]:
    """Of convention, peaks, device and ranks."""
    yield from _attention(a, b)
    yield from _known(a, b)
    yield from _peaks(a, b)
    yield from _device(a, b)
    yield from _ranks(a, b)


def time_differences(a: Facet, b: Facet) -> Iterator[Difference]:
    """Of the clock, the steps that are compared, and how far the runs are."""
    yield from _clock(a, b)
    yield from _clocks_held(a, b)
    yield from _window(a, b)
    yield from _length(a, b)
    yield from _versions(a, b)


def _attention(a: Facet, b: Facet) -> Iterator[Difference]:
    one, other = (facet.run.header.attention for facet in (a, b))
    if one == other:
        return
    same = bool(a.known and b.known) and all(f.model("full") == f.model("causal") for f in (a, b))
    why = "no step has a mask that would make a difference"
    if not same:
        why = "they count other attention scores; --attention full or causal reads both under one"
    yield Difference(
        aspect="attention", a=one, b=other, forbids=() if same else UTILIZATIONS, why=why
    )


def _known(a: Facet, b: Facet) -> Iterator[Difference]:
    if not a.steady or not b.steady:
        texts = [f"{len(f.steady)} of {sum(1 for _ in f.run.steps)}" for f in (a, b)]
        why = "without a steady step there is nothing to compare"
        yield Difference(aspect="steady steps", a=texts[0], b=texts[1], forbids=EVERYTHING, why=why)
        return
    if a.figures.mfu is None or b.figures.mfu is None:
        texts = [
            percent(f.figures.mfu)
            if f.figures.mfu is not None
            else f"not known: {f.figures.absent.get('mfu', 'no reason is recorded')}"
            for f in (a, b)
        ]
        why = "an MFU that is not known cannot be compared; the report says what supplies it"
        yield Difference(
            aspect="unknown MFU", a=texts[0], b=texts[1], forbids=UTILIZATIONS, why=why
        )
    elif (a.figures.mfu == 0) != (b.figures.mfu == 0):
        texts = ["none" if f.figures.mfu == 0 else "some" for f in (a, b)]
        why = "where no FLOPs were seen, the work was another, or was not seen; the notes say more"
        yield Difference(aspect="FLOPs", a=texts[0], b=texts[1], forbids=UTILIZATIONS, why=why)
    elif max(a.figures.mfu, b.figures.mfu, a.figures.hfu or 0, b.figures.hfu or 0) > 1:
        texts = [share_text(f.figures.mfu) for f in (a, b)]
        yield Difference(aspect="above the peak", a=texts[0], b=texts[1], why=ABOVE_PEAK)


def _peaks(a: Facet, b: Facet) -> Iterator[Difference]:
    """Of the dtypes that a run has FLOPs in."""
    for dtype in dict.fromkeys((*a.by_dtype, *b.by_dtype)):
        entries = [facet.run.peaks.get(dtype) for facet in (a, b)]
        one, other = (None if entry is None else entry.peak for entry in entries)
        if one is None or other is None:
            continue  # one does not use it, or has no MFU
        found = _peak(one, other, _named(a.run.header.device) == _named(b.run.header.device))
        if found is not None:
            forbidden, why = found
            yield Difference(
                aspect=f"peak {dtype}",
                a=_peak_text(one),
                b=_peak_text(other),
                forbids=UTILIZATIONS if forbidden else (),
                why=why,
            )


def _peak(one: Peak, other: Peak, same_device: bool) -> tuple[bool, str] | None:
    """Whether two peaks forbid comparing, and why; ``None`` where they are the same."""
    rates = one.flops_per_s, other.flops_per_s
    same_rate = abs(rates[0] - rates[1]) <= _SAME_RATE * min(rates)
    if same_device and not same_rate:
        return True, "MFU divides by it; give both runs the same Meter(peak=...)"
    kinds = {one.provenance, other.provenance}
    if same_device:
        same = len(kinds) == 1 and one.source == other.source
        return None if same else (False, "the same rate from another source")
    if len(kinds) > 1:
        return True, "one MFU is a share of another kind of peak, not only of another device's"
    return False, "each MFU is a share of its own device's peak"


def _peak_text(peak: Peak) -> str:
    text = f"{scaled(peak.flops_per_s, 'FLOP/s', 4)}, {peak.provenance}: {peak.source}"
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def _named(device: Device) -> tuple[object, ...]:
    return device.name, device.kind, device.mig, device.sm_count, device.threads


def _device(a: Facet, b: Facet) -> Iterator[Difference]:
    one, other = a.run.header.device, b.run.header.device
    if _named(one) != _named(other):
        texts = [_device_text(device, one, other) for device in (one, other)]
        why = "speeds are those of other hardware; MFU takes that out, if the peaks are alike"
        yield Difference(aspect="device", a=texts[0], b=texts[1], forbids=SPEEDS, why=why)
    elif one.uuid != other.uuid:
        texts = [device.uuid or "not known" for device in (one, other)]
        why = "another card of the same name; cards differ by some percent"
        yield Difference(aspect="card", a=texts[0], b=texts[1], why=why)


def _device_text(device: Device, one: Device, other: Device) -> str:
    parts = [device.name]
    if device.mig:
        parts.append(f"MIG {device.mig}")
    if one.name == other.name and one.sm_count != other.sm_count:
        unit = "cores" if device.kind == "cpu" else "multiprocessors"
        parts.append(f"{device.sm_count} {unit}")
    if one.threads != other.threads and device.threads is not None:
        parts.append(plural(device.threads, "thread"))
    return ", ".join(parts)


def _ranks(a: Facet, b: Facet) -> Iterator[Difference]:
    one, other = a.run.header, b.run.header
    if one.world_size != other.world_size:
        why = "tokens/s are those of one rank, whose share of the work is another; MFU has more or "
        why += "less communication in it"
        texts = [f"rank {h.rank} of {h.world_size}" for h in (one, other)]
        yield Difference(aspect="ranks", a=texts[0], b=texts[1], forbids=SPEEDS, why=why)
    elif one.rank != other.rank:
        texts = [f"{h.rank} of {h.world_size}" for h in (one, other)]
        why = "ranks of one run differ, too"
        yield Difference(aspect="rank", a=texts[0], b=texts[1], why=why)


def _clock(a: Facet, b: Facet) -> Iterator[Difference]:
    one, other = (facet.run.header.clock for facet in (a, b))
    if one == other:
        return
    sync = ["synchronised" in clock for clock in (one, other)]
    if sync[0] != sync[1]:
        why = "synchronising makes steps longer; run both with the same Meter(sync=...)"
        yield Difference(aspect="clock", a=one, b=other, forbids=EVERYTHING, why=why)
    else:
        why = "over many steps both clocks show the same"
        yield Difference(aspect="clock", a=one, b=other, why=why)


def _clocks_held(a: Facet, b: Facet) -> Iterator[Difference]:
    found = [sampled(facet.run) for facet in (a, b)]
    held = [each.mean.sm_clock_hz if each else None for each in found]
    if held[0] and held[1] and abs(held[0] - held[1]) > _CLOCK * min(held[0], held[1]):
        texts = [f"{hz / 1e6:.0f} MHz" for hz in held if hz]
        why = "the device held another clock: a part of the difference is not the code's"
        yield Difference(aspect="clock held", a=texts[0], b=texts[1], why=why)
    others = [each.mean.other_processes or 0 if each else 0 for each in found]
    if others[0] != others[1]:
        texts = [str(number) for number in others]
        why = "others used the device meanwhile"
        yield Difference(aspect="other processes", a=texts[0], b=texts[1], why=why)


def _window(a: Facet, b: Facet) -> Iterator[Difference]:
    if not a.steady or not b.steady:
        return
    spans = [(f.steady[0].index, f.steady[-1].index) for f in (a, b)]
    shared = min(last for _, last in spans) - max(first for first, _ in spans) + 1
    if 2 * shared < min(last - first + 1 for first, last in spans):
        texts = [f"steps {first} to {last}" for first, last in spans]
        why = "other parts of a training: what changes as it goes on is in the difference"
        yield Difference(aspect="steady window", a=texts[0], b=texts[1], why=why)
    why = "these steps are left out of MFU in one of them"
    reasons = [dict.fromkeys(s.excluded for s in f.run.steps if s.excluded) for f in (a, b)]
    if reasons[0].keys() != reasons[1].keys():
        texts = [", ".join(sorted(each)) or "none" for each in reasons]
        yield Difference(aspect="excluded steps", a=texts[0], b=texts[1], why=why)


def _length(a: Facet, b: Facet) -> Iterator[Difference]:
    texts = [status(facet.run) for facet in (a, b)]
    if (a.run.end is None) or (b.run.end is None):
        why = "of a run without an end the figures are those so far"
        yield Difference(aspect="end", a=texts[0], b=texts[1], why=why)
    steps = [_all_steps(facet) for facet in (a, b)]
    if abs(steps[0] - steps[1]) > _LENGTH * max(steps):
        why = "start-up and pauses weigh more in a shorter run"
        one, other = (plural(number, "step") for number in steps)
        yield Difference(aspect="length", a=one, b=other, forbids=("end-to-end MFU",), why=why)


def _all_steps(facet: Facet) -> int:
    """With those of earlier attempts."""
    earlier = facet.run.header.earlier
    return sum(1 for _ in facet.run.steps) + (0 if earlier is None else earlier.steps)


def _versions(a: Facet, b: Facet) -> Iterator[Difference]:
    one, other = (facet.run.header.versions for facet in (a, b))
    for name in dict.fromkeys((*one, *other)):
        texts = [versions.get(name, "not recorded") for versions in (one, other)]
        if texts[0] != texts[1]:
            yield Difference(aspect=name, a=texts[0], b=texts[1], why="another version")
