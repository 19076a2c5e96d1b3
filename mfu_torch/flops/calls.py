"""Sees the forward calls of a model, from outside of any compiled code."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

OnCall = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]

_IMPL = "_compiled_call_impl"
_COMPILED = "_mfu_torch_compiled"
_DETACHED = "_mfu_torch_detached"
_CALLER = nn.Module._wrapped_call_impl.__code__
_is_compiling = torch.compiler.is_compiling
_thread = threading.get_ident
_graph_task = torch._C._current_graph_task_id


class CallWatch:
    """Calls ``on_call(model, args, kwargs)`` before every forward of a model.

    A module keeps its compiled call, if it has one, in an attribute that ``module(...)`` looks at
    first. The watch stands there: that costs a fifth of a forward hook, sees the inputs of a module
    that was compiled in place (whose hooks are compiled, too), and is left out by itself when the
    module is copied or pickled. The wrapper that ``torch.compile`` returns passes attributes on to
    what it wraps, so there a hook has to do.

    Args:
        model: The module as it is called: the compiled or wrapped one.
        on_call: Not called where Dynamo traces the model (it was compiled after :meth:`attach`).
        on_return: Called when a call that ``on_call`` was told of is over, however it ended.

    Attributes:
        inside: Whether a forward is running.
        thread: The thread whose calls are watched.
        elsewhere: Calls that came on other threads, so that their work is invisible to a counter;
            those of replicas are in it, those of checkpoints in the engine's threads are not.
    """

    def __init__(
        self, model: nn.Module, on_call: OnCall, on_return: Callable[[], None] | None = None
    ) -> None:
        self.inside = False
        self.thread = _thread()
        self.elsewhere = 0
        self._model = model
        self._on_call = on_call
        self._on_return = on_return
        self._hooks: list[Any] = []
        self._call: Callable[..., Any] | None = None

    def attach(self) -> None:
        """Start watching."""
        if "_orig_mod" in self._model._modules:
            self._hooks = [
                self._model.register_forward_pre_hook(self._enter, with_kwargs=True),
                self._model.register_forward_hook(self._leave, always_call=True),
            ]
            return
        # The instance's own dict: a model may do anything in __setattr__ and __getattr__.
        attributes = self._model.__dict__
        self._call = attributes[_IMPL] = self._watched_call(attributes.get(_IMPL))

    def keep(self) -> None:
        """Watch again, where the module was compiled in place since."""
        attributes = self._model.__dict__
        call = attributes.get(_IMPL)
        while hasattr(call, _COMPILED) and call is not self._call:
            call = getattr(call, _COMPILED)  # another watch, on top of this one or alone
        if self._call is not None and call is not self._call:
            self._call = attributes[_IMPL] = self._watched_call(attributes.get(_IMPL))

    def detach(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._on_call, self._on_return = _nothing, None
        # Somebody may have compiled the module in place, or watch it too, since; then ours stays
        # below theirs, and does nothing.
        if self._call is not None and self._model.__dict__.get(_IMPL) is self._call:
            compiled = getattr(self._call, _COMPILED)
            while getattr(compiled, _DETACHED, False):  # a watch below ours that ended before it
                compiled = getattr(compiled, _COMPILED)
            if compiled is None:
                del self._model.__dict__[_IMPL]
            else:
                self._model.__dict__[_IMPL] = compiled
        if self._call is not None:
            setattr(self._call, _DETACHED, True)
        self._call = None

    def _watched_call(self, compiled: Callable[..., Any] | None) -> Callable[..., Any]:
        model = self._model

        def call(*args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return (compiled or model._call_impl)(*args, **kwargs)
            run = compiled or _called_module(model)._call_impl
            if _thread() != self.thread:
                self.elsewhere += _graph_task() == -1
                return run(*args, **kwargs)
            try:
                self.inside = True
                self._on_call(model, args, kwargs)
                return run(*args, **kwargs)
            finally:
                self.inside = False
                if self._on_return is not None:
                    self._on_return()

        setattr(call, _COMPILED, compiled)
        return call

    def _enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if _thread() != self.thread:
            self.elsewhere += _graph_task() == -1
            return
        self.inside = True
        self._on_call(module, args, kwargs)

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if _thread() == self.thread:
            self.inside = False
            if self._on_return is not None:
                self._on_return()


def _called_module(model: nn.Module) -> nn.Module:
    """The module that is called, where that may be a replica of ``model``.

    DataParallel's replicas share the attributes of the module, the watches included. torch's own
    caller of the watch, or of the outermost of several, knows which of them it calls.
    """
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals is globals():
        frame = frame.f_back
    called = frame.f_locals.get("self") if frame.f_code is _CALLER else None
    return called if isinstance(called, nn.Module) else model


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """The call that ``module.compile()`` made, whether it is watched or not."""
    call: Any = module.__dict__.get(_IMPL)
    while hasattr(call, _COMPILED):
        call = getattr(call, _COMPILED)
    return call  # type: ignore[no-any-return]


def _nothing(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """In place of what was called before the watch was detached."""
