"""Makes a small batch for any model of transformers, from its forward's parameters and config."""

from __future__ import annotations

import inspect
import re
from typing import Any

import torch
from zoo_exceptions import INPUTS

BATCH = 2
SEQ = 12
AUDIO_SAMPLES = 4000
FRAMES = 64
_MATCH = re.compile(r"tokens?:? \D*(\d+)\D+?features?:? ?\D*(\d+)")


_USEFUL = frozenset(
    {
        "input_ids", "input_features", "input_features_mask", "feature_attention_mask",
        "attention_mask", "pixel_values", "bbox", "input_values", "decoder_input_ids",
    }
)  # fmt: skip
_MELS = ("num_mel_bins", "feature_size", "input_feat_per_channel", "n_mels", "input_feat_size",
         "input_dim", "mel_dim", "feature_projection_input_dim")  # fmt: skip


class NoInputs(Exception):
    """It is not known how to make inputs for a model."""


def inputs_for(model: Any) -> dict[str, Any]:
    """Keyword arguments for ``model``, with labels if it takes any."""
    return _Builder(model).build()


class _Builder:
    def __init__(self, model: Any) -> None:
        self.model = model
        self.name = type(model).__name__
        self.config = model.config
        self.parameters = inspect.signature(model.forward).parameters
        self.text = _sub(self.config, "text_config", "text_encoder", "decoder", "encoder")
        self.vision = _sub(self.config, "vision_config", "vision_encoder", "encoder",
                           "image_encoder", "backbone_config")  # fmt: skip
        self.audio = _sub(self.config, "audio_config", "audio_encoder", "speech_config")
        self.generator = torch.Generator().manual_seed(0)

    def build(self) -> dict[str, Any]:
        kwargs: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            make = getattr(self, f"_{name}", None)
            required = parameter.default is inspect.Parameter.empty
            if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
                continue
            if make is not None and (required or self._is_useful(name)):
                value = make()
                if value is not None:
                    kwargs[name] = value
            elif required and name not in INPUTS.get(self.config.model_type, {}):
                raise NoInputs(f"{self.name} needs {name}")
        if "image_grid_thw" in self.parameters and "pixel_values" in self.parameters:
            kwargs |= self._patches()
        kwargs |= self._labels(kwargs.get("input_ids"))
        for key in (self.config.model_type, self.name):
            given = INPUTS.get(key, {})
            kwargs |= {name: self.value(shape) for name, shape in given.items()}
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        return self._with_image_tokens(kwargs)

    def value(self, given: Any) -> Any:
        """An entry of the table: a size is a shape of random numbers, other values stand."""
        if isinstance(given, torch.Size):
            return torch.randn(given, generator=self.generator)
        return given() if callable(given) else given

    def _with_image_tokens(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Put as many placeholders into the text as the model says that it has features."""
        for _ in range(3):
            try:
                self.model.eval()
                with torch.no_grad():
                    self.model(**kwargs)
                break
            except (ValueError, RuntimeError) as error:
                match = _MATCH.search(str(error))
                if match is None or "input_ids" not in kwargs:
                    break
                tokens, features = int(match[1]), int(match[2])
                kind = "audio" if "udio" in str(error) else "image"
                if tokens:
                    break
                hidden = _int(self.text, "hidden_size", 1)
                each = features // BATCH
                if each > 512:
                    each //= hidden
                kwargs = self._place(kwargs, self._placeholder(kind), each)
        return kwargs

    def _placeholder(self, kind: str) -> int:
        for name in ("token_id", "token_index", "patch_token_id", "placeholder_id"):
            value = getattr(self.config, f"{kind}_{name}", None)
            if isinstance(value, int):
                return value
        return 0

    def _place(self, kwargs: dict[str, Any], token: int, each: int) -> dict[str, Any]:
        ids = self._ids(BATCH, SEQ + each)
        ids[:, 2 : 2 + each] = token
        kwargs = {**kwargs, "input_ids": ids}
        if "labels" in kwargs and kwargs["labels"].dim() == 2:
            kwargs["labels"] = self._ids(BATCH, SEQ + each)
        return kwargs

    def _is_useful(self, name: str) -> bool:
        return name == self.model.main_input_name or name in _USEFUL

    # --- by the name of the parameter ------------------------------------------------------------

    def _ids(self, *shape: int) -> torch.Tensor:
        vocab = min(_int(self.text, "vocab_size", 100), 100)
        return torch.randint(3, max(vocab, 4), shape, generator=self.generator)

    def _input_ids(self) -> torch.Tensor:
        if "MultipleChoice" in self.name:
            return self._ids(BATCH, 3, SEQ)
        ids = self._ids(BATCH, SEQ)
        if "SequenceClassification" in self.name:
            ids[:, -1] = 2  # the end, which some look for
        return ids

    def _decoder_input_ids(self) -> torch.Tensor | None:
        return self._ids(BATCH, SEQ)

    def _attention_mask(self) -> torch.Tensor | None:
        if "feature" in self.model.main_input_name and "input_ids" not in self.parameters:
            return self._input_features_mask()
        return None

    def _bbox(self) -> torch.Tensor:
        return torch.tensor([1, 2, 11, 12]).expand(BATCH, SEQ, 4).contiguous()

    def _pixel_values(self) -> torch.Tensor | None:
        vision = self.vision
        if "image_grid_thw" in self.parameters or "grid_thw" in self.parameters:
            return self._patches()["pixel_values"]
        size = _int(vision, "image_size", 0) or _int(self.config, "image_size", 0) or 64
        channels = _int(vision, "num_channels", 0) or _int(vision, "in_channels", 0)
        channels = channels if channels in (1, 3, 4) else 3
        frames = _int(vision, "num_frames", 0) or _int(vision, "frames_per_clip", 0)
        shape = (BATCH, frames, channels, size, size) if frames else (BATCH, channels, size, size)
        return torch.randn(shape, generator=self.generator)

    _pixel_values_videos = _pixel_values

    def _input_values(self) -> torch.Tensor:
        channels = _int(self.config, "audio_channels", 0)
        samples = AUDIO_SAMPLES * (2 if "XVector" in self.name else 1)
        shape = (BATCH, channels, samples) if channels else (BATCH, samples)
        return torch.randn(shape, generator=self.generator)

    def _input_features(self) -> torch.Tensor:
        audio = self.audio
        if self._mels_first():
            frames = 2 * audio.max_source_positions
            return torch.randn(BATCH, audio.num_mel_bins, frames, generator=self.generator)
        mels = next((size for name in _MELS if (size := _int(audio, name, 0))), 80)
        return torch.randn(BATCH, FRAMES, mels, generator=self.generator)

    def _mels_first(self) -> bool:
        return hasattr(self.audio, "max_source_positions") and hasattr(self.audio, "num_mel_bins")

    def _inputs_embeds(self) -> torch.Tensor:
        return torch.randn(BATCH, SEQ, _int(self.text, "hidden_size", 64))

    def _grid_thw(self) -> torch.Tensor:
        return torch.tensor([[1, 4, 4]] * BATCH)

    def _qformer_input_ids(self) -> torch.Tensor:
        return self._ids(BATCH, SEQ)

    def _merge_sizes(self) -> torch.Tensor:
        return torch.tensor([1] * BATCH)

    def _hidden_states(self) -> torch.Tensor | None:
        return self._patches()["pixel_values"] if "grid_thw" in self.parameters else None

    def _input_features_mask(self) -> torch.Tensor:
        features = self._input_features()
        frames = features.shape[-1] if self._mels_first() else features.shape[1]
        return torch.ones(BATCH, frames, dtype=torch.long)

    _feature_attention_mask = _input_features_mask

    def _patches(self) -> dict[str, torch.Tensor]:
        """Images as rows of patches, 4 x 4 each, as the Qwen-VL line takes them."""
        vision = self.vision
        patch = _int(vision, "patch_size", 14)
        channels = _int(vision, "in_channels", 0) or _int(vision, "num_channels", 0) or 3
        width = channels * _int(vision, "temporal_patch_size", 1) * patch**2
        merge = _int(vision, "spatial_merge_size", 0) or _int(vision, "merge_size", 1)
        patches = {
            "pixel_values": torch.randn(BATCH * 16, width, generator=self.generator),
            "image_grid_thw": torch.tensor([[1, 4, 4]] * BATCH),
        }
        if "input_ids" in self.parameters:
            placed = self._place({}, self._placeholder("image"), 16 // merge**2)
            patches |= placed
            if "mm_token_type_ids" in self.parameters:
                ids = placed["input_ids"]
                patches["mm_token_type_ids"] = (ids == self._placeholder("image")).long()
        return patches

    # --- labels ----------------------------------------------------------------------------------

    def _labels(self, ids: torch.Tensor | None) -> dict[str, Any]:
        name = self.name
        if "start_positions" in self.parameters:
            ends = torch.tensor([3, 4])
            return {"start_positions": torch.tensor([1, 2]), "end_positions": ends}
        if "labels" not in self.parameters:
            return {}
        if "SequenceClassification" in name or "NextSentence" in name or "MultipleChoice" in name:
            return {"labels": torch.tensor([0, 1])}
        if "ImageClassification" in name or "VideoClassification" in name:
            return {"labels": torch.tensor([0, 1])}
        if "AudioClassification" in name:
            return {"labels": torch.tensor([0, 1])}
        if "XVector" in name:
            return {"labels": torch.tensor([0, 1])}
        if "TokenClassification" in name:
            shape = (BATCH, SEQ) if ids is None else ids.shape
            return {"labels": torch.zeros(shape, dtype=torch.long)}
        if "CTC" in name:
            return {"labels": self._ids(BATCH, 4)}
        if ids is not None and re.search(r"LM|Generation|PreTraining", name):
            return {"labels": self._ids(*ids.shape)}
        return {}


def _sub(config: Any, *names: str) -> Any:
    for name in names:
        sub = config.__dict__.get(name)
        if hasattr(sub, "to_dict"):
            return _sub(sub, *names)
    return config


def _int(config: Any, name: str, default: int) -> int:
    value = getattr(config, name, default)
    if isinstance(value, list | tuple) and value:
        value = value[0]
    return value if isinstance(value, int) else default
