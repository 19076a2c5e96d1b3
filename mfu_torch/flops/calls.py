"""Sees the forward calls of a model, from outside of any compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

OnCall = Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]


class CallWatch:
    """Calls ``on_call(model, args, kwargs)`` before every forward of a model.

    Args:
        model: The module as it is called: the compiled or wrapped one.
        on_call: Must be nothing where Dynamo traces it (a module that was compiled by
            ``torch.compile`` after :meth:`attach` has its hooks compiled, too).

    Attributes:
        inside: Whether a forward is running; kept only after :meth:`keep_inside`.
    """

    def __init__(self, model: nn.Module, on_call: OnCall) -> None:
        self.inside = False
        self._model = model
        self._on_call = on_call
        self._hooks: list[Any] = []
        self._compiled_call: Any = None  # the model's own, where it was compiled in place

    def attach(self) -> None:
        """Start watching."""
        compiled: Any = getattr(self._model, "_compiled_call_impl", None)
        if compiled is None:
            hook = self._model.register_forward_pre_hook(self._on_call, with_kwargs=True)
            self._hooks.append(hook)
            return
        # Of a module that was compiled in place even the hooks are compiled: to see its inputs, the
        # compiled call is wrapped for as long as the watch is attached.
        self._compiled_call = compiled

        def call(*args: Any, **kwargs: Any) -> Any:
            self.inside = True
            try:
                self._on_call(self._model, args, kwargs)
                return compiled(*args, **kwargs)
            finally:
                self.inside = False

        self._model._compiled_call_impl = call

    def keep_inside(self) -> Callable[[], None]:
        """Keep :attr:`inside` up to date; returns what ends that."""
        if self._compiled_call is not None:
            return _nothing
        hooks = [
            self._model.register_forward_pre_hook(self._enter, prepend=True),
            self._model.register_forward_hook(self._leave, always_call=True),
        ]

        def end() -> None:
            for hook in hooks:
                hook.remove()
            self.inside = False

        return end

    def detach(self) -> None:
        """Leave the model as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        if self._compiled_call is not None:
            self._model._compiled_call_impl = self._compiled_call
            self._compiled_call = None

    def _enter(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        self.inside = True

    def _leave(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.inside = False


def _nothing() -> None:
    """There is nothing to end."""
