"""Sees where a step's forward, backward and optimizer begin and end, whoever's loop it is.

    forward     calls of the models, by the watch that also shows their inputs
    backward    the engine's one entry in ``torch.autograd``, wrapped while the run goes on
    optimizer   torch's hooks around the step of any optimizer

In code that is compiled as a whole, backward and optimizer included, none of it is seen: what
Dynamo traces only passes the call on, so that it compiles the same graphs, once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mfu_torch.clock.clocks import Clock, CudaClock, HostClock, SyncClock
from mfu_torch.clock.ledger import OpenStep
from mfu_torch.clock.parts import BACKWARD, FORWARD, OPTIMIZER, PartMark, Splitter
from mfu_torch.flops.calls import CallWatch

# The engine's entry is one function under two names.
_ENGINE = "_engine_run_backward"
_ENGINE_MODULES = (torch.autograd, torch.autograd.graph)

HOST_MARK_COST_S = 3e-6
"""Rounded up from the 2.5 us that ``benchmarks/step_parts.py`` measured on an AMD EPYC with two
busy cores: a mark and its share of what a split step costs besides."""

DEVICE_MARK_COST_S = 1e-5
"""An event recorded, asked about and read, each some microseconds of a CUDA call."""

_graph_task = torch._C._current_graph_task_id
_is_compiling = torch.compiler.is_compiling


def splitter_for(
    models: Sequence[nn.Module],
    clock: Clock,
    device: torch.device,
    on_error: Callable[[Exception], None],
) -> StepSplitter | None:
    """Splits the steps of a run; ``None`` where that would not tell the truth.

    That is where every mark stalls the device (``Meter(sync=True)``), and where the host's clock
    is read while another device computes.
    """
    if type(clock) is SyncClock or (type(clock) is HostClock and device.type != "cpu"):
        return None
    return StepSplitter(models, clock, on_error)


class StepSplitter:
    """Splits the steps of a run, between ``attach`` and ``detach``.

    Args:
        models: Their calls are the forward.
        clock: The run's.
        on_error: Called with an error of the clock, which must not reach the training loop.
    """

    def __init__(
        self, models: Sequence[nn.Module], clock: Clock, on_error: Callable[[Exception], None]
    ) -> None:
        cost_s = DEVICE_MARK_COST_S if isinstance(clock, CudaClock) else HOST_MARK_COST_S
        self._splitter = Splitter(clock, cost_s, getattr(clock, "may_mark", None))
        self._clock = clock
        self._on_error = on_error
        self._watches = [CallWatch(model, self._called, self._returned) for model in models]
        self._handles: list[Any] = []
        self._entry: functools.partial[Any] | None = None
        self._attached = False

    def attach(self) -> None:
        """Watch the models, the engine and the optimizers."""
        self._attached = True
        ours = (StepSplitter, Splitter, PartMark, type(self._clock))
        _leave_to_python(*(value for kind in ours for value in vars(kind).values()))
        for watch in self._watches:
            watch.attach()
        # For the whole run: hooks that come and go would make Dynamo compile an optimizer's step
        # again and again.
        self._handles.append(register_optimizer_step_pre_hook(self._optimizer_begins))
        self._handles.append(register_optimizer_step_post_hook(self._optimizer_ends))
        engine: Callable[..., Any] = getattr(torch.autograd.graph, _ENGINE)
        self._entry = functools.partial(self._run_backward, engine)
        for module in _ENGINE_MODULES:
            setattr(module, _ENGINE, self._entry)

    def detach(self) -> None:
        """Leave nothing behind; safe to call twice."""
        self._attached = False
        try:
            self._take_away()
        except BaseException:  # Ctrl-C, once more, by someone who waits for the end
            self._take_away()
            raise

    def _take_away(self) -> None:
        self._splitter.spoil()
        for watch in self._watches:
            watch.detach()
        for handle in self._handles:
            handle.remove()
        self._handles = []
        entry = self._entry
        for module in _ENGINE_MODULES:
            # Another wrapper put on top of ours stays; ours then only passes calls on.
            if entry is not None and getattr(module, _ENGINE) is entry:
                setattr(module, _ENGINE, entry.args[0])
        self._entry = None

    def begins(self, step: OpenStep) -> None:
        """The loop enters a step."""
        if self._attached and self._splitter.begins(step.index):
            thread = get_ident()  # may be another one than made the meter
            for watch in self._watches:
                watch.thread = thread
                watch.keep()

    def ends(self, step: OpenStep) -> None:
        """The loop leaves it."""
        step.marks = self._splitter.ends()

    def again(self) -> None:
        """The step that was left is no steady one: split the next in its place."""
        self._splitter.again()

    def announce(self) -> None:
        """A forward begins here that no single call stands for."""
        self._splitter.announce()

    def spoil(self) -> None:
        """Something else comes into the step: a pause."""
        self._splitter.spoil()

    def _called(self, *_: Any) -> None:
        # Inside the engine a checkpoint runs the whole model again: that is the backward.
        if self._splitter.marks is not None and _graph_task() == -1:
            self._moves(self._splitter.enter, FORWARD)

    def _returned(self) -> None:
        if self._splitter.marks is not None and _graph_task() == -1:
            self._moves(self._splitter.leave, FORWARD)

    def _optimizer_begins(self, *_: Any) -> None:
        # What Dynamo traces must not depend on the step.
        if not _is_compiling() and self._splitter.marks is not None:
            self._moves(self._splitter.enter, OPTIMIZER)

    def _optimizer_ends(self, *_: Any) -> None:
        if not _is_compiling() and self._splitter.marks is not None:
            self._moves(self._splitter.leave, OPTIMIZER)

    def _run_backward(self, engine: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _is_compiling() or self._splitter.marks is None:
            return engine(*args, **kwargs)
        self._moves(self._splitter.enter, BACKWARD)
        try:
            return engine(*args, **kwargs)
        finally:
            self._moves(self._splitter.leave, BACKWARD)

    def _moves(self, move: Callable[[int], None], part: int) -> None:
        try:
            move(part)
        except Exception as error:  # the clock's, inside the user's code: it must not get there
            self._splitter.spoil()
            self._on_error(error)
        except BaseException:  # Ctrl-C in here: which part it is in is not known any more
            self._splitter.spoil()
            raise


def _leave_to_python(*functions: object) -> None:
    """Have Dynamo leave these frames alone.

    Where a compiled function breaks off, it looks at all that is called from there. It would
    compile these, for the case that something is being compiled, so that they did nothing.
    """
    dynamo: Any = torch._C._dynamo.eval_frame
    for function in functions:
        code = getattr(function, "__code__", None)
        if code is None:
            continue
        if hasattr(dynamo, "skip_code"):  # until torch 2.6
            dynamo.skip_code(code)
        elif hasattr(dynamo, "set_code_exec_strategy"):
            action = dynamo._FrameAction
            only_this = dynamo._FrameExecStrategy(action.SKIP, action.DEFAULT)
            dynamo.set_code_exec_strategy(code, only_this)
