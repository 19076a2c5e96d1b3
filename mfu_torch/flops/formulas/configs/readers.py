"""Which reader reads a config, by ``model_type``."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.decoders import read_decoder
from mfu_torch.flops.formulas.configs.encoders import (
    read_bart,
    read_bert,
    read_modernbert,
    read_t5,
    read_vit,
    read_whisper,
)
from mfu_torch.flops.formulas.configs.families import Defaults, Family, Names
from mfu_torch.flops.formulas.configs.families_sparse import DECODERS
from mfu_torch.flops.formulas.configs.fields import Fields
from mfu_torch.flops.formulas.configs.hybrids import (
    read_granite_hybrid,
    read_nemotron_h,
    read_qwen3_next,
)
from mfu_torch.flops.formulas.configs.state_spaces import (
    read_bamba,
    read_jamba,
    read_mamba,
    read_mamba2,
)
from mfu_torch.records import Record

Read = Callable[[Fields], Architecture]


class Reader(Record, frozen=True, kw_only=True):
    """How configs of a model_type are read.

    Attributes:
        read: From fields to the architecture.
        defaults: Of transformers, for fields that a file lacks.
        names: Its own names of fields.
        deaf: Common names that its class does not read.
    """

    read: Read
    defaults: Defaults = msgspec.field(default_factory=dict)
    names: Names = msgspec.field(default_factory=dict)
    deaf: tuple[str, ...] = ()


def _of_decoder(family: Family) -> Reader:
    return Reader(
        read=lambda fields: read_decoder(fields, family),
        defaults=family.defaults,
        names=family.names,
        deaf=family.deaf,
    )


_BERT: Defaults = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "max_position_embeddings": 512, "type_vocab_size": 2,
    "tie_word_embeddings": True,
}  # fmt: skip
_T5: Defaults = {
    "vocab_size": 32128, "hidden_size": 512, "d_kv": 64, "d_ff": 2048, "num_hidden_layers": 6,
    "num_attention_heads": 8, "relative_attention_num_buckets": 32, "tie_word_embeddings": True,
}  # fmt: skip
_T5_NAMES: Names = {
    "hidden_size": ("d_model",),
    "num_hidden_layers": ("num_layers",),
    "num_attention_heads": ("num_heads",),
    "d_kv": ("d_kv", "head_dim"),
}
_BART: Defaults = {
    "vocab_size": 50265, "hidden_size": 1024, "encoder_layers": 12, "decoder_layers": 12,
    "encoder_attention_heads": 16, "decoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "decoder_ffn_dim": 4096, "max_position_embeddings": 1024, "tie_word_embeddings": True,
}  # fmt: skip
_MAMBA: Defaults = {
    "vocab_size": 50280, "hidden_size": 768, "num_hidden_layers": 32, "state_size": 16,
    "expand": 2, "conv_kernel": 4, "use_conv_bias": True, "tie_word_embeddings": True,
}  # fmt: skip
_HYBRID: Defaults = {
    "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "mamba_d_conv": 4, "mamba_expand": 2,
    "mamba_conv_bias": True,
}  # fmt: skip

READERS: dict[str, Reader] = {
    **{kind: _of_decoder(family) for kind, family in DECODERS.items()},
    "bert": Reader(read=read_bert, defaults=_BERT),
    "roberta": Reader(read=read_bert, defaults={**_BERT, "vocab_size": 50265}),
    "xlm-roberta": Reader(read=read_bert, defaults=_BERT),
    "camembert": Reader(read=read_bert, defaults=_BERT),
    "distilbert": Reader(
        read=read_bert,
        defaults={**_BERT, "num_hidden_layers": 6},
        names={
            "hidden_size": ("dim",), "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",), "intermediate_size": ("hidden_dim",),
        },
        deaf=("intermediate_size",),
    ),
    "modernbert": Reader(
        read=read_modernbert,
        defaults={
            "vocab_size": 50368, "hidden_size": 768, "intermediate_size": 1152,
            "num_hidden_layers": 22, "num_attention_heads": 12, "local_attention": 128,
            "global_attn_every_n_layers": 3, "decoder_bias": True, "tie_word_embeddings": True,
        },
    ),
    "vit": Reader(
        read=read_vit,
        defaults={
            "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
            "intermediate_size": 3072, "image_size": 224, "patch_size": 16, "num_channels": 3,
            "num_labels": 2,
        },
    ),
    "t5": Reader(read=read_t5, defaults=_T5, names=_T5_NAMES),
    "mt5": Reader(
        read=read_t5,
        defaults={
            **_T5, "vocab_size": 250112, "d_ff": 1024, "num_hidden_layers": 8,
            "num_attention_heads": 6, "tie_word_embeddings": False,
        },
        names=_T5_NAMES,
    ),
    "bart": Reader(read=read_bart, defaults=_BART, names={"hidden_size": ("d_model",)}),
    "mbart": Reader(read=read_bart, defaults=_BART, names={"hidden_size": ("d_model",)}),
    "whisper": Reader(
        read=read_whisper,
        defaults={
            "vocab_size": 51865, "num_mel_bins": 80, "encoder_layers": 4, "decoder_layers": 4,
            "encoder_attention_heads": 6, "decoder_attention_heads": 6, "hidden_size": 384,
            "encoder_ffn_dim": 1536, "decoder_ffn_dim": 1536, "max_source_positions": 1500,
            "max_target_positions": 448, "tie_word_embeddings": True,
        },
        names={"hidden_size": ("d_model",)},
    ),
    "mamba": Reader(read=read_mamba, defaults=_MAMBA),
    "falcon_mamba": Reader(read=read_mamba, defaults=_MAMBA),
    "mamba2": Reader(
        read=read_mamba2,
        defaults={
            "vocab_size": 32768, "hidden_size": 4096, "num_hidden_layers": 64, "num_heads": 128,
            "head_dim": 64, "state_size": 128, "expand": 2, "conv_kernel": 4, "n_groups": 8,
            "use_conv_bias": True, "chunk_size": 256,
        },
    ),
    "jamba": Reader(
        read=read_jamba,
        defaults={
            **_HYBRID, "vocab_size": 65536, "num_experts": 16, "num_experts_per_tok": 2,
            "expert_layer_period": 2, "expert_layer_offset": 1, "attn_layer_period": 8,
            "attn_layer_offset": 4, "mamba_d_state": 16,
        },
        names={"num_experts": ("num_local_experts",)},
    ),
    "bamba": Reader(
        read=read_bamba,
        defaults={
            **_HYBRID, "vocab_size": 128000, "mamba_n_heads": 128, "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_chunk_size": 256,
        },
    ),
    "granitemoehybrid": Reader(
        read=read_granite_hybrid,
        defaults={
            **_HYBRID, "vocab_size": 32000, "num_key_value_heads": "num_attention_heads",
            "intermediate_size": 11008, "num_experts": 8, "num_experts_per_tok": 2,
            "shared_intermediate_size": 1024, "mamba_n_heads": 128, "mamba_n_groups": 1,
            "mamba_d_state": 256, "mamba_chunk_size": 256,
        },
        names={"num_experts": ("num_local_experts",), "layer_types": ("layers_block_type",)},
        deaf=("num_experts",),
    ),
    "nemotron_h": Reader(
        read=read_nemotron_h,
        defaults={
            "vocab_size": 131072, "hidden_size": 4096, "num_attention_heads": 32,
            "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504,
            "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
            "conv_kernel": 4, "chunk_size": 128, "use_conv_bias": True, "num_experts": 8,
            "num_experts_per_tok": 2, "n_shared_experts": 1, "moe_intermediate_size": 7688,
            "moe_shared_expert_intermediate_size": 7688,
        },
        names={
            "num_experts": ("n_routed_experts", "num_local_experts"),
            "layer_types": ("layers_block_type",),
            "n_groups": ("mamba_n_groups",), "conv_kernel": ("mamba_d_conv",),
            "chunk_size": ("mamba_chunk_size",), "use_conv_bias": ("mamba_conv_bias",),
        },
        deaf=("num_experts",),
    ),
    "qwen3_next": Reader(
        read=read_qwen3_next,
        defaults={
            "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 48,
            "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256,
            "intermediate_size": 5632, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
            "linear_value_head_dim": 128, "linear_num_key_heads": 16,
            "linear_num_value_heads": 32, "full_attention_interval": 4, "decoder_sparse_step": 1,
            "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
            "num_experts": 512, "num_experts_per_tok": 10,
        },
    ),
}  # fmt: skip
"""By model_type."""
