"""From a ``config.json`` of transformers to an architecture, in plain Python."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.described import Described, ModelError
from mfu_torch.flops.formulas.configs.fields import Fields
from mfu_torch.flops.formulas.configs.layers import COUNT_IT
from mfu_torch.flops.formulas.configs.lengths import max_seq_of
from mfu_torch.flops.formulas.configs.predictors import with_further_tokens
from mfu_torch.flops.formulas.configs.readers import READERS
from mfu_torch.flops.formulas.configs.unread import unread_notes
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.encoders import Encoder
from mfu_torch.records import Record

Notes = tuple[str, ...]

_FIELD = "tie_word_embeddings"
_NO_WORD_OF_TYING = (
    "whether the head is the embedding is not in the file; read with a head of its own"
)

_NOT_OF_TRANSFORMERS = ("palm",)

# Fields that hold the part that reads text, in models that read images or sound as well.
_TEXT_PARTS = ("text_config", "llm_config", "language_config", "thinker_config")

# Ends of the names of classes whose heads are those of pre-training.
_USUAL_HEADS = (
    *("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForImageClassification"),
    *("ForMaskedLM", "ForPreTraining", "ForImageTextToText"),
)

# The text part of one of those has a model_type of its own, or is one of these without saying so.
_TEXT_TYPES = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "llava": "llama",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen2_vl": "qwen2",
    "qwen2_5_vl": "qwen2",
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
}
_SAME_AS = {
    "kimi_k2": "deepseek_v3",
    "qwen2_vl_text": "qwen2",
    "qwen2_5_vl_text": "qwen2",
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
}


def read_config(
    config: str | Path | Mapping[str, Any], *, mtp: bool = False, image: int | None = None
) -> Described:
    """The architecture that a config describes.

    Args:
        config: A ``config.json``, the folder that holds it, or its fields.
        mtp: With the layers that predict further tokens (DeepSeek-V3), which transformers leaves
            out.
        image: Pixels of a side, in place of the config's.

    Raises:
        ModelError: If there is no such file, it is no config of a family that is known here, its
            sizes make no model, or an ``image`` is given for a model without any.
    """
    if not isinstance(config, (str, Path, Mapping)):
        raise ModelError(f"a config is a path or fields; {type(config).__name__} was given")
    if isinstance(config, Mapping):
        name, where, values = str(config.get("model_type", "config")), "config", config
    else:
        path = _file(Path(config))
        name, where, values = path.parent.name or path.name, str(path), _read(path)
        if path.name != "config.json":
            name = path.stem
    read = _architecture(
        where, values if image is None else _with_image(where, values, image), mtp=mtp
    )
    return Described(
        name=name,
        model=read.model,
        seq=None,
        max_seq=read.max_seq,
        source=where,
        notes=read.notes,
    )


def _file(path: Path) -> Path:
    if path.is_dir():
        inside = path / "config.json"
        if not inside.is_file():
            raise ModelError(f"{path}: holds no config.json; expected that of a transformers model")
        return inside
    if not path.is_file():
        raise ModelError(f"{path}: is no file; expected a config.json of a transformers model")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError) as error:  # also text that is no UTF-8
        text = " ".join(str(error).split())[:100]
        raise ModelError(f"{path}: is no JSON ({text}); expected a transformers config") from None
    if not isinstance(values, dict):
        kinds = {list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
        raise ModelError(
            f"{path}: holds a JSON {kinds.get(type(values), 'null')}; expected an object with a "
            "model_type"
        )
    return values


def _with_image(where: str, values: Mapping[str, Any], image: int) -> Mapping[str, Any]:
    if values.get("model_type") != "vit":
        raise ModelError(
            f"{where}: image is {image!r}, and a {str(values.get('model_type'))[:40]} takes none; "
            "expected a vit, or leave image out"
        )
    return {**values, "image_size": image}


class _Read(Record, frozen=True, kw_only=True):
    model: Architecture
    max_seq: int | None
    notes: tuple[str, ...]


def _architecture(
    where: str, values: Mapping[str, Any], *, mtp: bool, is_nested: bool = False
) -> _Read:
    kind = values.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(
            f'{where}: has no model_type; expected a transformers config, {{"model_type": "llama", '
            "...}"
        )
    reader = READERS.get(_SAME_AS.get(kind, kind))
    if reader is None:
        return _of_a_part(where, values, kind, mtp=mtp)
    fields = Fields(
        where,
        {**values, "model_type": _SAME_AS.get(kind, kind)},
        defaults=reader.defaults,
        names=reader.names,
        deaf=reader.deaf,
        is_nested=is_nested,
    )
    model, notes = with_further_tokens(fields, reader.read(fields), wanted=mtp)
    name = fields.class_name
    if name and not isinstance(model, Encoder) and not name.endswith(_USUAL_HEADS):
        notes.append(f"read with the head of its pre-training, not with what a {name} has")
    if fields.absent:
        notes.append(
            "not in the file, so as transformers has it by default: " + ", ".join(fields.absent)
        )
    most = max_seq_of(fields)
    notes += unread_notes(kind, values, fields)
    return _Read(model=model, max_seq=most, notes=(*fields.notes, *notes))


def _of_a_part(where: str, values: Mapping[str, Any], kind: str, *, mtp: bool) -> _Read:
    for name in _TEXT_PARTS:
        part = values.get(name)
        if not isinstance(part, Mapping) or kind == part.get("model_type"):
            continue
        own = part.get("model_type", _TEXT_TYPES.get(kind))
        if not isinstance(own, str):
            raise ModelError(f"{where}: {name} has no model_type; {COUNT_IT}")
        inner = {**part, "model_type": own}
        # Written at the top, in the text part, or both; transformers shares them if either says so.
        tied = [each[_FIELD] for each in (values, part) if _FIELD in each]
        if tied:
            inner[_FIELD] = next((each for each in tied if each is not False), False)
        read = _architecture(where, inner, mtp=mtp, is_nested=True)
        if not tied and isinstance(read.model, Decoder) and not read.model.is_tied:
            read = _with_notes(read, after=(_NO_WORD_OF_TYING,))
        return _with_notes(read, before=(_alone(kind),))
    if kind in _TEXT_TYPES and "hidden_size" in values:  # before transformers 4.52
        # What belongs to the other parts is not what the text's family leaves unread.
        fields = {k: v for k, v in values.items() if not isinstance(v, Mapping)}
        read = _architecture(where, {**fields, "model_type": _TEXT_TYPES[kind]}, mtp=mtp)
        return _with_notes(read, before=(_alone(kind),))
    known = sorted(set(READERS) - set(_NOT_OF_TRANSFORMERS))
    near = difflib.get_close_matches(kind, known, 3)
    raise ModelError(
        f"{where}: model_type {kind!r} is not known here"
        + (f"; near it are {', '.join(near)}" if near else "")
        + f"; {COUNT_IT}"
    )


def _alone(kind: str) -> str:
    return f"the text part of a {kind} alone: nothing else of it is in here"


def _with_notes(read: _Read, *, before: Notes = (), after: Notes = ()) -> _Read:
    return msgspec.structs.replace(read, notes=(*before, *read.notes, *after))
