"""Makes a tiny config of any model type of transformers.

A config class is asked for its defaults; every field that is a size becomes small by a rule on its
name, in sub-configs as well. What the rules do not get right is corrected per model type in the
table of exceptions.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig
from zoo_exceptions import FIELDS, KEEP

VOCAB = 128
HIDDEN = 64
HEADS = 4
HEAD_DIM = 16

# The first pattern that matches a field's name decides; only larger defaults are replaced, except
# where the value is a function of the default.
SIZES: tuple[tuple[str, int | Callable[[int], int]], ...] = (
    (r"(.*_)?type_vocab_size", 2),
    (r".*vocab_size.*|.*_vocab|num_embeddings", VOCAB),
    (r"max_source_positions", 32),
    (r".*(position_embeddings|positions|seq_len(gth)?|max_length|n_ctx|context_length)", 128),
    (r"original_max_position_embeddings", 64),
    (r"image_size|pretrain_image_size|.*_image_size|resolution|crop_size", 32),
    (r"patch_size", 8),
    (r"num_frames|frames_per_clip", 4),
    (r"tubelet_size|temporal_patch_size", 2),
    (r".*window_size|.*sliding_window|attention_chunk_size|local_attention", 8),
    (r"sampling_rate|.*sample_rate", lambda default: default),
    (r"(.*_)?(num_)?(experts|local_experts|routed_experts)|n_routed_experts|moe_num_experts", 4),
    (r".*(per_tok|per_token|topk|top_k|moe_k)", 2),
    (r"n_group|num_expert_group", 2),
    (r"topk_group", 1),
    (r"n_shared_experts|num_shared_experts|moe_num_shared_experts", 1),
    (r"first_k_dense_replace|num_dense_layers|moe_layer_start_index", 1),
    (r".*(key_value|kv)_heads|.*num_kv_heads", 2),
    (r".*(attention_heads|num_heads|n_heads?|attn_heads|_heads)|heads", HEADS),
    (r".*(hidden_layers|num_layers|n_layers?|_layers|_depth|_blocks)|depth|layers", 2),
    (r".*(head_dim|d_kv|d_head|head_size|dim_head|kv_channels)", HEAD_DIM),
    (r"rotary_dim", 8),
    (r".*lora_rank|.*_rank", 16),
    (r".*(intermediate|ffn|feedforward|feed_forward|mlp|d_ff|d_inner|dim_ff).*", 96),
    (r".*(num_mel_bins|feature_size|n_mels|mel_bins)", lambda default: default),
    (r".*(num_queries|num_latents|num_query_tokens|n_latents|num_points|num_patches)", 16),
    (r".*(kernel|stride|loss|seed|temperature|length|frequency|theta|base|sampl|rate).*",
     lambda default: default),
    (r".*(hidden|dim|size|channels|features?|units|d_model|embd?|state|width|filters|planes)"
     r"(_.*)?", HIDDEN),
)  # fmt: skip
_SIZES = [(re.compile(pattern), value) for pattern, value in SIZES]

_TOKEN = re.compile(r".*(token|tok)_(id|index)|.*_(start|end|bos|eos|pad|mask|stream_\w+)_id|.*_id")
_DERIVED = re.compile(r"_.*|out_features|out_indices|stage_names|.*id2label|label2id")
_DEPTHS = re.compile(r".*(depths|repeats|num_layers|num_blocks|depth|hidden_layers)")
_COUNTS = re.compile(r".*heads")
_LISTS_OF_SIZES = re.compile(r".*(dims?|sizes?|channels|hidden.*|filters|size|features)")
_FIRST_TOKEN = 100
_WITHOUT_DEFAULT = {"head_dim": HEAD_DIM, "num_key_value_heads": HEADS}


def tiny_config(cls: type[PreTrainedConfig], model_type: str = "") -> PreTrainedConfig:
    """A config of a class with a few thousand parameters to a layer."""
    return _tiny(cls, model_type or cls.model_type, {})


def _tiny(cls: type[PreTrainedConfig], model_type: str, tokens: dict[str, int]) -> PreTrainedConfig:
    fields = dict(_fields_of(cls, model_type, tokens))
    exceptions = FIELDS.get(model_type, FIELDS.get(cls.model_type, {}))
    for name, value in exceptions.items():
        if isinstance(value, dict) and isinstance(fields.get(name), PreTrainedConfig):
            sub = fields[name]
            fields[name] = type(sub)(**{**_init_fields(sub), **value})
        elif value is KEEP:
            fields.pop(name, None)
        else:
            fields[name] = value
    return cls(**fields)


def _init_fields(config: PreTrainedConfig) -> dict[str, Any]:
    names = {field.name for field in dataclasses.fields(config) if field.init}
    return {name: value for name, value in config.__dict__.items() if name in names}


def _fields_of(
    cls: type[PreTrainedConfig], model_type: str, tokens: dict[str, int]
) -> Iterator[tuple[str, Any]]:
    default = _default(cls)
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        value = default.__dict__.get(field.name)  # some refuse getattr: one value per layer
        if isinstance(value, PreTrainedConfig):
            yield field.name, _tiny(type(value), f"{model_type}.{field.name}", tokens)
        elif not _DERIVED.fullmatch(field.name):
            given = field.default is not None or field.name in ("rope_parameters", "rope_scaling")
            small = _small(field.name, value, tokens) if given else None
            if value is None and field.name in _WITHOUT_DEFAULT:
                small = _WITHOUT_DEFAULT[field.name]
            if small == 2 and field.name == "num_key_value_heads":
                heads = default.__dict__.get("num_attention_heads")
                small = HEADS if value == heads else small
            if small is not None:
                yield field.name, small
    rope = default.__dict__.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope and _has_sections(cls):
        yield "rope_parameters", {**rope, "mrope_section": [2, 3, 3]}
    kinds = default.__dict__.get("layer_types")
    if isinstance(kinds, list) and kinds and "layer_types" in cls.__dataclass_fields__:
        distinct = list(dict.fromkeys(kinds))
        distinct += distinct[-1:] * (2 - len(distinct))
        yield "layer_types", distinct
        yield "num_hidden_layers", len(distinct)


def _has_sections(cls: type[PreTrainedConfig]) -> bool:
    """Whether the model's code divides its heads into sections for time, height and width."""
    path = inspect.getsourcefile(cls) or ""
    code = Path(path.replace("configuration_", "modeling_"))
    return code.exists() and "mrope_section" in code.read_text()


def _default(cls: type[PreTrainedConfig]) -> PreTrainedConfig:
    return cls(**FIELDS.get(f"{cls.model_type}!", {}))


def _small(name: str, value: Any, tokens: dict[str, int]) -> Any:
    """The small value for a field, or ``None`` to leave it as it is."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, int):
        return _small_int(name, value, tokens)
    if isinstance(value, float) and name.endswith(("layerdrop", "layer_drop")):
        return 0.0
    if isinstance(value, dict) and "mrope_section" in value:
        share = HEAD_DIM // 2 / sum(value["mrope_section"])
        section = [max(1, int(size * share)) for size in value["mrope_section"]]
        section[0] += HEAD_DIM // 2 - sum(section)
        return {**value, "mrope_section": section}
    if isinstance(value, list | tuple) and value and all(type(item) is int for item in value):
        return _small_list(name, list(value), tokens)
    return None


def _small_int(name: str, value: int, tokens: dict[str, int]) -> int | None:
    if name.endswith(("bos_token_id", "decoder_start_token_id")):
        return 1 if value >= 0 else None
    if name == "eos_token_id" or name.endswith("_eos_token_id"):
        return 2 if value >= 0 else None
    if name.endswith("pad_token_id"):
        return 0 if value >= 0 else None
    if _TOKEN.fullmatch(name):
        if value < VOCAB:
            return None
        return tokens.setdefault(name, _FIRST_TOKEN + len(tokens))
    for pattern, small in _SIZES:
        if pattern.fullmatch(name):
            if callable(small):
                return small(value)
            return small if value > small else None
    return None


def _small_list(name: str, value: list[int], tokens: dict[str, int]) -> list[int] | None:
    if name == "eos_token_id":
        return [2]
    if _DEPTHS.fullmatch(name):
        return [1] * len(value)
    if _COUNTS.fullmatch(name):
        return [max(1, item // min(value)) for item in value]
    if name in ("image_size", "patch_size"):
        small = _small_int(name, value[0], tokens)
        return [small] * len(value) if small else None
    if _LISTS_OF_SIZES.fullmatch(name) and max(value) >= 32:
        return [item // 4 if item >= 32 else item for item in value]
    return None
