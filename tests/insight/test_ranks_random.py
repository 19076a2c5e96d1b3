"""Random jobs against a labeller that looks at every microsecond."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.explain import analyse
from mfu_torch.insight.breakdown.ranks import combine, rank_trace

US = 1000
STEP = 400

Interval = tuple[int, int]


class Timeline:
    """What runs on a rank, in whole microseconds: compute, and collectives one after another."""

    def __init__(self, dice: random.Random, steps: int, names: list[list[str]]) -> None:
        self.compute: list[Interval] = []
        self.collectives: list[list[Interval]] = []
        for step in range(steps):
            begin = step * STEP
            self.compute.append((begin, begin + 5))  # a step begins with it on every rank
            for _ in range(dice.randrange(4)):
                start = begin + dice.randrange(10, STEP - 60)
                self.compute.append((start, start + dice.randrange(1, 50)))
            now, mine = begin + 6, []
            for _ in names[step]:
                now += dice.randrange(0, 20)
                length = dice.randrange(1, 60)
                mine.append((now, now + length))
                now += length
            self.collectives.append(mine)

    def write(self, path: Path, rank: int, world: int, names: list[list[str]]) -> Path:
        trace = TraceBuilder(rank=rank, world_size=world, groups={"0": list(range(world))})
        for step, mine in enumerate(self.collectives):
            begin = step * STEP * US
            trace.step(step, begin, STEP * US)
            for (start, end), name in zip(mine, names[step], strict=True):
                said = {"Collective name": name, "Process Group Name": "0", "dtype": "Float"}
                kernel = f"ncclDevKernel_{name}(...)"
                trace.kernel(
                    *(kernel, start * US, (end - start) * US),
                    **{"stream": 20, "launch_ns": begin + 1, **said},
                )
        for stream, (start, end) in enumerate(self.compute):
            launch = start // STEP * STEP * US + 1
            trace.kernel(
                *("elementwise_kernel", start * US, (end - start) * US),
                **{"stream": 100 + stream, "launch_ns": launch},
            )
        return trace.write(path)


def expected(ranks: list[Timeline], names: list[list[str]]) -> dict[str, Counter[str]]:
    """Collective -> exposed and waiting microseconds of all ranks."""
    found: dict[str, Counter[str]] = {}
    for one in ranks:
        busy = {t for start, end in one.compute for t in range(start, end)}
        for step, mine in enumerate(one.collectives):
            for number, (start, end) in enumerate(mine):
                least = min(b - a for a, b in (r.collectives[step][number] for r in ranks))
                told = found.setdefault(names[step][number], Counter())
                for t in range(start, end):
                    if t not in busy:
                        told["exposed"] += 1
                        told["waiting"] += t < end - least
    return found


@pytest.mark.parametrize("seed", range(25))
def test_exposed_and_waiting_are_those_of_every_microsecond(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    world, steps = dice.randrange(2, 5), dice.randrange(1, 4)
    kinds = ["AllReduce", "AllGather", "ReduceScatter"]
    names = [[dice.choice(kinds) for _ in range(dice.randrange(1, 4))] for _ in range(steps)]
    ranks = [Timeline(dice, steps, names) for _ in range(world)]
    job = combine(
        [
            rank_trace(analyse(one.write(tmp_path / f"{rank}.json", rank, world, names)))
            for rank, one in enumerate(ranks)
        ]
    )
    plain = {"AllReduce": "all_reduce", "AllGather": "all_gather"}
    want = {
        plain.get(name, "reduce_scatter"): (told["exposed"] * US, told["waiting"] * US)
        for name, told in expected(ranks, names).items()
        if told["exposed"]
    }
    got = {
        one.collective: (one.exposed_ns, one.waiting_ns) for one in job.exchanges if one.exposed_ns
    }
    assert got == want
    assert all(one.unsplit_ns == 0 and one.matched == one.calls for one in job.exchanges)
    buckets = {one.name: one.time_ns for one in job.total.buckets}
    exposed = sum(one.exposed_ns for one in job.exchanges)
    assert exposed == buckets.get("exposed_communication", 0)
    assert sum(buckets.values()) == job.total.wall_ns
