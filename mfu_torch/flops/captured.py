"""Work that was captured or packaged earlier, and runs without any op being dispatched."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from mfu_torch.flops.patches import Patches


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
        self._patches = Patches()

    def install(self) -> None:
        """Wrap the methods; wherever this is interrupted, ``remove`` undoes it."""
        for entry in CAPTURED:
            wrapper = functools.partial(self._wrapped, f"{entry.holder}.{entry.method}")
            self._patches.wrap(*entry, wrapper)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        self._patches.remove()

    def _wrapped(self, name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._on_run(name)
            return before(*args, **kwargs)

        return run
