"""Layers of several kinds in one model: blocks of parts, as the counter counts them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, selective, trained
from torch import nn

from mfu_torch.flops.formulas import (
    MLP,
    Attention,
    Block,
    Decoder,
    EncoderDecoder,
    Experts,
    Mamba2,
    Mask,
)
from mfu_torch.flops.formulas.encoders import encoder_block

B, S, H, V = 2, 12, 16, 50
MIXER = Mamba2(heads=4, head_dim=8, state=6, groups=2, chunk=4, form="torch")
ATTENTION = Attention(heads=4, kv_heads=2, head_dim=4)


def ids() -> torch.Tensor:
    return torch.randint(1, V, (B, S))


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def test_bamba() -> None:
    from transformers import BambaConfig, BambaForCausalLM

    config = BambaConfig(
        hidden_size=H, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=V, attn_layer_indices=[1], mamba_n_heads=4,
        mamba_d_head=8, mamba_d_state=6, mamba_n_groups=2, mamba_chunk_size=4, mamba_expand=2,
        use_cache=False, attn_implementation="eager", pad_token_id=0,
    )  # fmt: skip
    model = BambaForCausalLM(config)
    mixes, attends = ((part, MLP(width=24)) for part in (MIXER, ATTENTION))
    closed = Decoder(
        hidden=H,
        vocab=V,
        blocks=(Block(parts=mixes), Block(parts=attends), Block(parts=mixes)),
        others=2 * MIXER.others + 7 * H,
    )
    form = closed.flops(B, S)
    assert_counted(form, trained(model, ids()))
    assert closed.parameters.total == parameters_of(model)
    assert_recomputed(form, model, model.model.layers, ids())
    with selective(model):
        assert trained(model, ids()).recompute == form.recompute("selective")


def test_nemotron_h_has_one_part_in_a_layer() -> None:
    from transformers import NemotronHConfig, NemotronHForCausalLM

    config = NemotronHConfig(
        hidden_size=H, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2,
        head_dim=4, vocab_size=V, mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=6,
        n_groups=2, chunk_size=4, use_cache=False, attn_implementation="eager", pad_token_id=0,
        layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"],
    )  # fmt: skip
    model = NemotronHForCausalLM(config)
    mlp = Block(parts=(MLP(width=24, is_gated=False),))
    closed = Decoder(
        hidden=H,
        vocab=V,
        blocks=(Block(parts=(MIXER,)), mlp, Block(parts=(ATTENTION,)), mlp),
        others=MIXER.others + 5 * H,
    )
    form = closed.flops(B, S)
    assert_counted(form, trained(model, ids()))
    assert closed.parameters.total == parameters_of(model)
    assert_recomputed(form, model, model.model.layers, ids())
    last = {term.name for term in form.terms if term.is_last}
    assert last == {"out", "down", "o"}


def test_switch_transformers_have_experts_on_both_sides() -> None:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = SwitchTransformersConfig(
        d_model=H, d_kv=4, d_ff=24, num_heads=4, num_layers=2, num_decoder_layers=2, vocab_size=V,
        num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_experts=4,
        expert_capacity=1000, router_jitter_noise=0.0, dropout_rate=0.0, use_cache=False,
        decoder_start_token_id=0, attn_implementation="eager",
    )  # fmt: skip
    model = SwitchTransformersForConditionalGeneration(config)
    dense = encoder_block(layers=1, hidden=H, heads=4, ffn=24)
    seen, experts = dense.parts[0], Experts(experts=4, chosen=1, width=24, is_gated=False)
    itself = Attention(heads=4, kv_heads=4, head_dim=4)
    closed = EncoderDecoder(
        hidden=H,
        vocab=V,
        encoder=(dense, Block(parts=(seen, experts))),
        decoder=(
            Block(parts=(itself, MLP(width=24, is_gated=False))),
            Block(parts=(itself, experts)),
        ),
        cross=Attention(heads=4, kv_heads=4, head_dim=4, mask=Mask(causal=False)),
    )
    batch = {"input_ids": ids(), "decoder_input_ids": ids()[:, :7]}

    def logits(**tensors: Any) -> torch.Tensor:
        return model(**tensors).logits

    assert_counted(closed.flops(B, 7, source=S), trained(logits, **batch))


@pytest.mark.parametrize("part", [MIXER, ATTENTION, MLP(width=24)])
def test_a_layer_of_one_part_ends_with_its_projection(part: Any) -> None:
    closed = Decoder(hidden=H, vocab=V, blocks=(Block(parts=(part,), count=3),), has_head=False)
    form = closed.flops(B, S)
    last = part.linears(H)[-1]
    left_out = form.recompute("full") - form.recompute("checkpoint")
    assert left_out == 3 * last.term(B * S).forward
