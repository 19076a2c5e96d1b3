"""Families of decoders with experts, and those with compressed keys and values."""

from __future__ import annotations

from mfu_torch.flops.formulas.configs.families import (
    FAMILIES,
    Biases,
    Family,
    Names,
    Sparse,
    defaults_of,
)

_ATTENTION_BIAS: Biases = (("q k v o", "attention_bias"),)
_LATENT_BIAS: Biases = (("q_down kv_down o", "attention_bias"),)
_MLP = "gate up down shared_gate shared_up shared_down"
_LOCAL: Names = {"num_experts": ("num_local_experts",)}
_ROUTED: Names = {"num_experts": ("n_routed_experts", "num_local_experts")}

_WIDE = Sparse(width="intermediate_size")
_DEEPSEEK = Sparse(layers="first", shared="n_shared_experts", shared_is_number=True)

SPARSE_FAMILIES: dict[str, Family] = {
    "mixtral": Family(
        defaults=defaults_of(
            32000, 4096, 32, 32, 14336, num_key_value_heads=8, num_experts=8, num_experts_per_tok=2
        ),
        names=_LOCAL, full_every=0, sparse=_WIDE,
    ),
    "phimoe": Family(
        deaf=("num_experts",),
        defaults=defaults_of(
            32064, 4096, 32, 32, 6400, num_key_value_heads=8, num_experts=16, num_experts_per_tok=2
        ),
        names=_LOCAL, full_every=0, biases=_ATTENTION_BIAS, head_bias="lm_head_bias", norm=2,
        sparse=_WIDE,
    ),
    "granitemoe": Family(
        deaf=("num_experts",),
        defaults=defaults_of(32000, 4096, 32, 32, 11008, num_experts=8, num_experts_per_tok=2),
        names=_LOCAL, biases=_ATTENTION_BIAS, sparse=_WIDE,
    ),
    "olmoe": Family(
        defaults=defaults_of(50304, 2048, 16, 16, 2048, num_experts=64, num_experts_per_tok=8),
        biases=_ATTENTION_BIAS, qk_norm="all", sparse=_WIDE,
    ),
    "qwen2_moe": Family(
        defaults=defaults_of(
            151936, 2048, 24, 16, 5632, max_window_layers=28, decoder_sparse_step=1,
            moe_intermediate_size=1408, shared_expert_intermediate_size=5632, num_experts=60,
            num_experts_per_tok=4, qkv_bias=True,
        ),
        biases=(("q k v", "qkv_bias"),),
        sparse=Sparse(layers="step", shared="shared_expert_intermediate_size", shared_gate=True),
    ),
    "qwen3_moe": Family(
        defaults=defaults_of(
            151936, 2048, 24, 32, 6144, num_key_value_heads=4, decoder_sparse_step=1,
            moe_intermediate_size=768, num_experts=128, num_experts_per_tok=8,
        ),
        names=_LOCAL, biases=_ATTENTION_BIAS, qk_norm="head", sparse=Sparse(layers="step"),
    ),
    "gpt_oss": Family(
        defaults=defaults_of(
            201088, 2880, 36, 64, 2880, num_key_value_heads=8, head_dim=64, sliding_window=128,
            num_experts=128, num_experts_per_tok=4, attention_bias=True,
        ),
        names=_LOCAL, full_every=2, has_sinks=True, sparse=_WIDE,
        biases=(*_ATTENTION_BIAS, ("router expert_gate expert_up expert_down", None)),
    ),
    "minimax_m2": Family(
        defaults=defaults_of(
            200064, 3072, 62, 48, 1536, num_key_value_heads=8, head_dim=128, num_experts=256,
            num_experts_per_tok=8,
        ),
        names=_LOCAL, qk_norm="all", sparse=_WIDE,
    ),
    "ernie4_5_moe": Family(
        defaults=defaults_of(
            103424, 2560, 28, 20, 12288, num_key_value_heads=4, tie_word_embeddings=True,
            moe_intermediate_size=1536, num_experts=64, num_experts_per_tok=6,
            moe_num_shared_experts=2, moe_layer_start_index=1, moe_layer_end_index=-1,
            moe_layer_interval=1,
        ),
        names={"num_experts": ("moe_num_experts",), "num_experts_per_tok": ("moe_k",)},
        biases=((f"q k v o {_MLP}", "use_bias"), ("router", None)), head_bias="use_bias",
        sparse=Sparse(
            layers="start and end", shared="moe_num_shared_experts", shared_is_number=True,
            shared_first=True,
        ),
    ),
    "deepseek_v2": Family(
        defaults=defaults_of(
            102400, 4096, 32, 32, 11008, first_k_dense_replace=0, kv_lora_rank=512,
            q_lora_rank=1536, num_experts=64, n_shared_experts=2, qk_nope_head_dim=128,
            qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=1407,
        ),
        names={"num_experts": ("n_routed_experts",)},
        biases=(*_LATENT_BIAS, (_MLP, "mlp_bias")), is_latent=True, sparse=_DEEPSEEK,
    ),
    "deepseek_v3": Family(
        deaf=("num_experts",),
        defaults=defaults_of(
            129280, 7168, 61, 128, 18432, first_k_dense_replace=3, kv_lora_rank=512,
            q_lora_rank=1536, num_experts=256, n_shared_experts=1, qk_nope_head_dim=128,
            qk_rope_head_dim=64, v_head_dim=128, moe_intermediate_size=2048, num_experts_per_tok=8,
        ),
        names=_ROUTED, biases=_LATENT_BIAS, is_latent=True, sparse=_DEEPSEEK,
    ),
    "glm4_moe": Family(
        deaf=("num_experts",),
        defaults=defaults_of(
            151552, 4096, 46, 96, 10944, num_key_value_heads=8, first_k_dense_replace=1,
            num_experts=128, n_shared_experts=1, moe_intermediate_size=1408, num_experts_per_tok=8,
        ),
        names=_ROUTED, biases=(("q k v", "attention_bias"),), qk_norm="head",
        qk_norm_field="use_qk_norm", sparse=_DEEPSEEK,
    ),
    "llama4_text": Family(
        defaults=defaults_of(
            202048, 5120, 48, 40, 8192, num_key_value_heads=8, head_dim=128,
            intermediate_size_mlp=16384, num_experts=16, num_experts_per_tok=1,
            interleave_moe_layer_step=1, attention_chunk_size=8192, no_rope_layer_interval=4,
        ),
        names=_LOCAL, biases=_ATTENTION_BIAS,
        sparse=Sparse(layers="interleaved", width="intermediate_size", shared="intermediate_size"),
    ),
}  # fmt: skip
"""By model_type."""

DECODERS: dict[str, Family] = {**FAMILIES, **SPARSE_FAMILIES}
