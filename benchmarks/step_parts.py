"""What it costs to split steps into forward, backward and optimizer: host time per step.

The same small training step runs in interleaved loops, so that a busy machine disturbs all of them
alike: without a meter, with one that splits hardly any step, with the usual one, and with one that
splits every step. The last gives what a mark costs, which decides how many steps are split.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext

import torch
from step_overhead import Silent, median_step_s
from torch import nn

from mfu_torch import Meter
from mfu_torch.clock import parts


class TrainingStep:
    """One step of a small model, with its own meter or none."""

    def __init__(self, metered: bool) -> None:
        self.model = nn.Linear(8, 8)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.ones(4, 8)
        self.meter = (
            Meter(self.model, log_dir="", sinks=[Silent()], peak=1e12, log_every=100)
            if metered
            else None
        )

    def __call__(self) -> None:
        """Train once."""
        with self.meter.step(samples=4) if self.meter else nullcontext():
            self.model(self.x).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()


def mean_s(step: Callable[[], None], steps: int) -> float:
    """Mean duration: what every so many steps costs is in it."""
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def main() -> None:
    """Run the loops and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000, help="per loop and round")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)

    budgets = {"no meter": 0.0, "hardly any": 1e-12, "as it is": parts.BUDGET, "always": 1e12}
    loops = {name: TrainingStep(metered=name != "no meter") for name in budgets}
    medians: dict[str, list[float]] = {name: [] for name in loops}
    means: dict[str, list[float]] = {name: [] for name in loops}
    for _ in range(options.rounds):
        for name, step in loops.items():
            parts.BUDGET = budgets[name] or parts.BUDGET
            step()  # the one that decides which step is split next
            medians[name].append(median_step_s(step, options.steps))
            means[name].append(mean_s(step, options.steps))
    split = {name: 0.0 for name in loops}
    for name, step in loops.items():
        if step.meter is not None:
            step.meter.close()
            records = list(step.meter.run.steps)
            split[name] = sum(record.parts is not None for record in records) / len(records)
    base = statistics.median(medians["no meter"])
    print(f"{'host time of a step':<24}{'split':>10}{'median':>12}{'mean':>12}")
    for name in loops:
        median, mean = statistics.median(medians[name]), statistics.median(means[name])
        print(f"{name:<24}{split[name]:>9.2%}{median * 1e6:>9.1f} us{mean * 1e6:>9.1f} us")
    for name in ("hardly any", "as it is", "always"):
        added = statistics.median(medians[name]) - base
        print(f"{name}: {added * 1e6:+.1f} us, {added / base:+.1%} of a step without a meter")
    marks = 8
    cost = (statistics.median(medians["always"]) - statistics.median(medians["hardly any"])) / marks
    print(f"one of the {marks} marks of a step: {cost * 1e6:.2f} us")


if __name__ == "__main__":
    main()
