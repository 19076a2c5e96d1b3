"""Cost of counting one training step of Llama 3 70B and 405B, against torch's own counter.

On the meta device, where the step itself computes nothing. Both counters run in turns over the
same model, and what is compared is the processor time of this one thread. Each measurement has a
process of its own; memory is the peak over that of the imports.
"""

from __future__ import annotations

import gc
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

TOKENS = 8192
TIME_LIMIT = 2 / 3  # of torch's counter
MEMORY_LIMIT_MB = 60
REPEATS = 7


class Shape(NamedTuple):
    """What decides the FLOPs of a Llama."""

    layers: int
    hidden: int
    heads: int
    ffn: int
    kv_heads: int = 8
    vocab: int = 128_256

    def step_flops(self) -> int:
        """Model FLOPs of forward and backward over one sequence, every attention score counted."""
        d, d_kv = self.hidden, self.hidden * self.kv_heads // self.heads
        projections = 2 * TOKENS * (2 * d * d + 2 * d * d_kv + 3 * d * self.ffn)
        scores = 4 * TOKENS * TOKENS * d
        head = 2 * TOKENS * d * self.vocab
        return 3 * (self.layers * (projections + scores) + head)


SHAPES = {
    "70B": Shape(layers=80, hidden=8192, heads=64, ffn=28_672),
    "405B": Shape(layers=126, hidden=16_384, heads=128, ffn=53_248),
}


def step_of(shape: Shape) -> Callable[[], None]:
    """Forward with loss, and backward. Attention is plain products, which both can count."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.ffn,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocab,
        use_cache=False,
        attn_implementation="eager",
    )
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, dtype=torch.bfloat16)
        ids = torch.zeros(1, TOKENS, dtype=torch.long)
        mask = torch.zeros(1, 1, TOKENS, TOKENS, dtype=torch.bfloat16)

    def step() -> None:
        model(input_ids=ids, attention_mask=mask, labels=ids).loss.backward()
        model.zero_grad()

    return step


def ours(step: Callable[[], None]) -> int:
    from mfu_torch.flops.counter import count_flops

    return count_flops(step).model


def torchs(step: Callable[[], None]) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        step()
    return int(counter.get_total_flops())


def compare(name: str) -> None:
    """Print what both count, and how long they take."""
    shape = SHAPES[name]
    step = step_of(shape)
    for run in (ours, torchs):  # fills caches
        run(step)
    rounds = [(_time_s(step, ours), _time_s(step, torchs)) for _ in range(REPEATS)]
    bare_s = statistics.median(_time_s(step, lambda step: step()) for _ in range(3))
    expected = shape.step_flops()
    for who, flops in (("mfu_torch", ours(step)), ("torch", torchs(step))):
        equal = "equal to" if flops == expected else f"{flops / expected:.6f} of"
        print(f"{name:5} {who:10} {flops} FLOPs, {equal} the closed form")
    medians = [statistics.median(times) for times in zip(*rounds, strict=True)]
    ratios = sorted(own / stock for own, stock in rounds)
    print(f"{name:5} time       no counter {bare_s:.2f} s", end=", ")
    print("mfu_torch {:.2f} s, torch {:.2f} s".format(*medians), end=", ")
    print(f"ratio {statistics.median(ratios):.3f} (limit {TIME_LIMIT:.3f};", end=" ")
    print(f"{REPEATS} rounds, {ratios[0]:.3f} to {ratios[-1]:.3f})")


def _time_s(step: Callable[[], None], run: Callable[[Callable[[], None]], object]) -> float:
    gc.collect()  # the garbage of the run before is not this one's
    start_s = time.process_time()
    run(step)
    return time.process_time() - start_s


def peak_mb() -> float:
    unit = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def report_memory(name: str) -> None:
    """Print the peak of this process over that of its imports, in MB."""
    import transformers

    import mfu_torch.flops.counter as counter

    _ = transformers.LlamaForCausalLM, counter.count_flops  # transformers imports on demand
    before = peak_mb()
    ours(step_of(SHAPES[name]))
    print(f"{name:5} memory     +{peak_mb() - before:.0f} MB (limit {MEMORY_LIMIT_MB} MB)", end="")
    print(f" over the imports' {before:.0f} MB")


def main() -> None:
    """Compare both counters on each shape."""
    for name in SHAPES:
        for what in MEASURES:
            # A process begins with the peak of the one that it was forked from: this one is small.
            subprocess.run([sys.executable, __file__, what, name], check=True)


MEASURES = {"time": compare, "memory": report_memory}

if __name__ == "__main__":
    if len(sys.argv) == 3:
        MEASURES[sys.argv[1]](sys.argv[2])
    else:
        main()
