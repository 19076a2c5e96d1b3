"""What a trace says, in columns: times are whole nanoseconds since the earliest event.

Names and threads are numbers, kept once each in :attr:`Trace.names` and :attr:`Trace.threads`.
Absent is -1. Nothing else of the trace is kept: its metadata can hold secrets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

KERNEL, MEMCPY, MEMSET = 0, 1, 2
"""Kinds of work on a device."""


@dataclass(frozen=True, kw_only=True)
class Spans:
    """Intervals on the host, sorted by start: ``start_ns <= end_ns``, one entry each.

    Attributes:
        start_ns: Begin.
        end_ns: End.
        name: Index into :attr:`Trace.names`.
        thread: Index into :attr:`Trace.threads`.
    """

    start_ns: Ints
    end_ns: Ints
    name: Ints
    thread: Ints

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, kw_only=True)
class Ops(Spans):
    """Operators of torch (``aten::mm``) and of autograd, nested on each thread.

    Attributes:
        dims: JSON text of the shapes of the inputs of op i, as recorded; empty without.
        types: JSON text of their types; empty without.
        concrete: JSON text of the arguments that are no tensors; empty without.
        parent: Index of the op that encloses it on its thread.
    """

    dims: list[bytes]
    types: list[bytes]
    concrete: list[bytes]
    parent: Ints


@dataclass(frozen=True, kw_only=True)
class DeviceWork:
    """Kernels and copies of one device, sorted by start.

    Attributes:
        start_ns: Begin on the device.
        end_ns: End on the device.
        kind: :data:`KERNEL`, :data:`MEMCPY` or :data:`MEMSET`.
        name: Index into :attr:`Trace.names`.
        stream: As the trace numbers it.
        launch_ns: Begin of the call that launched it, on the host; -1 without a record.
        launch_thread: Index into :attr:`Trace.threads`.
        op: Index into :attr:`Trace.ops` of the innermost op around the launch.
        blocks: Thread blocks of the launch; -1 where they are not recorded.
        launch_end_ns: End of the call that launched it; -1 without a record, ``None`` where no
            call's is known.
    """

    start_ns: Ints
    end_ns: Ints
    kind: Ints
    name: Ints
    stream: Ints
    launch_ns: Ints
    launch_thread: Ints
    op: Ints
    blocks: Ints
    launch_end_ns: Ints | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One process's trace.

    Attributes:
        file: Name of the file, without its folder.
        raw_bytes: Size of the JSON.
        names: Of kernels, ops and spans.
        threads: Of the host, as text.
        work: Of the device that the trace is about (the one with most work); empty on a CPU.
        ops: Of the host.
        steps: ``ProfilerStep#N``, or the user's own annotation of a step; may be empty.
        syncs: Calls that wait for the device (``cudaStreamSynchronize``, a blocking copy, ...).
        allocs: Calls that reserve or free device memory.
        data_waits: Spans in which the loop waits for its loader.
        annotations: ``record_function`` of the user, steps apart.
        device_name: As the driver reports it; ``None`` without.
        sm_count: Multiprocessors; ``None`` without.
        rank: Of the process in its job; ``None`` without.
        world_size: Of the job; ``None`` without.
        groups: Ranks of each process group by its name, where the trace lists them.
        collectives: For each kernel of a collective (index into ``work``): ``collective``,
            ``group``, ``group_text``, ``group_size``, ``ranks``, ``dtype``, ``bytes``, ``seq``,
            ``src`` and ``dst``, those that the trace has.
        notes: What was left out in reading, as sentences.
        warnings: What makes the trace say less than it seems to, as sentences.
        recorded_with: Options of the profiler that slow the host: ``with_stack``,
            ``profile_memory``.
        kept: The share of the recorded ops that are in the file, where it was thinned out; else
            ``None``.
    """

    file: str
    raw_bytes: int
    names: list[str]
    threads: list[str]
    work: DeviceWork
    ops: Ops
    steps: Spans
    syncs: Spans
    allocs: Spans
    data_waits: Spans
    annotations: Spans
    device_name: str | None
    sm_count: int | None
    rank: int | None
    world_size: int | None
    groups: dict[str, tuple[int, ...]]
    collectives: dict[int, dict[str, Any]]
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    recorded_with: tuple[str, ...] = ()
    kept: float | None = None
