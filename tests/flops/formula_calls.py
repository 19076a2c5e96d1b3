"""Calls of formulas without calling their ops: on shapes, and for devices that are not there."""

from __future__ import annotations

from typing import Any

import torch

from mfu_torch.flops.ops import OpFlops, count_call, formula_for


def flops_of(op: Any, *args: Any, result: Any = None, **kwargs: Any) -> OpFlops:
    """The FLOPs of a call that this machine need not be able to make."""
    formula = formula_for(op)
    assert formula is not None
    counted = count_call(formula, args, kwargs, result)
    assert counted is not None
    return counted.flops


def shape(*sizes: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")
