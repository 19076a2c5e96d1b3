"""A GPT-2 of plain torch with its loss inside, and the closed form of its FLOPs."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, WIDTH, HEADS, SEQ, BATCH, VOCABULARY = 2, 128, 2, 128, 4, 256

# As in GPT-2: L (24 B S d^2 + 4 B S^2 d) + 2 B S d V
#   = 2 * (24*4*128*128^2 + 4*4*128^2*128) + 2*4*128*128*256
#   = 2 * (201,326,592 + 33,554,432) + 33,554,432
FORWARD = 503_316_480
# A causal mask keeps 128*129/2 = 8256 of 16,384 pairs: 2 * (201,326,592 + 4*4*8256*128) + ..
FORWARD_CAUSAL = 470_024_192
# The scores once more in a fused backward: L * 2 B S^2 d
AGAIN = 33_554_432


class Block(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        parts = self.qkv(self.before(x)).view(b, s, 3, HEADS, WIDTH // HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)  # (b, h, s, d/h) each
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(b, s, WIDTH))
        return x + self.dropout(self.down(F.gelu(self.up(self.between(x)))))


class SmallGpt(nn.Module):
    """``model(ids)`` is the loss of predicting each id from those before it."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(SEQ, WIDTH)
        self.blocks = nn.Sequential(*(Block(dropout) for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.positions.weight
        logits = self.head(self.blocks(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())


def small_gpt(device: str = "cuda", **arguments: Any) -> tuple[SmallGpt, torch.Tensor]:
    """The model with fixed weights, and a fixed batch."""
    torch.manual_seed(0)
    model = SmallGpt(**arguments).to(device)
    return model, torch.randint(VOCABULARY, (BATCH, SEQ)).to(device)


def train(model: nn.Module, ids: torch.Tensor, dtype: torch.dtype | None = torch.bfloat16) -> None:
    with torch.autocast(ids.device.type, dtype, enabled=dtype is not None):
        loss = model(ids)
    loss.backward()
