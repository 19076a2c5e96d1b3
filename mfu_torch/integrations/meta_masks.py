"""What in a transformers model asks for data on the meta device: its attention masks.

Attention masks are where transformers looks at data: is anything padded, are several sequences
packed into one row? The inputs made for a count are neither, so :func:`without_data` answers both
with no. A mask that is more than causal, a sliding window say, is computed for real once, without
keeping it, to know how many scores it keeps.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from mfu_torch.flops.meta_attention import mark_mask
from mfu_torch.integrations.configs import offline

_MOST_MASK_ELEMENTS = 2**30  # of which the kept ones are counted; takes a few seconds
_MASK_CHUNK = 2**22


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
