"""Running a transformers model on the meta device: its inputs, and what asks for data.

Attention masks are where transformers looks at data: is anything padded, are several sequences
packed into one row? The inputs made here are neither, so :func:`without_data` answers both with
no. A mask that is more than causal, a sliding window say, is computed for real once, without
keeping it, to know how many scores it keeps.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from mfu_torch.flops.meta_attention import mark_mask
from mfu_torch.integrations.configs import offline
from mfu_torch.records import MFUError, Record

_MOST_MASK_ELEMENTS = 2**30  # of which the kept ones are counted; takes a few seconds
_MASK_CHUNK = 2**22
_SAMPLES_PER_S = 16_000


class InputsError(MFUError):
    """No inputs can be made for a model; the message says why."""


class LengthMissing(InputsError):
    """A length has to be given; the message says which."""


class Inputs(Record, frozen=True, kw_only=True):
    """What a model is called with.

    Attributes:
        kwargs: Name -> tensor on the meta device.
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


def inputs_for(
    model: nn.Module, batch: int, seq: int | None = None, target_seq: int | None = None
) -> Inputs:
    """Inputs of a transformers model, on the meta device.

    Args:
        model: Told by its ``main_input_name`` and the arguments of its forward.
        batch: Sequences, images or recordings.
        seq: Tokens of a text, samples of a waveform, frames of a spectrogram.
        target_seq: Tokens of the decoder of an encoder-decoder; by default ``seq``.

    Raises:
        InputsError: If a length is needed and was not given, or the kind of input is not known.
    """
    main = str(getattr(model, "main_input_name", "input_ids"))
    maker = _MAKERS.get(main)
    if maker is None:
        raise InputsError(
            f"{type(model).__name__} reads {main}, for which no inputs can be made here; "
            f"those that can are {', '.join(_MAKERS)}"
        )
    kwargs = maker(model, batch, seq)
    notes = []
    arguments = inspect.signature(model.forward).parameters
    if "return_loss" in arguments:  # it compares texts with something else, and needs both
        kwargs |= _other_half(model, arguments, batch, seq)
    elif main == "input_ids" and "pixel_values" in arguments:
        notes.append("text alone was counted: the part for images did not run")
    tokens = batch * seq if set(kwargs) == {"input_ids"} and seq is not None else None
    one_pass = tokens is not None
    if getattr(model.config, "is_encoder_decoder", False) and "decoder_input_ids" in arguments:
        length = target_seq or (seq if main == "input_ids" else None)
        if length is None:
            raise LengthMissing(
                f"{type(model).__name__} has a decoder for text; give the length of its text, "
                "--target-seq N"
            )
        kwargs["decoder_input_ids"] = _ids(batch, length)
        tokens, one_pass = tokens and tokens + batch * length, False
        notes += _too_long(model, length)
    if "input_ids" in kwargs and seq is not None:
        notes += _too_long(model, seq)
    notes = list(dict.fromkeys(notes))
    return Inputs(
        kwargs=kwargs, tokens=tokens, one_pass=one_pass, samples=batch, notes=tuple(notes)
    )


def _other_half(
    model: nn.Module, arguments: Mapping[str, Any], batch: int, seq: int | None
) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, maker in _MAKERS.items():
        if name in arguments:
            made |= maker(model, batch, seq)
    return made


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.zeros(batch, length, dtype=torch.long, device="meta")


def _real(model: nn.Module, *shape: int) -> torch.Tensor:
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return torch.zeros(*shape, dtype=dtype, device="meta")


def _text(model: nn.Module, batch: int, seq: int | None) -> dict[str, Any]:
    if seq is None:
        raise LengthMissing(f"{type(model).__name__} reads text; give the length of it, --seq N")
    return {"input_ids": _ids(batch, seq)}


def _images(model: nn.Module, batch: int, seq: int | None) -> dict[str, Any]:
    config = _part_with(model.config, "vision_config", "backbone_config")
    size = getattr(config, "image_size", None)
    if size is None:
        raise InputsError(
            f"{type(model).__name__} reads images and its config has no image_size; add one to it"
        )
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    channels = int(getattr(config, "num_channels", 3))
    frames = getattr(config, "num_frames", None)
    shape = [channels, int(height), int(width)]
    if frames is not None:
        shape.insert(0, int(frames))
    return {"pixel_values": _real(model, batch, *shape)}


def _spectrogram(model: nn.Module, batch: int, seq: int | None) -> dict[str, Any]:
    config: Any = model.config
    bins = getattr(config, "num_mel_bins", 0) or getattr(config, "feature_projection_input_dim", 0)
    if not bins:
        raise InputsError(f"{type(model).__name__} reads features of a size its config lacks")
    positions = getattr(config, "max_source_positions", None)
    if positions is not None and config.model_type == "whisper":
        # Its encoder takes windows of one length: two frames become one position.
        return {"input_features": _real(model, batch, int(bins), 2 * int(positions))}
    if seq is None:
        raise LengthMissing(f"{type(model).__name__} reads a spectrogram; give its frames, --seq N")
    return {"input_features": _real(model, batch, seq, int(bins))}


def _waveform(model: nn.Module, batch: int, seq: int | None) -> dict[str, Any]:
    config: Any = model.config
    if hasattr(config, "max_length") and hasattr(config, "num_mel_bins") and seq is None:
        shape = (batch, int(config.max_length), int(config.num_mel_bins))  # a spectrogram after all
        return {"input_values": _real(model, *shape)}
    if seq is None:
        raise LengthMissing(
            f"{type(model).__name__} reads a waveform; give its samples, --seq N "
            f"(a second has {_SAMPLES_PER_S} at 16 kHz)"
        )
    return {"input_values": _real(model, batch, seq)}


_MAKERS: dict[str, Callable[[nn.Module, int, int | None], dict[str, Any]]] = {
    "input_ids": _text,
    "pixel_values": _images,
    "input_features": _spectrogram,
    "input_values": _waveform,
}


def _part_with(config: Any, *names: str) -> Any:
    return next((part for name in names if (part := getattr(config, name, None))), config)


def _too_long(model: nn.Module, length: int) -> list[str]:
    config = _part_with(model.config, "text_config")
    most = getattr(config, "max_position_embeddings", None)
    if isinstance(most, int) and length > most > 0:
        return [f"{length} tokens are more than the {most} positions that the config is made for"]
    return []


@contextlib.contextmanager
def without_data() -> Iterator[None]:
    """Transformers builds its attention masks without looking at data; nothing is downloaded."""
    try:
        from transformers import masking_utils
    except ImportError:  # before 4.53 every model makes its masks itself
        with offline():
            yield
        return
    masks: dict[str, Any] = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping
    original = masks.get("sdpa")
    packed = getattr(masking_utils, "find_packed_sequence_indices", None)
    with offline():
        try:
            if original is not None:
                masks["sdpa"] = _unpadded(original)
            if packed is not None:
                masking_utils.find_packed_sequence_indices = lambda *_, **__: None
            yield
        finally:
            if original is not None:
                masks["sdpa"] = original
            if packed is not None:
                masking_utils.find_packed_sequence_indices = packed


def _unpadded(mask_of: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(mask_of)

    def without_padding(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.arguments["attention_mask"] = None
        mask = mask_of(*call.args, **call.kwargs)
        if isinstance(mask, torch.Tensor) and mask.is_meta:
            call.apply_defaults()
            kept = _kept(call.arguments)
            if kept is not None:
                mark_mask(mask, kept)
        return mask

    return without_padding


def _kept(call: dict[str, Any]) -> int | None:
    """Scores that a mask keeps, by its own rule on real positions; ``None`` if it needs more."""
    rule, s_q, s_k = call.get("mask_function"), call.get("q_length"), call.get("kv_length")
    if rule is None or not isinstance(s_q, int) or not isinstance(s_k, int):
        return None
    if s_q * s_k > _MOST_MASK_ELEMENTS:
        return None
    first = torch.zeros(1, 1, 1, 1, dtype=torch.long)
    keys = torch.arange(s_k)[None, None, None, :] + int(call.get("kv_offset") or 0)
    queries = torch.arange(s_q)[None, None, :, None] + int(call.get("q_offset") or 0)
    kept = 0
    try:
        for rows in torch.split(queries, max(1, _MASK_CHUNK // s_k), dim=2):
            kept_rows = rule(first, first, rows, keys).expand(1, 1, rows.shape[2], s_k)
            kept += int(torch.count_nonzero(kept_rows))
    except Exception:
        # The rule is a closure of some model. One that looks at a tensor of the model's finds no
        # data in it, and raises what it likes; how many scores it keeps is then not known, and the
        # count says so (MASK_NOT_READ).
        return None
    return kept
