"""How long a sequence may be, as a config states it."""

from __future__ import annotations

from collections.abc import Mapping

from mfu_torch.flops.formulas.configs.fields import LARGEST_SIZE, Fields

# Names of the most positions, beside max_position_embeddings.
_NAMES = ("n_positions", "max_seq_len", "max_sequence_length", "max_target_positions")

# Distances without an end, scans, or images: their files may state a length, which limits nothing.
_UNLIMITED = ("t5", "mt5", "bloom", "mpt", "mamba", "mamba2", "falcon_mamba", "vit")

# RoBERTa counts its positions from behind the padding token's.
_BEHIND_PADDING = ("roberta", "xlm-roberta", "camembert")


def max_seq_of(fields: Fields) -> int | None:
    """The most tokens of a sequence, ``None`` where the config states none.

    Learned positions end there; rotated ones were not meant for more. A factor that stretches them
    counts where its own most positions stand beside it (YaRN); where they do not, nothing is
    certain.
    """
    if fields.kind in _UNLIMITED or (fields.kind == "falcon" and fields.flag("alibi")):
        return None
    names = ("max_position_embeddings", *_NAMES)
    most = next((v for name in names if (v := _number(fields.raw(name))) is not None), None)
    if most is None:
        return None
    if fields.kind in _BEHIND_PADDING:
        padding = fields.raw("pad_token_id")
        most -= (padding if isinstance(padding, int) and padding >= 0 else 1) + 1
        return most if most > 0 else None
    return _stretched(fields, most)


def _stretched(fields: Fields, most: int) -> int | None:
    for name in ("rope_scaling", "rope_parameters"):
        scaling = fields.raw(name)
        if not isinstance(scaling, Mapping):
            continue
        factor = scaling.get("factor")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor == 1:
            continue
        own = _number(scaling.get("original_max_position_embeddings"))
        if own is None or not 0 < factor < LARGEST_SIZE:
            return None
        # Llama 3.1 states what it reads, 131072, beside 8 x 8192; Qwen2.5 its own 32768 beside 4.
        most = max(most, int(own * factor)) if most == own else most
    return most


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST_SIZE:
        return None
    return value
