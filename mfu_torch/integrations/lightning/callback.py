"""The callback: one line in a Trainer's arguments.

trainer = Trainer(callbacks=[MFUCallback()])
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mfu_torch.integrations.lightning.batches import check_amount
from mfu_torch.integrations.lightning.fit import Fit
from mfu_torch.integrations.lightning.package import base_class, callback_classes
from mfu_torch.integrations.loop import FollowedLoop
from mfu_torch.messages import first_line
from mfu_torch.meter import Meter

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
else:
    Callback = base_class()

logger = logging.getLogger(__name__)

Hook = Callable[..., Any]

_MADE_OF = "_made_of"
"""In a class that ``__new__`` made: the one that can be found by its name."""


def _never_raises(hook: Hook) -> Hook:
    @functools.wraps(hook)
    def guarded(self: MFUCallback, *args: Any, **kwargs: Any) -> None:
        if not isinstance(self, MFUCallback):  # called on the class, with the Trainer
            raise TypeError(
                "callbacks has the class MFUCallback; expected an instance: "
                "Trainer(callbacks=[MFUCallback()])"
            )
        # A Trainer passes on what a callback raises: training would end there.
        try:
            hook(self, *args, **kwargs)
        except Exception as error:
            self._give_up(error)

    return guarded


class MFUCallback(Callback):
    """Shows the MFU of a fit wherever its Trainer logs, and keeps a run file beside the logs.

    A step is one optimizer update with all its micro-batches; validation, the sanity check and
    checkpoints are pauses. ``validate``, ``test`` and ``predict`` are left alone.

    Args:
        log_dir: Where the run file goes; by default the Trainer's ``log_dir``. ``""``: nowhere.
        tokens: Tells the tokens of a batch; by default the elements of its ``input_ids``, where it
            has any.
        samples: Tells the samples of a batch; by default the length that all its tensors have in
            common, if the loader was asked for that many.
        **meter_options: As for :class:`~mfu_torch.meter.Meter`: ``peak``, ``attention``, ``flops``,
            ``telemetry``, ``explain_every``; ``log_every``, by default the Trainer's
            ``log_every_n_steps``; ``sinks``, besides the Trainer's loggers.

    Attributes:
        meter: Of the fit in progress, or of the last one; ``None`` before the first.

    Raises:
        TypeError, ValueError: If an option cannot be understood; the message says which.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> MFUCallback:
        """Of every package that is imported by now: it may be another than at the import."""
        missing = [base for base in callback_classes() if not issubclass(cls, base)]
        if missing:
            names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, _MADE_OF: cls}
            cls = type(cls.__name__, (cls, *missing), names)
        return super().__new__(cls)

    def __init__(
        self,
        *,
        log_dir: str | None = None,
        tokens: Callable[[Any], int] | None = None,
        samples: Callable[[Any], int] | None = None,
        **meter_options: Any,
    ) -> None:
        check_amount("tokens", tokens)
        check_amount("samples", samples)
        self._tokens = tokens
        self._samples = samples
        self._loop = FollowedLoop(log_dir=log_dir, **meter_options)
        self._log_dir = log_dir
        self._options = meter_options
        self._fit: Fit | None = None
        self._resume: dict[str, Any] | None = None

    def __reduce__(self) -> Any:
        """Without the fit in progress; of whatever package is imported where it is loaded."""
        public = type(self).__dict__.get(_MADE_OF, type(self))
        # A Trainer lends its callbacks the methods of the model that it trains.
        state = {key: value for key, value in self.__dict__.items() if not key.startswith("log")}
        return _new, (public,), state | {"_fit": None}

    @property
    def meter(self) -> Meter | None:
        """Of the fit in progress, or of the last one."""
        return self._loop.meter

    def summary(self) -> str:
        """The report of the last fit, as ``mfu-torch report`` prints it.

        Raises:
            RuntimeError: Before the first.
        """
        return self._loop.summary()

    # --- the hooks of a fit ---------------------------------------------------------------------

    @_never_raises
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget what a checkpoint held that was not trained on."""
        self._resume = None

    @_never_raises
    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Follow this fit; its run begins later, when the checkpoint is loaded on any strategy."""
        self._close("a new fit")  # of one that ended without a word: a tuner's
        options: dict[str, Any] = {"device": trainer.strategy.root_device}
        if trainer.log_every_n_steps:
            options["log_every"] = trainer.log_every_n_steps
        options |= self._options
        self._loop = FollowedLoop(**options)
        self._fit = Fit(
            trainer,
            self._loop,
            log_dir=self._log_dir,
            resumes=lambda: self._resume,
            tokens=self._tokens,
            samples=self._samples,
            on_error=self._give_up,
        )

    @_never_raises
    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the run."""
        if self._fit is not None:
            self._fit.start()

    @_never_raises
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin the run, where there was no sanity check."""
        if self._fit is not None:
            self._fit.begin_training()

    @_never_raises
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Begin a step, unless micro-batches of one are being accumulated."""
        if self._fit is not None:
            self._fit.begin_batch()

    @_never_raises
    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the step, if an optimizer has stepped."""
        if self._fit is not None:
            self._fit.end_batch(batch)

    @_never_raises
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the run."""
        self._close("completed")

    @_never_raises
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """End the run, with the reason."""
        self._close(type(exception).__name__)

    # --- a checkpoint ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """What a later attempt has to know."""
        return self._loop.state() or {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, in the fit that begins."""
        try:
            FollowedLoop(resume=state_dict)  # checks it, and starts nothing
        except (TypeError, ValueError) as error:
            logger.warning("the checkpoint's state cannot be gone on from: %s", error)
        else:
            self._resume = state_dict

    # --------------------------------------------------------------------------------------------

    def _close(self, reason: str) -> None:
        fit, self._fit = self._fit, None
        if fit is not None:
            fit.close(reason)

    def _give_up(self, error: Exception) -> None:
        logger.warning(
            "mfu_torch stopped measuring after an internal error (%s: %s). Training goes on. "
            "Please report it with this traceback.",
            type(error).__name__,
            first_line(error),
            exc_info=error,
        )
        fit, self._fit = self._fit, None
        if fit is not None:
            try:
                fit.close(f"an internal error: {type(error).__name__}")
            except Exception as other:  # the second of two failures: the first one was told
                logger.debug("closing failed, too", exc_info=other)


def _new(cls: type[MFUCallback]) -> MFUCallback:
    return cls.__new__(cls)
