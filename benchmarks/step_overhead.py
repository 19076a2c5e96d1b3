"""What the meter costs the host per step, beside a bare loop and Lightning's Throughput.

Each loop runs the same tiny step; the loops are interleaved, so that a busy machine disturbs all of
them alike. Printed: the median step of each, and the difference to the bare loop.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from lightning.fabric.utilities.throughput import Throughput

from mfu_torch import Meter


class Silent:
    """A sink that writes nothing: the run file and TensorBoard are written off the step path."""

    def write(self, record: object) -> None:
        """Drop the record."""

    def close(self) -> None:
        """Nothing to close."""


def median_step_s(step: Callable[[], None], steps: int) -> float:
    """Median duration of ``steps`` calls."""
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Run the loops and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000, help="per loop and round")
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()

    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 8)
    watched = torch.nn.Linear(8, 8)
    x = torch.ones(4, 8)

    def bare() -> None:
        model(x)

    with tempfile.TemporaryDirectory() as folder:
        given = {"fp32": 1e6}
        common = {"peak": 1e12, "log_dir": folder, "sinks": [Silent()], "log_every": 100}
        meters = {
            "Meter, FLOPs given": (
                Meter(flops=given, **common),
                model,
            ),
            "Meter, model watched": (
                Meter(watched, **common),
                watched,
            ),
        }

        def metered(meter: Meter, module: torch.nn.Module) -> Callable[[], None]:
            def step() -> None:
                with meter.step(tokens=32, samples=4):
                    module(x)

            return step

        throughput = Throughput(available_flops=1e12, world_size=1, window_size=100)
        seen = [0, time.perf_counter()]

        def lightning() -> None:
            model(x)
            seen[0] += 1
            throughput.update(
                time=time.perf_counter() - seen[1],
                batches=seen[0],
                samples=4 * seen[0],
                flops=10**6,
            )

        loops = {"bare loop": bare}
        loops |= {name: metered(*pair) for name, pair in meters.items()}
        loops["Lightning Throughput.update"] = lightning
        medians: dict[str, list[float]] = {name: [] for name in loops}
        for _ in range(options.rounds):
            for name, step in loops.items():
                medians[name].append(median_step_s(step, options.steps))
        for meter, _ in meters.values():
            meter.close()

    base = statistics.median(medians["bare loop"])
    print(f"{'host time per step':<30} {'median':>10} {'added':>10}")
    for name, values in medians.items():
        value = statistics.median(values)
        print(f"{name:<30} {value * 1e6:>7.2f} us {(value - base) * 1e6:>7.2f} us")
    print("(one thread; a window has 100 steps, so the median is a step that logs nothing)")


if __name__ == "__main__":
    main()
