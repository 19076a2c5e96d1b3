"""A trace written by hand, as the columns that a reader would make of a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from mfu_torch.insight.trace.events import (
    KERNEL,
    MEMCPY,
    MEMSET,
    DeviceWork,
    Ints,
    Ops,
    Spans,
    Trace,
)

GEMM = "sgemm_128x64_nn"
CONV = "implicit_convolve_sgemm"
ATTENTION = "flash_fwd_kernel"
OTHER = "vectorized_elementwise_kernel"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
COPY = "Memcpy HtoD (Pinned -> Device)"
MEMSET_NAME = "Memset (Device)"

MAIN, AUTOGRAD, WORKER = "main", "autograd", "worker"


@dataclass(frozen=True)
class Work:
    """A kernel or copy; ``launch`` -1: not recorded. Its call takes ``call`` ns."""

    name: str
    start: int
    end: int
    launch: int = -1
    thread: str = MAIN
    op: str | None = None
    stream: int = 7
    call: int = 0

    @property
    def kind(self) -> int:
        kinds = {"Memcpy": MEMCPY, "Memset": MEMSET}
        return next((kinds[one] for one in kinds if self.name.startswith(one)), KERNEL)


@dataclass(frozen=True)
class Span:
    """An interval on a thread."""

    start: int
    end: int
    name: str = "span"
    thread: str = MAIN


@dataclass
class Hand:
    """Events in any order; :meth:`trace` sorts them."""

    work: list[Work] = field(default_factory=list)
    ops: list[Span] = field(default_factory=list)
    steps: list[Span] = field(default_factory=list)
    syncs: list[Span] = field(default_factory=list)
    allocs: list[Span] = field(default_factory=list)
    data_waits: list[Span] = field(default_factory=list)

    def trace(self) -> Trace:
        names, threads = _Numbers(), _Numbers()
        ops = sorted(self.ops, key=lambda op: (op.start, -op.end))
        columns = self._spans(ops, names, threads)
        more = {key: [b""] * len(ops) for key in ("dims", "types", "concrete")}
        return Trace(
            file="hand.json",
            raw_bytes=0,
            names=names.texts,
            threads=threads.texts,
            work=self._device_work(ops, names, threads),
            ops=Ops(**columns, **more, parent=_ints(_parents(ops))),
            steps=Spans(**self._spans(self.steps, names, threads)),
            syncs=Spans(**self._spans(self.syncs, names, threads)),
            allocs=Spans(**self._spans(self.allocs, names, threads)),
            data_waits=Spans(**self._spans(self.data_waits, names, threads)),
            annotations=Spans(**self._spans([], names, threads)),
            device_name="NVIDIA A100-SXM4-80GB" if self.work else None,
            sm_count=None,
            rank=None,
            world_size=None,
            groups={},
            collectives={},
        )

    def _device_work(self, ops: Sequence[Span], names: _Numbers, threads: _Numbers) -> DeviceWork:
        work = sorted(self.work, key=lambda one: one.start)
        op_names = [op.name for op in ops]
        return DeviceWork(
            start_ns=_ints(one.start for one in work),
            end_ns=_ints(one.end for one in work),
            kind=_ints(one.kind for one in work),
            name=_ints(names.of(one.name) for one in work),
            stream=_ints(one.stream for one in work),
            launch_ns=_ints(one.launch for one in work),
            launch_end_ns=_ints(-1 if one.launch < 0 else one.launch + one.call for one in work),
            launch_thread=_ints(threads.of(one.thread) if one.launch >= 0 else -1 for one in work),
            op=_ints(-1 if one.op is None else op_names.index(one.op) for one in work),
            blocks=_ints(-1 for _ in work),
        )

    def _spans(self, spans: Sequence[Span], names: _Numbers, threads: _Numbers) -> dict[str, Ints]:
        spans = sorted(spans, key=lambda one: (one.start, -one.end))
        return {
            "start_ns": _ints(one.start for one in spans),
            "end_ns": _ints(one.end for one in spans),
            "name": _ints(names.of(one.name) for one in spans),
            "thread": _ints(threads.of(one.thread) for one in spans),
        }


class _Numbers:
    """Each text gets the next number when it is first seen."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def of(self, text: str) -> int:
        if text not in self.texts:
            self.texts.append(text)
        return self.texts.index(text)


def _ints(values: object) -> Ints:
    return np.array(list(values), np.int64)  # type: ignore[call-overload]


def _parents(ops: Sequence[Span]) -> list[int]:
    found = []
    for i, op in enumerate(ops):
        around = [
            j
            for j in range(i)
            if ops[j].thread == op.thread and ops[j].start <= op.start and op.end <= ops[j].end
        ]
        found.append(around[-1] if around else -1)
    return found
