"""What Dynamo knows: whether a model is compiled, and whether compiled code runs."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable
from types import ModuleType, TracebackType
from typing import Any

import torch
from torch import nn

from mfu_torch.flops.calls import compiled_call

_ENTRY = "_callback_from_stance"


def import_what_counting_needs() -> None:
    """Import the parts of torch that counting uses and torch itself imports late.

    They take a second or two, which inside of a step would be the step's.
    """
    importlib.import_module("torch._dynamo.eval_frame")
    importlib.import_module("torch.utils.flop_counter")


def is_compiled(model: nn.Module) -> bool:
    """Whether ``torch.compile`` or ``module.compile()`` was applied to the model or a part of it.

    Compiled functions that a forward calls are not seen here; :class:`CompiledEntries` sees them.
    """
    eval_frame = _eval_frame()
    if eval_frame is None:  # as long as nobody has imported Dynamo, nothing is compiled
        return False
    return any(
        isinstance(module, eval_frame.OptimizedModule) or compiled_call(module) is not None
        for module in model.modules()
    )


def compiled_graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    # get: a Counter answers for a missing key in Python, slowly, and this is on the step path.
    return 0 if utils is None else utils.counters["stats"].get("unique_graphs", 0)


def _eval_frame() -> ModuleType | None:
    return sys.modules.get("torch._dynamo.eval_frame")


class EagerStance:
    """``torch.compiler.set_stance("force_eager")`` that an interrupt cannot leave in force."""

    def __init__(self) -> None:
        import torch._dynamo.eval_frame as eval_frame

        self._module = eval_frame
        self._before = eval_frame._stance

    def install(self) -> None:
        """Run compiled functions eagerly from now on."""
        torch.compiler.set_stance("force_eager")

    def remove(self) -> None:
        """Go back to what was in force; safe to call twice, and before ``install``."""
        if self._module._stance is not self._before:
            self._module._set_stance(self._before)


class CompiledEntries:
    """Counts how often compiled code is entered from eager code while it is active.

    It can be left before it was entered, and twice: ``stack.push(entries); entries.__enter__()``
    leaves nothing behind wherever an interrupt comes.

    Attributes:
        count: Entries so far.
        available: Whether this torch can be asked.
    """

    def __init__(self) -> None:
        import torch._dynamo.eval_frame as eval_frame

        self.count = 0
        self.available = hasattr(eval_frame, _ENTRY)
        self._module = eval_frame
        self._entry: functools.partial[Any] | None = None

    def __enter__(self) -> CompiledEntries:
        if self.available:
            self._entry = functools.partial(self._enter, getattr(self._module, _ENTRY))
            try:
                setattr(self._module, _ENTRY, self._entry)
            except BaseException:  # Ctrl-C after it was put there: undone, and raised again
                self.__exit__(None, None, None)
                raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Another wrapper put on top of ours stays; ours then only counts on.
        if self._entry is not None and getattr(self._module, _ENTRY) is self._entry:
            setattr(self._module, _ENTRY, self._entry.args[0])
        self._entry = None

    def _enter(self, original: Callable[[Any], Any], callback: Any) -> Any:
        # Dynamo asks this for what to do whenever a compiled function is called; `disable` has no
        # callback of its own.
        if callable(callback):
            self.count += 1
        return original(callback)
