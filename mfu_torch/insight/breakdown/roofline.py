"""Each op against both roofs of the device: FLOP/s of its dtype and bytes/s of its memory.

With F FLOPs, B bytes of operands and results, peak P and bandwidth W the least time is
``max(F / P, B / W)``: the op is *memory-bound* where the second is larger, that is where its
arithmetic intensity F / B is below P / W (H100 in bf16: 989.4e12 / 3.35e12 = 295 FLOP/byte). An op
that needs more than twice its least time is *below both roofs*: neither FLOPs nor bytes explain
its time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from mfu_torch.insight.breakdown.calls import NotRecordedError
from mfu_torch.insight.breakdown.codes import COPY, MATRIX, OTHER
from mfu_torch.insight.breakdown.counted import Counted
from mfu_torch.insight.breakdown.formulas.moves import moved_bytes
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.matrix import MatrixSplit
from mfu_torch.insight.breakdown.rates import Rates
from mfu_torch.insight.breakdown.shapes import OpWork, shapes_text
from mfu_torch.insight.trace.events import Trace
from mfu_torch.peak.rows import find_rows
from mfu_torch.records import Device, Record

NEAR_ROOF = 0.5
"""Share of the attainable rate below which an op is below both roofs."""

_HOST_COPY = re.compile(r"Memcpy.*(HtoD|DtoH|PtoP|HostToDevice|DeviceToHost)")

CACHED = (
    "operands that are still in the cache need no bandwidth: a rate above the roof of memory is "
    "one of the cache"
)


class Roof(Record, frozen=True, kw_only=True):
    """All calls of one op with the same shapes and dtype.

    Attributes:
        op: Name.
        family: ``gemm``, ``conv``, ``attention``, ``rnn`` or ``move``.
        shapes: As recorded, cut to a readable length.
        dtype: Of the operands; ``None`` where it has no peak.
        calls: How many.
        time_ns: Of their kernels, what other kernels of a higher class hide left out.
        flops: Of all calls, what a kernel computes again included.
        bytes: Of operands and results of all calls, each once; ``None`` where not known.
        intensity: FLOPs per byte; ``None`` without bytes.
        attainable_flops_per_s: The lower roof at this intensity; ``None`` where no roof is known.
        flops_per_s: Achieved.
        bytes_per_s: Achieved; ``None`` without bytes.
        least_ns: Time at the roof; ``None`` where no roof is known.
        bound: ``compute``, ``memory``, ``neither`` (below both roofs) or ``unknown``.
    """

    op: str
    family: str
    shapes: str
    dtype: str | None
    calls: int
    time_ns: int
    flops: int
    bytes: int | None
    intensity: float | None
    attainable_flops_per_s: float | None
    flops_per_s: float
    bytes_per_s: float | None
    least_ns: int | None
    bound: str


class Roofline(Record, frozen=True, kw_only=True):
    """Where the kernels' time stands against the device's roofs.

    ``compute_ns + memory_ns + neither_ns + unknown_ns`` is the time of matrix kernels, other
    compute and copies.

    Attributes:
        peak_flops_per_s: Of the reference dtype; ``None`` where it is not known.
        bytes_per_s: Of the device's memory; ``None`` where it is not known.
        compute_ns: Of ops near the roof of FLOPs.
        memory_ns: Of ops near the roof of bytes.
        neither_ns: Of ops below both.
        unknown_ns: Of kernels whose FLOPs and bytes are not known.
        roofs: By time, longest first.
        notes: What has to be said.
    """

    peak_flops_per_s: float | None
    bytes_per_s: float | None
    compute_ns: int
    memory_ns: int
    neither_ns: int
    unknown_ns: int
    roofs: tuple[Roof, ...]
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Sum:
    family: str
    calls: int = 0
    time_ns: int = 0
    flops: int = 0
    bytes: int | None = 0
    peak: float | None = None
    ops: set[int] = field(default_factory=set)

    def add(self, time_ns: int, flops: int, moved: int | None) -> None:
        self.calls += 1
        self.time_ns += time_ns
        self.flops += flops
        self.bytes = None if moved is None or self.bytes is None else self.bytes + moved


_Key = tuple[str, str, str | None]


def roofline(trace: Trace, labels: Labels, matrix: MatrixSplit) -> Roofline:
    """The roofline of the steps of a trace.

    Args:
        trace: It.
        labels: Its labels.
        matrix: Its matrix time, with the peaks.
    """
    bandwidth = _bandwidth(trace.device_name)
    sums = _matrix_sums(trace, matrix.counted, matrix.rates)
    sums.update(_move_sums(trace, labels))
    roofs = sorted(
        (_roof(key, one, bandwidth) for key, one in sums.items()), key=lambda roof: -roof.time_ns
    )
    busy = labels.length_ns[np.isin(labels.time_class, (*MATRIX, OTHER, COPY))].sum()
    by_bound: dict[str, int] = defaultdict(int)
    for roof in roofs:
        by_bound[roof.bound] += roof.time_ns
    placed = sum(by_bound[bound] for bound in ("compute", "memory", "neither"))
    fast = any(one.bytes_per_s and bandwidth and one.bytes_per_s > bandwidth for one in roofs)
    return Roofline(
        peak_flops_per_s=None if matrix.peak is None else matrix.peak.flops_per_s,
        bytes_per_s=bandwidth,
        compute_ns=by_bound["compute"],
        memory_ns=by_bound["memory"],
        neither_ns=by_bound["neither"],
        unknown_ns=int(busy) - placed,
        roofs=tuple(roofs),
        notes=(*_missing(trace, bandwidth), *((CACHED,) if fast else ())),
    )


def matrix_roofs(trace: Trace, matrix: MatrixSplit) -> tuple[Roof, ...]:
    """The part of it that multiplies, longest first."""
    bandwidth = _bandwidth(trace.device_name)
    sums = _matrix_sums(trace, matrix.counted, matrix.rates)
    roofs = [_roof(key, one, bandwidth) for key, one in sums.items()]
    return tuple(sorted(roofs, key=lambda roof: -roof.time_ns))


def _bandwidth(device: str | None) -> float | None:
    rows = () if device is None else find_rows(Device(name=device, kind=""))
    rates = {row.bytes_per_s for row in rows}
    return rates.pop() if len(rates) == 1 else None


def _missing(trace: Trace, bandwidth: float | None) -> Iterator[str]:
    if bandwidth is None:
        named = "a device that the trace does not name"
        device = named if trace.device_name is None else repr(trace.device_name)
        yield f"the memory bandwidth of {device} is not known: there is no roof of bytes"


def _matrix_sums(trace: Trace, counted: Counted, rates: Rates | None) -> dict[_Key, _Sum]:
    sums: dict[_Key, _Sum] = {}
    for one in counted.ops:
        if not one.time_ns:
            continue
        key = (*_name_and_shapes(trace, one.op), one.dtype)
        entry = sums.setdefault(key, _Sum(one.work.family))
        entry.peak = None if rates is None else rates.of(one.dtype)
        entry.add(one.time_ns, one.work.executed, one.work.bytes)
    return sums


def _move_sums(trace: Trace, labels: Labels) -> dict[_Key, _Sum]:
    """Elementwise work and copies by their bytes: the innermost op that launched each kernel."""
    on_top = np.isin(labels.time_class, (OTHER, COPY))
    time_ns = labels.per_work_ns(on_top)
    entries = np.flatnonzero(time_ns)
    if not labels.of_ops:
        entries = entries[~_between_memories(trace)[trace.work.name[entries]]]
    launched_by = entries if labels.of_ops else trace.work.op[entries]
    by_op: dict[int, int] = defaultdict(int)
    for op, ns in zip(launched_by.tolist(), time_ns[entries].tolist(), strict=True):
        if op >= 0:
            by_op[op] += ns
    work, known = OpWork(trace), dict[tuple[bytes, ...], int | None]()
    sums: dict[_Key, _Sum] = {}
    for op, ns in by_op.items():
        name = trace.names[trace.ops.name[op]]
        texts = (name.encode(), trace.ops.dims[op], trace.ops.types[op])
        if texts not in known:
            known[texts] = _moved(work, op)
        moved = known[texts]
        if moved is not None:
            key = (*_name_and_shapes(trace, op), None)
            sums.setdefault(key, _Sum("move")).add(ns, 0, moved)
    return sums


def _between_memories(trace: Trace) -> np.ndarray:
    # Copies from or to the host: their roof is that of the bus, not of the device's memory.
    return np.array([bool(_HOST_COPY.search(name)) for name in trace.names], bool)


def _moved(work: OpWork, op: int) -> int | None:
    try:
        return moved_bytes(work.call(op))
    except NotRecordedError:
        return None


def _name_and_shapes(trace: Trace, op: int) -> tuple[str, str]:
    shapes = shapes_text(trace.ops.dims[op])
    return trace.names[trace.ops.name[op]], shapes if len(shapes) <= 96 else f"{shapes[:93]}..."


def _roof(key: _Key, one: _Sum, bandwidth: float | None) -> Roof:
    op, shapes, dtype = key
    seconds = one.time_ns / 1e9
    at_peak = one.flops / one.peak if one.peak else None
    at_bandwidth = one.bytes / bandwidth if one.bytes is not None and bandwidth else None
    least, bound = _least(one.flops, at_peak, at_bandwidth, seconds)
    return Roof(
        op=op,
        family=one.family,
        shapes=shapes,
        dtype=dtype,
        calls=one.calls,
        time_ns=one.time_ns,
        flops=one.flops,
        bytes=one.bytes,
        intensity=one.flops / one.bytes if one.bytes else None,
        attainable_flops_per_s=one.flops / least if least else None,
        flops_per_s=one.flops / seconds,
        bytes_per_s=None if one.bytes is None else one.bytes / seconds,
        least_ns=None if least is None else round(least * 1e9),
        bound=bound,
    )


def _least(
    flops: int, at_peak: float | None, at_bandwidth: float | None, seconds: float
) -> tuple[float | None, str]:
    """Time at the lower roof in seconds, and what bounds the op."""
    if flops and (at_peak is None or at_bandwidth is None):
        # One roof alone cannot be passed, either; but which one bounds is not known.
        return None, "unknown"
    if at_bandwidth is None:
        return None, "unknown"
    least = max(at_peak or 0.0, at_bandwidth)
    if least < NEAR_ROOF * seconds:
        return least, "neither"
    return least, "memory" if at_bandwidth >= (at_peak or 0.0) else "compute"
