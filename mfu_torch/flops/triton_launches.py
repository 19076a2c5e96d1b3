"""Triton kernels that are launched past torch, as ``kernel[grid](...)``.

No dispatch mode sees such a launch. All of them go through ``JITFunction.run``, also those of
tuned kernels; the compiler's own kernels do not. So that method is wrapped while FLOPs are counted,
if Triton was imported. Launches inside of an op (``triton_op``, ``custom_op``, ``wrap_triton``) are
left out: the op around them is what is counted.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from mfu_torch.flops.opaque import opaque_module
from mfu_torch.flops.patches import Patches

LAUNCHERS = (
    ("triton.runtime.jit", "JITFunction"),
    ("triton.runtime.interpreter", "InterpretedFunction"),  # TRITON_INTERPRET=1
)

ELEMENTWISE = (
    "liger_kernel.ops",  # but for the entries of OPAQUE
    "flash_attn.ops.triton.cross_entropy",
    "flash_attn.ops.triton.layer_norm",
    "flash_attn.ops.triton.rotary",
    "mamba_ssm.ops.triton.layer_norm",
    "mamba_ssm.ops.triton.layernorm_gated",
)
"""Modules whose kernels multiply no matrices."""

_TRIALS = frozenset({"_bench", "do_bench", "do_bench_cudagraph", "kernel_call", "warmup"})
"""Functions of Triton in which a tuned kernel is launched to be timed, or only compiled."""

OnLaunch = Callable[[Any, dict[str, Any]], None]


class TritonLaunches:
    """Sees kernels being launched, between ``install`` and ``remove``.

    Args:
        on_launch: Called with a kernel and its arguments by name, after each launch.
    """

    def __init__(self, on_launch: OnLaunch) -> None:
        self._on_launch = on_launch
        self._active = False
        self._patches = Patches()

    def install(self) -> None:
        """Wrap the method; wherever this is interrupted, ``remove`` undoes it."""
        self._active = True
        for module, holder in LAUNCHERS:
            self._patches.wrap(module, holder, "run", self._wrapped)

    def remove(self) -> None:
        """Undo ``install``; safe to call twice."""
        self._active = False
        self._patches.remove()

    def _wrapped(self, before: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(before)
        def run(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            launched = before(kernel, *args, **kwargs)
            if self._active and not kwargs.get("warmup") and not _is_trial(sys._getframe(1)):
                module = getattr(getattr(kernel, "fn", kernel), "__module__", None) or ""
                if not _is_elementwise(module):
                    named = dict(zip(getattr(kernel, "arg_names", ()), args, strict=False))
                    self._on_launch(kernel, {**named, **kwargs})
            return launched

        return run


def _is_elementwise(module: str) -> bool:
    known = any(module == entry or module.startswith(f"{entry}.") for entry in ELEMENTWISE)
    # The prefix of an opaque package is wider than the modules that were read.
    inner = opaque_module(module) if module.startswith("liger_kernel.") else None
    return known and inner is None


def _is_trial(frame: Any) -> bool:
    while frame is not None:
        if not str(frame.f_globals.get("__name__") or "").startswith("triton."):
            return False
        if frame.f_code.co_name in _TRIALS:
            return True
        frame = frame.f_back
    return False
