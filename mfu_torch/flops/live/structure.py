"""Whether the model itself has changed: layers frozen, added, cast, or checkpointed."""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable, Sequence

from torch import nn

SHARE_OF_TIME = 0.001
"""Looking over a large model takes long: this share of the run's time is spent on it, at most."""


class Structure:
    """Looks the models over, from time to time.

    Attributes:
        note: What has to be said of counts made after a change.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.note = ""
        self._models = [weakref.ref(model) for model in models]
        self._next_look_s = 0.0
        self._seen = self._look()

    def changed(self) -> bool:
        """Whether it is another than at the last look."""
        now_s = time.perf_counter()
        if now_s < self._next_look_s:
            return False
        seen = self._look()
        spent_s = time.perf_counter() - now_s
        self._next_look_s = now_s + spent_s / SHARE_OF_TIME
        changed = seen != self._seen
        self._seen = seen
        if changed:
            self.note = (
                "the model was changed during the run (frozen, cast, extended, or checkpointed "
                "otherwise): steps between the change and the window in which it was noticed have "
                "the count from before it"
            )
        return changed

    def _look(self) -> Hashable:
        models = [model for ref in self._models if (model := ref()) is not None]
        modules = tuple(
            (id(module), getattr(module, "gradient_checkpointing", None))
            for model in models
            for module in model.modules()
        )
        parameters = (p for model in models for p in model.parameters())
        return modules, tuple((p.requires_grad, p.dtype) for p in parameters)
