"""From a transformers ``config.json`` to a model without memory: shapes and dtypes, no weights.

Nothing is downloaded and no code from a hub is run: the config is read from the file, and the
model is one of those that transformers itself has, built on the meta device.
"""

from __future__ import annotations

import contextlib
import copy
import difflib
import json
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mfu_torch.integrations.architectures import model_class_of, names_of
from mfu_torch.integrations.config_fields import ConfigError as ConfigError
from mfu_torch.integrations.config_fields import (
    check_experts,
    check_heads,
    check_sizes,
    defaults_note,
    parts_of,
    unknown_note,
)
from mfu_torch.records import Record

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


class Built(Record, frozen=True, kw_only=True):
    """A model on the meta device, and what has to be said about how it came from its config.

    Attributes:
        model: The model. A ``torch.nn.Module``; not a record, so typed loosely.
        path: The config file.
        notes: Departures from the file, as sentences.
    """

    model: Any
    path: str
    notes: tuple[str, ...] = ()


def build(
    path: str | Path, *, dtype: str = "bf16", attention: str | None = None, train: bool = False
) -> Built:
    """The model of a config file, on the meta device.

    Args:
        path: A ``config.json``, or the folder that holds it.
        dtype: ``bf16``, ``fp16`` or ``fp32``, of all parameters.
        attention: ``sdpa`` or ``eager``; by default what transformers picks for the model.
        train: In training mode, all parameters with gradients; else in evaluation mode.

    Raises:
        ConfigError: If the file is no config, its values make no model, or transformers does not
            know it.
    """
    path = _file(path)
    fields = _read(path)
    with offline():
        transformers = _transformers()
        config, notes = _config(transformers, path, fields)
        model_class, class_note = model_class_of(transformers, path, config, fields)
        notes += [*class_note, *unknown_note(config, fields, model_class)]
        options = {} if attention is None else {"attn_implementation": attention}
        model = _build(path, model_class, config, DTYPES[dtype], options)
    _without_chance(model)
    model.train(train)
    return Built(model=model, path=str(path), notes=tuple(notes))


def _file(path: str | Path) -> Path:
    path = Path(path)
    if path.is_dir():
        inside = path / "config.json"
        if not inside.is_file():
            raise ConfigError(
                f"{path}: holds no config.json; expected that of a transformers model"
            )
        return inside
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also text that is no UTF-8
        raise ConfigError(f"{path}: is no JSON ({_one_line(error)})") from None
    if not isinstance(fields, dict):
        raise ConfigError(
            f"{path}: holds a JSON {_json_kind(fields)}; expected an object with a model_type"
        )
    if not isinstance(fields.get("model_type"), str):
        raise ConfigError(
            f'{path}: has no model_type; expected a transformers config, {{"model_type": "llama", '
            "...}"
        )
    return fields


def _json_kind(value: Any) -> str:
    kinds = {list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    return kinds.get(type(value), "null")


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise ConfigError(
            "transformers is not installed, which builds the model of a config: "
            "pip install 'mfu_torch[huggingface]'"
        ) from None
    return transformers


def _config(transformers: Any, path: Path, fields: dict[str, Any]) -> tuple[Any, list[str]]:
    notes = []
    fields = dict(fields)
    kind = fields["model_type"]
    own_code = fields.pop("auto_map", None)
    if kind not in transformers.CONFIG_MAPPING:
        raise ConfigError(f"{path}: {_unknown_type(transformers, kind, own_code is not None)}")
    if own_code is not None:
        notes.append(
            f"the config names code of its own (auto_map), which was not run: this is "
            f"transformers' own {kind}"
        )
    if fields.pop("quantization_config", None) is not None:
        notes.append("the quantization in the config is not applied: all weights have one dtype")
    check_sizes(path, fields)
    fields["architectures"] = names_of(path, fields)
    try:
        # A copy, since config classes take out of it what they use.
        config = transformers.CONFIG_MAPPING[kind].from_dict(copy.deepcopy(fields))
    except Exception as error:
        # Config classes check their fields in many ways, and none of it is our fault.
        raise ConfigError(f"{path}: is no config of a {kind} ({_one_line(error)})") from None
    check_heads(path, config, fields)
    check_experts(path, config)
    notes += defaults_note(config, fields)
    for _, part in parts_of(config):
        if getattr(part, "use_pretrained_backbone", False):
            part.use_pretrained_backbone = False
        part.use_cache = False
    return config, notes


def _unknown_type(transformers: Any, kind: str, own_code: bool) -> str:
    text = f"transformers {transformers.__version__} has no model_type {kind!r}"
    if own_code:
        return text + ", and the code that auto_map names is never run"
    near = difflib.get_close_matches(kind, list(transformers.CONFIG_MAPPING), 3)
    return text + (f"; near it are {', '.join(near)}" if near else "")


def _build(
    path: Path, model_class: Any, config: Any, dtype: torch.dtype, options: dict[str, Any]
) -> nn.Module:
    # Of each token's experts exactly those are multiplied that it is sent to, whichever they are,
    # so the count needs no data. The other ways loop over the experts that the data picks.
    if getattr(model_class, "_can_set_experts_implementation", bool)():
        options = options | {"experts_implementation": "batched_mm"}
    try:
        with torch.device("meta"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model: nn.Module = model_class._from_config(config, dtype=dtype, **options)
    except Exception as error:
        # Model code of every kind runs here; whatever it raises, there is no model.
        raise ConfigError(
            f"{path}: transformers cannot build a {model_class.__name__} from it "
            f"({_one_line(error)})"
        ) from None
    return model


def _without_chance(model: nn.Module) -> None:
    """Layers that training leaves out at random are all counted."""
    for part in [*(part for _, part in parts_of(model.config)), *model.modules()]:
        for name in ("layerdrop", "encoder_layerdrop", "decoder_layerdrop", "layer_drop"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
        if getattr(part, "apply_spec_augment", False) is True:
            part.apply_spec_augment = False


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Nothing that transformers does in here reaches a hub, and it does not warn of details."""
    names = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(dict.fromkeys(names, "1"))
    constants = _hub_constants()
    was_offline = getattr(constants, "HF_HUB_OFFLINE", None)
    if was_offline is not None:
        constants.HF_HUB_OFFLINE = True
    log = _transformers_log()
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        if was_offline is not None:
            constants.HF_HUB_OFFLINE = was_offline
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _transformers_log() -> logging.Logger:
    with contextlib.suppress(ImportError):  # build() says so
        from transformers.utils import logging as own

        own.get_verbosity()  # sets the level up, once
    return logging.getLogger("transformers")


def _hub_constants() -> Any:
    # It reads the environment once, when it is imported, which may have been long ago.
    try:
        from huggingface_hub import constants
    except ImportError:
        return None
    return constants


def _one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:200]}" if lines else type(error).__name__
