"""Work that was captured or packaged earlier, and runs without any op being dispatched."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, NamedTuple


class Entry(NamedTuple):
    """A method that runs such work.

    Attributes:
        module: Looked at only if it was imported.
        holder: Class that has the method.
        method: Its name.
    """

    module: str
    holder: str
    method: str


CAPTURED = (
    Entry("torch.cuda.graphs", "CUDAGraph", "replay"),  # also make_graphed_callables
    Entry("torch.xpu.graphs", "XPUGraph", "replay"),
    Entry("torch._inductor.package.package", "AOTICompiledModel", "__call__"),
    Entry("onnxruntime.capi.onnxruntime_inference_collection", "Session", "run"),
)


class CapturedWork:
    """Calls ``on_run(name)`` whenever captured work runs, between ``install`` and ``remove``."""

    def __init__(self, on_run: Callable[[str], None]) -> None:
        self._on_run = on_run
        self._patches: list[tuple[type, str, Any, Any]] = []  # holder, method, before, ours

    def install(self) -> None:
        """Wrap the methods; wherever this is interrupted, ``remove`` undoes it."""
        for entry in CAPTURED:
            holder = getattr(sys.modules.get(entry.module), entry.holder, None)
            before = vars(holder).get(entry.method) if isinstance(holder, type) else None
            if isinstance(holder, type) and callable(before):
                ours = self._wrapped(before, f"{holder.__name__}.{entry.method}")
                self._patches.append((holder, entry.method, before, ours))
                setattr(holder, entry.method, ours)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        for holder, method, before, ours in self._patches:
            # Another wrapper put on top of ours stays; ours then only passes calls on.
            if vars(holder).get(method) is ours:
                setattr(holder, method, before)

    def _wrapped(self, before: Callable[..., Any], name: str) -> Callable[..., Any]:
        @functools.wraps(before)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._on_run(name)
            return before(*args, **kwargs)

        return run
