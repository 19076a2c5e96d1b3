"""Pipelines, simulated event by event: a stage computes as soon as it is free and has its input.

Nothing here knows the closed form of the bubble.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trace_builder import TraceBuilder

MS = 1_000_000
TRANSFER_NS = 1  # a send and its receive, once both are there
SENDRECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"

Work = tuple[str, int, int]
"""``("F", chunk, micro-batch)`` or ``("B", ...)``."""


def gpipe(stage: int, stages: int, m: int) -> list[Work]:
    """All forwards, then all backwards."""
    return [("F", 0, i) for i in range(m)] + [("B", 0, i) for i in range(m)]


def one_f_one_b(stage: int, stages: int, m: int) -> list[Work]:
    """Some forwards to fill the pipeline, then one backward after each forward."""
    ahead = min(m, stages - 1 - stage)
    order: list[Work] = [("F", 0, i) for i in range(ahead)]
    for i in range(m - ahead):
        order += [("F", 0, ahead + i), ("B", 0, i)]
    return order + [("B", 0, i) for i in range(m - ahead, m)]


def interleaved(stage: int, stages: int, m: int, chunks: int = 2) -> list[Work]:
    """Each stage has several chunks of layers; micro-batches go in groups of as many as stages."""

    def of(k: int) -> tuple[int, int]:
        return k // stages % chunks, k // (stages * chunks) * stages + k % stages

    forward: list[Work] = [("F", *of(k)) for k in range(m * chunks)]
    backward: list[Work] = [("B", chunks - 1 - of(k)[0], of(k)[1]) for k in range(m * chunks)]
    ahead = min(m * chunks, 2 * (stages - stage - 1) + (chunks - 1) * stages)
    order = forward[:ahead]
    for k in range(m * chunks - ahead):
        order += [forward[ahead + k], backward[k]]
    return order + backward[m * chunks - ahead :]


@dataclass
class Pipeline:
    """The schedule of each stage, simulated for some steps.

    Attributes:
        orders: Of each stage, what it does in a step.
        chunks: Of layers, per stage.
        forward_ns: Of a stage and micro-batch.
        slower: Of each stage, times the time of an even one.
        with_peers: Whether the trace names the sender and the receiver.
    """

    orders: Sequence[Sequence[Work]]
    chunks: int = 1
    forward_ns: int = MS
    slower: Sequence[float] = ()
    with_peers: bool = True
    first_rank: int = 0
    world: int = 0
    _free: list[int] = field(default_factory=list)
    _sent: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    _link: dict[tuple[object, ...], int] = field(default_factory=dict)

    def write(self, folder: Path, steps: int = 3) -> list[Path]:
        """A trace of each stage; its steps are 3, 4, ..."""
        p = len(self.orders)
        ranks = [self.first_rank + stage for stage in range(p)]
        self._traces = [
            TraceBuilder(
                rank=rank, world_size=self.world or p, groups={f"pp{self.first_rank}": ranks}
            )
            for rank in ranks
        ]
        self._free = [0] * p
        for step in range(steps):
            for trace in self._traces:
                trace.step(3 + step, 1000 * step, 1000)
            self._run(step)
        return [trace.write(folder / f"rank{trace.rank}.json") for trace in self._traces]

    def _run(self, step: int) -> None:
        done = [0] * len(self.orders)
        while any(at < len(order) for at, order in zip(done, self.orders, strict=True)):
            before = list(done)
            for stage, order in enumerate(self.orders):
                while done[stage] < len(order) and self._do(stage, order[done[stage]], step):
                    done[stage] += 1
            assert done != before, "the schedule waits for itself"

    def _neighbour(self, stage: int, chunk: int, by: int) -> tuple[int, int] | None:
        at = chunk * len(self.orders) + stage + by
        is_one = 0 <= at < self.chunks * len(self.orders)
        return (at % len(self.orders), at // len(self.orders)) if is_one else None

    def _do(self, stage: int, work: Work, step: int) -> bool:
        kind, chunk, micro = work
        by = 1 if kind == "F" else -1
        source = self._neighbour(stage, chunk, -by)
        begin = self._free[stage]
        if source is not None:
            key = (step, kind, source, micro)
            if key not in self._sent:
                return False
            begin = self._receive(source[0], stage, begin, key, step)
        factor = self.slower[stage] if self.slower else 1
        length = round(self.forward_ns * (1 if kind == "F" else 2) * factor / self.chunks)
        self._kernel(stage, "elementwise_kernel", begin, length, 7, step)
        self._free[stage] = begin + length
        target = self._neighbour(stage, chunk, by)
        if target is not None:
            self._sent[step, kind, (stage, chunk), micro] = (begin + length, target[0])
        return True

    def _receive(
        self, source: int, stage: int, free: int, key: tuple[object, ...], step: int
    ) -> int:
        """The kernels of both begin when their stage is ready, and end together."""
        ready, _ = self._sent[key]
        ready = max(ready, self._link.get((source, stage, key[1]), 0))  # one after another
        end = max(ready, free) + TRANSFER_NS
        self._link[source, stage, key[1]] = end
        pair = {"Src Rank": self.first_rank + source, "Dst Rank": self.first_rank + stage}
        said = {
            **(pair if self.with_peers else {}),
            **{"Process Group Name": f"pp{self.first_rank}", "dtype": "Float"},
            "In msg nelems": 1024,
        }
        streams = 20 if key[1] == "F" else 21
        for at, begin, name in ((source, ready, "send"), (stage, free, "recv")):
            stream = streams + (10 if name == "send" else 0)
            more = {**said, "Collective name": name}
            self._kernel(at, SENDRECV, begin, end - begin, stream, step, **more)
        return end

    def _kernel(
        self, stage: int, name: str, start: int, length: int, stream: int, step: int, **more: object
    ) -> None:
        launch = 1000 * step + 1
        self._traces[stage].kernel(name, start, length, stream=stream, launch_ns=launch, **more)
