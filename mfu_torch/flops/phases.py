"""Which phase of the step an op belongs to, told from autograd's own state.

::

    inside an optimizer's step, not in its closure    optimizer
    outside the engine, gradients on                  forward
    outside the engine, gradients off                 forward_no_grad, or optimizer by its caller
    inside the engine, below a module or checkpoint   recompute
    inside the engine, gradients off                  backward
    inside the engine, gradients on                   recompute, if the graph is not being kept

The forward of an ``autograd.Function`` runs with gradients off whatever its caller wanted. It can
be told by forward-mode gradients, which only it turns off as well: its ops are forward, also those
of a Function that a teacher calls under ``no_grad``.

Inside the engine gradients are on for two reasons: a checkpoint runs its forward once more, or
``create_graph=True`` keeps the graph of the backward. To tell these apart the engine's entry in
``torch.autograd`` is wrapped for as long as the rule is installed. A closure that runs inside
``optimizer.step`` is not the optimizer; an optimizer that steps inside the backward is.

What the rule cannot tell, it says: :attr:`PhaseRule.doubts`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch.optim import optimizer as optim
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mfu_torch.flops.frames import (
    InEngine,
    OptimizerStep,
    between_here_and_engine,
    caller_without_gradients,
    optimizer_steps,
    running_function,
    step_arguments,
)
from mfu_torch.flops.higher_order import REPEATS_ITSELF
from mfu_torch.records import Phase

# The engine's entry is one function under two names.
_ENGINE = "_engine_run_backward"
_ENGINE_MODULES = (torch.autograd, torch.autograd.graph)

# Bound once: they are called at every contraction.
_graph_task = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled

NO_CALLER = (
    "contractions under no_grad, outside of any module and after a backward, are counted as a "
    "forward: if an optimizer that is no torch.optim.Optimizer ran them, model FLOPs are too high "
    "by them"
)
COMPRESSION = (
    "contractions of gradient compression (DDP communication hooks) are counted with the "
    "optimizer's, as far as they run on the thread of the backward"
)


class PhaseRule:
    """Tells the phase that the current op is in, between ``install`` and ``remove``.

    Attributes:
        within: What the op asked about last runs in, as far as it was looked for: not where
            gradients are on outside of the engine.
        transformed: A backward since ``install`` ran inside of a transform of torch.func.
        doubts: What could not be told, as sentences; in order, each once.
    """

    def __init__(self) -> None:
        self.within = _NOWHERE
        self.transformed = False
        self.doubts: dict[str, None] = {}
        # Steps that optimizers have begun, innermost last. One that raised is still in here.
        self._stepping: list[OptimizerStep] = []
        # Whether each running backward keeps its graph, innermost last. Process-wide, like the
        # hooks: the engine runs nodes of other devices on its own threads.
        self._keeps_graph: list[bool] = []
        self._had_backward = False
        self._begins, self._ends = self._step_begins, self._step_ends
        self._entry: functools.partial[Any] | None = None

    def install(self) -> None:
        """Wrap the engine's entry and hook the optimizers' steps.

        Wherever this is interrupted, ``remove`` undoes it.
        """
        self._stepping = optimizer_steps(sys._getframe(1))
        self._keeps_graph = []
        self._had_backward = self.transformed = False
        register_optimizer_step_pre_hook(self._begins)
        register_optimizer_step_post_hook(self._ends)
        # A new one each time: an old one may still be in use, below somebody else's wrapper.
        self._entry = functools.partial(self._run_backward, getattr(torch.autograd.graph, _ENGINE))
        for module in _ENGINE_MODULES:
            setattr(module, _ENGINE, self._entry)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        # By what is hooked, not by handles: an interrupt may come before a handle is stored.
        for hooks, hook in (
            (optim._global_optimizer_pre_hooks, self._begins),
            (optim._global_optimizer_post_hooks, self._ends),
        ):
            for key in [key for key, value in hooks.items() if value is hook]:
                del hooks[key]
        for module in _ENGINE_MODULES:
            # Another wrapper put on top of ours stays; ours then only passes calls on.
            if self._entry is not None and getattr(module, _ENGINE) is self._entry:
                setattr(module, _ENGINE, self._entry.args[0])

    def current(self) -> Phase:
        """The phase of an op that runs now, on this thread."""
        task = _graph_task()
        self.within = _NOWHERE
        if self._stepping and self._in_optimizer(task, sys._getframe(1)):
            return "optimizer"
        if task != -1:
            return self._inside_engine(sys._getframe(1))
        if _is_grad_enabled():
            return "forward"
        if _in_function():
            self.within = InEngine(function=running_function(sys._getframe(1)))
            return "forward"
        return self._without_gradients(sys._getframe(1))

    def _in_optimizer(self, task: int, frame: FrameType) -> bool:
        while self._stepping and self._stepping[-1].task == task:
            runs = self._stepping[-1].runs(frame, _ENGINE_CODE, gradients=_is_grad_enabled())
            if runs is not None:
                return runs
            self._stepping.pop()  # it raised, and its end was not announced
        return False

    def _inside_engine(self, frame: FrameType) -> Phase:
        self.within = between_here_and_engine(frame, _ENGINE_CODE)
        function = self.within.function
        if self.within.what == "module":
            return "recompute"
        if self.within.what == "comm_hook":
            self.doubts[COMPRESSION] = None
            return "optimizer"
        gradients = _is_grad_enabled()
        if gradients and not (self._keeps_graph and self._keeps_graph[-1]):
            return "recompute"
        if function and (gradients or _in_function() or function in REPEATS_ITSELF):
            self.doubts[
                f"what the backward of the autograd.Function {function} recomputes cannot be "
                "told from its gradients there, and is counted as backward"
            ] = None
        return "backward"

    def _without_gradients(self, frame: FrameType) -> Phase:
        caller = caller_without_gradients(frame)
        if caller == "comm_hook":
            self.doubts[COMPRESSION] = None
        elif not caller and self._had_backward:
            self.doubts[NO_CALLER] = None
        return "optimizer" if caller in ("optimizer", "comm_hook") else "forward_no_grad"

    def _step_begins(self, _: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        step = OptimizerStep.of(_graph_task(), sys._getframe(1), step_arguments(args, kwargs))
        self._stepping.append(step)

    def _step_ends(self, *_: Any) -> None:
        ended = id(sys._getframe(1))
        while self._stepping and self._stepping.pop().frame_id != ended:
            pass  # one inside of it that raised

    def _run_backward(self, engine: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        # args: tensors, grad_tensors, retain_graph, create_graph, ..
        keeps_graph = args[3] if len(args) > 3 else kwargs.get("create_graph", False)
        self._had_backward = True
        if torch._C._are_functorch_transforms_active():
            self.transformed = True
        self._keeps_graph.append(bool(keeps_graph))
        try:
            return engine(*args, **kwargs)
        finally:
            self._keeps_graph.pop()


_ENGINE_CODE = PhaseRule._run_backward.__code__
_NOWHERE = InEngine()


def _in_function() -> bool:
    # Inference mode turns forward-mode gradients off, too.
    return not torch._C._is_fwd_grad_enabled() and not torch.is_inference_mode_enabled()
