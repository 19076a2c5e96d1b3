"""Calls of a compiled model, counted on its shadow; what runs beside them, on one step."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from mfu_torch.flops.live.known import KnownCounts
from mfu_torch.flops.live.microbatches import Piece
from mfu_torch.flops.live.obstacles import Obstacles
from mfu_torch.flops.live.outside import EXPECTED, OutsideLook
from mfu_torch.flops.shadow import ShadowError, shadow_count
from mfu_torch.flops.shapes.columns import CountedCall

logger = logging.getLogger(__name__)


class Shadowed:
    """Counts in place of steps that a compiled model runs in.

    Args:
        known: Where the counts belong.
        obstacles: Is told where no shadow can be made.

    Attributes:
        outside: The look at what runs beside.
    """

    def __init__(self, known: KnownCounts, obstacles: Obstacles) -> None:
        self.outside = OutsideLook()
        self._known = known
        self._obstacles = obstacles

    def count(
        self, call: int, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> bool:
        """Count a call of a compiled model; whether its shadow could be."""
        piece = shadow_piece(model, args, kwargs)
        if isinstance(piece, str):
            self._obstacles.eager = piece
            return False
        micro = self._known.micro
        micro.observe(call, piece)
        if self.outside.expect() and not micro.beside:
            micro.put_beside(self._known.publish_unknown(EXPECTED))
        return True

    def end_outside(self, step: int, *, failed: bool) -> bool:
        """The step ends in which the rest was looked at; whether that is known now."""
        count = self.outside.end(step, failed=failed)
        if count is None:
            return False
        self._known.publish(count, *self._known.micro.beside)
        self._known.settle()
        return True


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
