"""One fit: where a step begins and ends, and what is a pause.

    on_train_batch_start   begins a step, unless one is open
    training_step          a micro-batch           (wrapped: LBFGS runs it several times)
    on_train_batch_end     ends the step, if an optimizer has stepped
    validation             a pause                 (wrapped: its workers start before its hooks)
    save_checkpoint        a pause                 (wrapped: no hook is around it)

What is wrapped is wrapped on the instance, and put back when the fit is over.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from mfu_torch.figures import Figures
from mfu_torch.integrations.lightning.batches import Amount, Samples, tokens_in, told
from mfu_torch.integrations.lightning.loggers import TrainerLoggers
from mfu_torch.integrations.lightning.parts import what_to_watch
from mfu_torch.integrations.loop import FollowedLoop
from mfu_torch.resume import state_of_unmeasured

logger = logging.getLogger(__name__)

Method = Callable[..., Any]

KEPT = 5_000
"""Steps whose place on the x axis is kept: a sink may come to them late, on its own thread."""


class Fit:
    """Follows one ``Trainer.fit``.

    Args:
        trainer: The Trainer, of either package.
        loop: Measures; not started yet.
        log_dir: Where the run file goes; ``None``: the Trainer's own folder.
        resumes: Returns what a checkpoint held, once the Trainer has loaded it.
        tokens, samples: Tell those of a batch; by default its shapes do.
        on_error: Takes an error of ours.
    """

    def __init__(
        self,
        trainer: Any,
        loop: FollowedLoop,
        *,
        log_dir: str | None,
        resumes: Callable[[], dict[str, Any] | None],
        tokens: Amount | None,
        samples: Amount | None,
        on_error: Callable[[Exception], None],
    ) -> None:
        self._trainer = trainer
        self._loop = loop
        self._log_dir = log_dir
        self._resumes = resumes
        self._samples = Samples()
        self._amounts = {"tokens": tokens or tokens_in, "samples": samples or self._samples.of}
        self._on_error = on_error
        self._loggers = TrainerLoggers(trainer)
        self._started = self._over = False
        self._announced = False
        self._steps = 0  # as the meter numbers them: an earlier attempt's included
        self._global_step = 0
        self._stepped = False  # an optimizer has, since the last batch
        self._skipped = False  # a batch of the open step had no backward
        self._x: dict[int, int] = {}  # steps completed -> the Trainer's x axis
        self._last_x = 0
        self._watched: list[Any] = []  # loaders
        self._pauses: list[str] = []
        self._shown: float | None = None  # in the progress bar
        self._said: set[str] = set()
        self._undo: list[Callable[[], None]] = []
        strategy = trainer.strategy
        validation = trainer.fit_loop.epoch_loop.val_loop
        self._wrap(trainer, "save_checkpoint", self._saving)
        self._wrap(validation, "run", self._evaluating)
        self._wrap(strategy, "training_step", self._training)
        self._wrap(strategy, "process_dataloader", self._loading)

    # --- the run --------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin the run, unless it has begun: the model is where it trains, and restored."""
        if self._started:
            return
        self._started = True
        trainer, module = self._trainer, self._trainer.lightning_module
        folder = self._log_dir
        if folder is None:  # first of all, and on all ranks: rank 0 sends its own to the others
            folder = trainer.log_dir or trainer.default_root_dir
        resume = self._resumes()
        done = trainer.fit_loop.epoch_loop._batches_that_stepped
        if resume is None and done:
            resume = state_of_unmeasured(
                done, f"the checkpoint after {done} steps has no state of MFUCallback"
            )
        watched = what_to_watch(module, same_work=self._brings_same_work(module))
        self._announced = watched.announced
        sinks = list(self._loggers.sinks(self._x_of)) if trainer.is_global_zero else []
        self._loop.start(
            watched.models,
            log_dir="" if trainer.fast_dev_run else _local(folder),
            sinks=sinks,
            resume=resume,
        )
        self._steps = int(resume["steps"]) if resume else 0

    def begin_training(self) -> None:
        """The first epoch is about to begin."""
        self.start()
        self._watch_running()
        self._global_step = self._trainer.global_step
        if not self._trainer.lightning_module.automatic_optimization:
            # Lightning does not see steps of an optimizer that is used without its wrapper.
            for optimizer in self._trainer.optimizers:
                if isinstance(optimizer, torch.optim.Optimizer):
                    self._undo.append(optimizer.register_step_post_hook(self._has_stepped).remove)

    def _brings_same_work(self, module: Any) -> bool:
        if getattr(module, "_compiler_ctx", None) is not None:
            return True  # training_step itself is compiled: no call inside it can be seen
        if "dataloader_iter" in inspect.signature(module.training_step).parameters:
            return False  # it takes its batches itself: what they are is not known before
        return len(self._trainer.optimizers) < 2

    def _has_stepped(self, *args: Any) -> None:
        self._stepped = True

    def close(self, reason: str) -> None:
        """End the run, if it began; leave nothing behind."""
        self._over = True
        for undo in self._undo:
            undo()
        self._loop.close(reason)
        self._deliver()

    # --- steps ----------------------------------------------------------------------------------

    def begin_batch(self) -> None:
        """A training batch begins."""
        self._loop.begin_step()

    def end_batch(self, batch: object) -> None:
        """A training batch is over: so is the step, if an optimizer has stepped."""
        self._add(batch)
        done = self._trainer.global_step
        if self._stepped or done != self._global_step:
            self._loop.end_step(failed=self._skipped)
            self._stepped, self._skipped, self._global_step = False, False, done
            self._steps += 1
            # As the Trainer logs this batch: LearningRateMonitor's x axis, too.
            self._last_x = self._trainer.fit_loop.epoch_loop._batches_that_stepped
            self._x[self._steps] = self._last_x
            if len(self._x) >= 2 * KEPT:
                # A new one: the thread that writes to TensorBoard may be reading the old.
                self._x = dict(islice(self._x.items(), KEPT, None))
        self._deliver()

    def _add(self, batch: object) -> None:
        self._samples.may_be_short = bool(self._trainer.is_last_batch)
        amounts = {}
        for name, amount in self._amounts.items():
            amounts[name], problem = told(name, amount, batch)
            if problem and name not in self._said:
                self._said.add(name)
                logger.warning(problem)
        self._loop.add(**amounts)

    def _deliver(self) -> None:
        """To the loggers and the progress bar, what has become known since the last time."""
        windows, seen = self._loop.windows(), self._loop.telemetry()
        if not (windows or seen) or not self._trainer.is_global_zero:
            return
        for record in seen:
            self._loggers.write(record, self._x_of(record.after_step))
        for now in windows:
            self._loggers.write(now, self._x_of(now.step))
            self._show(now)

    def _x_of(self, step: int) -> int:
        return self._x.get(step, self._last_x)

    def _show(self, now: Figures) -> None:
        # The dict itself: the property would compute the metrics in it, and wait for the device.
        bar = getattr(self._trainer._logger_connector, "_progress_bar_metrics", None)
        if bar is None or bar.get("mfu", self._shown) != self._shown:
            return  # the training shows an "mfu" of its own
        self._shown = now.mfu
        if now.mfu is None:
            bar.pop("mfu", None)
        else:
            bar["mfu"] = now.mfu

    # --- what is wrapped ------------------------------------------------------------------------

    def _wrap(self, owner: Any, name: str, wrapper: Callable[[Method], Method]) -> None:
        inner = getattr(owner, name)
        before = owner.__dict__.get(name)
        outer = functools.wraps(inner)(wrapper(inner))
        setattr(owner, name, outer)

        def undo() -> None:
            if owner.__dict__.get(name) is not outer:
                return  # somebody has wrapped it since; ours stays below theirs, and does nothing
            if before is None:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

        self._undo.append(undo)

    def _saving(self, save: Method) -> Method:
        def save_checkpoint(*args: Any, **kwargs: Any) -> Any:
            with self._pause("checkpoint"):
                return save(*args, **kwargs)

        return save_checkpoint

    def _evaluating(self, evaluate: Method) -> Method:
        def run(*args: Any, **kwargs: Any) -> Any:
            with self._pause("sanity check" if self._trainer.sanity_checking else "eval"):
                return evaluate(*args, **kwargs)

        return run

    def _training(self, train: Method) -> Method:
        def training_step(*args: Any, **kwargs: Any) -> Any:
            if self._announced:
                self._loop.micro_batch((args[:1], kwargs))  # the batch, and not its number
            elif self._trainer.lightning_module.automatic_optimization:
                self._loop.forward_from_here()  # it runs inside the optimizer's closure
            output = train(*args, **kwargs)
            if self._trainer.lightning_module.automatic_optimization:
                # Batches of this shape are counted with a backward. Lightning skips that of a loss
                # that is None, and all of an epoch that is for the averaged model's statistics.
                skips = getattr(self._trainer.fit_loop, "_skip_backward", False)
                self._skipped |= output is None or skips
            return output

        return training_step

    def _loading(self, process: Method) -> Method:
        def process_dataloader(*args: Any, **kwargs: Any) -> Any:
            loader = process(*args, **kwargs)
            if self._trainer.training and not self._over:
                try:
                    self._watch(loader)
                except Exception as error:  # of ours, inside of the Trainer's set-up
                    self._on_error(error)
            return loader

        return process_dataloader

    def _watch(self, loader: Any) -> None:
        self.start()
        self._watched.append(loader)
        self._loop.watch_loader(loader)
        self._samples.expect(loader)

    def _watch_running(self) -> None:
        """Loaders asked for before the fit, as by ``trainer.estimated_stepping_batches``."""
        combined: Any = getattr(self._trainer.fit_loop, "_combined_loader", None)
        running = getattr(getattr(combined, "_iterator", None), "iterators", None)
        meter = self._loop.meter
        if self._watched or not running or meter is None or not self._loop.running:
            return
        for loader in combined.flattened:  # from the next epoch on
            self._watch(loader)
        running[:] = [iter(meter.data(iterator)) for iterator in running]

    @contextlib.contextmanager
    def _pause(self, name: str) -> Iterator[None]:
        """A pause that interrupts the one it is in: saving inside of validation is saving."""
        self._pauses.append(name)
        self._loop.end_pause()
        self._loop.begin_pause(name)
        try:
            yield
        finally:
            self._loop.end_pause()
            self._pauses.pop()
            if self._pauses:
                self._loop.begin_pause(self._pauses[-1])


def _local(folder: str) -> str:
    """A folder of this machine; nowhere, where it is the address of another."""
    if "://" in str(folder):
        logger.warning(
            "the run file is not written: the Trainer's log_dir is %s, which is no local folder; "
            "MFUCallback(log_dir=...) names one",
            folder,
        )
        return ""
    return str(folder)
