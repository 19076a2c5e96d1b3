"""A small Kineto trace from plain calls. Times are whole nanoseconds; so is what is read back.

trace = TraceBuilder()
trace.step(0, 0, 10_000)
trace.op("aten::mm", 100, 500, dims=[[4, 8], [8, 2]])
trace.kernel("gemm", 1_000, 4_000, launch_ns=200)
trace.write(tmp_path / "trace.json.gz")
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Event = dict[str, Any]


@dataclass
class TraceBuilder:
    """Collects events in the order of the calls; every method may be called in any order.

    Attributes:
        device_name: Of every device; ``None`` writes no ``deviceProperties``.
        sm_count: Of every device.
        devices: How many are listed.
        base_us: Added to every time stamp (old traces: microseconds since 1970).
        rank: Written with ``world_size`` and ``groups`` as ``distributedInfo``.
        groups: Name of a process group -> its ranks.
        pid: Of the process.
    """

    device_name: str | None = "NVIDIA H100 80GB HBM3"
    sm_count: int = 132
    devices: int = 1
    base_us: int = 0
    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, list[int]] = field(default_factory=dict)
    pid: int = 100
    events: list[Event] = field(default_factory=list)
    top_level: dict[str, Any] = field(default_factory=dict)
    _correlation: int = 0

    def event(
        self, category: str | None, name: Any, start_ns: int, duration_ns: int | None, **more: Any
    ) -> Event:
        """Any event; ``more`` is added to it, and ``args`` is its own dict."""
        event: Event = {"ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": 1}
        event["ts"] = self._us(start_ns)
        if duration_ns is not None:
            event["dur"] = duration_ns / 1000
        event.update(more)
        self.events.append(event)
        return event

    def kernel(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        stream: int = 7,
        device: int = 0,
        launch_ns: int | None = None,
        launch_duration_ns: int = 100,
        thread: Any = 1,
        grid: list[int] | None = None,
        correlation: int | None = None,
        category: str = "kernel",
        **args: Any,
    ) -> int:
        """A kernel, and the call that launched it if ``launch_ns`` says when.

        Returns its correlation: kernels of one CUDA graph share that of their launch.
        """
        correlation = self._next() if correlation is None else correlation
        if launch_ns is not None:
            launcher = "cudaLaunchKernel" if "ernel" in category else "cudaMemcpyAsync"
            self.runtime(launcher, launch_ns, launch_duration_ns, thread=thread, corr=correlation)
        found = {"device": device, "stream": stream, "correlation": correlation, **args}
        if grid is not None:
            found["grid"] = grid
        self.event(category, name, start_ns, duration_ns, pid=device, tid=stream, args=found)
        return correlation

    def memcpy(
        self, start_ns: int, duration_ns: int, *, kind: str = "HtoD (Pinned -> Device)", **more: Any
    ) -> int:
        """A copy; ``more`` as in :meth:`kernel`."""
        more.setdefault("category", "gpu_memcpy")
        return self.kernel(f"Memcpy {kind}", start_ns, duration_ns, **more)

    def memset(self, start_ns: int, duration_ns: int, **more: Any) -> int:
        """A memset; ``more`` as in :meth:`kernel`."""
        more.setdefault("category", "gpu_memset")
        return self.kernel("Memset (Device)", start_ns, duration_ns, **more)

    def runtime(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        thread: Any = 1,
        corr: int | None = None,
        category: str = "cuda_runtime",
    ) -> int:
        """A call of the runtime: ``cudaStreamSynchronize``, ``cudaMalloc``, a launch, ..."""
        corr = self._next() if corr is None else corr
        args = {"cbid": 211, "correlation": corr}
        self.event(category, name, start_ns, duration_ns, tid=thread, args=args)
        return corr

    def op(
        self,
        name: str,
        start_ns: int,
        duration_ns: int,
        *,
        thread: Any = 1,
        dims: list[Any] | None = None,
        types: list[str] | None = None,
        concrete: list[str] | None = None,
        **args: Any,
    ) -> None:
        """An operator on a thread of the host."""
        given = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
        args.update({key: value for key, value in given.items() if value is not None})
        self.event("cpu_op", name, start_ns, duration_ns, tid=thread, args=args)

    def step(self, number: int, start_ns: int, duration_ns: int) -> None:
        """``ProfilerStep#number``."""
        self.annotation(f"ProfilerStep#{number}", start_ns, duration_ns)

    def annotation(self, name: str, start_ns: int, duration_ns: int, *, thread: Any = 1) -> None:
        """A ``record_function`` of the user."""
        self.event("user_annotation", name, start_ns, duration_ns, tid=thread, args={})

    def data_wait(self, start_ns: int, duration_ns: int, *, thread: Any = 1) -> None:
        """The loop waits for its ``DataLoader``."""
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        self.annotation(name, start_ns, duration_ns, thread=thread)

    def sync(self, start_ns: int, duration_ns: int, *, thread: Any = 1) -> None:
        """``cudaStreamSynchronize``."""
        self.runtime("cudaStreamSynchronize", start_ns, duration_ns, thread=thread)

    def alloc(self, start_ns: int, duration_ns: int, *, thread: Any = 1) -> None:
        """``cudaMalloc``."""
        self.runtime("cudaMalloc", start_ns, duration_ns, thread=thread)

    def to_dict(self) -> dict[str, Any]:
        """The document."""
        document: dict[str, Any] = {"schemaVersion": 1}
        if self.device_name is not None:
            one = {"name": self.device_name, "numSms": self.sm_count}
            document["deviceProperties"] = [{"id": i, **one} for i in range(self.devices)]
        if self.rank is not None:
            groups = [{"pg_name": name, "ranks": ranks} for name, ranks in self.groups.items()]
            info = {"backend": "nccl", "rank": self.rank, "world_size": self.world_size}
            document["distributedInfo"] = {**info, "pg_config": groups}
        return {**document, **self.top_level, "traceEvents": self.events}

    def write(self, path: Path) -> Path:
        """Writes the document, compressed if the name ends in ``.gz``; returns the path."""
        text = json.dumps(self.to_dict()).encode()
        path.write_bytes(gzip.compress(text, 1) if path.suffix == ".gz" else text)
        return path

    def _us(self, time_ns: int) -> int | float:
        if time_ns % 1000 == 0:
            return self.base_us + time_ns // 1000
        return self.base_us + time_ns / 1000

    def _next(self) -> int:
        self._correlation += 1
        return self._correlation
