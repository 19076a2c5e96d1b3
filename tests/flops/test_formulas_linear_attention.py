"""Closed forms of linear attention and of the gated delta rule against what is counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, trained
from torch import nn

from mfu_torch.flops.formulas import (
    MLP,
    Attention,
    Block,
    Decoder,
    Experts,
    GatedDeltaNet,
    KimiDeltaAttention,
    LatentAttention,
    LinearAttention,
    Sequences,
)

B, S, H, V = 2, 12, 16, 50


class Layer(nn.Module):
    """Linear attention, all at once without a mask, or causal in chunks; with a norm and a sum."""

    def __init__(self, part: LinearAttention) -> None:
        super().__init__()
        keys, values = part.heads * part.key_dim, part.heads * part.value_dim
        self.part, self.norm = part, nn.LayerNorm(H)
        self.q, self.k, self.v = nn.Linear(H, keys), nn.Linear(H, keys), nn.Linear(H, values)
        self.g, self.o = nn.Linear(H, values) if part.is_gated else None, nn.Linear(values, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        q, k, v = (
            w(y).unflatten(-1, (self.part.heads, -1)).transpose(1, 2)
            for w in (self.q, self.k, self.v)
        )
        out = self._all(q, k, v) if self.part.chunk is None else self._chunks(q, k, v)
        out = out.transpose(1, 2).flatten(2)
        return x + self.o(out if self.g is None else out * self.g(y).sigmoid())

    @staticmethod
    def _all(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q @ (k.transpose(2, 3) @ v)

    def _chunks(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(2, (-1, self.part.chunk)) for t in (q, k, v))
        states = k.transpose(3, 4) @ v
        before = states.cumsum(2) - states
        within = (q @ k.transpose(3, 4)).tril() @ v
        return (within + q @ before).flatten(2, 3)


@pytest.mark.parametrize("chunk", [None, 4, 12])
@pytest.mark.parametrize("is_gated", [False, True])
def test_linear_attention(chunk: int | None, is_gated: bool) -> None:
    part = LinearAttention(heads=3, key_dim=4, value_dim=6, chunk=chunk, is_gated=is_gated)
    model = nn.Sequential(Layer(part), Layer(part))
    blocks = (Block(parts=(part,), count=2),)
    form = Decoder(hidden=H, vocab=V, blocks=blocks, has_head=False).flops(B, S)
    x = torch.randn(B, S, H, requires_grad=True)
    assert_counted(form, trained(model, x))
    assert_recomputed(form, model, model, x)


def test_linear_attention_by_hand() -> None:
    part = LinearAttention(heads=2, key_dim=3, value_dim=5)
    states, read_out = part.cores(Sequences.of(1, 7), "full")
    assert states.forward == read_out.forward == 2 * 7 * 2 * 3 * 5
    chunked = LinearAttention(heads=2, key_dim=3, value_dim=5, chunk=4)
    # 7 tokens in chunks of 4 and 3: 16 + 9 pairs
    extra = chunked.cores(Sequences.of(1, 7), "full")[2:]
    assert [term.forward for term in extra] == [2 * 25 * 2 * 3, 2 * 25 * 2 * 5]


def qwen() -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    config = Qwen3NextConfig(
        hidden_size=H, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, vocab_size=V, linear_num_key_heads=2, linear_num_value_heads=4,
        linear_key_head_dim=3, linear_value_head_dim=5, linear_conv_kernel_dim=4,
        moe_intermediate_size=12, shared_expert_intermediate_size=8, num_experts=4,
        num_experts_per_tok=2, intermediate_size=24, use_cache=False, attn_implementation="eager",
    )  # fmt: skip
    model = Qwen3NextForCausalLM(config)
    model.set_experts_implementation("eager")
    return model


MIXER: dict[str, Any] = {
    "key_heads": 2, "value_heads": 4, "key_dim": 3, "value_dim": 5,
}  # fmt: skip


@pytest.mark.parametrize("seq", [12, 64, 100])
def test_qwen3_next(seq: int) -> None:
    mixer = GatedDeltaNet(**MIXER, form="torch")
    attention = Attention(heads=4, kv_heads=2, head_dim=4, is_gated=True)
    experts = Experts(experts=4, chosen=2, width=12, shared_width=8, shared_gate=True)
    closed = Decoder(
        hidden=H,
        vocab=V,
        blocks=(Block(parts=(mixer, experts), count=3), Block(parts=(attention, experts))),
        others=3 * mixer.others + 9 * H + 2 * 4,  # norms: of layers, the last one, of q and k
    )
    model, ids = qwen(), torch.randint(1, V, (B, seq))
    assert_counted(closed.flops(B, seq), trained(model, ids))
    assert closed.parameters.total == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("seq", [12, 100])
def test_kimi_linear(seq: int) -> None:
    from transformers import KimiLinearConfig, KimiLinearForCausalLM

    config = KimiLinearConfig(
        hidden_size=H, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, vocab_size=V, q_lora_rank=None, kv_lora_rank=5, qk_nope_head_dim=4,
        qk_rope_head_dim=2, v_head_dim=4, linear_head_dim=5, linear_num_heads=2,
        layer_types=["linear_attention"] * 3 + ["full_attention"], mlp_layer_types=["dense"] * 4,
        use_cache=False, attn_implementation="eager", pad_token_id=0,
    )  # fmt: skip
    model = KimiLinearForCausalLM(config)
    mixer = KimiDeltaAttention(heads=2, head_dim=5, form="torch")
    attention = LatentAttention(
        heads=4, query_rank=None, kv_rank=5, nope_dim=4, rope_dim=2, value_dim=4
    )
    # Norms: two of a layer, the last one; of the latent.
    closed = Decoder(
        hidden=H,
        vocab=V,
        blocks=(
            Block(parts=(mixer, MLP(width=24)), count=3),
            Block(parts=(attention, MLP(width=24))),
        ),
        others=3 * mixer.others + 9 * H + 5,
    )
    form, ids = closed.flops(B, seq), torch.randint(1, V, (B, seq))
    assert_counted(form, trained(model, ids))
    assert closed.parameters.total == sum(p.numel() for p in model.parameters())
    assert_recomputed(form, model, model.model.layers, ids)


def test_kimi_delta_attention_has_the_products_of_the_gated_delta_rule() -> None:
    mixer = KimiDeltaAttention(heads=2, head_dim=5)
    rule = GatedDeltaNet(key_heads=2, value_heads=2, key_dim=5, value_dim=5)
    sequences = Sequences.of(3, 100)
    assert mixer.cores(sequences, "full") == rule.cores(sequences, "full")
    with pytest.raises(ValueError, match="head_dim is 0"):
        KimiDeltaAttention(heads=2, head_dim=0)


def test_gated_delta_rule_by_hand() -> None:
    part = GatedDeltaNet(key_heads=1, value_heads=2, key_dim=3, value_dim=5, chunk=4, kernel=2)
    assert [linear.weights for linear in part.linears(7)] == [7 * (6 + 20), 7 * 4, 10 * 7]
    terms = {t.name: (t.forward, t.backward) for t in part.cores(Sequences.of(1, 8), "full")}
    pairs = 2 * 16
    solved = 2 * (pairs - 8) * 8  # 3 of 4 unknowns of each of 8 columns, in two chunks and heads
    assert terms == {
        "convolution": (2 * 8 * 16 * 2, 4 * 8 * 16 * 2),
        "chunk_scores": (4 * 2 * pairs * 3, 8 * 2 * pairs * 3),
        "solved": (solved, solved + 2 * 2 * pairs * 8),
        "states": (3 * 2 * 8 * 2 * 15, 6 * 2 * 8 * 2 * 15),
        "chunk_values": (2 * 2 * pairs * 5, 4 * 2 * pairs * 5),
    }


def test_the_first_state_of_transformers_is_no_variable_and_the_last_one_unused() -> None:
    torch_form, kernel = (
        {t.name: t for t in GatedDeltaNet(**MIXER, form=form).cores(Sequences.of(1, 64), "full")}
        for form in ("torch", "kernel")
    )
    product = 2 * 64 * 4 * 3 * 5
    assert torch_form["states"].forward == kernel["states"].forward == 3 * product
    assert kernel["states"].backward - torch_form["states"].backward == 2 * product + 2 * product


def test_mlp_hybrids_and_absurd_sizes() -> None:
    block = Block(parts=(GatedDeltaNet(**MIXER), MLP(width=8)))
    assert Decoder(hidden=H, vocab=V, blocks=(block,)).flops(1, 100).forward > 0
    with pytest.raises(ValueError, match="key_heads is 3; expected a divisor of value_heads 4"):
        GatedDeltaNet(key_heads=3, value_heads=4, key_dim=3, value_dim=5)
    with pytest.raises(ValueError, match="chunk is 0"):
        LinearAttention(heads=1, key_dim=1, value_dim=1, chunk=0)
