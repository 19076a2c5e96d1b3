"""One call of a compiled model, counted on its shadow."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from mfu_torch.flops.live.microbatches import Piece
from mfu_torch.flops.shadow import ShadowError, shadow_count
from mfu_torch.flops.shapes.columns import CountedCall

logger = logging.getLogger(__name__)


def shadow_piece(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Piece | str:
    """What a call of a compiled model and its backward need; or why its shadow does not tell."""
    op_calls: list[CountedCall] = []
    try:
        count = shadow_count(model, args, kwargs, op_calls)
    except ShadowError as error:
        logger.warning(
            "no shadow of the compiled model can be counted: %s. One step runs eagerly, to be "
            "counted.",
            error,
        )
        return str(error)
    return Piece(count, tuple(op_calls))
