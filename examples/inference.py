"""Decoding with a KV cache: a token needs few FLOPs and all of the weights, so MBU says more.

MFU is the meter's, one token of every sequence being a step. MBU (memory-bandwidth utilization)
is the weights and the cache that a step reads, over what the memory could deliver in its time.
The model is a small Llama with random weights; its cache has its full length from the start.
"""

import torch
from torch.utils.benchmark import Timer
from transformers import LlamaConfig, LlamaForCausalLM, StaticCache

from mfu_torch import Meter, detect_device
from mfu_torch.figures import run_figures
from mfu_torch.peak.table import find_rows
from mfu_torch.units import bytes_, percent, scaled
from mfu_torch.utilization import mbu

BATCH, PROMPT, TOKENS = 4, 64, 64
CONFIG = LlamaConfig(
    vocab_size=4096, hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
    num_attention_heads=8, num_key_value_heads=2, eos_token_id=None,
)  # fmt: skip


def bandwidth(device: torch.device) -> tuple[float, str]:
    """Bytes/s of its memory: the table's, or else measured; and which of the two."""
    described = detect_device(kind=device.type)
    stated = {row.bytes_per_s for row in find_rows(described) if not described.mig}
    if len(stated) == 1 and None not in stated:
        return stated.pop(), "datasheet"
    source, target = torch.ones(2, 2**27, dtype=torch.uint8, device=device)
    values = {"source": source, "target": target}
    timer = Timer("target.copy_(source)", globals=values, num_threads=torch.get_num_threads())
    time_s = timer.blocked_autorange(min_run_time=0.5).median
    return 2 * source.numel() / time_s, "measured: a copy of 128 MiB, read and written"


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = LlamaForCausalLM(CONFIG).to(device, torch.bfloat16 if device.type == "cuda" else None)
cache = StaticCache(CONFIG, max_cache_len=PROMPT + TOKENS)
with torch.inference_mode(), Meter(model.eval()) as meter:
    with meter.pause("prompt"):
        ids = torch.randint(CONFIG.vocab_size, (BATCH, PROMPT), device=device)
        ids = model(ids, None, None, cache, logits_to_keep=1).logits.argmax(2)
    for place in torch.arange(PROMPT, PROMPT + TOKENS, device=device):
        with meter.step(tokens=BATCH):
            ids = model(ids, None, place.expand(BATCH, 1), cache).logits.argmax(2)
kept = [p for name, p in model.named_parameters() if "embed" not in name]  # but for look-ups
kept += [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
read_bytes = sum(tensor.numel() * tensor.element_size() for tensor in kept)
bytes_per_s, how = bandwidth(device)
share = mbu(read_bytes, run_figures(meter.run).step_s, bytes_per_s)
print(f"\n{meter.summary()}\n\nMBU {percent(share)}: {bytes_(read_bytes)} a step,")
print(f"of {scaled(bytes_per_s, 'B/s')} ({how})")
