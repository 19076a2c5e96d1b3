"""Prefill and decoding in closed form against what a small model of transformers really runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mfu_torch import count_flops
from mfu_torch.flops import formulas
from mfu_torch.flops.formulas import Block, Decoder, Experts, LatentAttention
from mfu_torch.flops.formulas.inference import Latent, decode, prefill

transformers = pytest.importorskip("transformers")

# Its newer name of the argument is not that of the versions before.
pytestmark = pytest.mark.filterwarnings("ignore:.past_key_values. is deprecated:FutureWarning")


def counted(model: Any, batch: int, context: int, cache: Any) -> tuple[int, int]:
    """FLOPs of a prompt of all tokens but the last, and of that one with the cache of the others.

    A cache of a fixed length has the scores of all its places computed.
    """
    model.eval()
    tokens = torch.randint(0, model.config.vocab_size, (batch, context))

    def run(part: torch.Tensor, past: Any) -> int:
        with torch.no_grad():
            count = count_flops(lambda: model(part, past_key_values=past, use_cache=True))
        assert not count.uncounted, count.uncounted
        return count.model

    first = run(tokens[:, :-1], cache)
    return first, run(tokens[:, -1:], cache)


def held(cache: Any) -> int:
    """Numbers in a cache."""
    return sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


LLAMA: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 50,
    "attn_implementation": "eager",
}
LLAMA_FORM = formulas.dense_decoder(layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=50)


def test_a_growing_cache() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    cache = transformers.DynamicCache(config=model.config)
    found = counted(model, 3, 9, cache)
    step = decode(LLAMA_FORM, batch=3, context=9)
    assert found == (prefill(LLAMA_FORM, batch=3, context=8).flops, step.flops)
    assert held(cache) == step.cache_held


def test_a_cache_of_a_fixed_length_computes_the_scores_of_all_its_places() -> None:
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    cache = transformers.StaticCache(config=model.config, max_cache_len=16)
    _, found = counted(model, 3, 9, cache)
    assert found == decode(LLAMA_FORM, batch=3, context=16).flops


def test_a_window() -> None:
    config = transformers.MistralConfig(**LLAMA, sliding_window=4)
    form = formulas.dense_decoder(
        layers=2, hidden=32, heads=4, kv_heads=2, ffn=48, vocab=50, window=4
    )
    model = transformers.MistralForCausalLM(config)
    _, found = counted(model, 3, 9, transformers.DynamicCache(config=config))
    assert found == decode(form, batch=3, context=9).flops


def test_experts() -> None:
    config = transformers.MixtralConfig(**LLAMA, num_local_experts=4, num_experts_per_tok=2)
    model = transformers.MixtralForCausalLM(config)
    (dense,) = LLAMA_FORM.blocks
    experts = Experts(experts=4, chosen=2, width=48)
    form = Decoder(hidden=32, vocab=50, blocks=(Block(parts=(dense.parts[0], experts), count=2),))
    found = counted(model, 1, 9, transformers.DynamicCache(config=config))
    assert found == (prefill(form, context=8).flops, decode(form, context=9).flops)


def test_latent_attention_as_transformers_decodes_it() -> None:
    config = transformers.DeepseekV3Config(
        **{**LLAMA, "num_key_value_heads": 4},
        q_lora_rank=12,
        kv_lora_rank=8,
        qk_nope_head_dim=6,
        qk_rope_head_dim=4,
        v_head_dim=6,
        first_k_dense_replace=2,
    )
    model = transformers.DeepseekV3ForCausalLM(config)
    attention = LatentAttention(
        heads=4, query_rank=12, kv_rank=8, nope_dim=6, rope_dim=4, value_dim=6
    )
    mlp = LLAMA_FORM.blocks[0].parts[1]
    form = Decoder(hidden=32, vocab=50, blocks=(Block(parts=(attention, mlp), count=2),))
    cache = transformers.DynamicCache(config=config)
    found = counted(model, 2, 9, cache)
    # Version 4 keeps keys and values of all heads, version 5 latents.
    latent: Latent = "recomputed" if held(cache) == 2 * 9 * 2 * (8 + 4) else "expanded"
    step = decode(form, batch=2, context=9, latent=latent)
    assert found == (prefill(form, batch=2, context=8).flops, step.flops)
    assert held(cache) == step.cache_held
