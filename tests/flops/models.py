"""Models whose FLOPs are known in closed form: what every counter has to agree with.

A multiply-add is 2 FLOPs, attention counts every score, and the inputs need no gradient, so the
first layer has no gradient of its input. Everything is small, random and built on the spot.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


class Case(NamedTuple):
    """A model, its batch, and the FLOPs that its forward and its whole step need.

    ``hardware`` is what runs where that is more; ``recompute`` is the part of the difference that
    a checkpoint runs again, the rest is inside fused kernels.
    """

    model: nn.Module
    batch: tuple[torch.Tensor, ...]
    forward: int
    step: int
    hardware: int | None = None
    recompute: int = 0


ZOO: dict[str, Callable[[], Case]] = {}


def case(build: Callable[[], Case]) -> Callable[[], Case]:
    ZOO[build.__name__] = build
    return build


def train(model: nn.Module, *batch: torch.Tensor) -> None:
    """Forward and backward of a model, of this zoo or of transformers."""
    out = forward(model, *batch)
    out.float().sum().backward()


def forward(model: nn.Module, *batch: torch.Tensor) -> torch.Tensor:
    out = model(*batch)
    return out if isinstance(out, torch.Tensor) else out.logits


# --- layers ----------------------------------------------------------------------------------


@case
def mlp() -> Case:
    b = 32
    first, second = 2 * b * 256 * 1024, 2 * b * 1024 * 10
    model = nn.Sequential(nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return Case(model, (torch.randn(b, 256),), first + second, 2 * first + 3 * second)


@case
def linear_subclass() -> Case:
    class Subclass(nn.Linear):
        pass

    each = 2 * 16 * 64 * 64
    model = nn.Sequential(Subclass(64, 64), nn.Linear(64, 64))
    return Case(model, (torch.randn(16, 64),), 2 * each, 2 * each + 3 * each)


@case
def layer_used_three_times() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.relu(self.layer(torch.relu(self.layer(x)))))

    each = 2 * 16 * 64 * 64
    return Case(Model(), (torch.randn(16, 64),), 3 * each, 2 * each + 2 * 3 * each)


@case
def forward_called_directly() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first.forward(x))

    each = 2 * 16 * 64 * 64
    return Case(Model(), (torch.randn(16, 64),), 2 * each, 2 * each + 3 * each)


@case
def tied_embedding() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(1000, 64)
            self.body = nn.Linear(64, 64)
            self.head = nn.Linear(64, 1000, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.head(self.body(self.embedding(ids)))

    tokens = 4 * 32
    flops = 2 * tokens * (64 * 64 + 64 * 1000)
    # The embedding is a parameter, so the body's input does need a gradient.
    return Case(Model(), (torch.randint(0, 1000, (4, 32)),), flops, 3 * flops)


@case
def lora() -> Case:
    class Adapted(nn.Module):
        def __init__(self, d: int, r: int) -> None:
            super().__init__()
            self.base = nn.Linear(d, d, bias=False)
            self.base.weight.requires_grad_(False)
            self.down, self.up = nn.Linear(d, r, bias=False), nn.Linear(r, d, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + self.up(self.down(x))

    t, d, r, layers = 64, 128, 8, 3
    base, adapter = 2 * t * d * d, 2 * t * d * r
    flops = layers * (base + 2 * adapter)
    # base: dX from the second layer on, never dW; down: dW, and dX from the second on; up: both.
    backward = (layers - 1) * base + layers * adapter + (layers - 1) * adapter
    backward += layers * 2 * adapter
    model = nn.Sequential(*[Adapted(d, r) for _ in range(layers)])
    return Case(model, (torch.randn(t, d),), flops, flops + backward)


@case
def two_layer_lstm() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(64, 128, 2, batch_first=True)
            self.head = nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.lstm(x)[0])

    b, t, h = 4, 20, 128
    first_input = 2 * b * t * 4 * h * 64
    others = 3 * 2 * b * t * 4 * h * h + 2 * b * t * h * 10
    flops = first_input + others
    return Case(Model(), (torch.randn(b, t, 64),), flops, 2 * first_input + 3 * others)


# --- convolutions ----------------------------------------------------------------------------


@case
def resnet() -> Case:
    class Block(nn.Module):
        def __init__(self, i: int, o: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(o), nn.BatchNorm2d(o)
            same = stride == 1 and i == o
            self.skip = nn.Identity() if same else nn.Conv2d(i, o, 1, stride, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)), inplace=True)))
            return F.relu(y + self.skip(x))

    b, size = 2, 64
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.MaxPool2d(3, 2, 1)]
    tail = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)]
    blocks, channels, size = [], 64, size // 2
    first = flops = 2 * b * size**2 * 64 * 3 * 49
    size //= 2
    for out, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1)):
        blocks.append(Block(channels, out, stride))
        size //= stride
        skip = 0 if stride == 1 and channels == out else channels
        flops += 2 * b * size**2 * out * (9 * channels + 9 * out + skip)
        channels = out
    flops += 2 * b * 256 * 1000
    model = nn.Sequential(*stem, *blocks, *tail)
    return Case(model, (torch.randn(b, 3, 64, 64),), flops, 3 * flops - first)


def _after_a_pointwise_conv(second: nn.Module, flops: int) -> Case:
    pointwise = 2 * 2 * 16 * 16 * 8 * 16
    model = nn.Sequential(nn.Conv2d(8, 16, 1), second)
    x = torch.randn(2, 8, 16, 16)
    return Case(model, (x,), pointwise + flops, 2 * pointwise + 3 * flops)


@case
def transposed_conv() -> Case:
    # batch x input positions x c_in x c_out x kernel
    flops = 2 * 2 * 16 * 16 * 16 * 32 * 4 * 4
    return _after_a_pointwise_conv(nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1), flops)


@case
def transposed_grouped_conv() -> Case:
    flops = 2 * 2 * 16 * 16 * 16 * (32 // 4) * 4 * 4
    layer = nn.ConvTranspose2d(16, 32, 4, stride=2, padding=1, groups=4)
    return _after_a_pointwise_conv(layer, flops)


@case
def grouped_conv() -> Case:
    flops = 2 * 2 * 16 * 16 * 64 * (16 // 4) * 3 * 3
    return _after_a_pointwise_conv(nn.Conv2d(16, 64, 3, padding=1, groups=4), flops)


@case
def depthwise_conv() -> Case:
    flops = 2 * 2 * 16 * 16 * 16 * 1 * 3 * 3
    return _after_a_pointwise_conv(nn.Conv2d(16, 16, 3, padding=1, groups=16), flops)


@case
def conv_with_same_padding() -> Case:
    flops = 2 * 2 * 16 * 16 * 16 * 16 * 4 * 4
    return _after_a_pointwise_conv(nn.Conv2d(16, 16, 4, padding="same"), flops)


@case
def conv_1d_and_3d() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.volume = nn.Conv1d(4, 8, 5), nn.Conv3d(1, 2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.volume(self.line(x).view(2, 1, 8, 4, 4))

    line = 2 * 2 * 16 * 8 * 4 * 5
    volume = 2 * 2 * (7 * 3 * 3) * 2 * 1 * 8
    return Case(Model(), (torch.randn(2, 4, 20),), line + volume, 2 * line + 3 * volume)


@case
def conv_with_frozen_batch_norm() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 4)
            self.norm, self.frozen = nn.BatchNorm2d(8), nn.BatchNorm2d(8).eval()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(F.dropout(self.frozen(self.norm(self.conv(x)))).mean((2, 3)))

    conv, head = 2 * 2 * 6 * 6 * 8 * 27, 2 * 2 * 8 * 4
    return Case(Model(), (torch.randn(2, 3, 8, 8),), conv + head, 2 * conv + 3 * head)


# --- one functional call with one weight; the input needs no gradient ------------------------


class Functional(nn.Module):
    def __init__(self, fn: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.fn, self.weight = fn, nn.Parameter(torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fn(x, self.weight)


FULL = 2 * 4 * 32 * 64 * 64  # (4, 32, 64) @ (64, 64)
FUNCTIONAL: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    "linear": (lambda x, w: F.linear(x, w), FULL),
    "matmul": (lambda x, w: torch.matmul(x, w), FULL),
    "at": (lambda x, w: x @ w, FULL),
    "method": (lambda x, w: x.matmul(w.T), FULL),
    "einsum": (lambda x, w: torch.einsum("bsd,de->bse", x, w), FULL),
    "einsum_ellipsis": (lambda x, w: torch.einsum("...d,de->...e", x, w), FULL),
    "mm": (lambda x, w: torch.mm(x.reshape(-1, 64), w), FULL),
    "bmm": (lambda x, w: torch.bmm(x, w.expand(4, 64, 64)), FULL),
    "addmm": (lambda x, w: torch.addmm(w[0], x.reshape(-1, 64), w), FULL),
    "baddbmm": (lambda x, w: torch.baddbmm(x, x, w.expand(4, 64, 64)), FULL),
    "addbmm": (lambda x, w: torch.addbmm(x[0], x, w.expand(4, 64, 64)), FULL),
    "tensordot": (lambda x, w: torch.tensordot(x, w, dims=1), FULL),
    "broadcast_left": (lambda x, w: torch.matmul(w, x.transpose(1, 2)), FULL),
    "not_contiguous": (lambda x, w: x.transpose(0, 1) @ w.T, FULL),
    "conv2d": (lambda x, w: F.conv2d(x.transpose(1, 2)[..., None], w[:, :, None, None]), FULL),
    "matvec": (lambda x, w: x @ w[0], 2 * 4 * 32 * 64),
    "addmv": (lambda x, w: torch.addmv(x[0, :, 0], x[0], w[0]), 2 * 32 * 64),
}


for _name, (_fn, _flops) in FUNCTIONAL.items():
    ZOO[f"functional_{_name}"] = lambda fn=_fn, flops=_flops: Case(  # type: ignore[misc]
        Functional(fn), (torch.randn(4, 32, 64),), flops, 2 * flops
    )
