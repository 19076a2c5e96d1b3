"""What Dynamo knows: whether something is compiled, and how much was compiled so far.

Nothing here imports Dynamo: as long as nobody else has, nothing is compiled.
"""

from __future__ import annotations

import sys

from torch import nn


def something_is_compiled(model: nn.Module | None = None) -> bool:
    """Whether ``torch.compile`` was applied to the model, to a part of it, or to anything else."""
    eval_frame = sys.modules.get("torch._dynamo.eval_frame")
    if eval_frame is None:
        return False
    # Every call of torch.compile registers its backend here (None stands for "disable").
    backends = getattr(eval_frame, "cached_backends", {})
    if any(backend is not None for backend in backends.values()):
        return True
    modules = model.modules() if model is not None else ()
    return any(
        isinstance(module, eval_frame.OptimizedModule)
        or getattr(module, "_compiled_call_impl", None) is not None
        for module in modules
    )


def compiled_graphs() -> int:
    """How many graphs Dynamo has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return 0 if utils is None else int(utils.counters["stats"]["unique_graphs"])
