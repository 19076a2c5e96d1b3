"""Multi-token prediction (DeepSeek-V3, section 2.2) against the counter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from formula_models import assert_counted, trained
from torch import nn

from mfu_torch.flops.formulas import MLP, Attention, Block, Decoder

H, HEADS, KV, D, WIDTH, VOCAB, LAYERS, S = 24, 4, 2, 5, 40, 30, 2, 7


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(H, HEADS * D, bias=False)
        self.k = nn.Linear(H, KV * D, bias=False)
        self.v = nn.Linear(H, KV * D, bias=False)
        self.o = nn.Linear(HEADS * D, H, bias=False)
        self.gate = nn.Linear(H, WIDTH, bias=False)
        self.up = nn.Linear(H, WIDTH, bias=False)
        self.down = nn.Linear(WIDTH, H, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        q = self.q(x).view(b, s, HEADS, D).transpose(1, 2)
        k, v = (
            p(x).view(b, s, KV, D).transpose(1, 2).repeat_interleave(HEADS // KV, 1)
            for p in (self.k, self.v)
        )
        scores = torch.softmax(q @ k.transpose(2, 3), dim=-1)  # (b, H, s, d) @ (b, H, d, s)
        x = x + self.o((scores @ v).transpose(1, 2).reshape(b, s, HEADS * D))
        return x + self.down(F.silu(self.gate(x)) * self.up(x))


class Predictor(nn.Module):
    """Layers and head, and modules that each predict one token further with the same head."""

    def __init__(self, further: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, H)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(H, VOCAB, bias=False)
        self.joint = nn.ModuleList(nn.Linear(2 * H, H, bias=False) for _ in range(further))
        self.further = nn.ModuleList(Layer() for _ in range(further))

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = embedded = self.embedding(ids)
        for layer in self.layers:
            x = layer(x)
        logits = [self.head(x)]
        for joint, layer in zip(self.joint, self.further, strict=True):
            # The states of a token beside the embedding of the one after it.
            x = layer(joint(torch.cat([x, embedded.roll(-1, dims=1)], dim=-1)))
            logits.append(self.head(x))
        return tuple(logits)


def closed(further: int) -> Decoder:
    parts = (Attention(heads=HEADS, kv_heads=KV, head_dim=D), MLP(width=WIDTH))
    return Decoder(
        hidden=H,
        vocab=VOCAB,
        blocks=(Block(parts=parts, count=LAYERS),),
        mtp=(Block(parts=parts, count=further),) if further else (),
    )


@pytest.mark.parametrize("further", [0, 1, 3])
def test_each_further_token_costs_a_projection_a_layer_and_the_head(further: int) -> None:
    model, form = Predictor(further), closed(further)
    ids = torch.randint(VOCAB, (2, S))
    assert_counted(form.flops(batch=2, seq=S), trained(model, ids))
    layer = H * HEADS * D * 2 + 2 * H * KV * D + 3 * H * WIDTH
    more = 2 * 2 * S * (2 * H * H + layer + H * VOCAB) + 2 * 4 * HEADS * D * S * S
    assert form.flops(2, S).forward == closed(0).flops(2, S).forward + further * more


@pytest.mark.parametrize("further", [0, 2])
def test_its_parameters_share_the_head_and_the_embedding(further: int) -> None:
    model, form = Predictor(further), closed(further)
    head = H * VOCAB
    own = sum(p.numel() for p in model.parameters())
    assert form.parameters.total == own
    assert form.parameters.used == own - VOCAB * H
    # The head runs once for each prediction, though it is there once.
    linear = form.flops(seq=S).without("attention").forward
    assert linear == 2 * S * (form.parameters.used + further * head)
