"""What counting must leave as it was."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import optimizer as optim
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack


def surroundings() -> tuple[Any, ...]:
    """Everything of torch's that counting changes, or could."""
    from torch._dynamo import eval_frame

    return (
        dict(optim._global_optimizer_pre_hooks),
        dict(optim._global_optimizer_post_hooks),
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        [id(mode) for mode in _get_current_dispatch_mode_stack()],
        eval_frame._stance,
        eval_frame._callback_from_stance,
        torch.cuda.CUDAGraph.replay,
        torch.is_grad_enabled(),
        torch.is_autocast_cache_enabled(),
        torch._C._is_any_autocast_enabled(),
    )
