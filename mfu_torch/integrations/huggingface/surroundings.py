"""What a callback has to know of the Trainer around it, and is not told."""

from __future__ import annotations

import functools
import logging
import sys
import weakref
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from mfu_torch.run.sinks import Sink

logger = logging.getLogger(__name__)

WINDOW_STEPS = 10
"""Most steps per window, unless ``log_every`` says otherwise."""

CALLERS_LIMIT = 16
"""Frames looked at: the Trainer's is the fourth above a hook in transformers 4.5x and 5.x."""


def caller(is_wanted: Callable[[Any], bool]) -> Any:
    """The nearest object that is wanted, of those whose methods are running; ``None`` without one.

    Hooks are not handed the Trainer, which has the compiled or wrapped model and the list of
    callbacks, but it is the caller of their caller.
    """
    frame = sys._getframe(1)
    for _ in range(CALLERS_LIMIT):
        if frame.f_code.co_varnames[:1] == ("self",):
            owner = frame.f_locals.get("self")
            if owner is not None and is_wanted(owner):
                return owner
        if frame.f_back is None:
            break
        frame = frame.f_back
    return None


class Stoppable(Protocol):
    """What has a run that can end."""

    def stop(self, reason: str) -> None:
        """End the run, if there is one."""


def end_with(owner: Any, name: str, measuring: weakref.ref[Any]) -> Callable[[], None]:
    """End the run where an exception, or Ctrl-C, leaves a method of the Trainer's.

    No hook tells of it. The exception goes on as it came.

    Args:
        owner: Whose method it is.
        name: Its name.
        measuring: What has the run, a :class:`Stoppable`.

    Returns:
        What puts the method back.
    """
    inner = getattr(owner, name, None)
    if inner is None or name in vars(owner):  # none, or somebody else's, who may rely on it
        return lambda: None

    @functools.wraps(inner)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return inner(*args, **kwargs)
        except BaseException as error:
            one: Stoppable | None = measuring()
            if one is not None:
                one.stop(type(error).__name__)
            raise

    setattr(owner, name, guarded)

    def undo() -> None:
        if vars(owner).get(name) is guarded:
            delattr(owner, name)

    return undo


def steps_per_window(args: Any, state: Any) -> int:
    """So many that a window is over whenever the Trainer logs, if it logs every few steps."""
    if str(getattr(args.logging_strategy, "value", args.logging_strategy)) != "steps":
        return WINDOW_STEPS
    return max(1, min(WINDOW_STEPS, int(state.logging_steps) // 2))


def outputs(
    log_dir: Any, args: Any, state: Any, callbacks: Iterable[Any]
) -> tuple[Any, list[Sink]]:
    """Folder of the run file, and the sinks of a run.

    Args:
        log_dir: As it was given to the callback; ``None`` if it was not.
        args: The ``TrainingArguments``.
        state: The ``TrainerState``.
        callbacks: All of the Trainer's: ``TensorBoardCallback`` has a writer. A second event file
            in its folder would hide the first from TensorBoard, which follows the newest.
    """
    writers = (getattr(callback, "tb_writer", None) for callback in callbacks)
    writer = next((one for one in writers if one is not None), None)
    folder = log_dir
    if folder is None:
        folder = getattr(writer, "log_dir", None) or getattr(writer, "logdir", None)
    if folder is None and not state.is_world_process_zero:
        # Its name has the time of day, which differs between processes; to agree on one they would
        # have to talk, and those without a callback would not answer.
        folder = ""
    if folder is None:
        name = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        folder = Path(args.output_dir) / "runs" / name / (state.trial_name or "")
    if not state.is_world_process_zero:
        return folder, []
    events = [] if folder == "" else _tensorboard(folder, writer, args)
    return folder, events


def _tensorboard(folder: Any, writer: Any, args: Any) -> list[Sink]:
    # The Trainer writes its arguments as a text: it has no table that runs could be sorted in.
    names = ("learning_rate", "per_device_train_batch_size", "gradient_accumulation_steps")
    hparams = {name: getattr(args, name) for name in names}
    try:
        from mfu_torch.integrations.tensorboard import TensorBoardSink

        if writer is not None:
            return [TensorBoardSink(writer=writer, hparams=hparams)]
        # Events of a later run in the same folder stand apart, or TensorBoard mixes the curves.
        earlier = len([path for path in Path(folder).glob("run*.jsonl") if "rank" not in path.name])
        place = Path(folder) / f"run-{earlier + 1}" if earlier else folder
        return [TensorBoardSink(place, hparams=hparams)]
    except (ImportError, OSError) as error:
        logger.warning("no TensorBoard events of mfu_torch are written: %s", error)
        return []


def tokens_are_counted(args: Any) -> bool:
    """Whether the Trainer counts tokens itself, and waits for the device to do so."""
    return getattr(args, "include_num_input_tokens_seen", "no") not in ("no", False, None)


def share_of_process(total: int, args: Any) -> int:
    """This process's part of what the Trainer counted over all of them; the parts sum to it."""
    part, rest = divmod(total, int(args.world_size))
    return part + (1 if args.process_index < rest else 0)


def is_best(args: Any, state: Any, metrics: dict[str, Any]) -> bool:
    """Whether a Trainer that saves the best model will find these metrics better than before."""
    if str(getattr(args.save_strategy, "value", args.save_strategy)) != "best":
        return False
    name = args.metric_for_best_model or ""
    value = metrics.get(name if name.startswith("eval_") else f"eval_{name}")
    if value is None or state.best_metric is None:
        return value is not None
    return bool(value > state.best_metric if args.greater_is_better else value < state.best_metric)
