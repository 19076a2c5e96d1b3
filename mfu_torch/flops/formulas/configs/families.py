"""What tells the families of decoders apart, by ``model_type``: a row for each.

Sizes stand in the config; a family is where its biases are, how many norms it has, and what
transformers takes for a field that the file lacks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mfu_torch.flops.formulas.configs.fields import Default
from mfu_torch.records import Record

Defaults = dict[str, Default]
Names = dict[str, tuple[str, ...]]
Biases = tuple[tuple[str, str | None], ...]

_GPT2_NAMES: Names = {
    "hidden_size": ("n_embd",),
    "num_hidden_layers": ("n_layer",),
    "num_attention_heads": ("n_head",),
    "intermediate_size": ("n_inner",),
    "max_position_embeddings": ("n_positions",),
}
_UNGROUPED = ("head_dim", "num_key_value_heads")
_GPT2_DEAF = (*_UNGROUPED, "intermediate_size")
_ATTENTION_BIAS: Biases = (("q k v o", "attention_bias"),)
_LLAMA_BIAS: Biases = (*_ATTENTION_BIAS, ("gate up down", "mlp_bias"))
_ALL_BIASES: Biases = (("q k v o gate up down", None),)


class Sparse(Record, frozen=True, kw_only=True):
    """Where a family has its experts.

    Attributes:
        layers: Which layers have them: ``all``; all but the ``first`` ``first_k_dense_replace``;
            each ``step`` of ``decoder_sparse_step`` but ``mlp_only_layers``; those between ``start
            and end``; every ``interleaved`` one.
        width: The field with the width of an expert.
        shared: The width of the shared experts: the field that has it, or the ``number`` of them
            in the field, each as wide as an expert.
        shared_gate: Whether a gate weighs them.
        shared_first: Whether they run before the others, whose weights then follow all products.
    """

    layers: Literal["all", "first", "step", "start and end", "interleaved"] = "all"
    width: str = "moe_intermediate_size"
    shared: str = ""
    shared_is_number: bool = False
    shared_gate: bool = False
    shared_first: bool = False


class Family(Record, frozen=True, kw_only=True):
    """A family of decoders.

    Attributes:
        defaults: Of transformers, for fields that a file lacks.
        names: Its own names of fields.
        deaf: Common names of fields that its class does not read: it has none, or its own name.
        is_gated: Whether the MLP has three products.
        biases: (names of products, the field that gives them biases; ``None``: always).
        head_bias: Whether the head has one, or the field that says it.
        norm: Parameters of a norm for each channel: 1 weight; 2 with a bias; 0 none.
        norms: Norms of a layer.
        final_norm: Whether one follows the last layer.
        embedding_norm: Whether one follows the embedding.
        qk_norm: Norms of queries and keys: of the size of a ``head``, or of ``all`` heads.
        qk_norm_field: The field that turns them on.
        positions: Learned position embeddings beyond ``max_position_embeddings``; ``None``: none
            are learned.
        full_every: Every n-th layer sees all keys and the others ``sliding_window``; 1: all layers
            see all, 0: none does.
        repeats_last: Whether a checkpoint repeats a layer's last product, too, since a norm
            follows it.
        dropout: (the field, default) of a dropout that follows it, which repeats it, too.
        is_latent: Whether keys and values are compressed (multi-head latent attention).
        has_sinks: Whether each head has a sink, one number (gpt-oss).
        sparse: Its experts.
    """

    defaults: Defaults = msgspec.field(default_factory=dict)
    names: Names = msgspec.field(default_factory=dict)
    deaf: tuple[str, ...] = ()
    is_gated: bool = True
    biases: Biases = ()
    head_bias: bool | str = False
    norm: int = 1
    norms: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    qk_norm: Literal["", "head", "all"] = ""
    qk_norm_field: str | None = None
    positions: int | None = None
    full_every: int = 1
    repeats_last: bool = False
    dropout: tuple[str, float] | None = None
    is_latent: bool = False
    has_sinks: bool = False
    sparse: Sparse | None = None


def defaults_of(
    vocab: int, hidden: int, layers: int, heads: int, ffn: int | None, **more: Default
) -> Defaults:
    """Of sizes that every decoder has, and more."""
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": "num_attention_heads",
        "intermediate_size": ffn,
        **more,
    }


_LLAMA = defaults_of(32000, 4096, 32, 32, 11008)
_GPT2 = defaults_of(
    50257, 768, 12, 12, None, max_position_embeddings=1024, tie_word_embeddings=True
)
_GPTJ = defaults_of(50400, 4096, 28, 16, None)
_QWEN = defaults_of(151936, 4096, 32, 32, 22016, max_window_layers=28)
_GEMMA2 = defaults_of(
    256000, 2304, 26, 8, 9216, num_key_value_heads=4, head_dim=256, sliding_window=4096,
    tie_word_embeddings=True,
)  # fmt: skip
_OLMO = defaults_of(50304, 4096, 32, 32, 11008)
_GLM = defaults_of(
    151552, 4096, 40, 32, 13696, num_key_value_heads=2, head_dim=128, attention_bias=True
)
_COHERE = defaults_of(256000, 8192, 40, 64, 22528, tie_word_embeddings=True)
_MISTRAL = defaults_of(32000, 4096, 32, 32, 14336, num_key_value_heads=8, sliding_window=4096)

FAMILIES: dict[str, Family] = {
    # Learned positions, biases, layer norms, an MLP of two products.
    "gpt2": Family(
        deaf=_GPT2_DEAF,
        dropout=("resid_pdrop", 0.1),
        defaults=_GPT2, names=_GPT2_NAMES, is_gated=False, biases=_ALL_BIASES, norm=2, positions=0
    ),
    "gpt_neo": Family(
        deaf=(*_UNGROUPED, "sliding_window"),
        dropout=("resid_dropout", 0.0),
        defaults=defaults_of(
            50257, 2048, 24, 16, None, max_position_embeddings=2048, tie_word_embeddings=True,
            sliding_window=256,
        ),
        names={
            "num_hidden_layers": ("num_layers",), "num_attention_heads": ("num_heads",),
            "sliding_window": ("window_size",),
        },
        is_gated=False, biases=(("o up down", None),), norm=2, positions=0, full_every=2,
    ),
    "gptj": Family(
        deaf=_GPT2_DEAF,
        dropout=("resid_pdrop", 0.0),
        defaults=_GPTJ, names=_GPT2_NAMES, is_gated=False, biases=(("up down", None),),
        head_bias=True, norm=2, norms=1,
    ),
    "codegen": Family(
        deaf=_GPT2_DEAF,
        dropout=("resid_pdrop", 0.0),
        defaults=_GPTJ, names=_GPT2_NAMES, is_gated=False, biases=(("up down", None),),
        head_bias=True, norm=2, norms=1,
    ),
    "gpt_neox": Family(
        deaf=_UNGROUPED,
        dropout=("hidden_dropout", 0.0),
        defaults=defaults_of(50432, 6144, 44, 64, 24576, attention_bias=True),
        is_gated=False, biases=(*_ATTENTION_BIAS, ("up down", None)), norm=2,
    ),
    "gpt_bigcode": Family(
        deaf=_GPT2_DEAF,
        dropout=("resid_pdrop", 0.1),
        defaults={**_GPT2, "multi_query": True}, names=_GPT2_NAMES, is_gated=False,
        biases=_ALL_BIASES, norm=2, positions=0,
    ),
    "bloom": Family(
        deaf=_UNGROUPED,
        dropout=("hidden_dropout", 0.0),
        defaults=defaults_of(250880, 64, 2, 8, None, tie_word_embeddings=True),
        names={
            "hidden_size": ("n_embed", "hidden_size"), "num_hidden_layers": ("n_layer",),
            "num_attention_heads": ("n_head",),
        },
        is_gated=False, biases=_ALL_BIASES, norm=2, embedding_norm=True,
    ),
    "opt": Family(
        deaf=(*_UNGROUPED, "intermediate_size"),
        dropout=("dropout", 0.1),
        defaults=defaults_of(
            50272, 768, 12, 12, 3072, max_position_embeddings=2048, tie_word_embeddings=True,
            enable_bias=True, do_layer_norm_before=True, layer_norm_elementwise_affine=True,
        ),
        names={"intermediate_size": ("ffn_dim",)},
        is_gated=False, biases=(("q k v o up down", "enable_bias"),), norm=2, positions=2,
    ),
    "mpt": Family(
        deaf=_UNGROUPED,
        defaults=defaults_of(
            50368, 2048, 24, 16, None, tie_word_embeddings=True, expansion_ratio=4
        ),
        names={
            "hidden_size": ("d_model",), "num_hidden_layers": ("n_layers",),
            "num_attention_heads": ("n_heads",),
        },
        is_gated=False,
    ),
    "falcon": Family(
        deaf=("head_dim", "num_key_value_heads", "intermediate_size"),
        dropout=("hidden_dropout", 0.0),
        defaults=defaults_of(
            65024, 4544, 32, 71, None, tie_word_embeddings=True, multi_query=True,
            parallel_attn=True,
        ),
        names={
            "num_key_value_heads": ("num_kv_heads", "n_head_kv"),
            "intermediate_size": ("ffn_hidden_size",),
            "num_hidden_layers": ("n_layer",), "num_attention_heads": ("n_head",),
        },
        is_gated=False, biases=(("q k v o up down", "bias"),), norm=2,
    ),
    "phi": Family(
        dropout=("resid_pdrop", 0.0),
        defaults=defaults_of(51200, 2048, 24, 32, 8192), is_gated=False, biases=_ALL_BIASES,
        head_bias=True, norm=2, norms=1, qk_norm="head", qk_norm_field="qk_layernorm",
    ),
    "starcoder2": Family(
        dropout=("residual_dropout", 0.0),
        defaults=defaults_of(
            49152, 3072, 30, 24, 12288, num_key_value_heads=2, use_bias=True,
            tie_word_embeddings=True,
        ),
        is_gated=False, biases=(("q k v o up down", "use_bias"),), norm=2, full_every=0,
    ),
    "nemotron": Family(
        defaults=defaults_of(256000, 6144, 32, 48, 24576), is_gated=False, biases=_LLAMA_BIAS,
        norm=2,
    ),
    "arcee": Family(
        defaults=defaults_of(32000, 2560, 32, 32, 18432), is_gated=False, biases=_LLAMA_BIAS
    ),
    # Rotated positions, RMS norms, a gated MLP.
    "llama": Family(defaults=_LLAMA, biases=_LLAMA_BIAS),
    "granite": Family(defaults=_LLAMA, biases=_LLAMA_BIAS),
    "mistral": Family(defaults=_MISTRAL, full_every=0),
    "ministral": Family(defaults=_MISTRAL, full_every=0),
    "qwen2": Family(defaults=_QWEN, biases=(("q k v", None),)),
    "qwen3": Family(defaults={**_QWEN, "head_dim": 128}, biases=_ATTENTION_BIAS, qk_norm="head"),
    "gemma": Family(
        defaults=defaults_of(256000, 3072, 28, 16, 24576, head_dim=256, tie_word_embeddings=True),
        biases=_ATTENTION_BIAS,
    ),
    "gemma2": Family(
        defaults=_GEMMA2, biases=_ATTENTION_BIAS, norms=4, full_every=2, repeats_last=True
    ),
    "gemma3_text": Family(
        defaults={**_GEMMA2, "vocab_size": 262208}, biases=_ATTENTION_BIAS, norms=4,
        qk_norm="head", full_every=6, repeats_last=True,
    ),
    "phi3": Family(
        dropout=("resid_pdrop", 0.0), defaults=defaults_of(32064, 3072, 32, 32, 8192), full_every=0
    ),
    "olmo": Family(defaults=_OLMO, biases=_ATTENTION_BIAS, norm=0),
    "olmo2": Family(defaults=_OLMO, biases=_ATTENTION_BIAS, qk_norm="all", repeats_last=True),
    "olmo3": Family(
        defaults={**_OLMO, "sliding_window": 4096}, biases=_ATTENTION_BIAS, qk_norm="all",
        full_every=4, repeats_last=True,
    ),
    "smollm3": Family(
        defaults=defaults_of(
            128256, 2048, 36, 16, 11008, num_key_value_heads=4, tie_word_embeddings=True,
            no_rope_layer_interval=4,
        ),
        biases=_LLAMA_BIAS,
    ),
    "cohere": Family(
        defaults=_COHERE, biases=_ATTENTION_BIAS, norms=1, qk_norm="all",
        qk_norm_field="use_qk_norm",
    ),
    "cohere2": Family(
        defaults={**_COHERE, "sliding_window": 4096}, biases=_ATTENTION_BIAS, norms=1, full_every=4
    ),
    "glm": Family(defaults=_GLM, biases=(("q k v", "attention_bias"),)),
    "glm4": Family(
        defaults=_GLM, biases=(("q k v", "attention_bias"),), norms=4, repeats_last=True
    ),
    "stablelm": Family(
        dropout=("hidden_dropout", 0.0),
        defaults=defaults_of(50304, 2560, 32, 32, 6912), biases=(("q k v", "use_qkv_bias"),),
        norm=2, qk_norm="all", qk_norm_field="qk_layernorm",
    ),
    "helium": Family(
        defaults=defaults_of(48000, 2560, 24, 20, 7040, head_dim=128),
        biases=(("q k v", "attention_bias"), ("gate up down", "mlp_bias")),
    ),
    "seed_oss": Family(
        dropout=("residual_dropout", 0.1),
        defaults=defaults_of(
            155136, 4096, 64, 80, 27648, num_key_value_heads=8, head_dim=128, attention_bias=True
        ),
        biases=(
            ("q k v", "attention_bias"), ("o", "attention_out_bias"), ("gate up down", "mlp_bias")
        ),
    ),
    "exaone4": Family(
        defaults=defaults_of(102400, 4096, 32, 32, 16384, sliding_window=4096), qk_norm="head",
        full_every=4, repeats_last=True,
    ),
    "ernie4_5": Family(
        defaults=defaults_of(
            103424, 1024, 18, 16, 3072, num_key_value_heads=2, head_dim=128,
            tie_word_embeddings=True,
        ),
        biases=(("q k v o gate up down", "use_bias"),),
    ),
    # Chowdhery et al. 2022, section 2: one key head, no biases, attention and MLP in parallel.
    "palm": Family(
        defaults=defaults_of(256000, 4096, 32, 16, None, num_key_value_heads=1, head_dim=256,
                         tie_word_embeddings=True),
        norms=1,
    ),
}  # fmt: skip
"""By model_type. ``palm`` is none of transformers."""
