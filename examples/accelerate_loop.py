"""A loop of one's own with Accelerate: a step is one update, its micro-batches included."""

from __future__ import annotations

import argparse
import itertools
import math
import sysconfig
from pathlib import Path

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from mfu_torch import Meter

SEQ, BATCH, ACCUMULATION = 128, 4, 2


def standard_library(limit_bytes: int) -> list[torch.Tensor]:
    """Its sources, cut into rows; one byte is one token."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)[:limit_bytes]
    rows = torch.tensor(bytearray(text), dtype=torch.uint8).long().split(SEQ)
    return [row for row in rows if len(row) == SEQ]


def main() -> None:
    """Train one epoch and print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--log-dir", default=None, help="default: runs/<date and time>")
    options = parser.parse_args()

    config = GPT2Config(
        vocab_size=256, n_positions=SEQ, n_layer=2, n_embd=128, n_head=2, bos_token_id=None,
        eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    accelerator = Accelerator(gradient_accumulation_steps=ACCUMULATION)
    model = GPT2LMHeadModel(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rows = standard_library(options.steps * ACCUMULATION * BATCH * SEQ)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(rows, BATCH))

    with Meter(model, log_dir=options.log_dir) as meter:  # as it is called: prepared
        batches = iter(meter.data(loader))
        for _ in range(math.ceil(len(loader) / ACCUMULATION)):
            with meter.step() as step:
                for ids in itertools.islice(batches, ACCUMULATION):
                    step.add(tokens=ids.numel(), samples=len(ids))
                    with accelerator.accumulate(model):
                        accelerator.backward(model(input_ids=ids, labels=ids).loss)
                        optimizer.step()
                        optimizer.zero_grad()
    print(meter.summary())


if __name__ == "__main__":
    main()
