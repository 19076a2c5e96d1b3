"""Jobs of several ranks, simulated: each computes, and waits in collectives for its group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.explain import analyse
from mfu_torch.insight.breakdown.ranks import Job, combine, rank_trace

US = 1000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
MATMUL = {"dims": [[1000, 1000], [1000, 1000]], "types": ["c10::BFloat16"] * 2}  # 2 GFLOP

Groups = dict[str, list[int]]
Time = Callable[[int, int], int]
"""Rank and step -> microseconds."""


def never(rank: int, step: int) -> int:
    """Nothing."""
    return 0


@dataclass
class Ranks:
    """Per step: the loader, a matmul, a norm, and an all-reduce in each group, one after another.

    Attributes:
        world: Ranks.
        groups: By their names, in the order of their collectives; all ranks if not given.
        labels: What the program calls them.
        loader_us: The loop waits for the loader.
        norm_us: The norm, before the collective of each group.
        host_us: Host work between matmul and norm, while the device is empty.
        transfer_us: Of an all-reduce, once all are there.
        devices: Names by rank; H100 if not given.
    """

    world: int
    groups: Sequence[Groups] = ()
    labels: Sequence[str] = ()
    loader_us: Time = never
    norm_us: Callable[[int, int, int], int] = lambda rank, step, group: 100
    host_us: Time = never
    transfer_us: int = 50
    devices: Callable[[int], str | None] = lambda rank: "NVIDIA H100 80GB HBM3"
    steps: Callable[[int], range] = lambda rank: range(3, 6)
    _traces: list[TraceBuilder] = field(default_factory=list)
    _now: list[int] = field(default_factory=list)

    def write(self, folder: Path) -> list[Path]:
        """The trace of each rank."""
        groups = self.groups or [{"0": list(range(self.world))}]
        listed = {name: ranks for kind in groups for name, ranks in kind.items()}
        self._now = [0] * self.world
        self._traces = [
            TraceBuilder(
                rank=rank,
                world_size=self.world,
                groups=listed,
                device_name=self.devices(rank),
                sm_count=108 if "A100" in (self.devices(rank) or "") else 132,
            )
            for rank in range(self.world)
        ]
        every = sorted({step for rank in range(self.world) for step in self.steps(rank)})
        for step in every:
            begins = list(self._now)
            for rank in range(self.world):
                self._compute(rank, step)
            for at, kind in enumerate(groups):
                self._reduce(at, kind, step)
            for rank, trace in enumerate(self._traces):
                if step in self.steps(rank):
                    begin = begins[rank] * US
                    trace.step(step, begin, self._now[rank] * US - begin)
        return [trace.write(folder / f"rank{trace.rank}.json") for trace in self._traces]

    def _compute(self, rank: int, step: int) -> None:
        trace, wait = self._traces[rank], self.loader_us(rank, step)
        if wait and step in self.steps(rank):
            trace.data_wait(self._now[rank] * US, wait * US)
        self._now[rank] += wait
        if step in self.steps(rank):
            trace.op("aten::mm", self._now[rank] * US, 900, **MATMUL)
        self._kernel(rank, step, "sm90_xmma_gemm_bf16bf16", 200)
        self._now[rank] += self.host_us(rank, step)

    def _reduce(self, at: int, kind: Groups, step: int) -> None:
        label = self.labels[at] if self.labels else None
        for name, members in kind.items():
            for rank in members:
                self._kernel(rank, step, "layer_norm_kernel", self.norm_us(rank, step, at))
            end = max(self._now[rank] for rank in members) + self.transfer_us
            said = {"Collective name": "allreduce", "Process Group Name": name}
            said |= {"In msg nelems": 1024, "dtype": "Float"}
            said |= {"Process Group Description": label} if label else {}
            for rank in members:
                self._kernel(rank, step, NCCL, end - self._now[rank], 20, **said)

    def _kernel(
        self, rank: int, step: int, name: str, us: int, stream: int = 7, **more: object
    ) -> None:
        begin = self._now[rank] * US
        if us and step in self.steps(rank):
            self._traces[rank].kernel(
                *(name, begin, us * US),
                stream=stream,
                launch_ns=begin,
                launch_duration_ns=1,
                **more,
            )
        self._now[rank] += us


def job_of(paths: Sequence[Path], **options: object) -> Job:
    """What these traces say together."""
    return combine([rank_trace(analyse(path, **options)) for path in paths])
