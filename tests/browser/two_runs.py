"""Two short runs that differ in the peak that they are told: their MFUs are in a known order."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from mfu_torch import Meter
from mfu_torch.integrations.tensorboard import TensorBoardSink
from mfu_torch.run.sinks import Sink

STEPS, EVERY = 30, 5

HIGH, LOW = 20e9, 2e12  # FLOP/s: a hundred times the peak is a hundredth of the MFU


class Decoder(nn.Module):
    """One layer of causal attention and an MLP."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).squeeze(1)
        return x + self.mlp(x)


def train(folder: Path, peak: float, sinks: list[Sink] | None = None) -> None:
    """30 steps in windows of 5, with phases, an evaluation and a checkpoint."""
    torch.manual_seed(0)
    model = Decoder()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batches = [torch.randn(4, 64, 64) for _ in range(STEPS)]
    with Meter(model, log_dir=folder, log_every=EVERY, peak=peak, sinks=sinks) as meter:
        for index, x in enumerate(meter.data(batches), start=1):
            with meter.step(tokens=4 * 64, samples=4):
                with meter.phase("forward"):
                    loss = model(x).square().mean()
                with meter.phase("backward"):
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            if index % 10 == 0:
                with meter.pause("eval"), torch.no_grad():
                    model(batches[0])
                with meter.pause("checkpoint"):
                    torch.save(model.state_dict(), folder / "model.pt")


def train_two(folder: Path) -> None:
    """``low`` with the sinks that a meter has by itself, ``high`` with hparams of its own."""
    train(folder / "low", LOW)
    train(folder / "high", HIGH, [TensorBoardSink(folder / "high", hparams={"lr": 0.01})])
