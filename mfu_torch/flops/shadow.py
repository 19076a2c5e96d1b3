"""Counts a model's forward and backward on fake tensors: shapes and dtypes, no data, no kernels.

For compiled models. Their real step cannot be counted op by op (the ops are inside kernels), and
running it eagerly once would use other kernels and other memory than the run does. The shadow runs
on a structural copy, so that what a forward stores on its module (a lazy mask, a cache, a counter)
never reaches the real model, and no fake tensor stays reachable afterwards.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import _has_any_global_hook as _has_global_hooks
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

from mfu_torch.flops.counter import CountingMode, FlopCounter
from mfu_torch.records import FlopCount, MFUError

_get_function_mode = torch._C._get_function_stack_at
_get_dispatch_mode = torch._C._get_dispatch_stack_at

_SHARDED = ("torch.distributed.fsdp", "torch.distributed._composable", "deepspeed")
_HARMLESS = ("torch.nn.",)


class ShadowError(MFUError):
    """The shadow could not be counted; the message says why. The real model is untouched."""


def shadow_count(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> FlopCount:
    """FLOPs of ``model(*args, **kwargs)`` and, with gradients enabled, of its backward.

    The backward starts at the output's ``loss`` if it has one, at a leading scalar (a tuple
    ``(loss, ...)``), or else at every differentiable output. Parameters, buffers, gradients, random
    number generators and every attribute of the model stay as they are.

    Raises:
        ShadowError: If the model cannot be copied or run on fake tensors.
    """
    real = unwrapped(model)
    _refuse_what_looks_in()
    _refuse_what_reaches_out(real)
    fake_mode = FakeTensorMode()
    count, failure = None, ""
    try:
        with _saved_random_state():
            count = _count_copy(real, args, kwargs, fake_mode)
    except Exception as error:
        # Model code of every kind runs here, and any of its errors means the same: no shadow.
        failure = f"the model does not run on fake tensors ({type(error).__name__}: "
        failure += f"{_first_line(error)})"
    # Outside of the except block, whose traceback still holds the fakes.
    left = _forget_fakes(fake_mode)
    if left:
        failure = f"model code kept a fake tensor of the shadow in {left}"
    if count is None or failure:
        raise ShadowError(failure)
    return count


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
        for table in ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks"):
            for hook in getattr(module, table, {}).values():
                owner = _owner_module(hook)
                if owner.startswith(_SHARDED) or not owner.startswith(_HARMLESS):
                    raise ShadowError(
                        f"{where} has a hook from {owner}, which would be called with fake tensors"
                    )


def _owner_module(hook: Any) -> str:
    while isinstance(hook, functools.partial):
        hook = hook.func
    holder = getattr(hook, "__self__", None)
    return str(getattr(hook, "__module__", None) or type(holder or hook).__module__)


def _count_copy(
    real: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], fake_mode: FakeTensorMode
) -> FlopCount:
    memo: dict[int, Any] = {}
    for tensor in [*real.parameters(), *real.buffers()]:
        memo[id(tensor)] = fake_mode.from_tensor(tensor, static_shapes=True)
    with _FakeCopy(fake_mode), torch.no_grad():
        for module in real.modules():
            inner = module.__dict__.get("_modules", {}).get("_orig_mod")
            if inner is not None:  # a block compiled on its own: copy what it wraps
                memo[id(module)] = copy.deepcopy(inner, memo)
        shadow, fake_args, fake_kwargs = copy.deepcopy((real, args, dict(kwargs)), memo)
    # What a checkpoint or a hook around the model does with the tensors that autograd saves must
    # not happen to the shadow's.
    unhooked = torch.autograd.graph.saved_tensors_hooks(_same, _same)
    counting = FlopCounter(fake_mode=fake_mode)
    with _no_autocast_cache(), unhooked, fake_mode, counting as counter:
        output = shadow(*fake_args, **fake_kwargs)
        starts = _backward_starts(output) if torch.is_grad_enabled() else []
        if starts:
            torch.autograd.backward([start.sum() for start in starts])
    count = counter.take("counted on a shadow of the model (fake tensors)")
    return count + FlopCount(notes=(_backward_note(len(starts)),))


def _backward_note(starts: int) -> str:
    if not starts:
        return "no backward was counted: the model was called without gradients"
    origin = "its loss or only output" if starts == 1 else f"all {starts} differentiable outputs"
    return (
        f"the backward of the compiled model is counted as from {origin}; what the loop does "
        "besides (detach an output, checkpoint the whole model) is not seen"
    )


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _FakeCopy(TorchFunctionMode):
    """Makes ``copy.deepcopy`` turn every real tensor that it meets into a fake one."""

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self._fake_mode = fake_mode

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.__deepcopy__:
            tensor, memo = args
            if id(tensor) not in memo:
                memo[id(tensor)] = self._fake_mode.from_tensor(tensor, static_shapes=True)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))


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


@contextlib.contextmanager
def _no_autocast_cache() -> Iterator[None]:
    # Autocast keeps the weights that it has cast until its outermost context is left: the user's.
    enabled = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(enabled)


@contextlib.contextmanager
def _saved_random_state() -> Iterator[None]:
    # Fake random ops draw nothing from torch's generators, but model code may use Python's and
    # NumPy's, or seed torch's.
    python_state, numpy_state = random.getstate(), np.random.get_state()
    devices = list(range(torch.cuda.device_count() if torch.cuda.is_available() else 0))
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [""])[0][:120]


def _forget_fakes(fake_mode: FakeTensorMode) -> str:
    """Take the shadow's tensors out of what model code keeps; name what still holds one."""
    gc.collect()
    held_by = ""
    alive = _alive(fake_mode)
    while alive:
        tensor = alive.pop()  # so that this list is none of its holders
        for holder in gc.get_referrers(tensor):
            if not isinstance(holder, FrameType):
                held_by = held_by or _name_of(holder)
                _drop_from(holder, tensor)
        del tensor
    gc.collect()
    return held_by if _alive(fake_mode) else ""


def _alive(fake_mode: FakeTensorMode) -> list[FakeTensor]:
    return [
        thing
        for thing in gc.get_objects()
        if type(thing) is FakeTensor and thing.fake_mode is fake_mode
    ]


def _name_of(holder: Any) -> str:
    name = getattr(holder, "__qualname__", None)
    return f"{name}, a {type(holder).__name__}" if name else f"a {type(holder).__name__}"


def _drop_from(holder: Any, tensor: FakeTensor) -> None:
    """Undo what keeping a tensor did: a cache forgets it, a list loses what was appended."""
    if isinstance(holder, functools._lru_cache_wrapper):
        holder.cache_clear()
    elif isinstance(holder, dict):
        owned = any(getattr(user, "__dict__", None) is holder for user in gc.get_referrers(holder))
        for key in [key for key, value in holder.items() if value is tensor]:
            if owned:  # an attribute: the usual sign for "not built yet", where a missing one fails
                holder[key] = None
            else:
                del holder[key]
    elif isinstance(holder, set):
        holder.discard(tensor)
    elif isinstance(holder, (list, deque)):
        for place in reversed([i for i, item in enumerate(holder) if item is tensor]):
            del holder[place]
