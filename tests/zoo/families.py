"""Every model class that transformers can build from a config, and how one of them is built."""

from __future__ import annotations

import importlib
import warnings
from typing import Any, NamedTuple

import torch
import transformers
from tiny_configs import tiny_config
from tiny_inputs import inputs_for
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LARGEST_PARAMETERS = 30_000_000


class Built(NamedTuple):
    model: Any
    kwargs: dict[str, Any]


def all_classes() -> dict[str, str]:
    """Model class -> model type, over all mappings of transformers' auto classes."""
    found: dict[str, str] = {}
    for name in sorted(dir(modeling_auto)):
        if not name.endswith("_MAPPING_NAMES"):
            continue
        for model_type, classes in getattr(modeling_auto, name).items():
            for cls in classes if isinstance(classes, tuple | list) else (classes,):
                if not cls.endswith("Config"):
                    found.setdefault(cls, model_type)
    return found


def build(cls_name: str, model_type: str, **settings: Any) -> Built:
    """A tiny model of a class and a batch for it, the same each time.

    Raises:
        Whatever the class or its config does not like.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        cls = _class(cls_name, model_type)
        # A language model inside a larger one has a config of its own.
        config_cls = cls.config_class or CONFIG_MAPPING[model_type]
        config = tiny_config(config_cls, config_cls.model_type)
        text = config.get_text_config()
        if getattr(text, "pad_token_id", 0) is None:
            text.pad_token_id = 0
        model = cls._from_config(config, **settings)
        size = sum(parameter.numel() for parameter in model.parameters())
        if size > LARGEST_PARAMETERS:
            raise ValueError(f"{size} parameters: the config did not become small")
        return Built(model, inputs_for(model))


def _class(cls_name: str, model_type: str) -> Any:
    cls = getattr(transformers, cls_name, None)
    if cls is None:
        path = CONFIG_MAPPING[model_type].__module__.replace("configuration_", "modeling_")
        cls = getattr(importlib.import_module(path), cls_name)
    return cls


def first_of_each_type(classes: dict[str, str]) -> dict[str, str]:
    """One class of each model type: the one whose training says most."""
    first: dict[str, str] = {}
    for cls, model_type in sorted(classes.items(), key=lambda item: (_rank(item[0]), item[0])):
        first.setdefault(model_type, cls)
    return {cls: model_type for model_type, cls in first.items()}


_RANKS = ("ForConditionalGeneration", "ForCausalLM", "ForMaskedLM", "ForImageClassification",
          "ForCTC", "ForAudioClassification", "ForSequenceClassification", "ForPreTraining",
          "LMHeadModel", "Model")  # fmt: skip


def _rank(cls: str) -> int:
    return next((rank for rank, end in enumerate(_RANKS) if cls.endswith(end)), len(_RANKS))
