"""Steps whose micro-batches differ in shape: each is counted as it is."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from cases import Work, work
from models import train
from torch import nn
from transformer_models import gpt2, llama, mixtral

LENGTHS = (31, 5, 18)


@work
def gpt2_with_sequences_of_three_lengths() -> Work:
    shapes = [gpt2("sdpa", seq=s) for s in LENGTHS]
    model = shapes[0].model

    def run() -> None:
        for case in shapes:
            train(model, *case.batch)

    return Work(
        run,
        forward=sum(case.forward for case in shapes),
        backward=sum(case.step - case.forward for case in shapes),
        kernel_recompute=sum((case.hardware or 0) - case.step for case in shapes),
    )


@work
def llama_with_sequences_of_three_lengths() -> Work:
    shapes = [llama("eager", layers=2, seq=s) for s in LENGTHS]
    model = shapes[0].model

    def run() -> None:
        for case in shapes:
            train(model, *case.batch)

    forward = sum(case.forward for case in shapes)
    return Work(run, forward=forward, backward=2 * forward)


@work
def llama_with_padded_sequences() -> Work:
    # Padding is computed like everything else: the padded length counts.
    case = llama("eager", layers=2, seq=32)

    def run() -> None:
        mask = (torch.arange(32) < torch.tensor([[32], [20]])).long()
        case.model(case.batch[0], attention_mask=mask).logits.sum().backward()

    return Work(run, forward=case.forward, backward=2 * case.forward)


@work
def images_of_three_sizes() -> Work:
    model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3))
    sizes = ((17, 23), (8, 9), (30, 12))

    def halved(size: int) -> int:
        return (size + 2 - 3) // 2 + 1

    def run() -> None:
        for height, width in sizes:
            train(model, torch.randn(2, 3, height, width))

    first = sum(2 * 2 * halved(h) * halved(w) * (8 * 3 * 9) for h, w in sizes)
    second = sum(2 * 2 * (halved(h) - 2) * (halved(w) - 2) * (4 * 8 * 9) for h, w in sizes)
    return Work(run, forward=first + second, backward=first + 2 * second)


class WindowedAttention(nn.Module):
    """Attention inside windows of 8; a sequence is padded to a multiple of that (as Swin)."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.pad(x, (0, 0, 0, -x.shape[1] % 8))
        windows = self.qkv(x.unflatten(1, (-1, 8))).chunk(3, dim=-1)
        q, k, v = windows
        return self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)


@work
def windowed_attention_with_three_lengths() -> Work:
    b, d, lengths = 2, 16, (8, 13, 30)
    model = WindowedAttention(d)

    def run() -> None:
        for s in lengths:
            train(model, torch.randn(b, s, d))

    padded: Sequence[int] = [8 * -(-s // 8) for s in lengths]
    first = sum(2 * b * s * 3 * d * d for s in padded)
    others = sum(4 * b * s * 8 * d + 2 * b * s * d * d for s in padded)
    return Work(run, forward=first + others, backward=first + 2 * others)


@work
def experts_chosen_by_the_data() -> Work:
    # Every token goes to two experts, whichever they are.
    case = mixtral("eager")

    def run() -> None:
        for _ in range(2):
            train(case.model, torch.randint(0, 500, (2, 64)))

    return Work(run, forward=2 * case.forward, backward=2 * 2 * case.forward)
