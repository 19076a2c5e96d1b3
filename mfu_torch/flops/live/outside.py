"""What a step runs beside a compiled model whose shadow is counted: looked at on one step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mfu_torch.flops.calls import CallWatch
from mfu_torch.flops.counter import CAN_WATCH, FlopCounter
from mfu_torch.records import FlopCount

EXPECTED = "what runs beside the compiled model is looked at on the step after the first"
_graph_task = torch._C._current_graph_task_id


class OutsideLook:
    """Counts, on one step, the ops outside of the model's forward and of autograd's engine.

    Attributes:
        wanted: The next step is to be looked at.
        active: This one is.
    """

    def __init__(self) -> None:
        self.wanted = False
        self._done = not CAN_WATCH
        self._counter: FlopCounter | None = None

    @property
    def active(self) -> bool:
        """Whether this step is being looked at."""
        return self._counter is not None

    def expect(self) -> bool:
        """A shadow was counted: look at a later step, unless one was looked at."""
        self.wanted = not self._done
        return self.wanted

    def begin(self, watches: Sequence[CallWatch]) -> None:
        """Look at the step that begins."""
        self.wanted = False

        def is_outside() -> bool:
            return _graph_task() == -1 and not any(watch.inside for watch in watches)

        counter = FlopCounter(where=is_outside)
        counter.__enter__()
        self._counter = counter

    def stop(self) -> FlopCounter | None:
        """Leave nothing behind."""
        counter, self._counter = self._counter, None
        if counter is not None:
            counter.__exit__(None, None, None)
        return counter

    def end(self, step: int, *, failed: bool) -> FlopCount | None:
        """What was seen; ``None`` where the step failed, and another one is looked at."""
        counter = self.stop()
        if counter is None or failed:
            self.wanted = True
            return None
        self._done = True
        count = counter.take(f"counted on step {step}, beside the compiled model")
        notes = []
        if count.hardware:
            notes.append(f"what runs beside the compiled model is as on step {step}")
        if count.forward:
            # Inside the engine, what belongs to the model cannot be told from what does not.
            notes.append(
                "contractions outside of the compiled model, in the loss say: their forward is in "
                "the count, their backward (about twice as much) is not"
            )
        return count + FlopCount(notes=tuple(notes))
