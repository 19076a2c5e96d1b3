"""Fields of a config that its family does not read, and that say something about work elsewhere."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mfu_torch.flops.formulas.configs.fields import Fields

# Parts of names that stand for sizes, layers, experts, windows, ranks: what FLOPs and parameters
# depend on in one family or another.
_TELLING = re.compile(
    r"expert|(^|_)moe(_|$)|window|_rank(_|$)|(^|_)ranks?$|_dims?(_|$)|(^|_)dim$|heads?(_|$)|n_embe?d"
    r"|(^|_)layers?(_|$)|hidden_size|intermediate|(^|_)ffn|(^|_)d_(model|ff|kv|inner|state|conv)"
    r"|nextn|mtp|^tie_|_tied|state_size|conv_kernel|conv_dim|mlp_|_mlp|_bias$|^bias$|qkv|kv_|_kv"
    r"|_norm$|qk_|layernorm$|cross_attention|is_decoder|bidirectional|_only$|multi_query"
    r"|n_groups|(^|_)chunk_size|_config$|block_types?|pattern|image_size|patch|vocab|share_|shared"
    r"|first_k|embedding_size|register|indexer|index_|compress|sparse|linear_attn|attn_type|attention_type|adapter|_per_layer"
)

# Such names that change neither: of dropping, losses, positions, generation, kernels, storage.
_HARMLESS = re.compile(
    r"dropout|drop|pdrop|_prob$|(^|_)loss|coef|_eps(ilon)?$|epsilon|initializer|_std$|jitter|rope"
    r"|rotary|softcap|scal(e|ar|ing)|multiplier|norm_topk|topk_(group|method)|n_group$|score|scoring"
    r"|aux|chunk_size_feed_forward|_token_id|_index$|_per_image|pretraining_tp|quant|generation"
    r"|task_specific|_fusion|use_cache|flash|sdpa|attn_implementation|kernel_init|act(ivation)?$"
    r"|^max_(position|window)|time_step|_limit$|_floor$|_min$|_max$|^mask_|apply_spec|^torch_|_init_"
    r"|residual_in_fp32|rescale|rms_norm$|layerdrop|^use_(mamba_kernels|mambapy)|parallel_size"
    r"|clip|alpha|beta|gradient_checkpointing|median_filter|classifier_proj|pooler_(act|type)"
    r"|^no_bias$|^original_max_|^init_|^pooler_|capacity|tie_weights_$|^fused_|_multiple$|routing_bias|_overlap$|^mtp_layers_block|^rotary|attention_probs|output_|hidden_act|(^|_)vocab_size_per|num_(beams|return)|summary_"
)

# Names of one thing: a file of other software may have two of them.
_SAME = (
    ("num_key_value_heads", "num_attention_heads"),
    ("n_layer", "n_layers", "num_layers", "num_hidden_layers", "encoder_layers"),
    ("d_model", "hidden_size", "n_embd", "dim"),
    ("n_head", "n_heads", "num_heads", "num_attention_heads", "encoder_attention_heads"),
    ("experts_per_token", "num_experts_per_tok", "moe_k"),
    ("layer_switch", "sliding_window_pattern"),
)

# What needs no reading: it is so in any case.
_AS_EVER = (
    *(("position_embedding_type", each) for each in ("absolute", "nope", "rope")),
    ("mlp_type", "default"),
    ("attn_type", "multihead_attention"),
)

# Norms without weights, or always there; sums of sizes that are read.
_OF_KIND = {
    *(("llama4_text", "use_qk_norm"), ("minimax_m2", "use_qk_norm")),
    *(("minimax_m2", "attn_type_list"), ("minimax_m2", "qk_norm_type")),
    *(
        (kind, name)
        for kind in ("deepseek_v2", "deepseek_v3")
        for name in ("head_dim", "qk_head_dim")
    ),
}

_SIMILAR = 0.85  # of difflib: one or two letters of a name
_MOST_NAMED = 8


def unread_notes(kind: str, values: Mapping[str, Any], fields: Fields) -> list[str]:
    """Of the fields that nothing read, those that might matter, by name.

    ``num_experts`` in a llama, say: the file describes something else than the family is.

    Args:
        kind: The model_type, as the file has it.
        values: The fields of the file.
        fields: The same, after they were read.
    """
    known = sorted(fields.known)
    found = []
    for name, value in values.items():
        if not isinstance(name, str) or name in known or _says_nothing(value):
            continue
        if name.startswith("_") or _is_implied(name, value, fields, known):
            continue
        near = [
            each
            for each in difflib.get_close_matches(name, known, 1, _SIMILAR)
            if each not in values
        ]
        if _matters(name, value) or near:
            meant = f"; is it {near[0]}?" if near else ""
            found.append(f"{name} ({_shown(value)}{meant})")
    if not found:
        return []
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return [f"{kind} reads no {', '.join(found[:_MOST_NAMED])}{more}: not in here"]


def _is_implied(name: str, value: Any, fields: Fields, known: Sequence[str]) -> bool:
    """Whether it says what is so without it: as many key heads as heads, their size, ..."""
    if (name, value) in _AS_EVER or (fields.kind, name) in _OF_KIND:
        return True
    for group in _SAME:
        others = [each for each in group if each != name and each in known]
        if name in group and any(fields.raw(each) == value for each in others):
            return True
    if name == "num_key_value_heads" and value == 1 and fields.raw("multi_query"):
        return True
    heads, hidden = fields.raw("num_attention_heads"), fields.raw("hidden_size")
    expand = fields.raw("expand")
    if not isinstance(value, int) or not isinstance(hidden, int):
        return False
    if name in ("intermediate_size", "d_inner"):  # Mamba's
        return isinstance(expand, int) and value == expand * hidden
    return name == "head_dim" and isinstance(heads, int) and value * heads == hidden


def _matters(name: str, value: Any) -> bool:
    if isinstance(value, str) and not re.search(r"type|pattern|layout", name):
        return False  # of kinds of functions, not sizes
    return bool(_TELLING.search(name)) and not _HARMLESS.search(name)


def _says_nothing(value: Any) -> bool:
    """Null, false, 0, nothing: what is switched off."""
    return value is None or value is False or value == 0 or value in ("", [], {})


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    text = "true" if value is True else str(value)
    return text if len(text) <= 20 else text[:17] + "..."
