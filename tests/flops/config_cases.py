"""Small configs, of each family and of what may differ within one, and their counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from torch.utils.checkpoint import set_checkpoint_early_stop

from mfu_torch.insight.count_table import ModelCount
from mfu_torch.integrations.configs import build
from mfu_torch.integrations.counting import count_model
from mfu_torch.integrations.meta_run import inputs_for

B, S = 2, 24

Config = dict[str, Any]

_PLAIN: Config = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 100,
    "intermediate_size": 96,
}  # fmt: skip
_GROUPED: Config = {**_PLAIN, "num_key_value_heads": 2}
_WIDE: Config = {**_GROUPED, "head_dim": 32}  # heads times this are not hidden
_WINDOW: Config = {"sliding_window": 7}
_GPT2: Config = {"n_embd": 64, "n_layer": 4, "n_head": 4, "vocab_size": 100, "n_positions": 64}
_FALCON: Config = {k: v for k, v in _PLAIN.items() if k != "intermediate_size"}
_OPT: Config = {**_FALCON, "ffn_dim": 96, "max_position_embeddings": 64, "word_embed_proj_dim": 64}
_LATENT: Config = {
    **_PLAIN, "num_key_value_heads": 4, "moe_intermediate_size": 40, "n_routed_experts": 8,
    "num_experts_per_tok": 3, "first_k_dense_replace": 1, "q_lora_rank": 24, "kv_lora_rank": 20,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 12,
}  # fmt: skip

DECODERS: dict[str, Config] = {
    "gpt2": _GPT2,
    "gpt2/no dropout": {**_GPT2, "resid_pdrop": 0.0, "n_inner": 80},
    "gptj": {**_GPT2, "rotary_dim": 8},
    "codegen": {**_GPT2, "rotary_dim": 8, "n_ctx": 64},
    "gpt_bigcode": _GPT2,
    "gpt_bigcode/many keys": {**_GPT2, "multi_query": False},
    "gpt_neo": {
        "hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 100, "window_size": 7,
        "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 64,
    },
    "gpt_neox": _PLAIN,
    "gpt_neox/no biases": {**_PLAIN, "attention_bias": False},
    "bloom": {"n_embed": 64, "n_layer": 4, "num_attention_heads": 4, "vocab_size": 100},
    "opt": _OPT,
    "opt/norms behind": {**_OPT, "do_layer_norm_before": False, "enable_bias": False},
    "mpt": {"d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 100, "max_seq_len": 64},
    "mpt/a ratio that nothing reads": {
        "d_model": 64, "n_layers": 4, "n_heads": 4, "vocab_size": 100, "expansion_ratio": 8
    },
    "falcon": _FALCON,
    "falcon/new": {**_FALCON, "num_kv_heads": 2, "new_decoder_architecture": True},
    "falcon/one norm": {
        **_FALCON, "num_kv_heads": 2, "new_decoder_architecture": True, "bias": True,
        "num_ln_in_parallel_attn": 1,
    },
    "falcon/one after the other": {
        **_FALCON, "multi_query": False, "parallel_attn": False, "alibi": True, "bias": True
    },
    "phi": _PLAIN,
    "phi/norms": {**_PLAIN, "qk_layernorm": True},
    "starcoder2": {**_GROUPED, **_WINDOW},
    "nemotron": {**_GROUPED, "attention_bias": True, "mlp_bias": True},
    "arcee": _GROUPED,
    "llama": _GROUPED,
    "llama/biases": {
        **_WIDE, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True
    },
    "granite": _GROUPED,
    "mistral": {**_GROUPED, **_WINDOW},
    "mistral/no window": {**_GROUPED, "sliding_window": None},
    "ministral": {**_GROUPED, **_WINDOW, "head_dim": 16},
    "qwen2": _GROUPED,
    "qwen2/window": {**_GROUPED, **_WINDOW, "use_sliding_window": True, "max_window_layers": 2},
    "qwen3": _GROUPED,
    "gemma": _WIDE,
    "gemma2": {**_WIDE, **_WINDOW},
    "gemma3_text": {**_WIDE, **_WINDOW, "sliding_window_pattern": 3},
    "phi3": {**_GROUPED, **_WINDOW, "pad_token_id": 0},
    "olmo": _GROUPED,
    "olmo2": _GROUPED,
    "olmo3": {**_GROUPED, **_WINDOW},
    "smollm3": {**_GROUPED, "pad_token_id": 0},
    "smollm3/window": {**_GROUPED, **_WINDOW, "use_sliding_window": True, "pad_token_id": 0},
    "cohere": _GROUPED,
    "cohere/norms": {**_GROUPED, "use_qk_norm": True},
    "cohere2": {**_GROUPED, **_WINDOW},
    "glm": {**_GROUPED, "head_dim": 16, "pad_token_id": 0},
    "glm4": {**_GROUPED, "head_dim": 16, "pad_token_id": 0},
    "stablelm": _GROUPED,
    "stablelm/parallel": {
        **_GROUPED, "use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True
    },
    "helium": {**_GROUPED, "head_dim": 16},
    "seed_oss": _WIDE,
    "exaone4": {**_GROUPED, **_WINDOW},
    "ernie4_5": {**_GROUPED, "use_bias": True},
    "mixtral": {**_GROUPED, "num_local_experts": 6},
    "mixtral/window": {**_GROUPED, **_WINDOW},
    "phimoe": _GROUPED,
    "phimoe/biases": {**_GROUPED, "attention_bias": True, "lm_head_bias": True},
    "granitemoe": {**_GROUPED, "num_local_experts": 6},
    "olmoe": {**_GROUPED, "num_experts": 10},
    "qwen2_moe": {
        **_GROUPED, "moe_intermediate_size": 40, "shared_expert_intermediate_size": 56,
        "num_experts": 10, "mlp_only_layers": [1],
    },
    "qwen3_moe": {
        **_GROUPED, "moe_intermediate_size": 40, "num_experts": 10, "decoder_sparse_step": 2
    },
    "gpt_oss": {**_WIDE, **_WINDOW, "num_local_experts": 6},
    "minimax_m2": {**_WIDE, "num_local_experts": 12},
    "ernie4_5_moe": {
        **_GROUPED, "moe_intermediate_size": 40, "moe_num_experts": 8, "moe_k": 3,
        "moe_layer_end_index": 2,
    },
    "ernie4_5_moe/biases": {
        **_GROUPED, "moe_intermediate_size": 40, "moe_num_experts": 8, "moe_k": 3, "use_bias": True,
    },
    "deepseek_v2": _LATENT,
    "deepseek_v2/plain queries": {**_LATENT, "q_lora_rank": None, "attention_bias": True},
    "deepseek_v2/biases of MLPs": {**_LATENT, "mlp_bias": True},
    "deepseek_v3": {**_LATENT, "n_group": 2, "topk_group": 1},
    "glm4_moe": {
        **_GROUPED, "moe_intermediate_size": 40, "n_routed_experts": 8, "num_experts_per_tok": 3,
        "head_dim": 16, "use_qk_norm": True, "attention_bias": True,
    },
    # Transformers runs all experts of Llama 4, so all are chosen here.
    "llama4_text": {
        **_GROUPED, "intermediate_size_mlp": 120, "num_local_experts": 4, "head_dim": 16,
        "num_experts_per_tok": 4, "interleave_moe_layer_step": 2, "attention_chunk_size": 7,
    },
}  # fmt: skip

_SIDES: Config = {
    "d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "vocab_size": 100,
}  # fmt: skip
_T5: Config = {
    "d_model": 64, "d_kv": 8, "d_ff": 96, "num_layers": 2, "num_heads": 4, "vocab_size": 100
}  # fmt: skip
_ROBERTA: Config = {
    **_PLAIN, "max_position_embeddings": 66, "type_vocab_size": 1, "pad_token_id": 1
}  # fmt: skip
_MAMBA2: Config = {
    "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100, "state_size": 16, "num_heads": 8,
    "head_dim": 16, "n_groups": 2, "chunk_size": 8,
}  # fmt: skip
_MAMBA: Config = {"hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 100, "state_size": 8}

_GRANITE: Config = {
    **_GROUPED, "layer_types": ["mamba", "attention", "mamba", "mamba"], "num_local_experts": 6,
    "num_experts_per_tok": 2, "shared_intermediate_size": 40, "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8,
}  # fmt: skip
_NEMOTRON: Config = {
    "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "vocab_size": 100, "intermediate_size": 96, "mamba_num_heads": 6, "mamba_head_dim": 16,
    "ssm_state_size": 16, "n_groups": 2, "chunk_size": 8, "n_routed_experts": 6,
    "num_experts_per_tok": 2, "moe_intermediate_size": 40,
    "moe_shared_expert_intermediate_size": 56,
}  # fmt: skip
_QWEN3_NEXT: Config = {
    **_WIDE, "linear_key_head_dim": 16, "linear_value_head_dim": 24, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "moe_intermediate_size": 40, "num_experts": 8,
    "shared_expert_intermediate_size": 56, "num_experts_per_tok": 3,
}  # fmt: skip

OTHERS: dict[str, Config] = {
    "bert": _PLAIN,
    "bert/two heads": {**_PLAIN, "architectures": ["BertForPreTraining"]},
    "bert/no head": {**_PLAIN, "architectures": ["BertModel"]},
    "bert/a head of its own": {**_PLAIN, "tie_word_embeddings": False},
    "bert/classes": {
        **_PLAIN, "architectures": ["BertForSequenceClassification"],
        "id2label": {str(i): str(i) for i in range(5)},
    },
    "bert/classes of tokens": {
        **_PLAIN, "architectures": ["BertForTokenClassification"],
        "id2label": {str(i): str(i) for i in range(5)},
    },
    "bert/answers": {**_PLAIN, "architectures": ["BertForQuestionAnswering"]},
    "roberta": _ROBERTA,
    "roberta/classes": {**_ROBERTA, "architectures": ["RobertaForSequenceClassification"]},
    "xlm-roberta": _ROBERTA,
    "camembert": _ROBERTA,
    "distilbert": {"dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "vocab_size": 100},
    "distilbert/classes": {
        "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "vocab_size": 100,
        "architectures": ["DistilBertForSequenceClassification"],
    },
    "modernbert": {
        **_PLAIN, "local_attention": 8, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2
    },
    "vit": {
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "image_size": 32,
        "intermediate_size": 96, "patch_size": 8, "id2label": {str(i): str(i) for i in range(10)},
    },
    "t5": {**_T5, "num_decoder_layers": 3},
    "t5/gated": {**_T5, "feed_forward_proj": "gated-gelu", "dropout_rate": 0.0},
    "mt5": {**_T5, "tie_word_embeddings": True},
    "bart": {**_SIDES, "decoder_attention_heads": 8, "decoder_ffn_dim": 128},
    "bart/heads of its own": {**_SIDES, "tie_word_embeddings": False},
    "mbart": {**_SIDES, "dropout": 0.0},
    "whisper": {
        **_SIDES, "max_source_positions": 20, "max_target_positions": 64, "pad_token_id": 0
    },
    "whisper/dropout": {
        **_SIDES, "max_source_positions": 20, "max_target_positions": 64, "pad_token_id": 0,
        "dropout": 0.1, "tie_word_embeddings": False,
    },
    "mamba": _MAMBA,
    "mamba/biases": {**_MAMBA, "use_bias": True, "use_conv_bias": False},
    "falcon_mamba": _MAMBA,
    "mamba2": _MAMBA2,
    "mamba2/biases": {
        **_MAMBA2, "use_bias": True, "use_conv_bias": False, "tie_word_embeddings": True
    },
    "jamba": {
        **_GROUPED, "num_hidden_layers": 8, "num_experts": 4, "mamba_d_state": 8
    },
    "jamba/wide heads": {
        **_WIDE, "num_hidden_layers": 8, "num_experts": 4, "mamba_d_state": 8
    },
    "bamba": {
        **_GROUPED, "attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 16,
        "mamba_d_state": 16, "mamba_chunk_size": 8,
    },
    "granitemoehybrid": _GRANITE,
    "granitemoehybrid/wide heads": {**_GRANITE, "head_dim": 32},
    "granitemoehybrid/no experts": {
        **_GRANITE, "num_local_experts": 0, "attention_bias": True, "mamba_proj_bias": True
    },
    "nemotron_h": {
        **_NEMOTRON, "layers_block_type": ["mamba", "moe", "attention", "mlp", "mamba"]
    },
    "nemotron_h/letters": {
        **_NEMOTRON, "hybrid_override_pattern": "M-*E", "num_hidden_layers": 4,
        "use_bias": True, "mlp_bias": True, "use_conv_bias": False,
    },
    "nemotron_h/tied, which is not read": {
        **_NEMOTRON, "layers_block_type": ["mamba", "attention"], "tie_word_embeddings": True
    },
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_next/dense": {**_QWEN3_NEXT, "mlp_only_layers": [0, 2], "attention_bias": True},
}  # fmt: skip


def kind_of(case: str) -> str:
    return case.partition("/")[0]


def written(folder: Path, kind: str, fields: Config) -> Path:
    """The config as a file, with what transformers wants beside the sizes."""
    path = folder / "config.json"
    ids = {"bos_token_id": 0, "eos_token_id": 0}
    path.write_text(json.dumps({"model_type": kind, **ids, **fields}), encoding="utf-8")
    return path


def counted(
    path: Path, *, seq: int | None = S, target: int | None = None, stops_early: bool = True
) -> ModelCount:
    """A training step of the model that transformers builds, its layers checkpointed."""
    built = build(path, train=True)
    inputs = inputs_for(built.model, B, seq, target)
    with set_checkpoint_early_stop(stops_early):
        return count_model(built, inputs, dtype="bf16", train=True, checkpoint=True)
