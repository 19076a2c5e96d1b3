"""What a batch of a new length costs: evaluated from others, counted again, or just run.

A small GPT-2 trains on texts of random lengths, every one of them new. The three figures are of the
same process and the same lengths.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

import torch
import transformers

from mfu_torch.flops.counter import FlopCounter
from mfu_torch.flops.shapes import ShapeLaw
from mfu_torch.flops.shapes.columns import CountedCall

COUNTED, ROUNDS = 20, 60


def main() -> None:
    """Train the law, then time the three ways on lengths that it has not seen."""
    torch.set_num_threads(1)
    config = transformers.GPT2Config(n_layer=6, n_embd=64, n_head=4, vocab_size=256)
    model = transformers.GPT2LMHeadModel(config)
    lengths = random.Random(0).sample(range(16, 256), COUNTED + ROUNDS)
    lengths[:2] = [16, 256]  # the shortest and the longest
    law = ShapeLaw()

    def step(length: int) -> None:
        ids = torch.zeros(4, length, dtype=torch.long)
        model(input_ids=ids, labels=ids).loss.backward()

    def counted(length: int) -> None:
        calls: list[CountedCall] = []
        with FlopCounter() as counter:
            step(length)
        law.observe((4, length), counter.take("", calls), calls)

    def evaluated(length: int) -> None:
        if law.evaluate((4, length)) is None:
            raise SystemExit(f"no law for length {length}: nothing to time")

    for length in lengths[:COUNTED]:
        counted(length)
    fresh = lengths[COUNTED:]
    look_up_s = median_s(evaluated, fresh)
    step_s = median_s(step, fresh)
    counted_s = median_s(counted, fresh)
    print(f"a step, not counted:      {1e3 * step_s:8.2f} ms")
    print(f"a step, counted:          {1e3 * counted_s:8.2f} ms ({counted_s / step_s:.2f} times)")
    print(f"its count, evaluated:     {1e3 * look_up_s:8.3f} ms ({look_up_s / step_s:.4f} times)")


def median_s(run: Callable[[int], None], lengths: list[int]) -> float:
    """Median host seconds of one run."""
    times = []
    for length in lengths:
        start_s = time.perf_counter()
        run(length)
        times.append(time.perf_counter() - start_s)
    return statistics.median(times)


if __name__ == "__main__":
    main()
