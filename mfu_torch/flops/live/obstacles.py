"""What keeps steps from being counted as they are: compiled code, and work on other threads."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from mfu_torch.flops.dynamo import is_compiled
from mfu_torch.flops.live import reasons as why


class Obstacles:
    """What is known to stand in the way.

    Args:
        models: As given to the meter.

    Attributes:
        blind: Why no step can be counted at all, if so.
        eager: Why steps have to run eagerly to be counted, if they have to.
        meets_compiled: Compiled code was entered in a step.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.blind = why.REPLICAS if any(map(why.has_replicas, models)) else ""
        self.eager = ""
        self.meets_compiled = False
        self._models = models

    def is_compiled(self) -> bool:
        """Whether something compiled runs in the steps, as far as is known."""
        return self.meets_compiled or any(map(is_compiled, self._models))

    def take_eager(self, *, announced: bool) -> None:
        """Compiled code whose inputs are not seen: steps run eagerly to be counted."""
        if announced:
            self.eager = why.COMPILED_INSIDE
        else:
            self.eager = why.COMPILED_LATER if self._models else why.COMPILED_UNSEEN

    def why_unknown(self, *, called: bool) -> str:
        """Why a step has no count so far; ``called``: a call in it was seen."""
        return self.blind or why.unknown(
            compiled=self.meets_compiled and not self.eager,
            not_called=bool(self._models) and not called,
            eager=bool(self.eager),
        )
