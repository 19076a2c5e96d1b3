"""Counts a model's forward and backward on fake tensors: shapes and dtypes, no data, no kernels.

For compiled models. Their real step cannot be counted op by op (the ops are inside kernels), and
running it eagerly once would use other kernels and other memory than the run does. The shadow runs
on a structural copy, so that what a forward stores on its module (a lazy mask, a cache, a counter)
never reaches the real model, and no fake tensor stays reachable afterwards.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import _has_any_global_hook as _has_global_hooks
from torch.utils._device import DeviceContext

from mfu_torch.flops.counter import CountingMode, FlopCounter
from mfu_torch.flops.shadow.fake_copy import ShadowError as ShadowError
from mfu_torch.flops.shadow.fake_copy import ShadowMode, fake_copy
from mfu_torch.flops.shadow.untouched import (
    alive,
    all_unfrozen,
    forget_fakes,
    no_autocast_cache,
    others_frozen,
    saved_classes,
    saved_random_state,
    unlogged,
)
from mfu_torch.flops.shapes.columns import CountedCall
from mfu_torch.messages import first_line
from mfu_torch.records import FlopCount

_get_function_mode = torch._C._get_function_stack_at
_get_dispatch_mode = torch._C._get_dispatch_stack_at

RECOMPUTED = (
    "what checkpoints inside the compiled model compute again is counted as it runs eagerly: the "
    "compiler may save a part of it, and hardware FLOPs are then lower"
)

_SHARDED = ("torch.distributed.fsdp", "torch.distributed._composable", "deepspeed")
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_HARMLESS = ("torch.nn.", "transformers.utils.output_capturing")
# Makes the output of an embedding require a gradient, for checkpointed layers behind frozen ones.
_HARMLESS_NAME = "make_inputs_require_grad"


def shadow_count(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    calls: list[CountedCall] | None = None,
) -> FlopCount:
    """FLOPs of ``model(*args, **kwargs)`` and, with gradients enabled, of its backward.

    The backward starts at the output's ``loss`` if it has one, at a leading scalar (a tuple
    ``(loss, ...)``), or else at every differentiable output. Parameters, buffers, gradients, random
    number generators and every attribute of the model stay as they are.

    A model that asks whether it is traced is told yes, as it is when it is compiled: it may then
    build a mask that it would have skipped, which changes which attention kernel runs and not how
    many scores there are.

    Args:
        model: The model; compiled and data-parallel wrappers are looked through.
        args: Positional inputs.
        kwargs: Keyword inputs.
        calls: Extended by the op calls that the count is the sum of, in order.

    Raises:
        ShadowError: If the model cannot be copied or run on fake tensors, or asked one for data.
    """
    real = unwrapped(model)
    _refuse_what_looks_in()
    _refuse_what_reaches_out(real)
    fake_mode = ShadowMode()
    with others_frozen():
        count, failure = _attempt(real, args, kwargs, fake_mode, calls)
        # Out of the except block, whose traceback still holds the fakes.
        gc.collect()
        left = bool(alive(fake_mode))
    if left:
        with all_unfrozen():
            left_in = forget_fakes(fake_mode)
        if left_in:
            failure = f"model code kept a fake tensor of the shadow in {left_in}"
    if count is None or failure:
        raise ShadowError(failure)
    return count


def _attempt(
    real: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    fake_mode: ShadowMode,
    calls: list[CountedCall] | None,
) -> tuple[FlopCount | None, str]:
    try:
        with saved_random_state(), saved_classes(real), unlogged():
            return _count_copy(real, args, kwargs, fake_mode, calls), ""
    except ShadowError as error:
        return None, str(error)
    except Exception as error:
        # Model code of every kind runs here, and any of its errors means the same: no shadow.
        kind = type(error).__name__
        return None, f"the model does not run on fake tensors ({kind}: {first_line(error, 120)})"


def unwrapped(model: nn.Module) -> nn.Module:
    """The user's module inside ``torch.compile`` and data-parallel wrappers."""
    while True:
        inner = model.__dict__.get("_modules", {}).get("_orig_mod")
        if inner is None and isinstance(model, nn.parallel.DistributedDataParallel):
            inner = model.module
        if inner is None:
            return model
        model = inner


def _refuse_what_looks_in() -> None:
    """Code of the user that sees every op or every module would see those of the shadow."""
    seen = []
    dispatch = (_get_dispatch_mode(i) for i in range(torch._C._len_torch_dispatch_stack()))
    if any(not isinstance(mode, CountingMode) for mode in dispatch):
        seen.append("a TorchDispatchMode")
    modes = (_get_function_mode(i) for i in range(torch._C._len_torch_function_stack()))
    if any(not isinstance(mode, DeviceContext) for mode in modes):
        seen.append("a TorchFunctionMode")
    if _has_global_hooks():  # type: ignore[no-untyped-call]
        seen.append("a hook on all modules")
    if seen:
        raise ShadowError(f"{' and '.join(seen)} is active, which would see fake tensors")


def _refuse_what_reaches_out(real: nn.Module) -> None:
    for name, module in real.named_modules():
        where = f"{name or 'the model'} ({type(module).__name__})"
        if type(module).__module__.startswith(_SHARDED):
            raise ShadowError(f"{where} is sharded; its hooks work on real storage")
        for table in _HOOKS:
            for hook in getattr(module, table, {}).values():
                owner = _owner_module(hook)
                harmless = owner.startswith(_HARMLESS) or (
                    getattr(hook, "__name__", "").startswith(_HARMLESS_NAME)
                    and owner.startswith(("transformers.", "peft."))
                )
                if owner.startswith(_SHARDED) or not harmless:
                    raise ShadowError(
                        f"{where} has a hook from {owner}, which would be called with fake tensors"
                    )


def _owner_module(hook: Any) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    holder = getattr(hook, "__self__", None)
    return str(getattr(hook, "__module__", None) or type(holder or hook).__module__)


def _count_copy(
    real: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    fake_mode: ShadowMode,
    calls: list[CountedCall] | None,
) -> FlopCount:
    try:
        shadow, fake_args, fake_kwargs = fake_copy(real, args, kwargs, fake_mode)
    except Exception as error:
        # Attributes of every kind are copied here, a lock or an open file among them.
        raise ShadowError(
            f"the model cannot be copied ({type(error).__name__}: {first_line(error, 120)})"
        ) from None
    # What a checkpoint or a hook around the model does with the tensors that autograd saves must
    # not happen to the shadow's.
    unhooked = torch.autograd.graph.saved_tensors_hooks(_detached, _same)
    counting = FlopCounter(fake_mode=fake_mode)
    with no_autocast_cache(), unhooked, fake_mode, counting as counter:
        output = shadow(*fake_args, **fake_kwargs)
        starts = _backward_starts(output) if torch.is_grad_enabled() else []
        if starts:
            torch.autograd.backward([start.sum() for start in starts])
    if fake_mode.missed:
        raise ShadowError(
            f"the model went on another way where fake tensors have no data ({fake_mode.missed})"
        )
    count = counter.take("counted on a shadow of the model (fake tensors)", calls)
    notes = [_backward_note(len(starts))]
    if count.recompute:
        notes.append(RECOMPUTED)
    return count + FlopCount(notes=tuple(notes))


def _backward_note(starts: int) -> str:
    if not starts:
        return "no backward was counted: the model was called without gradients"
    origin = "its loss or only output" if starts == 1 else f"all {starts} differentiable outputs"
    return (
        f"the backward of the compiled model is counted as from {origin}; what the loop does "
        "besides (detach an output, checkpoint the whole model) is not seen"
    )


def _detached(tensor: torch.Tensor) -> torch.Tensor:
    # Packed as it is, a saved output holds the node that saved it: a cycle that no collector sees.
    return tensor.detach()


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _backward_starts(output: Any) -> list[torch.Tensor]:
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return [loss]
    tensors = [t for t in _tensors_in(output) if t.requires_grad]
    leads = isinstance(output, Sequence) and tensors and tensors[0] is output[0]
    return tensors[:1] if leads and tensors[0].dim() == 0 else tensors


def _tensors_in(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)
    elif hasattr(value, "__dataclass_fields__"):
        yield from _tensors_in([getattr(value, name) for name in value.__dataclass_fields__])
