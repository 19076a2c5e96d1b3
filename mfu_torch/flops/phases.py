"""Which phase of the step an op belongs to, told from autograd's own state.

::

    optimizer step, its own task, gradients off       optimizer
    outside the engine, gradients on                  forward
    outside the engine, gradients off                 forward_no_grad
    inside the engine, gradients off                  backward
    inside the engine, gradients on                   recompute, if the graph is not being kept
    the same, and the graph is being kept             recompute only below a module's forward

The forward of an ``autograd.Function`` runs with gradients off whatever its caller wanted. It can
be told by forward-mode gradients, which only it turns off as well: its ops are forward, or
recompute below a module's forward inside the engine.

Inside the engine gradients are on for two reasons: a checkpoint runs its forward once more, or
``create_graph=True`` keeps the graph of the backward. To tell these apart the engine's entry in
``torch.autograd`` is wrapped for as long as the rule is installed. A closure that runs inside
``optimizer.step`` turns gradients on, so it is not the optimizer; an optimizer that steps inside
the backward has the engine's task, so it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mfu_torch.records import Phase

# The engine's entry is one function under two names.
_ENGINE = "_engine_run_backward"
_ENGINE_MODULES = (torch.autograd, torch.autograd.graph)


class PhaseRule:
    """Tells the phase that the current op is in, between ``install`` and ``remove``."""

    def __init__(self) -> None:
        # Engine tasks (-1: none) in which an optimizer began its step, innermost last.
        self._stepping: list[int] = []
        # Whether each running backward keeps its graph, innermost last. Process-wide, like the
        # hooks: the engine runs nodes of other devices on its own threads.
        self._keeps_graph: list[bool] = []
        self._wrapper = self._run_backward
        self._wrapped: Callable[..., Any] | None = None
        self._hooks: list[Any] = []

    def install(self) -> None:
        """Wrap the engine's entry and hook the optimizers' steps."""
        self._stepping = [-1] * _optimizer_frames()
        self._keeps_graph = []
        self._hooks = [
            register_optimizer_step_pre_hook(self._step_begins),
            register_optimizer_step_post_hook(self._step_ends),
        ]
        self._wrapped = getattr(torch.autograd.graph, _ENGINE)
        for module in _ENGINE_MODULES:
            setattr(module, _ENGINE, self._wrapper)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for module in _ENGINE_MODULES:
            # Another wrapper put on top of ours stays; ours then only passes calls on.
            if self._wrapped is not None and getattr(module, _ENGINE) is self._wrapper:
                setattr(module, _ENGINE, self._wrapped)

    def current(self) -> Phase:
        """The phase of an op that runs now, on this thread."""
        task = torch._C._current_graph_task_id()
        if not torch.is_grad_enabled():
            if self._stepping and self._stepping[-1] == task:
                return "optimizer"
            return self._without_gradients(inside_engine=task != -1)
        if task == -1:
            return "forward"
        if self._keeps_graph and self._keeps_graph[-1] and not _below_module(sys._getframe(1)):
            return "backward"
        return "recompute"

    def _without_gradients(self, inside_engine: bool) -> Phase:
        in_function = not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()
        if not inside_engine:
            return "forward" if in_function else "forward_no_grad"
        return "recompute" if in_function and _below_module(sys._getframe(2)) else "backward"

    def _step_begins(self, *_: Any) -> None:
        self._stepping.append(torch._C._current_graph_task_id())

    def _step_ends(self, *_: Any) -> None:
        if self._stepping:
            self._stepping.pop()

    def _run_backward(self, t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        # args: grad_tensors, retain_graph, create_graph, ..
        keeps_graph = args[2] if len(args) > 2 else kwargs.get("create_graph", False)
        assert self._wrapped is not None  # set before this was put in place
        self._keeps_graph.append(bool(keeps_graph))
        try:
            return self._wrapped(t_outputs, *args, **kwargs)
        finally:
            self._keeps_graph.pop()


def _below_module(frame: FrameType | None) -> bool:
    """Whether a module's forward, or a checkpoint, runs between here and the engine."""
    engine = PhaseRule._run_backward.__code__
    while frame is not None:
        code = frame.f_code
        if code is engine:
            return False
        if code.co_name == "_call_impl" or code.co_filename.endswith("torch/utils/checkpoint.py"):
            return True
        frame = frame.f_back
    return False


def _optimizer_frames() -> int:
    """Optimizer steps that this code runs in: a closure has begun before the hooks were there."""
    count = 0
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename.endswith("torch/optim/optimizer.py"):
            count += 1
        frame = frame.f_back
    return count
