"""The inputs that a transformers model is called with on the meta device."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from mfu_torch.integrations.config_fields import value_of
from mfu_torch.records import MFUError, Record

_SAMPLES_PER_S = 16_000

# Modules that hold a vector for each position of a text, and parts that read something else.
_POSITION_TABLE = re.compile(r"(^|\.)(wpe|embed_positions|position_embeddings?|pos_embed\w*)$")
_NO_TEXT = re.compile(r"vision|visual|image|pixel|audio|speech|video")


class InputsError(MFUError):
    """No inputs can be made for a model; the message says why."""


class WrongSize(InputsError):
    """A length or size is missing, has no use, or is not one of the model's; says which."""


class Inputs(Record, frozen=True, kw_only=True):
    """What a model is called with.

    Attributes:
        kwargs: Name -> tensor on the meta device, or a switch.
        tokens: Tokens in them, source and target; ``None`` where text is not all of it.
        one_pass: Every token goes through the whole model, not one half of an encoder-decoder.
        samples: Batch size.
        notes: What was left out, as sentences.
    """

    kwargs: dict[str, Any]
    tokens: int | None
    one_pass: bool
    samples: int
    notes: tuple[str, ...] = ()

    @property
    def shapes(self) -> str:
        """``"input_ids 1 x 8192"``."""
        return ", ".join(
            f"{name} {' x '.join(map(str, value.shape))}"
            for name, value in self.kwargs.items()
            if isinstance(value, torch.Tensor)
        )


class _Asked:
    """The sizes that the caller gave; knows which of them were looked at."""

    def __init__(self, batch: int, **given: Any) -> None:
        self.batch = batch
        self._given, self._used = given, set[str]()

    def get(self, name: str) -> Any:
        self._used.add(name)
        return self._given.get(name)

    def unused(self) -> list[str]:
        return [n for n, v in self._given.items() if v is not None and n not in self._used]


def inputs_for(
    model: nn.Module,
    batch: int,
    seq: int | None = None,
    target_seq: int | None = None,
    image_size: tuple[int, int] | None = None,
) -> Inputs:
    """Inputs of a transformers model, on the meta device.

    Args:
        model: Told by its ``main_input_name`` and the arguments of its forward.
        batch: Sequences, images or recordings.
        seq: Tokens of a text, samples of a waveform, frames of a spectrogram.
        target_seq: Tokens of the decoder of an encoder-decoder; by default ``seq``.
        image_size: Height and width in pixels; by default those of the config.

    Raises:
        WrongSize: If a length or size is needed and was not given, or was given and has no use, or
            is more than the model has positions for.
        InputsError: If the kind of input is not known.
    """
    main = str(getattr(model, "main_input_name", "input_ids"))
    maker = _MAKERS.get(main)
    if maker is None:
        raise InputsError(
            f"{type(model).__name__} reads {main}, for which no inputs can be made here; "
            f"those that can are {', '.join(_MAKERS)}"
        )
    asked = _Asked(batch, seq=seq, target_seq=target_seq, image_size=image_size)
    notes: list[str] = []
    kwargs = maker(model, asked, notes)
    arguments = inspect.signature(model.forward).parameters
    if "return_loss" in arguments:  # it compares texts with something else, and needs both
        for name, other in _MAKERS.items():
            if name in arguments and name != main:
                kwargs |= other(model, asked, notes)
    elif main == "input_ids" and "pixel_values" in arguments:
        notes.append("text alone was counted: the part for images did not run")
    tokens = batch * seq if set(kwargs) == {"input_ids"} and seq is not None else None
    one_pass = tokens is not None
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in arguments:
        length = _target_length(model, asked, main)
        kwargs["decoder_input_ids"] = _ids(batch, length)
        tokens, one_pass = tokens and tokens + batch * length, False
    _check_use(model, asked, kwargs)
    notes += _too_long(model, kwargs)
    return Inputs(
        kwargs=kwargs,
        tokens=tokens,
        one_pass=one_pass,
        samples=batch,
        notes=tuple(dict.fromkeys(notes)),
    )


def _target_length(model: nn.Module, asked: _Asked, main: str) -> int:
    length = asked.get("target_seq") or (asked.get("seq") if main == "input_ids" else None)
    if length is None:
        raise WrongSize(
            f"{type(model).__name__} has a decoder for text; give the length of its text, "
            "--target-seq N"
        )
    return int(length)


def _check_use(model: nn.Module, asked: _Asked, kwargs: Mapping[str, Any]) -> None:
    for name in asked.unused():
        option = f"--{name.replace('_', '-')}"
        raise WrongSize(
            f"{option} has no use for a {type(model).__name__}, which is called with "
            f"{', '.join(kwargs)}; leave it out"
        )


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long, device="meta")


def _real(model: nn.Module, *shape: int) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros(*shape, dtype=dtype, device="meta")


def _text(model: nn.Module, asked: _Asked, notes: list[str]) -> dict[str, Any]:
    seq = asked.get("seq")
    if seq is None:
        raise WrongSize(f"{type(model).__name__} reads text; give the length of it, --seq N")
    return {"input_ids": _ids(asked.batch, seq)}


def _images(model: nn.Module, asked: _Asked, notes: list[str]) -> dict[str, Any]:
    config = _part_with(model.config, "vision_config", "backbone_config")
    own, given = getattr(config, "image_size", None), asked.get("image_size")
    if own is None and given is None:
        raise WrongSize(
            f"{type(model).__name__} reads images and its config has no image_size; give it, "
            "--image-size HxW"
        )
    own = tuple(own) if isinstance(own, (list, tuple)) else (own, own)
    height, width = given or own
    made: dict[str, Any] = {}
    if given and own != given and "interpolate_pos_encoding" in _arguments(model):
        made["interpolate_pos_encoding"] = True
        notes.append(
            f"images of {height} x {width}, not the config's {own[0]} x {own[1]}: its position "
            "embeddings are interpolated"
        )
    channels = int(getattr(config, "num_channels", 3))
    frames = getattr(config, "num_frames", None)
    shape = [channels, int(height), int(width)]
    if frames is not None:
        shape.insert(0, int(frames))
    return {"pixel_values": _real(model, asked.batch, *shape)} | made


def _arguments(model: nn.Module) -> Mapping[str, Any]:
    return inspect.signature(model.forward).parameters


def _spectrogram(model: nn.Module, asked: _Asked, notes: list[str]) -> dict[str, Any]:
    config: Any = model.config
    bins = getattr(config, "num_mel_bins", 0) or getattr(config, "feature_projection_input_dim", 0)
    if not bins:
        raise InputsError(f"{type(model).__name__} reads features of a size its config lacks")
    positions = getattr(config, "max_source_positions", None)
    seq = asked.get("seq")
    if positions is not None and config.model_type == "whisper":
        # Its encoder takes windows of one length: two frames become one position.
        frames = _only_length(model, seq, 2 * int(positions), "2 x max_source_positions")
        return {"input_features": _real(model, asked.batch, int(bins), frames)}
    if seq is None:
        raise WrongSize(f"{type(model).__name__} reads a spectrogram; give its frames, --seq N")
    return {"input_features": _real(model, asked.batch, seq, int(bins))}


def _only_length(model: nn.Module, seq: int | None, length: int, field: str) -> int:
    if seq not in (None, length):
        raise WrongSize(
            f"{type(model).__name__} reads {length} frames of sound, not more and not fewer "
            f"({field} of its config); leave out --seq {seq}"
        )
    return length


def _waveform(model: nn.Module, asked: _Asked, notes: list[str]) -> dict[str, Any]:
    config: Any = model.config
    seq = asked.get("seq")
    if config.model_type == "audio-spectrogram-transformer":
        frames = _only_length(model, seq, int(config.max_length), "max_length")
        return {"input_values": _real(model, asked.batch, frames, int(config.num_mel_bins))}
    if seq is None:
        raise WrongSize(
            f"{type(model).__name__} reads a waveform; give its samples, --seq N "
            f"(a second has {_SAMPLES_PER_S} at 16 kHz)"
        )
    return {"input_values": _real(model, asked.batch, seq)}


_MAKERS: dict[str, Callable[[nn.Module, _Asked, list[str]], dict[str, Any]]] = {
    "input_ids": _text,
    "pixel_values": _images,
    "input_features": _spectrogram,
    "input_values": _waveform,
}


def _part_with(config: Any, *names: str) -> Any:
    return next((part for name in names if (part := getattr(config, name, None))), config)


def _too_long(model: nn.Module, kwargs: Mapping[str, Any]) -> Iterator[str]:
    """A note where a text is longer than the model is made for.

    Raises:
        WrongSize: Where it is longer than a table of positions. No look-up in it tells, since on
            the meta device there is no index to look at.
    """
    texts = [name for name in ("input_ids", "decoder_input_ids") if name in kwargs]
    for name in texts:
        length, decoder = int(kwargs[name].shape[1]), name == "decoder_input_ids"
        for table, rows in _position_tables(model):
            other_half = "encoder" if decoder else "decoder"
            if length > rows and not ("decoder_input_ids" in texts and other_half in table):
                raise WrongSize(
                    f"--{'target-' if decoder else ''}seq {length} is more than the {rows} "
                    f"positions of this {type(model).__name__} ({table}); give at most {rows}"
                )
        most = value_of(_part_with(model.config, "text_config"), "max_position_embeddings")
        if isinstance(most, int) and length > most > 0:
            yield f"{length} tokens are more than the {most} positions that the config is made for"


def _position_tables(model: nn.Module) -> Iterator[tuple[str, int]]:
    """Look-up tables of the positions of a text, and how many positions each has."""
    for name, module in model.named_modules():
        if not isinstance(module, nn.Embedding) or not _POSITION_TABLE.search(name):
            continue
        if not _NO_TEXT.search(name):
            # Some leave the first rows out: those of fairseq (offset), and those before padding.
            padding = -1 if module.padding_idx is None else module.padding_idx
            skipped: Any = getattr(module, "offset", padding + 1)
            yield name, module.num_embeddings - int(skipped)
