"""The fields of a transformers config file: what cannot be, is missing, or is odd."""

from __future__ import annotations

import difflib
import inspect
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mfu_torch.records import MFUError

_MOST_LAYERS = 10_000
_LARGEST_SIZE = 10**9

# What every model that has such a field needs at least one of.
_POSITIVE = re.compile(
    r"hidden_size|d_model|n_embd|num_hidden_layers|num_layers|n_layers?|(en|de)coder_layers"
    r"|num_attention_heads|n_heads?|num_heads|num_key_value_heads|(en|de)coder_attention_heads"
    r"|vocab_size|intermediate_size|d_ff|d_kv|(en|de)coder_ffn_dim|ffn_dim|embed_dim|patch_size"
    r"|image_size|num_channels|head_dim"
)
_LAYERS = re.compile(r"num_hidden_layers|num_layers|n_layers?|(en|de)coder_layers")

_SIMILAR = 0.8  # of difflib: one or two letters of a name


class ConfigError(MFUError):
    """The config cannot be read, or no model can be built from it; the message says why."""


def parts_of(config: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    """A config and those inside it, each with its place: ``""``, ``"text_config."``."""
    yield where, config
    for name in getattr(config, "sub_configs", {}) or {}:
        part = value_of(config, name)
        if part is not None and hasattr(part, "model_type"):
            yield from parts_of(part, f"{where}{name}.")


def value_of(config: Any, name: str) -> Any:
    """A field of a config; ``None`` where it has none, or not one for all layers."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # "differs from layer to layer"
        return None


def check_sizes(path: Path, fields: Mapping[str, Any], where: str = "") -> None:
    """Sizes that no model has are told before they become an error deep inside of one.

    Raises:
        ConfigError: At the first one.
    """
    for name, value in fields.items():
        if isinstance(value, dict):
            check_sizes(path, value, f"{where}{name}.")
        if not _POSITIVE.fullmatch(name) or isinstance(value, (dict, list)) or value is None:
            continue
        most = _MOST_LAYERS if _LAYERS.fullmatch(name) else _LARGEST_SIZE
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not whole or not 1 <= value <= most:
            raise ConfigError(
                f"{path}: {where}{name} is {json.dumps(value)[:40]}; expected a whole number "
                f"from 1 to {most}"
            )


def check_heads(path: Path, config: Any, fields: Mapping[str, Any]) -> None:
    """Each key and value head serves the same number of query heads, in every part.

    Raises:
        ConfigError: Where they cannot.
    """
    for where, part in parts_of(config):
        heads = value_of(part, "num_attention_heads")
        shared = value_of(part, "num_key_value_heads")
        if not isinstance(heads, int) or not isinstance(shared, int):
            continue
        given = _given(part, "num_key_value_heads", _inside(fields, where))
        if not given and value_of(part, "kv_lora_rank"):
            continue  # it has a key and value for each head, whatever the default says
        if shared < 1 or heads % shared:
            default = "" if given else " (transformers' default, since the file has none)"
            raise ConfigError(
                f"{path}: {where}num_attention_heads is {heads}, which is no multiple of "
                f"num_key_value_heads, {shared}{default}; every key and value head serves equally "
                "many query heads"
            )


def check_experts(path: Path, config: Any) -> None:
    """A token is not sent to more experts than there are.

    Raises:
        ConfigError: Where it is.
    """
    for where, part in parts_of(config):
        each = value_of(part, "num_experts_per_tok")
        for name in ("num_local_experts", "num_experts", "n_routed_experts"):
            number = value_of(part, name)
            if isinstance(each, int) and isinstance(number, int) and 0 < number < each:
                raise ConfigError(
                    f"{path}: {where}num_experts_per_tok is {each}, which is more than {name}, "
                    f"{number}"
                )


def defaults_note(config: Any, fields: Mapping[str, Any]) -> list[str]:
    """Which sizes the file lacks, so that they are those of the config class, part by part."""
    found = []
    for where, part in parts_of(config):
        own = _inside(fields, where)
        for name, default in _defaults(type(part)).items():
            if not _POSITIVE.fullmatch(name) or not isinstance(default, int):
                continue
            value = value_of(part, name)
            # Text fields of a model of several parts may also stand at the top of the file.
            above = fields.get(name) == value
            # A name of old may have been given; not where the file does not have the part at all.
            if (value == default or not own) and not _given(part, name, own) and not above:
                found.append(f"{where}{name} {value}")
    if not found:
        return []
    return [f"not in the file, so as transformers has it by default: {', '.join(found)}"]


def unknown_note(config: Any, fields: Mapping[str, Any], model_class: type) -> list[str]:
    """Which fields of the file nothing reads: those of a misspelt name, or of other software."""
    found = []
    for where, part in parts_of(config):
        known = {*_defaults(type(part)), *getattr(type(part), "attribute_map", {})}
        sources = _sources(type(part), model_class)
        for name in _inside(fields, where):
            # What a config class reads and drops is gone; what it does not know, it keeps as it is.
            if name in known or hasattr(type(part), name) or name not in vars(part):
                continue
            if name.startswith("_") or re.search(rf"\b{re.escape(name)}\b", sources):
                continue
            near = difflib.get_close_matches(name, sorted(known), 1, _SIMILAR)
            found.append(f"{where}{name}" + (f" (is it {near[0]}?)" if near else ""))
    if not found:
        return []
    found.sort(key=lambda text: not text.endswith("?)"))
    return [f"of the file, transformers does not read: {', '.join(found)}"]


def _inside(fields: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """The fields of a part, ``"text_config."``; none where the file has no such part."""
    for name in where.split(".")[:-1]:
        below = fields.get(name)
        fields = below if isinstance(below, dict) else {}
    return fields


def _given(part: Any, name: str, fields: Mapping[str, Any]) -> bool:
    names = getattr(type(part), "attribute_map", {})
    aliases = [alias for alias, target in names.items() if target == name]
    return any(each in fields for each in (name, names.get(name), *aliases))


def _defaults(config_class: type) -> dict[str, Any]:
    """Fields that a config class takes, and their defaults."""
    found: dict[str, Any] = {}
    for base in reversed(config_class.__mro__[:-1]):
        init = base.__dict__.get("__init__")
        if init is not None:
            found |= {
                name: None if parameter.default is parameter.empty else parameter.default
                for name, parameter in inspect.signature(init).parameters.items()
            }
    return found


def _sources(*classes: type) -> str:
    """The code of the modules that define the classes."""
    modules = {sys.modules[each.__module__] for each in classes}
    texts = []
    for module in modules:
        try:
            texts.append(inspect.getsource(module))
        except OSError:  # installed without its source: then nothing can be read off it
            continue
    return "\n".join(texts)
