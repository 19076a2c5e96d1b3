"""Whether the model itself has changed: layers frozen, added, cast, or checkpointed."""

from __future__ import annotations

import time
import weakref
from collections.abc import Hashable

from torch import nn

SHARE_OF_TIME = 0.001
"""Looking over a large model takes long: this share of the run's time is spent on it, at most."""


class Structure:
    """Looks a model over, from time to time.

    Attributes:
        note: What has to be said of counts made after a change.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self.note = ""
        self._model = weakref.ref(model) if model is not None else None
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
        model = self._model() if self._model is not None else None
        if model is None:
            return ()
        modules = tuple(
            (id(module), getattr(module, "gradient_checkpointing", None))
            for module in model.modules()
        )
        return modules, tuple((p.requires_grad, p.dtype) for p in model.parameters())
