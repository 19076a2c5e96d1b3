"""Which of transformers' model classes a config file stands for, and why that one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mfu_torch.integrations.config_fields import ConfigError

# The first in which the model_type is. From what uses most of a model to what uses least: heads
# that write text before those that classify, pairs of texts and images before images alone.
_AUTO_CLASSES = (
    ("AutoModelForSpeechSeq2Seq", "speech to text"),
    ("AutoModelForImageTextToText", "images and text to text"),
    ("AutoModelForSeq2SeqLM", "text to text"),
    ("AutoModelForMaskedLM", "masked text"),  # before the next, which has encoders as decoders
    ("AutoModelForCausalLM", "next token"),
    ("AutoModelForCTC", "speech by CTC"),
    ("AutoModelForZeroShotImageClassification", "images with texts"),
    ("AutoModelForImageClassification", "classes of images"),
    ("AutoModelForAudioClassification", "classes of sounds"),
    ("AutoModelForObjectDetection", "objects"),
    ("AutoModel", "no head"),
)

RULE = "the first that transformers has for it of: " + ", ".join(text for _, text in _AUTO_CLASSES)


def model_class_of(
    transformers: Any, path: Path, config: Any, fields: Mapping[str, Any]
) -> tuple[Any, list[str]]:
    """The class to build, and notes if the file does not name it.

    The first of ``architectures`` that transformers has; without one, the first of its auto classes
    that has the ``model_type``, in the order of :data:`RULE`.

    Raises:
        ConfigError: If ``architectures`` is no list of names, names a model of another type, or
            transformers has no class at all.
    """
    named = names_of(path, fields)
    missing: list[str] = []
    for name in named:
        found = getattr(transformers, name, None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            _check_type(path, name, found, config)
            notes = [f"architecture: {name}, since {_lacks(missing)}"] if missing else []
            return found, notes
        missing.append(name)
    why = _lacks(missing) if missing else "the file names none"
    for auto, text in _AUTO_CLASSES:
        mapping = getattr(getattr(transformers, auto, None), "_model_mapping", {})
        if type(config) in mapping:
            found = mapping[type(config)]
            found = found[0] if isinstance(found, (list, tuple)) else found
            return found, [
                f"architecture: {found.__name__} ({text}), since {why}. By the model_type it is "
                f"{RULE}"
            ]
    raise ConfigError(f"{path}: transformers has no model for the model_type {config.model_type!r}")


def names_of(path: Path, fields: Mapping[str, Any]) -> list[str]:
    """The ``architectures`` of a config; a single name may stand without its list.

    Raises:
        ConfigError: If it holds something else.
    """
    value = fields.get("architectures")
    if value is None:
        return []
    names = [value] if isinstance(value, str) else value
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    raise ConfigError(
        f"{path}: architectures is {str(value)[:40]}; expected names of classes, "
        '["LlamaForCausalLM"]'
    )


def _lacks(names: list[str]) -> str:
    return f"transformers has no {', '.join(names)}"


def _check_type(path: Path, name: str, found: Any, config: Any) -> None:
    expected = getattr(found, "config_class", None)
    if isinstance(expected, type) and not isinstance(config, expected):
        raise ConfigError(
            f"{path}: architectures names {name}, a model of {expected.__name__}, and the "
            f"model_type {config.model_type!r} gives {type(config).__name__}; expected two that "
            "belong together"
        )
