"""Train a small GPT-2 on the sources of Python's standard library, and watch its MFU.

On a GPU in BF16, on the CPU otherwise. Nothing is downloaded: the model is built from a config
with random weights, and the text is on every machine that runs Python.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
import sysconfig
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset
from transformers import GPT2Config, GPT2LMHeadModel

from mfu_torch import Meter


def standard_library(limit_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Its sources as bytes: nine files of ten for training, the tenth for validation."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    paths = sorted(path for path in folder.rglob("*.py") if "site-packages" not in path.parts)
    train = itertools.chain.from_iterable(p.read_bytes() for i, p in enumerate(paths) if i % 10)
    held_out = itertools.chain.from_iterable(p.read_bytes() for p in paths[::10])
    return (
        torch.tensor(bytearray(itertools.islice(train, limit_bytes)), dtype=torch.uint8),
        torch.tensor(bytearray(itertools.islice(held_out, limit_bytes // 10)), dtype=torch.uint8),
    )


def batches_of(text: torch.Tensor, batch: int, seq: int) -> DataLoader:
    """Batches of shape (batch, seq), in a fixed random order; one byte is one token."""
    windows = TensorDataset(text[: len(text) // seq * seq].view(-1, seq).long())
    order = torch.Generator().manual_seed(0)
    return DataLoader(windows, batch, shuffle=True, drop_last=True, generator=order)


def typed(path: Path) -> Path:
    """The path as it can be typed in this folder."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def main() -> None:
    """Train, validate, save a checkpoint, print the report."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300 if gpu else 60)
    parser.add_argument("--log-dir", default=None, help="default: runs/<date and time>")
    options = parser.parse_args()

    device = torch.device("cuda" if gpu else "cpu")
    layers, width, seq, batch = (12, 768, 1024, 32) if gpu else (4, 256, 256, 8)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=seq, n_layer=layers, n_embd=width, n_head=width // 64,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).to(device)
    model.loss_type = "ForCausalLM"
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=gpu)
    size = sum(parameter.numel() for parameter in model.parameters())
    print(f"GPT-2, {layers} layers, {size / 1e6:.1f} M parameters, on {device.type}")
    train, held_out = standard_library(limit_bytes=20_000_000 if gpu else 2_000_000)

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        ids = ids.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=gpu):
            return model(input_ids=ids, labels=ids, use_cache=False).loss

    with Meter(model, log_dir=options.log_dir) as meter:
        batches = itertools.islice(meter.data(batches_of(train, batch, seq)), options.steps)
        for step, (ids,) in enumerate(batches, start=1):
            with meter.step(tokens=ids.numel(), samples=len(ids)):
                loss_of(ids).backward()
                optimizer.step()
                optimizer.zero_grad()
            if step in (options.steps // 2, options.steps):
                with meter.pause("eval"), torch.no_grad():
                    held = itertools.islice(batches_of(held_out, batch, seq), 10)
                    losses = [loss_of(ids) for (ids,) in held]
                    loss = torch.stack(losses).mean().item()
                print(f"step {step}: {loss / math.log(2):.2f} bits per byte of held-out text")
                with meter.pause("checkpoint"):
                    torch.save(model.state_dict(), meter.log_dir / "checkpoint.pt")
    tensorboard = Path(sys.executable).with_name("tensorboard")
    print(
        f"\n{meter.summary()}\n\nThe curves: {typed(tensorboard)} --logdir {typed(meter.log_dir)}"
    )


if __name__ == "__main__":
    main()
