"""Higher-order ops that call functions: what they do beside the ops that a dispatch mode sees.

``torch.cond``, ``scan``, ``map``, ``while_loop`` and eager ``flex_attention`` compile themselves
wherever they are called. That makes inputs of the tensors that their functions capture, and so
gives these gradients; where the compiler's stance is "force_eager" they get none. So around them
the stance is what it is without counting.

Their kernels then call the functions where no mode is active: each function is handed over in a
wrapper that turns the mode on again.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils._python_dispatch import (
    TorchDispatchMode,
    _get_current_dispatch_mode_stack,
    _pop_mode,
    _push_mode,
)

CALLS_FUNCTIONS = frozenset(
    {
        "cond",
        "while_loop",
        "while_loop_stack_output",
        "scan",
        "map_impl",
        "run_and_save_rng_state",
        "run_with_rng_state",
        "graphsafe_run_with_rng_state",
    }
)
"""Ops whose kernels do nothing but call the functions that they are given."""

REPEATS_ITSELF = frozenset({"CondAutogradOp", "MapAutogradOp", "WhileLoopAutogradOp"})
"""Their autograd Functions whose backward runs the forward once more, in one graph with it."""

# The context that surrounds every such compilation, in each torch, and where it is looked up:
# some import it by name.
_ENV = "_set_compilation_env"
_ENV_MODULE = "torch._higher_order_ops.utils"
_USERS = ("torch._higher_order_ops.", "torch.nn.attention.")


class SelfCompiled:
    """Lets higher-order ops compile themselves as without counting, from install to remove.

    Args:
        mode: Stays active where this torch can compile beside it. Else it is left meanwhile.
        keep_mode: Whether this torch can.
        on_unseen: Called with the name of an op that ran while the mode was left.
    """

    def __init__(
        self, mode: TorchDispatchMode, *, keep_mode: bool, on_unseen: Callable[[str], None]
    ) -> None:
        # Not torch.compiler.set_stance: it refuses while something is being compiled.
        eval_frame: Any = importlib.import_module("torch._dynamo.eval_frame")
        self._mode = mode
        self._keep_mode = keep_mode
        self._on_unseen = on_unseen
        self._eval_frame = eval_frame
        self._stance = eval_frame._stance  # the user's: this is made before it is changed
        self._active = False
        self._before: Any = None
        self._ours: Any = None

    def install(self) -> None:
        """Wrap the context; wherever this is interrupted, ``remove`` undoes it."""
        self._before = getattr(sys.modules.get(_ENV_MODULE), _ENV, None)
        if self._before is None:
            return
        self._ours = self._around(self._before)
        self._active = True
        self._replace(self._before, self._ours)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        self._active = False  # whoever has imported ours since: it passes calls on
        if self._before is not None:
            self._replace(self._ours, self._before)

    def _replace(self, old: Any, new: Any) -> None:
        for name, module in list(sys.modules.items()):
            if name.startswith(_USERS) and getattr(module, "__dict__", {}).get(_ENV) is old:
                setattr(module, _ENV, new)

    def _around(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        @contextlib.contextmanager
        def environment(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with before(*args, **kwargs) as value:
                if not self._active:
                    yield value
                    return
                with contextlib.nullcontext() if self._keep_mode else self._unseen():
                    counting = self._eval_frame._stance
                    self._eval_frame._stance = self._stance
                    try:
                        yield value
                    finally:
                        self._eval_frame._stance = counting

        return environment

    @contextlib.contextmanager
    def _unseen(self) -> Iterator[None]:
        above = leave(self._mode)
        if above is None:  # on a thread that is not counted
            yield
            return
        self._on_unseen(_self_compiled_op())
        try:
            yield
        finally:
            for _ in above:
                _pop_mode()
            self._mode.__enter__()  # type: ignore[no-untyped-call]
            for other in above:
                _push_mode(other)


def leave(mode: TorchDispatchMode) -> list[TorchDispatchMode] | None:
    """Leave a mode; those above it stay, and are returned. ``None`` if it is not active."""
    above: list[TorchDispatchMode] = []
    for active in reversed(_get_current_dispatch_mode_stack()):
        if active is mode:
            for _ in above:
                _pop_mode()
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            above.reverse()
            for other in above:
                _push_mode(other)
            return above
        above.append(active)
    return None


def with_bodies_seen(args: tuple[Any, ...], mode: TorchDispatchMode) -> tuple[Any, ...]:
    """The arguments of one of :data:`CALLS_FUNCTIONS`, whose functions run below ``mode``."""
    return tuple([_seen(arg, mode) if callable(arg) else arg for arg in args])


def _seen(function: Callable[..., Any], mode: TorchDispatchMode) -> Callable[..., Any]:
    def body(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return function(*args, **kwargs)

    return body


def _self_compiled_op() -> str:
    # The function that is nearest to the user's code of those that make up the op.
    frame, name = sys._getframe(1), ""
    while frame.f_back is not None:
        frame = frame.f_back
        module = frame.f_globals.get("__name__") or ""
        if module.startswith(_USERS) and module != _ENV_MODULE:
            name = frame.f_code.co_name
        elif name:
            break
    return f"torch.{name}"
