"""What the Python stack tells of the op that runs now: which call it is made in.

Looked at only where autograd's own state leaves a question open. Inside the engine that is at
every op, but the stack between an op and the engine is a few frames high.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType, MethodType
from typing import Any, Literal, NamedTuple

import torch
from torch.fx import GraphModule

_OURS = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parent.parent)
)
_MODULE_CALL = "_call_impl"
_CHECKPOINT = "torch/utils/checkpoint.py"
_FUNCTION = "torch/autograd/function.py"
_OPTIMIZER = "torch/optim/optimizer.py"
_COMM_HOOKS = "torch/distributed/algorithms/ddp_comm_hooks/"


class InEngine(NamedTuple):
    """What runs between an op and the engine.

    Attributes:
        what: ``"module"``: a module's forward or a checkpoint; ``"comm_hook"``: torch's gradient
            compression; empty: neither.
        function: Name of the ``autograd.Function`` whose backward it is, the innermost.
        foreign: Python code that is not torch's runs in between, a hook or a Function's backward.
    """

    what: Literal["", "module", "comm_hook"] = ""
    function: str = ""
    foreign: bool = False


class OptimizerStep(NamedTuple):
    """An optimizer's step that has begun.

    Attributes:
        task: The engine task that it began in; -1: none.
        code: Of the frame that runs it.
        frame_id: ``id`` of that frame; the frame itself would keep alive what is in it.
        closures: Code of the closures that it was given.
        opaque: It was given a closure that is no Python code.
    """

    task: int
    code: CodeType
    frame_id: int
    closures: tuple[CodeType, ...]
    opaque: bool

    @classmethod
    def of(cls, task: int, frame: FrameType, arguments: Iterator[Any]) -> OptimizerStep:
        """The step that ``frame`` runs, with what ``Optimizer.step`` was called with."""
        codes = [_code_of(value) for value in arguments if callable(value)]
        known = tuple(code for code in codes if code is not None)
        return cls(task, frame.f_code, id(frame), known, opaque=len(known) < len(codes))

    def runs(self, frame: FrameType | None, engine: CodeType, *, gradients: bool) -> bool | None:
        """Whether the optimizer itself runs at ``frame``; ``None`` if its step is over."""
        while frame is not None and frame.f_code is not engine:
            code = frame.f_code
            if code is self.code and id(frame) == self.frame_id:
                return not (self.opaque and gradients)
            in_model = gradients and code.co_name == _MODULE_CALL
            if in_model or any(code is closure for closure in self.closures):
                return False
            frame = frame.f_back
        return None


def between_here_and_engine(frame: FrameType | None, engine: CodeType) -> InEngine:
    """What runs between ``frame`` and the innermost frame whose code is ``engine``."""
    function, foreign = "", False
    while frame is not None and frame.f_code is not engine:
        code = frame.f_code
        if _calls_module(frame) or code.co_filename.endswith(_CHECKPOINT):
            return InEngine("module", function, foreign)
        if _COMM_HOOKS in code.co_filename:
            return InEngine("comm_hook", function, foreign)
        function = function or _function_of(frame)
        # What a tensor subclass runs is what torch asked it for.
        is_op = code.co_name == "__torch_dispatch__"
        foreign = not is_op and (foreign or not code.co_filename.startswith(_OURS))
        frame = frame.f_back
    return InEngine("", function, foreign)


def running_function(frame: FrameType | None) -> str:
    """Name of the innermost ``autograd.Function`` whose forward or backward runs."""
    while frame is not None:
        if name := _function_of(frame):
            return name
        frame = frame.f_back
    return ""


def caller_without_gradients(
    frame: FrameType | None,
) -> Literal["module", "optimizer", "comm_hook", ""]:
    """What runs an op under ``no_grad``: the innermost module, optimizer or comm hook."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == _MODULE_CALL:
            return "module"
        if code.co_name == "step" and _is_optimizer(frame.f_locals.get("self")):
            return "optimizer"
        if _COMM_HOOKS in code.co_filename:
            return "comm_hook"
        frame = frame.f_back
    return ""


def optimizer_steps(frame: FrameType | None) -> list[OptimizerStep]:
    """Steps of torch's optimizers that ``frame`` runs in, the outermost first."""
    steps = []
    while frame is not None:
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename.endswith(_OPTIMIZER):
            held = frame.f_locals
            steps.append(OptimizerStep.of(-1, frame, step_arguments(held["args"], held["kwargs"])))
        frame = frame.f_back
    return steps[::-1]


def step_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Any]:
    """What ``Optimizer.step`` was called with, without the optimizer itself."""
    yield from args[1:]
    yield from kwargs.values()


def _calls_module(frame: FrameType) -> bool:
    # A traced graph may be anything: the backward of torch.cond is one.
    return frame.f_code.co_name == _MODULE_CALL and not isinstance(
        frame.f_locals.get("self"), GraphModule
    )


def _function_of(frame: FrameType) -> str:
    code = frame.f_code
    if not code.co_name.startswith("apply") or not code.co_filename.endswith(_FUNCTION):
        return ""
    held = frame.f_locals
    function = held.get("cls") or getattr(held.get("self"), "_forward_cls", None)
    return getattr(function, "__name__", "")


def _is_optimizer(value: Any) -> bool:
    kind = type(value)
    return hasattr(value, "param_groups") or "optim" in f"{kind.__module__}.{kind.__name__}".lower()


def _code_of(value: Callable[..., Any]) -> CodeType | None:
    while True:
        if isinstance(value, functools.partial):
            value = value.func
        elif isinstance(value, MethodType):
            value = value.__func__
        elif hasattr(value, "__wrapped__"):
            value = value.__wrapped__
        else:
            break
    if not hasattr(value, "__code__"):  # an object that can be called
        value = type(value).__call__
    code = getattr(value, "__code__", None)
    return code if isinstance(code, CodeType) else None
