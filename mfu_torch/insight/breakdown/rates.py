"""The peaks that matrix time is measured against: one per dtype, and the reference among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from mfu_torch.peak.names import canonical_dtype
from mfu_torch.peak.rows import find_rows, handle, table
from mfu_torch.peak.table import peak_for
from mfu_torch.records import Device, Peak, UnknownPeak
from mfu_torch.units import parse_flops_per_s

NO_DEVICE = (
    "the trace names no device, and a CPU has no documented peak (--peak gives one; of a GPU, "
    "--device with a name of mfu-torch peak --list)"
)
NO_FLOPS = "matrix time stays one bucket: it has no known FLOPs, so no dtype (--dtype gives one)"

_MORE = re.compile(r", and a similar|; nor can|\. (?:Supply|Contractions)")
_TABLE = re.compile(r"the table of \d+ devices does not")
_MODEL = re.compile(r"\b[a-z]{0,3}\d{2,4}[a-z]{0,2}\b")
_NEAREST = 4
_BEFORE_AMPERE = re.compile(r"\b([VPK]100|[PKM][48]0|T4|GTX|TITAN V)\b")


@dataclass(frozen=True, kw_only=True)
class Rates:
    """FLOP/s by dtype.

    Attributes:
        reference: What all FLOPs are measured against.
        others: Of the other dtypes that occur, where they are known.
        notes: On those that are not.
    """

    reference: Peak
    others: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def of(self, dtype: str | None) -> float:
        """The peak of a dtype; the reference where it has none that is known."""
        known = self.others if dtype != self.reference.dtype else {}
        return known.get(dtype or "", self.reference.flops_per_s)


def rates(
    device: str | None,
    sm_count: int | None,
    flops_by_dtype: Mapping[str | None, int],
    *,
    peak: Peak | float | str | None,
    dtype: str | None,
) -> Rates | str:
    """The peaks, or why there are none.

    Args:
        device: Its name; ``None`` where the trace has none.
        sm_count: Its multiprocessors.
        flops_by_dtype: That were seen; the dtype with most of them is the reference.
        peak: Given by the user, of the reference dtype.
        dtype: The reference, if asked for.

    Raises:
        ValueError: If the peak or dtype that is asked for is none.
    """
    seen = {name: flops for name, flops in flops_by_dtype.items() if name is not None and flops}
    reference = _reference(seen, peak, dtype)
    known = None if device is None else Device(name=device, kind="", sm_count=sm_count)
    if peak is not None:
        base = peak if isinstance(peak, Peak) else _given(peak, reference or "bf16")
    elif known is None:
        return NO_DEVICE
    elif reference is None:
        return NO_FLOPS
    else:
        try:
            base = peak_for(known, reference)
        except UnknownPeak as error:
            return f"{_reason(error)} ({_advice(known)})"
    others, notes = {}, []
    for name in seen:
        if name == base.dtype:
            continue
        try:
            if known is None:
                raise UnknownPeak("the trace names no device")
            others[name] = peak_for(known, name).flops_per_s
        except UnknownPeak as error:
            notes.append(
                f"FLOPs in {name} are measured against the {base.dtype} peak: {_reason(error)}"
            )
    return Rates(reference=base, others=others, notes=tuple(notes))


def _reason(error: UnknownPeak) -> str:
    """Why there is no peak, without what was tried besides, and what a Meter would advise."""
    first = _MORE.split(str(error), maxsplit=1)[0]
    return _TABLE.sub("the table of devices does not", first)


def _advice(device: Device) -> str:
    """How to say the device, or its peak: the table may have it, or one like it, by another name.

    Which of these it is, if any, is for whoever knows the machine: nothing is taken for another.
    """
    if find_rows(device):
        return "--device takes one of them, --peak gives the figure"
    near = nearest(device.name)
    alike = f"; alike by name: {', '.join(near)}" if near else ""
    return f"--peak gives one; mfu-torch peak --list has the names for --device{alike}"


def nearest(name: str) -> tuple[str, ...]:
    """Short names of devices of the same model: ``Tesla V100-DGXS-32GB`` -> ``v100-sxm2``, ..."""
    models = set(_MODEL.findall(name.casefold()))
    short: dict[str, None] = {}
    for row in table() if models else ():
        if models & set(_MODEL.findall(" ".join((*row.short_names, *row.driver_names)).casefold())):
            short.setdefault(handle(row))
    return tuple(one for one in short if models & set(_MODEL.findall(one)[:1]))[:_NEAREST]


def may_have_tf32(device: str | None) -> bool:
    """Whether a device can multiply fp32 as TF32; true where that is not known."""
    rows = () if device is None else find_rows(Device(name=device, kind=""))
    if device is not None and not rows and _BEFORE_AMPERE.search(device):
        return False
    return not rows or any("tf32" not in row.absent for row in rows)


def _reference(
    seen: Mapping[str, int], peak: Peak | float | str | None, dtype: str | None
) -> str | None:
    if dtype is not None:
        return canonical_dtype(dtype)
    if isinstance(peak, Peak):
        return peak.dtype
    return max(seen, key=lambda name: seen[name]) if seen else None


def _given(peak: float | str, dtype: str) -> Peak:
    return Peak(flops_per_s=parse_flops_per_s(peak), dtype=dtype, source="given")
