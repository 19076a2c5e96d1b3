"""What telemetry costs: one sample, one ``take``, and a training loop beside the sampler's thread.

NVML is the fake of the tests: the time is Python's (that of the fake too), not the driver's. psutil
reads this machine. The loop runs with the sampler on and paused by turns, so that a busy machine
disturbs both alike. One sample a second is too little to be seen in it, so it is also run with 200
a second, and the effect divided by 200.

    PYTHONPATH=.:tests python benchmarks/telemetry.py
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from fake_nvml import FakeGpu, FakeNvml

from mfu_torch.peak import nvml
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import Device

CPU = Device(name="this CPU", kind="cpu")
ACTIVITY = {"SM_UTIL": 90.0, "ANY_TENSOR_UTIL": 45.0, "DRAM_BW_UTIL": 30.0}
H100 = FakeGpu(uuid="GPU-h", activity=ACTIVITY)
A100 = FakeGpu(uuid="GPU-a", name="NVIDIA A100-SXM4-80GB", gpm=False)


def device(gpu: FakeGpu) -> Device:
    return Device(name=gpu.name, kind="cuda", uuid=gpu.uuid)


def median_us(call: Callable[[], object], times: int = 1000) -> float:
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken) * 1e6


def print_costs() -> None:
    print(f"{'on the sampler thread, per sample':<44} {'median':>10}")
    for name, what, gpu in (
        ("NVML with GPM (H100), fake", device(H100), H100),
        ("NVML without GPM (A100), fake", device(A100), A100),
        ("psutil, real", CPU, None),
    ):
        sampler = DeviceSampler(what)

        def sample(sampler: DeviceSampler = sampler, gpu: FakeGpu | None = gpu) -> None:
            if gpu is not None:
                gpu.elapse(0.001)
            sampler.sample()

        print(f"  {name:<42} {median_us(sample):>7.1f} us")
    sampler = DeviceSampler(device(H100))
    sampler.sample()

    def take() -> None:
        sampler.take(1)

    taken = []
    for _ in range(1000):
        H100.elapse(0.001)
        sampler.sample()
        start = time.perf_counter()
        take()
        taken.append(time.perf_counter() - start)
    print(f"{'on the step path, per window':<44}")
    print(f"  {'take, after a sample':<42} {statistics.median(taken) * 1e6:>7.1f} us")
    print(f"  {'take, without one':<42} {median_us(take):>7.1f} us")


def training_loop() -> Callable[[float], float]:
    """Trains for some seconds; the mean duration of a step."""
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(32, 256)

    def mean_step_s(seconds: float) -> float:
        steps, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            steps += 1
        return (time.perf_counter() - start) / steps

    return mean_step_s


def print_effect(rounds: int, round_s: float) -> None:
    mean_step_s = training_loop()
    print(
        f"\n{'a CPU training loop, sampler on / paused':<44} {'ratio':>7} {'quartiles':>15} "
        f"{'at 1 a second':>14}"
    )
    for name, what, per_s in (
        ("psutil", CPU, 200),
        ("NVML with GPM (fake)", device(H100), 200),
        ("psutil", CPU, 1),
        ("NVML with GPM (fake)", device(H100), 1),
    ):
        sampler = DeviceSampler(what, interval_s=1 / per_s)
        sampler.start()
        ratios = []
        for index in range(rounds):
            taken: dict[bool, float] = {}
            for sampled in (False, True) if index % 2 else (True, False):
                (sampler.resume if sampled else sampler.pause)()
                taken[sampled] = mean_step_s(round_s)
            sampler.resume()
            ratios.append(taken[True] / taken[False])
        sampler.stop()
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"  {f'{name}, {per_s} a second':<42} {middle:>7.4f} {low:>7.4f}-{high:.4f} "
            f"{1 + (middle - 1) / per_s:>14.6f}"
        )
    print(f"({rounds} pairs of {round_s} s; one thread of torch; the more samples, the less noise)")


def main() -> None:
    """Print the two tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--round-s", type=float, default=0.25, help="of each loop")
    options = parser.parse_args()
    torch.set_num_threads(1)
    nvml.pynvml = FakeNvml(H100, A100).module
    print_costs()
    print_effect(options.rounds, options.round_s)


if __name__ == "__main__":
    main()
