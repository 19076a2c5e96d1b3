"""Work that the counted code hands to other threads, where no dispatch mode of its own sees it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import Any

from mfu_torch.flops.patches import Patches

NO_CONTRACTIONS = (
    "torch.utils.data",
    "torch.utils.tensorboard",
    "torch._inductor",
    "torch.distributed",
    "multiprocessing",
    "concurrent.futures",  # what it starts was submitted, and that is seen
    "subprocess",
    "logging",
    "tqdm",
    "tensorboard",
    "tensorboardX",
    "wandb",
    "huggingface_hub",
    "datasets",
    "mfu_torch",
    "fsspec",
)
"""Modules whose threads load, write, compile or wait."""

_HANDED_OVER = (
    ("threading", "Thread", "start"),
    ("concurrent.futures.thread", "ThreadPoolExecutor", "submit"),
)


class OtherThreads:
    """Sees that work is handed to other threads, between ``install`` and ``remove``.

    Args:
        on_work: Called with a sentence on what cannot be seen.
    """

    def __init__(self, on_work: Callable[[str], None]) -> None:
        self._on_work = on_work
        self._thread = 0
        self._patches = Patches()

    def install(self) -> None:
        """Wrap the methods; wherever this is interrupted, ``remove`` undoes it."""
        self._thread = threading.get_ident()
        for module, holder, method in _HANDED_OVER:
            wrapper = functools.partial(self._wrapped, f"{holder}.{method}")
            self._patches.wrap(module, holder, method, wrapper)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        self._thread = 0
        self._patches.remove()

    def _wrapped(self, name: str, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def hand_over(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == self._thread:
                caller = sys._getframe(1).f_globals.get("__name__") or ""
                if not _is_below(caller, NO_CONTRACTIONS):
                    self._on_work(
                        f"{caller} gave work to another thread ({name}): what that multiplies "
                        "there is not in the count"
                    )
            return before(*args, **kwargs)

        return hand_over


def _is_below(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)
