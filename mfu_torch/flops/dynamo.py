"""What Dynamo knows: whether a model is compiled, and whether compiled code runs."""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType
from typing import Any

from torch import nn

from mfu_torch.flops.calls import compiled_call

_ENTRY = "_callback_from_stance"


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


class CompiledEntries:
    """Counts how often compiled code is entered from eager code while it is active.

    Attributes:
        count: Entries so far.
        available: Whether this torch can be asked.
    """

    def __init__(self) -> None:
        import torch._dynamo.eval_frame as eval_frame

        self.count = 0
        self.available = hasattr(eval_frame, _ENTRY)
        self._module = eval_frame
        self._original: Any = None

    def __enter__(self) -> CompiledEntries:
        if self.available:
            self._original = getattr(self._module, _ENTRY)
            setattr(self._module, _ENTRY, self._enter)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._original is not None:
            setattr(self._module, _ENTRY, self._original)
            self._original = None

    def _enter(self, callback: Any) -> Any:
        # Dynamo asks this for what to do whenever a compiled function is called; `disable` has no
        # callback of its own.
        if callable(callback):
            self.count += 1
        return self._original(callback)
