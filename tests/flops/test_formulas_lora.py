"""The closed form of LoRA's training against what is counted of ``peft``, to the digit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, recomputed, selective, trained
from torch import nn

from mfu_torch.flops.formulas import (
    MLP,
    Block,
    Decoder,
    Experts,
    LatentAttention,
    LoRA,
    Mamba,
    dense_decoder,
)

B, S, H, FFN, V, L, R = 2, 10, 16, 24, 50, 3, 4
ATTENTION = ("q", "k", "v", "o")
EVERY = (*ATTENTION, "gate", "up", "down")

TARGETS = [
    ("q", "v"),
    ("q",),
    ("k",),
    ("v",),
    ("o",),
    ("k", "v"),
    ("q", "k"),
    ("gate",),
    ("up", "down"),
    ("down",),
    ATTENTION,
    EVERY,
]


def base() -> Decoder:
    return dense_decoder(layers=L, hidden=H, heads=4, kv_heads=2, ffn=FFN, vocab=V)


def model_of(targets: tuple[str, ...]) -> Any:
    from peft import LoraConfig, get_peft_model
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=H, intermediate_size=FFN, num_hidden_layers=L, vocab_size=V,
        num_attention_heads=4, num_key_value_heads=2, attn_implementation="eager",
        use_cache=False, pad_token_id=0,
    )  # fmt: skip
    lora = LoraConfig(r=R, target_modules=[f"{name}_proj" for name in targets], lora_dropout=0.0)
    return get_peft_model(LlamaForCausalLM(config), lora)


def ids() -> torch.Tensor:
    return torch.randint(1, V, (B, S))


def layers_of(model: Any) -> nn.ModuleList:
    return model.base_model.model.model.layers


@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
def test_lora_of_peft(targets: tuple[str, ...]) -> None:
    model, closed = model_of(targets), LoRA(model=base(), rank=R, targets=targets)
    assert_counted(closed.flops(B, S), trained(model, ids()))
    assert closed.trained == sum(p.numel() for p in model.parameters() if p.requires_grad)


@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
def test_checkpoints_without_a_gradient_of_the_embeddings(targets: tuple[str, ...]) -> None:
    model, closed = model_of(targets), LoRA(model=base(), rank=R, targets=targets)
    assert_recomputed(closed.flops(B, S), model, layers_of(model), ids())


@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
def test_gradient_checkpointing_as_peft_prepares_it(targets: tuple[str, ...]) -> None:
    model = model_of(targets)
    model.enable_input_require_grads()
    closed = LoRA(model=base(), rank=R, targets=targets, input_gradient=True)
    form = closed.flops(B, S)
    assert_counted(form, trained(model, ids()))
    assert_recomputed(form, model, layers_of(model), ids())
    # The embeddings' gradient makes every layer one with a whole backward.
    assert form.only("attention").backward == 2 * form.only("attention").forward


def test_gradient_checkpointing_of_the_model_itself() -> None:
    model, closed = model_of(EVERY), LoRA(model=base(), rank=R, targets=EVERY, input_gradient=True)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.enable_input_require_grads()
    model.train()
    count = trained(model, ids())
    assert count.recompute == closed.flops(B, S).recompute("checkpoint")
    assert count.model == closed.flops(B, S).training


def test_selective_recomputation() -> None:
    model, closed = model_of(("q", "v")), LoRA(model=base(), rank=R)
    with selective(model.base_model.model):
        count = trained(model, ids())
    assert count.recompute == closed.flops(B, S).recompute("selective")
    assert count.model == closed.flops(B, S).training


def test_lora_by_hand() -> None:
    """One layer, q and v adapted, rank 1: 2 tokens, h 4, one head of 4, f 3, V 5."""
    model = dense_decoder(layers=1, hidden=4, heads=1, ffn=3, vocab=5)
    terms = {term.name: (term.forward, term.backward) for term in LoRA(
        model=model, rank=1
    ).flops(1, 2).terms}  # fmt: skip
    square, thin, wide = 2 * 2 * 16, 2 * 2 * 4, 2 * 2 * 12
    assert terms == {
        "q": (square, 0), "q_a": (thin, thin), "q_b": (thin, 2 * thin),
        "k": (square, 0),
        "v": (square, 0), "v_a": (thin, thin), "v_b": (thin, 2 * thin),
        "scores": (2 * 4 * 4, 2 * 4 * 4),  # q's gradient alone
        "values": (2 * 4 * 4, 2 * 2 * 4 * 4),  # those of the weights and of v
        "o": (square, square),
        "gate": (wide, wide), "up": (wide, wide), "down": (wide, wide),
        "head": (2 * 2 * 20, 2 * 2 * 20),
    }  # fmt: skip


def test_the_longer_the_model_the_closer_to_two_thirds() -> None:
    # 4 N for a token instead of 6 N, and attention whole: the convention ``lora`` in the limit.
    model = dense_decoder(layers=64, hidden=4096, heads=32, ffn=16384, vocab=32000)
    plain, adapted = model.flops(1, 512), LoRA(model=model, rank=8).flops(1, 512)
    weights = (plain.only("linear", "head").training, adapted.only("linear", "head").training)
    assert weights[1] / weights[0] == pytest.approx(2 / 3, abs=0.005)
    assert adapted.only("attention").backward > 0.98 * plain.only("attention").backward


def test_llama_3_8b() -> None:
    model = dense_decoder(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
    closed = LoRA(model=model, rank=16)
    assert closed.trained == 6_815_744  # as ``print_trainable_parameters`` of peft says
    assert closed.flops(1, 4096).training == 149_167_435_415_552


def test_adapters_are_parameters_too() -> None:
    closed = LoRA(model=base(), rank=R, targets=EVERY)
    q, kv, mlp = H + H, H + 8, H + FFN
    assert closed.trained == L * R * (2 * q + 2 * kv + 3 * mlp)
    assert closed.parameters.total == base().parameters.total + closed.trained
    assert closed.per == "token"


def test_latent_attention_has_two_ranks_in_a_row() -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    config = DeepseekV3Config(
        hidden_size=H, intermediate_size=FFN, num_hidden_layers=L, vocab_size=V,
        num_attention_heads=4, num_key_value_heads=4, q_lora_rank=6, kv_lora_rank=5,
        qk_nope_head_dim=3, qk_rope_head_dim=2, v_head_dim=4, first_k_dense_replace=L,
        use_cache=False, attn_implementation="eager", pad_token_id=0,
    )  # fmt: skip
    attention = LatentAttention(
        heads=4, query_rank=6, kv_rank=5, nope_dim=3, rope_dim=2, value_dim=4
    )
    block = Block(parts=(attention, MLP(width=FFN)), count=L)
    plain = Decoder(hidden=H, vocab=V, blocks=(block,))
    names = {"q_down": "q_a_proj", "q_up": "q_b_proj", "kv_down": "kv_a_proj_with_mqa",
             "kv_up": "kv_b_proj"}  # fmt: skip
    for targets in (("q_down",), ("q_up",), ("kv_down", "q_up"), ("kv_up",)):
        lora = LoraConfig(r=R, target_modules=[names[t] for t in targets], lora_dropout=0.0)
        model = get_peft_model(DeepseekV3ForCausalLM(config), lora)
        closed = LoRA(model=plain, rank=R, targets=targets)
        assert_counted(closed.flops(B, S), trained(model, ids()))
        count = recomputed(model, layers_of(model), "full", ids())
        assert count.recompute == closed.flops(B, S).recompute("full")


@pytest.mark.parametrize("targets", [("q", "v"), ("o",), ATTENTION], ids="+".join)
def test_frozen_experts_behind_adapted_attention(targets: tuple[str, ...]) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        hidden_size=H, intermediate_size=FFN, num_hidden_layers=L, vocab_size=V,
        num_attention_heads=4, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2,
        use_cache=False, attn_implementation="eager", pad_token_id=0,
    )  # fmt: skip
    plain = MixtralForCausalLM(config)
    plain.set_experts_implementation("eager")
    lora = LoraConfig(r=R, target_modules=[f"{name}_proj" for name in targets], lora_dropout=0.0)
    model = get_peft_model(plain, lora)
    attention = base().blocks[0].parts[0]
    block = Block(parts=(attention, Experts(experts=4, chosen=2, width=FFN)), count=L)
    closed = LoRA(model=Decoder(hidden=H, vocab=V, blocks=(block,)), rank=R, targets=targets)
    assert_counted(closed.flops(B, S), trained(model, ids()))
    experts = [t for t in closed.flops(B, S).terms if t.role == "router" or "expert" in t.name]
    assert [t.backward for t in experts] == [t.forward for t in experts]


def test_what_cannot_be_adapted_is_one_clear_line() -> None:
    with pytest.raises(ValueError, match="targets: qkv; expected some of down, gate, k, o, q"):
        LoRA(model=base(), rank=R, targets=("qkv",))
    with pytest.raises(ValueError, match="targets is 'qv'; expected a tuple of names"):
        LoRA(model=base(), rank=R, targets="qv")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="targets: empty"):
        LoRA(model=base(), rank=R, targets=())
    with pytest.raises(ValueError, match="rank is 0"):
        LoRA(model=base(), rank=0)
    experts = Block(parts=(*base().blocks[0].parts, Experts(experts=4, chosen=2, width=8)))
    with pytest.raises(ValueError, match="targets: expert_up; expected"):
        LoRA(model=Decoder(hidden=H, vocab=V, blocks=(experts,)), rank=R, targets=("expert_up",))
    mixer = Block(parts=(*base().blocks[0].parts, Mamba(inner=4, rank=1)))
    with pytest.raises(ValueError, match="the model has Mamba; expected attention"):
        LoRA(model=Decoder(hidden=H, vocab=V, blocks=(mixer,)), rank=R)
