"""Splits a count over the modules of a model, backward and recomputation included.

::

    total, modules = count_by_module(model, step)    the parts add up to the total
    modules["layers.0.mlp"]                          what ran in it and in none of its children

A module's forward is known from the stack of modules that run. An op of the backward belongs to
the module in which its autograd node was made. Autograd numbers its nodes in order, on each
thread, so the numbers given between two points of the forward are a range, and the ranges are all
that is kept: no tensor and no node is held, and none is hooked. A module that runs twice, a weight
that is used in two places and two forwards before one backward therefore need no care.

While the split is on there are hooks on the model's modules, the engine's entry in
``torch.autograd`` is wrapped, and so is the start of a checkpoint; all of it is put back.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.utils.checkpoint as checkpoint_module
from torch import nn

from mfu_torch.flops.counter import FlopCounter
from mfu_torch.records import FlopCount

OUTSIDE = "(outside the model)"
"""Label of what runs in no module of the model: a loss, an optimizer."""

NOT_KNOWN = "(not known)"
"""Label of a backward whose forward ran before the count began, or too long ago."""

_ENGINE = "_engine_run_backward"
_ENGINE_MODULES = (torch.autograd, torch.autograd.graph)
_ACCUMULATES = 2**64 - 1  # the number of every node that only adds to a parameter's .grad

_node_number: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
_engine_task: Callable[[], int] = torch._C._current_graph_task_id


class ModuleCounts(NamedTuple):
    """A count and its parts.

    Attributes:
        total: Everything that ran.
        modules: Path of a module -> what ran in it and in none of its children. The model itself
            is ``""``. The parts add up to ``total``.
    """

    total: FlopCount
    modules: dict[str, FlopCount]


def count_by_module(
    model: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> ModuleCounts:
    """Run ``fn`` once and split its count over the modules of ``model``.

    A module that hangs in several places of the model has the first of its paths. What ``fn`` runs
    besides the model is under :data:`OUTSIDE`.

    Args:
        model: The model that ``fn`` runs. On the meta device nothing is computed.
        fn: What to count, a forward or a whole step. Its result is dropped.
        *args: Passed on to ``fn``.
        **kwargs: Passed on to ``fn``.

    Example:
        ``count_by_module(model, lambda: model(x).sum().backward()).modules["head"].backward``
        is ``2 * 2 * 8 * 16 * 32`` = 16384 for a head of 16 x 32 with a batch of 8 that sends a
        gradient on.
    """
    scope = ModuleScope(model)
    with FlopCounter(scope=scope.label) as counter, scope:
        fn(*args, **kwargs)
    modules = counter.scoped()
    count = counter.take("counted while it ran once")
    if sum(part.hardware for part in modules.values()) != count.hardware:
        raise AssertionError("the modules' counts do not add up to the whole count")
    return ModuleCounts(count, modules)


class _Running(NamedTuple):
    """A module, or a checkpoint's recomputation, that runs now."""

    owner: object
    label: str
    task: int  # of the engine that it runs in; -1: none


class _Thread:
    """What one thread runs, and which of its autograd nodes were made where.

    Node ``n`` was made at ``labels[i]`` where ``starts[i] <= n < starts[i + 1]``.
    """

    def __init__(self) -> None:
        self.running: list[_Running] = []
        self.starts: list[int] = []
        self.labels: list[str] = []
        self.seen = _node_number()

    def note(self, label: str, limit: int) -> None:
        """Nodes made since the last call of this were made at ``label``."""
        number = _node_number()
        if number == self.seen:
            return
        if not self.labels or self.labels[-1] != label:
            self.starts.append(self.seen)
            self.labels.append(label)
            if len(self.labels) > limit:
                del self.starts[: limit // 2], self.labels[: limit // 2]
        self.seen = number

    def made_at(self, number: int) -> str:
        place = bisect_right(self.starts, number) - 1
        return self.labels[place] if place >= 0 and number < self.seen else NOT_KNOWN


class ModuleScope:
    """Tells which module the current op belongs to, between entering and leaving.

    Args:
        model: Its modules are told apart.
        limit: Ranges of nodes that are kept per thread. A forward of 100 layers makes about 5000;
            the oldest are forgotten, and a backward through them is :data:`NOT_KNOWN`.
    """

    def __init__(self, model: nn.Module, limit: int = 2**18) -> None:
        self._paths = {module: path for path, module in model.named_modules()}
        self._limit = limit
        self._threads: dict[int, _Thread] = {}
        self._callers: list[int] = []  # threads that wait for a backward, innermost last
        self._hooks: list[Any] = []
        self._restore: list[Callable[[], None]] = []

    def __enter__(self) -> ModuleScope:
        for module in self._paths:
            self._hooks += [
                module.register_forward_pre_hook(self._enter_module, prepend=True),
                module.register_forward_hook(self._leave_module, always_call=True),
            ]
        self._wrap_engine()
        self._wrap_checkpoint()
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()
        for restore in reversed(self._restore):
            restore()
        self._hooks, self._restore, self._threads = [], [], {}

    def label(self) -> str:
        """The module of the op that runs now, on this thread."""
        thread = self._thread()
        task = _engine_task()
        if thread.running and thread.running[-1].task == task:
            label = thread.running[-1].label  # in the engine: a checkpoint runs it once more
        elif task == -1:
            label = OUTSIDE
        else:
            label = self._label_of_node()
        thread.note(label, self._limit)
        return label

    def _label_of_node(self) -> str:
        node = torch._C._current_autograd_node()
        if node is None:
            return OUTSIDE
        number = node._sequence_nr()
        if number == _ACCUMULATES:  # an optimizer that steps as soon as a gradient is there
            return OUTSIDE
        # Numbers are per thread, and on a GPU the engine runs nodes on threads of its own. The
        # nodes that a backward runs were made on the thread that called it.
        maker = self._callers[-1] if self._callers else threading.get_ident()
        return self._thread(maker).made_at(number)

    def _thread(self, ident: int | None = None) -> _Thread:
        ident = threading.get_ident() if ident is None else ident
        thread = self._threads.get(ident)
        if thread is None:
            thread = self._threads[ident] = _Thread()
        return thread

    def _enter_module(self, module: nn.Module, *_: Any) -> None:
        self.label()  # nodes made up to here are the caller's
        path = self._paths[module]
        self._thread().running.append(_Running(module, path, _engine_task()))

    def _leave_module(self, module: nn.Module, *_: Any) -> None:
        self.label()
        self._leave(module)

    def _leave(self, owner: object) -> None:
        running = self._thread().running
        while running and running.pop().owner is not owner:
            pass  # one that failed before its hooks ran

    def _wrap_engine(self) -> None:
        wrapped = getattr(torch.autograd.graph, _ENGINE)

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            self.label()
            self._callers.append(threading.get_ident())
            try:
                return wrapped(*args, **kwargs)
            finally:
                self._callers.pop()

        def restore() -> None:
            for module in _ENGINE_MODULES:
                if getattr(module, _ENGINE) is run_backward:
                    setattr(module, _ENGINE, wrapped)

        for module in _ENGINE_MODULES:
            setattr(module, _ENGINE, run_backward)
        self._restore.append(restore)

    def _wrap_checkpoint(self) -> None:
        # A checkpointed function that is no module runs again in the engine, where no module
        # runs: it belongs to the module that called the checkpoint. Without this class (it is
        # internal to torch) such ops go to the module whose node asked for the recomputation.
        frame_class = getattr(checkpoint_module, "_CheckpointFrame", None)
        if frame_class is None:
            return
        begin = frame_class.__init__

        def begin_frame(frame: Any, recompute: Callable[..., Any], *args: Any, **kw: Any) -> None:
            label = self.label()

            def recompute_there(*inputs: Any) -> Any:
                self.label()
                running = _Running(frame, label, _engine_task())
                self._thread().running.append(running)
                try:
                    return recompute(*inputs)
                finally:
                    self.label()
                    self._leave(frame)

            begin(frame, recompute_there, *args, **kw)

        frame_class.__init__ = begin_frame
        self._restore.append(lambda: setattr(frame_class, "__init__", begin))
