"""The callback that is passed to a Hugging Face ``Trainer``.

    Trainer(..., callbacks=[MFUCallback()])

A Trainer calls its callbacks in the order of a list, and two places in it matter. This callback
moves to the front: what it adds to the logs is then written by every reporter. At the end it puts
:class:`~mfu_torch.integrations.huggingface.pauses.MFUPauses`.
"""

from __future__ import annotations

import logging
import math
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from transformers.trainer_callback import CallbackHandler, TrainerCallback

from mfu_torch.figures import Figures, run_figures
from mfu_torch.flops.calls import CallWatch
from mfu_torch.integrations.huggingface.pauses import MFUPauses, never_raises
from mfu_torch.integrations.huggingface.surroundings import (
    caller,
    end_with,
    outputs,
    share_of_process,
    steps_per_window,
    tokens_are_counted,
)
from mfu_torch.integrations.loop import FollowedLoop
from mfu_torch.messages import first_line
from mfu_torch.meter import Meter
from mfu_torch.peak.resolve import Given
from mfu_torch.records import Attention, FlopCount
from mfu_torch.run.sinks import Sink

logger = logging.getLogger(__name__)

# The Trainer's last log has these together, and no other has.
_LAST_LOG = {"train_runtime", "train_loss", "total_flos"}

# Its regular logs have these; those that people add, in a loss function say, have not.
_REGULAR_LOG = {"loss", "learning_rate"}

# Bound once: they are called on the step path.
_graph_task = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled


class MFUCallback(TrainerCallback):
    """Measures MFU in a Hugging Face ``Trainer``; a step is one update of the optimizer.

    MFU, HFU and the end-to-end MFU are in the Trainer's logs (printed, in ``state.log_history`` and
    at every reporter), and all figures, window by window, in the TensorBoard event file. Evaluation
    and saving belong to no step. A run is one ``trainer.train()``.

    Args:
        log_dir: Where the run file goes; by default where ``TensorBoardCallback`` writes, or else
            ``runs/<date and time>`` in the Trainer's ``output_dir``. ``""``: nowhere.
        log_every: Steps per window; by default half of ``logging_steps``, 10 at most.
        peak: FLOP/s of the device, as for :class:`~mfu_torch.meter.Meter`.
        attention: ``"full"`` or ``"causal"``.
        flops: FLOPs of a step, if you know better than the counter.
        sinks: Where figures go besides.
        telemetry: Sample what the device says of itself once a second, on a thread.
        explain_every: Record and break down a few steps after every so many.
        clock: A :class:`~mfu_torch.clock.clocks.Clock`, for tests.

    Raises:
        TypeError, ValueError: If an argument cannot be understood; the message says which.
    """

    def __init__(
        self,
        *,
        log_dir: str | os.PathLike[str] | None = None,
        log_every: int | None = None,
        peak: Given | None = None,
        attention: Attention = "full",
        flops: FlopCount | Mapping[str, float] | None = None,
        sinks: Sequence[Sink] = (),
        telemetry: bool = True,
        explain_every: int | None = None,
        clock: Any = None,
    ) -> None:
        self._log_dir = log_dir
        self._options: dict[str, Any] = {
            "log_dir": log_dir,
            "peak": peak,
            "attention": attention,
            "flops": flops,
            "sinks": sinks,
            "telemetry": telemetry,
            "explain_every": explain_every,
            "clock": clock,
        }
        if log_every is not None:
            self._options["log_every"] = log_every
        self._reset()

    def _reset(self) -> None:
        self.loop = FollowedLoop(**self._options)  # checks the options, and starts nothing
        self._aside = False  # the Trainer has another one, which measures
        self._guards: list[Callable[[], None]] = []  # take away what is around the Trainer's steps
        self.trainer: Callable[[], Any] = lambda: None
        self._last: MFUPauses | None = None
        self._watch: CallWatch | None = None
        self._main_input = "input_ids"
        self._in_step = False
        self._tokens = self._samples = 0  # of the step in progress
        self._tokens_counted = 0  # by the Trainer, when the last step ended

    def __getstate__(self) -> dict[str, Any]:
        """Copied and pickled without the run: that has files and threads."""
        return {"_log_dir": self._log_dir, "_options": self._options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    @property
    def meter(self) -> Meter | None:
        """Of the run in progress, or of the last one; ``None`` before ``trainer.train()``."""
        return self.loop.meter

    def summary(self) -> str:
        """The report of the run, as ``mfu-torch report`` prints it.

        Raises:
            RuntimeError: Before the first run.
        """
        return self.loop.summary()

    # --- the run --------------------------------------------------------------------------------

    @never_raises
    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take both places in the list."""
        self._take_places()

    @never_raises
    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Find the Trainer. The run begins at the end of the list."""
        self.stop("training did not end: it was interrupted, or an exception left it")
        handler = self._take_places()
        if self._aside:
            return
        trainer = caller(lambda one: getattr(one, "callback_handler", self) is handler)
        self.trainer = (lambda: None) if trainer is None else weakref.ref(trainer)
        if self._last is None:  # called by something else than a Trainer
            self.start(args, state, **kwargs)
        else:
            self._last.begins = True

    def _take_places(self) -> Any:
        handler = caller(lambda one: isinstance(one, CallbackHandler) and self in one.callbacks)
        if handler is None:
            return None
        here = handler.callbacks.index(self)
        pauses = [one for one in handler.callbacks if isinstance(one, MFUPauses)]
        if any(one.owner is not self and one.owner in handler.callbacks for one in pauses):
            if not self._aside:
                logger.warning("this Trainer has an MFUCallback already; the second does nothing")
            self._aside = True
            return handler
        # The list is being iterated over, and this is its current item: moving it to the front
        # shifts only what was called already.
        to_come = [one for one in pauses if handler.callbacks.index(one) > here]
        for one in pauses:
            one.owner = None  # of a callback that was removed, say
        last = to_come[0] if to_come else MFUPauses()
        handler.callbacks.remove(self)
        handler.callbacks.insert(0, self)
        if to_come:
            handler.callbacks.remove(last)
        handler.callbacks.append(last)
        last.owner = self
        last.callbacks = handler.callbacks
        self._last = last
        self._aside = False
        return handler

    def start(self, args: Any, state: Any, **kwargs: Any) -> None:
        """Begin the run of a ``trainer.train()``.

        Args:
            args: The ``TrainingArguments``.
            state: The ``TrainerState``.
            **kwargs: What hooks are given besides.
        """
        trainer = self.trainer()
        model = getattr(trainer, "model_wrapped", None)
        model = kwargs["model"] if model is None else model
        handler = getattr(trainer, "callback_handler", None)
        callbacks = getattr(handler, "callbacks", ())
        log_dir, sinks = outputs(self._log_dir, args, state, callbacks)
        self.loop = self._loop_for(args, state, log_dir)
        self.loop.start([model], log_dir=log_dir, sinks=sinks)
        if not self.loop.running:
            return
        self.loop.watch_loader(kwargs.get("train_dataloader"))
        self._main_input = getattr(kwargs["model"], "main_input_name", "input_ids")
        self._in_step = False
        self._tokens = self._samples = 0
        self._tokens_counted = state.num_input_tokens_seen
        self._watch = CallWatch(model, self._called)
        self._watch.attach()
        for owner, name in ((trainer, "training_step"), (handler, "call_event")):
            self._guards.append(end_with(owner, name, weakref.ref(self)))

    def _loop_for(self, args: Any, state: Any, log_dir: Any) -> FollowedLoop:
        options = {"log_every": steps_per_window(args, state)} | self._options
        options["log_dir"] = log_dir
        saved = MFUPauses.saved_in(state)
        try:
            return FollowedLoop(**options, resume=saved)
        except (TypeError, ValueError) as error:  # a checkpoint of another version, or edited
            logger.warning(
                "the run is not continued, steps are counted anew: %s", first_line(error)
            )
            return FollowedLoop(**options)

    def stop(self, reason: str) -> None:
        """End the run, if there is one."""
        self._in_step = False
        while self._guards:
            self._guards.pop()()
        self.loop.close(reason)
        if self._watch is not None:
            self._watch.detach()  # after the meter's own watch, which is below it
            self._watch = None

    @never_raises
    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the run."""
        self.stop("completed")

    # --- steps ----------------------------------------------------------------------------------

    @never_raises
    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The first micro-batch of an update begins."""
        self.loop.begin_step()
        self._in_step = self.loop.running

    def _called(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called; shapes say what it is trained on, without waiting for the device."""
        if not self._in_step or not _is_grad_enabled() or _graph_task() != -1:
            return  # evaluation, a reference model, a recomputation
        inputs = kwargs.get(self._main_input, args[0] if args else None)
        if not isinstance(inputs, torch.Tensor):
            inputs = next((one for one in kwargs.values() if isinstance(one, torch.Tensor)), None)
        if inputs is None or not inputs.ndim:
            return
        self._samples += inputs.shape[0]
        if not inputs.is_floating_point():  # ids of tokens, not pixels
            self._tokens += inputs.numel()

    @never_raises
    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        tokens, samples = self._tokens, self._samples
        self._tokens = self._samples = 0
        self._in_step = False
        if tokens_are_counted(args):
            before, self._tokens_counted = self._tokens_counted, state.num_input_tokens_seen
            tokens = share_of_process(state.num_input_tokens_seen - before, args)
        self.loop.add(tokens=tokens or None, samples=samples or None)
        self.loop.end_step()

    # --- logs -----------------------------------------------------------------------------------

    @never_raises
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the figures of the steps since the last log, before anybody writes it.

        The Trainer's last log, which ``train()`` returns, is of the whole training.
        """
        keys = set(logs or ())
        if not self.loop.running or not (keys & _REGULAR_LOG or keys >= _LAST_LOG):
            return
        if keys >= _LAST_LOG:
            self.stop("completed")
            windows = [run_figures(self.meter.run)] if self.meter is not None else []
            values = {f"train_{name}": value for name, value in logged(windows).items()}
        else:
            windows = self.loop.windows()
            values = logged(windows)
        values = {name: value for name, value in values.items() if name not in logs}  # the user's
        logs.update(values)
        history = state.log_history
        if history and history[-1].get("step") == state.global_step:
            history[-1].update(values)  # a copy of the logs, made before this hook


def logged(windows: Sequence[Figures]) -> dict[str, float]:
    """What stands in the logs, of consecutive windows; what is not known for all is left out.

    Rates and utilizations of a window, times its time, are FLOPs and tokens: they can be summed.
    """
    steady = [window for window in windows if window.steps and window.time_s > 0]
    values: dict[str, float] = {}
    for name, key, unit in (
        ("mfu", "mfu", 1.0),
        ("hfu", "hfu", 1.0),
        ("model_flops_per_s", "model_tflops_per_s", 1e-12),
        ("tokens_per_s", "tokens_per_s", 1.0),
    ):
        rates = [getattr(window, name) for window in steady]
        if steady and None not in rates:
            amount = math.fsum(
                rate * window.time_s for rate, window in zip(rates, steady, strict=True)
            )
            values[key] = amount * unit / math.fsum(window.time_s for window in steady)
    if windows and windows[-1].end_to_end is not None:
        values["mfu_end_to_end"] = windows[-1].end_to_end
    return values
