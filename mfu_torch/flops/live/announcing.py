"""Micro-batches that the loop announces, where no call of one model stands for them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import nn

from mfu_torch.flops.calls import CallWatch
from mfu_torch.flops.live.elsewhere import Elsewhere
from mfu_torch.flops.live.microbatches import ANNOUNCED
from mfu_torch.flops.shapes.signature import autocast_in_force, signature


class Announcing:
    """What is announced, and whether work of a step is where its count does not see it.

    Args:
        models: As given to the meter.
        watches: Of the models: they stay, to notice calls on other threads.

    Attributes:
        begun: Micro-batches are announced, on some steps at least.
        elsewhere: Work on other threads.
    """

    def __init__(self, models: Sequence[nn.Module], watches: Sequence[CallWatch]) -> None:
        self.begun = False
        self.elsewhere = Elsewhere(watches)
        self._models = models

    def begin(self, *, counted: bool) -> None:
        """The first micro-batch is announced, in a step that is counted or not."""
        self.begun = True
        if not counted:
            self.elsewhere.begin()

    def inputs(self, batch: object) -> Hashable | None:
        """The signature of what is announced; ``None`` on another thread than the step's."""
        if not self.elsewhere.is_announced_here():
            return None
        training = any(model.training for model in self._models)
        state = (ANNOUNCED, training, torch.is_grad_enabled(), autocast_in_force())  # as STATE
        return signature((batch,), {}, *state)
