"""Image models in the manner of the well-known ones, small: what their code does to a counter."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ConvNeXtBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + (self.scale * self.down(F.gelu(self.up(y)))).permute(0, 3, 1, 2)


class SqueezeExcite(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(dim, dim // 4, 1), nn.Conv2d(dim // 4, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(F.silu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * gate.sigmoid()


class MBConv(nn.Module):
    """EfficientNet's and MobileNet's block, with stochastic depth."""

    def __init__(self, dim: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(dim, 4 * dim, 1, bias=False), nn.BatchNorm2d(4 * dim), nn.SiLU(),
            nn.Conv2d(4 * dim, 4 * dim, 3, stride, 1, groups=4 * dim, bias=False),
            nn.BatchNorm2d(4 * dim), nn.SiLU(), SqueezeExcite(4 * dim),
            nn.Conv2d(4 * dim, dim, 1, bias=False), nn.BatchNorm2d(dim),
        )  # fmt: skip
        self.residual = stride == 1

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        if self.training:
            y = y * torch.rand(len(x), 1, 1, 1).add(0.8).floor()
        return x + y if self.residual else y


class ResNeXtBlock(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(dim, dim, 1), nn.BatchNorm2d(dim), nn.ReLU(inplace=True),
            nn.Conv2d(dim, dim, 3, padding=1, groups=8), nn.BatchNorm2d(dim),
            nn.ReLU(inplace=True), nn.Conv2d(dim, dim, 1), nn.BatchNorm2d(dim),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class WindowAttention(nn.Module):
    """Swin's: shifted windows of 4 x 4, a bias per relative position, a mask built lazily."""

    def __init__(self, dim: int, heads: int, shift: int) -> None:
        super().__init__()
        self.heads, self.shift, self.window = heads, shift, 4
        self.norm, self.qkv, self.proj = (
            nn.LayerNorm(dim),
            nn.Linear(dim, 3 * dim),
            nn.Linear(dim, dim),
        )
        self.bias = nn.Parameter(torch.zeros(49, heads))
        at = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")).flatten(1)
        relative = (at[:, :, None] - at[:, None, :]).permute(1, 2, 0) + 3
        self.register_buffer("index", relative[..., 0] * 7 + relative[..., 1])
        self.masks: dict[int, Tensor] = {}

    def _mask(self, size: int) -> Tensor:
        if size not in self.masks:
            region = torch.zeros(1, size, size, 1)
            region[:, -self.shift :] += 1
            region[:, :, -self.shift :] += 2
            windows = self._split(region).flatten(1)
            self.masks[size] = (windows[:, None] != windows[:, :, None]).float() * -100
        return self.masks[size]

    def _split(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        x = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        return x.reshape(-1, 16, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2)) if self.shift else x
        q, k, v = self.qkv(self._split(y)).view(-1, 16, 3, self.heads, c // self.heads).unbind(2)
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k) / 4
        scores = scores + self.bias[self.index].permute(2, 0, 1)
        if self.shift:
            scores = scores + self._mask(h).repeat(b, 1, 1)[:, None]
        y = torch.einsum("nhqk,nkhd->nqhd", scores.softmax(-1), v).reshape(-1, 16, c)
        y = self.proj(y).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5)
        return x + torch.roll(y.reshape(b, h, w, c), (self.shift, self.shift), (1, 2))


class Swin(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 4, 4)
        self.first, self.second = WindowAttention(32, 2, 0), WindowAttention(32, 2, 2)
        self.merge, self.head = nn.Linear(128, 64, bias=False), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(self.first(self.embed(x).permute(0, 2, 3, 1)))
        x = torch.cat([x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)], -1)
        return self.head(self.merge(x).mean((1, 2)))


class ViTWithRegisters(nn.Module):
    """Fused attention, layer scale, registers, and positions resampled to the image's size."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.cls, self.registers = (nn.Parameter(torch.zeros(1, n, 32)) for n in (1, 4))
        self.positions = nn.Parameter(torch.zeros(1, 32, 7, 7))
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.mlp = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))
        self.scale, self.head = nn.Parameter(torch.ones(32)), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        x = x + F.interpolate(self.positions, x.shape[2:], mode="bicubic", antialias=True)
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat(
            [self.cls.expand(len(x), -1, -1), self.registers.expand(len(x), -1, -1), x], 1
        )
        b, n, c = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        x = x + self.scale * self.proj(
            F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c)
        )
        return self.head((x + self.mlp(x))[:, 0])


class MLPMixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.tokens = nn.Conv2d(3, 32, 8, 8), nn.Linear(16, 16)
        self.channels, self.head = nn.Linear(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2)
        x = x + self.tokens(x)
        return self.head((x.mT + self.channels(x.mT)).mean(1))


class TimeBlock(nn.Module):
    def __init__(self, c_in: int, c_out: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, c_in), nn.Conv2d(c_in, c_out, 3, padding=1)
        self.time, self.skip = nn.Linear(16, c_out), nn.Conv2d(c_in, c_out, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        return self.skip(x) + self.conv(F.silu(self.norm(x))) + self.time(t)[:, :, None, None]


class UNet(nn.Module):
    """A diffusion U-Net: time embedding, cross-attention to a text, skips, a transposed conv."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = TimeBlock(4, 16), TimeBlock(16, 32)
        self.down = nn.Conv2d(16, 16, 3, 2, 1)
        self.q, self.kv = nn.Linear(32, 32), nn.Linear(24, 64)
        self.up, self.last = nn.ConvTranspose2d(32, 16, 4, 2, 1), TimeBlock(32, 4)

    def forward(self, x: Tensor, t: Tensor, text: Tensor) -> Tensor:
        angles = t[:, None] * torch.exp(-torch.arange(8) / 8 * 9.2)
        t = torch.cat([angles.sin(), angles.cos()], 1)
        high = self.first(x, t)
        low = self.second(self.down(high), t)
        b, c, h, w = low.shape
        q = self.q(low.flatten(2).mT).view(b, -1, 4, 8).transpose(1, 2)
        k, v = self.kv(text).view(b, -1, 2, 4, 8).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
        return self.last(torch.cat([high, self.up(low + mixed.mT.view(b, c, h, w))], 1), t)


class DiT(nn.Module):
    """A diffusion transformer's block: adaptive norms, a class that is dropped by chance."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.labels = nn.Conv2d(4, 32, 2, 2), nn.Embedding(11, 32)
        self.modulate, self.attention = (
            nn.Linear(32, 96),
            nn.MultiheadAttention(32, 4, batch_first=True),
        )
        self.norm = nn.LayerNorm(32, elementwise_affine=False)
        self.out = nn.Linear(32, 16)

    def forward(self, x: Tensor, label: Tensor) -> Tensor:
        if self.training:
            label = torch.where(torch.rand(label.shape) < 0.1, 10, label)
        x = self.embed(x).flatten(2).mT
        shift, scale, gate = self.modulate(F.silu(self.labels(label)))[:, None].chunk(3, -1)
        y = self.norm(x) * (1 + scale) + shift
        x = x + gate * self.attention(y, y, y, need_weights=False)[0]
        return F.pixel_shuffle(self.out(x).mT.unflatten(2, (8, 8)), 2)


def _image(channels: int = 3, size: int = 32) -> Tensor:
    return torch.randn(2, channels, size, size)


def _stem(*blocks: nn.Module) -> nn.Module:
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    return nn.Sequential(nn.Conv2d(3, 16, 4, 4), *blocks, head)


WRITTEN: dict[str, Any] = {
    "convnext": lambda: (_stem(ConvNeXtBlock(16), ConvNeXtBlock(16)), (_image(),)),
    "efficientnet": lambda: (_stem(MBConv(16), MBConv(16, 2)), (_image(),)),
    "resnext": lambda: (_stem(ResNeXtBlock(16), ResNeXtBlock(16)), (_image(),)),
    "swin": lambda: (Swin(), (_image(),)),
    "vit with registers": lambda: (ViTWithRegisters(), (_image(),)),
    "mlp-mixer": lambda: (MLPMixer(), (_image(),)),
    "u-net": lambda: (UNet(), (_image(4, 16), torch.tensor([3.0, 7.0]), torch.randn(2, 6, 24))),
    "dit": lambda: (DiT(), (_image(4, 16), torch.tensor([1, 5]))),
}
