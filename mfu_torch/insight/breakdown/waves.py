"""Why matrix kernels stay below the peak: hints from grids and names, with their time.

A grid of ``b`` blocks runs on ``n`` multiprocessors in ``ceil(b / n)`` waves, if each holds one
block; the last one leaves multiprocessors idle: 1 - w / ceil(w) of the time with w = b / n. Blocks
of matrix kernels use most of the shared memory, so one per multiprocessor is common, and not in
the trace. A persistent kernel launches at most one wave and loops, so its grid says nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

import msgspec
import numpy as np
import numpy.typing as npt

from mfu_torch.insight.breakdown.counted import Counted
from mfu_torch.insight.breakdown.top import short
from mfu_torch.insight.trace.events import Ints, Trace
from mfu_torch.peak.rows import find_rows
from mfu_torch.records import Device, Record

_ALIGN = re.compile(r"align(\d+)")
_ARCHITECTURES = (
    (75, re.compile(r"cutlass_75|(?<!\d)sm_?75(?!\d)|turing_", re.IGNORECASE)),
    (70, re.compile(r"cutlass_70|(?<!\d)sm_?70(?!\d)|volta_", re.IGNORECASE)),
    (80, re.compile(r"cutlass_80|(?<!\d)sm_?8[0-9](?!\d)|ampere_|s16816", re.IGNORECASE)),
    (80, re.compile(r"flash_(fwd|bwd)_\w*kernel")),  # FlashAttention 2; 3 has its own names
    (90, re.compile(r"(?<!\d)sm_?90|hopper", re.IGNORECASE)),
)
_PERSISTENT = re.compile(r"persistent|streamk|stream_k|nvjet", re.IGNORECASE)
_FULL = {"bf16": 8, "fp16": 8, "fp8": 16, "int8": 16, "fp4": 32}
"""Elements in 16 bytes; 4 of fp32."""

WAVES_THAT_FILL = 16
"""From so many waves on the last one costs at most 1/16."""


class Finding(Record, frozen=True, kw_only=True):
    """One reason with the time that it touches.

    Attributes:
        kind: ``old_architecture``, ``misaligned``, ``tail`` or ``small_grid``.
        time_ns: Of the kernels that it holds for.
        lost_ns: Of it, what the reason alone accounts for; ``None`` where that is not known.
        kernels: How many.
        example: Name of the one with most time.
        detail: The number that shows it, as a phrase.
    """

    kind: str
    time_ns: int
    lost_ns: int | None
    kernels: int
    example: str
    detail: str


def tail_share(blocks: Ints, sm_count: int) -> npt.NDArray[np.float64]:
    """Share of a kernel's time that its last wave wastes: 133 blocks on 132 SMs: 0.496.

    Fewer blocks than multiprocessors are one wave that is not full: 66 on 132 SMs: 0.5.
    """
    waves = blocks / sm_count
    return 1 - waves / np.ceil(waves)


def findings(trace: Trace, counted: Counted) -> tuple[Finding, ...]:
    """Reasons, the one that touches most time first; a kernel may have several."""
    names, entries = _kernels(trace, counted)
    device = _Target.of(trace)
    found = [
        *_by_name(trace, counted, names, entries, device),
        *_by_grid(trace, counted, names, entries, device),
    ]
    return tuple(sorted(found, key=lambda one: -(one.lost_ns or one.time_ns)))


@dataclass(frozen=True, slots=True)
class _Target:
    """The device, as far as kernels are built for it: 90 for Hopper; ``None``: not known."""

    architecture: int | None
    sm_count: int | None
    nvidia: bool

    @classmethod
    def of(cls, trace: Trace) -> _Target:
        name = trace.device_name or ""
        rows = find_rows(Device(name=name, kind="")) if name else ()
        vendors = {row.vendor for row in rows}
        numbers = {
            int(float(one) * 10)
            for row in rows
            for one in row.architectures
            if re.fullmatch(r"\d+\.\d", one)
        }
        return cls(
            architecture=max(numbers) if numbers else None,
            sm_count=trace.sm_count,
            # A grid of ROCm is in threads, not in blocks.
            nvidia=vendors == {"NVIDIA"} or name.startswith(("NVIDIA", "Tesla")),
        )


@lru_cache(maxsize=4096)
def built_for(name: str) -> int | None:
    """The architecture that a kernel's name says it is for: ``cutlass_75_...`` -> 75."""
    newest = re.search(r"sm_?(1[0-2]\d)(?!\d)", name, re.IGNORECASE)
    if newest:
        return int(newest[1])
    return next((number for number, rule in _ARCHITECTURES if rule.search(name)), None)


def _kernels(trace: Trace, counted: Counted) -> tuple[Ints, Ints]:
    entries = np.flatnonzero(counted.time_ns > 0)
    if len(trace.work) == 0:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    return trace.work.name[entries], entries


def _by_name(
    trace: Trace, counted: Counted, names: Ints, entries: Ints, device: _Target
) -> list[Finding]:
    old, misaligned = [], []
    for name in np.unique(names).tolist():
        text = trace.names[name]
        mine = entries[names == name]
        made = built_for(text)
        # sm_80 code is what Ampere's and Ada's own 8.6 and 8.9 run.
        if made is not None and device.architecture and made < device.architecture // 10 * 10:
            old.append(mine)
        align = _ALIGN.search(text)
        if align and int(align[1]) < _full_alignment(counted, mine):
            misaligned.append(mine)
    found = []
    if old:
        detail = f"written for an older architecture than sm_{device.architecture}"
        found.append(_finding(trace, counted, "old_architecture", old, detail))
    if misaligned:
        detail = "operands whose rows are not aligned to 16 bytes"
        found.append(_finding(trace, counted, "misaligned", misaligned, detail))
    return found


def _full_alignment(counted: Counted, entries: Ints) -> int:
    index = counted.of_work[entries]
    dtypes = {counted.ops[i].work.dtype for i in index[index >= 0][:1].tolist()}
    return max((_FULL.get(dtype or "", 4) for dtype in dtypes), default=4)


def _by_grid(
    trace: Trace, counted: Counted, names: Ints, entries: Ints, device: _Target
) -> list[Finding]:
    if not device.sm_count or not device.nvidia or not len(entries):
        return []
    blocks = trace.work.blocks[entries]
    persistent = np.array([bool(_PERSISTENT.search(trace.names[i])) for i in names.tolist()], bool)
    usable = (blocks > 0) & ~persistent
    waves = np.where(usable, blocks, 1) / device.sm_count
    wasted = tail_share(np.where(usable, blocks, device.sm_count), device.sm_count)
    lost = wasted * counted.time_ns[entries]
    found = []
    for kind, mask in (
        ("tail", usable & (waves > 1) & (waves < WAVES_THAT_FILL) & (lost > 0)),
        ("small_grid", usable & (waves < 1)),
    ):
        if mask.any():
            mean = float(np.average(waves[mask], weights=counted.time_ns[entries][mask]))
            detail = f"{mean:.2f} waves of {device.sm_count} SMs on average, one block on each"
            finding = _finding(trace, counted, kind, [entries[mask]], detail)
            found.append(msgspec.structs.replace(finding, lost_ns=round(float(lost[mask].sum()))))
    return found


def _finding(trace: Trace, counted: Counted, kind: str, groups: list[Ints], detail: str) -> Finding:
    entries = np.concatenate(groups)
    name = trace.work.name[entries]
    sums = np.bincount(name, counted.time_ns[entries])
    return Finding(
        kind=kind,
        time_ns=int(counted.time_ns[entries].sum()),
        lost_ns=None,
        kernels=len(entries),
        example=short(trace.names[int(sums.argmax())]),
        detail=detail,
    )
