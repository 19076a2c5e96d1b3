"""What closed forms are held against: models that run while their FLOPs are counted."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from mfu_torch import count_flops
from mfu_torch.flops.formulas import ClosedForm
from mfu_torch.records import FlopCount

UNFUSED = "unfused_in_test"
"""Attention of ``transformers`` whose scores and values are a checkpoint of their own."""


def loss_of(output: Any) -> torch.Tensor:
    """A number that depends on everything that came out."""
    if hasattr(output, "logits"):
        output = output.logits
    tensors = output if isinstance(output, tuple) else (output,)
    return torch.stack([tensor.float().square().sum() for tensor in tensors]).sum()


def trained(model: Callable[..., Any], *args: Any, **kwargs: Any) -> FlopCount:
    """The count of one forward and backward."""
    count = count_flops(lambda: loss_of(model(*args, **kwargs)).backward())
    assert not count.uncounted, count.uncounted
    return count


def assert_counted(form: ClosedForm, count: FlopCount) -> None:
    """The closed form is what was counted, to the digit, and nothing was repeated."""
    assert (form.forward, form.backward) == (count.forward, count.backward)
    assert (form.training, count.recompute) == (count.model, 0)


def recomputed(
    model: nn.Module, layers: nn.ModuleList | nn.Sequential, policy: str, *args: Any, **kwargs: Any
) -> FlopCount:
    """The count of a step with a checkpoint around each layer: ``full`` or ``checkpoint``."""
    plain = [layer.forward for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
    try:
        with set_checkpoint_early_stop(policy == "checkpoint"):
            return trained(model, *args, **kwargs)
    finally:
        for layer, forward in zip(layers, plain, strict=True):
            layer.forward = forward


def assert_recomputed(
    form: ClosedForm,
    model: nn.Module,
    layers: nn.ModuleList | nn.Sequential,
    *args: Any,
    **kwargs: Any,
) -> None:
    """Both policies that checkpoint whole layers repeat what the closed form says."""
    for policy in ("full", "checkpoint"):
        count = recomputed(model, layers, policy, *args, **kwargs)
        assert (policy, count.recompute) == (policy, form.recompute(policy))  # type: ignore[arg-type]
        assert count.model == form.training
        assert count.hardware == form.hardware(policy)  # type: ignore[arg-type]


def core(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scaling: float,
) -> torch.Tensor:
    """Scores and values of attention, (b, h, s, d), grouped keys repeated."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling
    return (scores if mask is None else scores + mask).softmax(-1) @ value


def checkpointed_core(*args: Any) -> torch.Tensor:
    """:func:`core`, which the backward computes again as a whole."""
    with set_checkpoint_early_stop(False):
        return checkpoint(core, *args, use_reentrant=False)


def _forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    out = checkpointed_core(query, key, value, attention_mask, scaling)
    return out.transpose(1, 2), None


@contextmanager
def selective(model: Any) -> Iterator[None]:
    """Attention's scores and values are computed again in the backward, and nothing else."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    AttentionInterface.register(UNFUSED, _forward)
    AttentionMaskInterface.register(UNFUSED, eager_mask)
    before = model.config._attn_implementation
    model.set_attn_implementation(UNFUSED)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
