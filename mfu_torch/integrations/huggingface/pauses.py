"""The last of the Trainer's callbacks: sees evaluation and saving come."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any, Protocol

from transformers.trainer_callback import ExportableState, TrainerCallback

from mfu_torch.integrations.huggingface.surroundings import is_best
from mfu_torch.integrations.loop import FollowedLoop
from mfu_torch.messages import first_line
from mfu_torch.resume import state_of_unmeasured

logger = logging.getLogger(__name__)

Hook = Callable[..., None]


def never_raises(hook: Hook) -> Hook:
    """A hook that gives up measuring where it would raise: training would end there."""

    @functools.wraps(hook)
    def guarded(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        try:
            hook(self, args, state, control, **kwargs)
        except Exception as error:  # the Trainer does not catch what a callback raises
            logger.warning(
                "mfu_torch stopped measuring after an internal error in %s (%s: %s). Training goes "
                "on. Please report it with this traceback.",
                hook.__name__,
                type(error).__name__,
                first_line(error),
                exc_info=error,
            )
            with contextlib.suppress(Exception):  # it was said that measuring ended
                self.stop(f"an internal error: {type(error).__name__}")

    return guarded


class Owner(Protocol):
    """The callback that the user passed."""

    loop: FollowedLoop

    def start(self, args: Any, state: Any, **kwargs: Any) -> None:
        """Begin the run."""

    def stop(self, reason: str) -> None:
        """End it."""

    def trainer(self) -> Any:
        """The Trainer, if it was found."""


class MFUPauses(TrainerCallback, ExportableState):
    """Tells evaluation and saving from training, and keeps the run's state in checkpoints.

    ``MFUCallback`` puts it at the end of the list, where all others have decided what comes next.
    Hooks tell when an evaluation and a save are over, not when they begin. Where callbacks are
    restored from a checkpoint, the Trainer replaces it, and ``MFUCallback`` adopts the new one.

    Attributes:
        owner: The callback that put it there; ``None`` until then.
        pause: Name of the pause that is going on; empty outside.
        begins: A training has begun, and its run has not.
        saved: State that was read from a checkpoint.
    """

    def __init__(self) -> None:
        self.owner: Owner | None = None
        self.callbacks: list[Any] = []  # of the Trainer; its own list
        self.pause = ""
        self.begins = False
        self.saved: dict[str, Any] | None = None
        self._due = ""  # the pause that begins after the log
        self._evaluations = 0  # still to come in this pause

    def state(self) -> dict[str, Any]:
        """What stands in ``trainer_state.json``."""
        saved = self.saved if self.owner is None else self.owner.loop.state()
        return {"args": {}, "attributes": {"saved": saved}}

    @classmethod
    def saved_in(cls, state: Any) -> dict[str, Any] | None:
        """The state of the run that a checkpoint continues; ``None`` if training starts anew.

        Without a checkpoint the Trainer asks for states, too, as they were before the training.
        """
        if not state.global_step:
            return None
        stored = (state.stateful_callbacks or {}).get(cls.__name__)
        if isinstance(stored, list):
            stored = stored[-1]
        saved: dict[str, Any] | None = ((stored or {}).get("attributes") or {}).get("saved")
        done = state.global_step
        if saved is None or saved.get("steps", done) < done:  # or of another training, before it
            why = f"the checkpoint after {done} steps has no state of MFUCallback"
            saved = state_of_unmeasured(done, why)
        return saved

    def stop(self, reason: str) -> None:
        """End the run, if there is one."""
        if self.owner is not None:
            self.owner.stop(reason)

    @never_raises
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin the run: the reporters before this one have their files."""
        self.pause = self._due = ""
        begins, self.begins = self.begins, False
        if self.owner is None or not begins:  # it was taken from the list, this was not
            return
        self.owner.start(args, state, **kwargs)
        # The Trainer looks it up at every save; a checkpoint written without it has none.
        state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        if getattr(args, "eval_on_start", False):
            self._begin("eval")

    @never_raises
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Whatever came between two steps is over."""
        self._end()

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See what comes next; the run ends where its callback was removed."""
        if self.owner is not None and self.owner not in self.callbacks:
            self.stop("its callback was removed")
        self._foresee(control)

    @never_raises
    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See what comes next."""
        self._foresee(control)

    def _foresee(self, control: Any) -> None:
        if control.should_evaluate or control.should_save:
            self._due = "eval" if control.should_evaluate else "checkpoint"
            if not control.should_log:
                self._begin(self._due)

    @never_raises
    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A log comes before evaluation and saving."""
        if self._due:
            self._begin(self._due)

    @never_raises
    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """If nobody announced this evaluation, it is known from now on."""
        if not self.pause:
            self._begin("eval")

    @never_raises
    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any
    ) -> None:
        """One dataset is evaluated; there may be others, and a save."""
        self._evaluations -= 1
        if self._evaluations > 0:
            return
        self._end()
        if control.should_save or is_best(args, state, metrics or {}):
            self._begin("checkpoint")

    @never_raises
    def on_predict(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Predictions are made."""
        self._end()

    @never_raises
    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A checkpoint is written."""
        self._end()

    def _begin(self, name: str) -> None:
        self._due = ""
        if self.owner is None or not self.owner.loop.running or self.pause:
            return
        self.pause = name
        datasets = getattr(self.owner.trainer(), "eval_dataset", None)
        self._evaluations = len(datasets) if isinstance(datasets, dict) else 1
        self.owner.loop.begin_pause(name)

    def _end(self) -> None:
        self.pause = self._due = ""
        if self.owner is not None:
            self.owner.loop.end_pause()
