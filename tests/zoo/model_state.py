"""A strict picture of a model and of what else a shadow could touch, and the difference of two."""

from __future__ import annotations

import hashlib
import inspect
import random
import sys
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import nn

State = dict[str, Any]

_LEAVES = (int, float, complex, str, bytes, bool, type(None), torch.dtype, torch.device, Enum,
           torch.Size, torch.layout)  # fmt: skip
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType,
           torch.Generator, property)  # fmt: skip


def snapshot(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> State:
    """Everything that is reachable from a model, its inputs, its classes and its code, by path."""
    state: State = {}
    _add(state, "model", model, {})
    _add_items(state, "inputs", [*enumerate(args), *kwargs.items()], {})
    for cls in {type(module) for module in model.modules()}:
        if not cls.__module__.startswith("torch."):
            _add_names(state, cls.__qualname__, vars(cls))
    for name in {type(module).__module__ for module in model.modules()}:
        if not name.startswith("torch."):
            _add_names(state, name, vars(sys.modules[name]))
    state["random.torch"] = hashlib.sha1(torch.get_rng_state().numpy().tobytes()).hexdigest()
    state["random.python"] = hash(random.getstate())
    state["random.numpy"] = hashlib.sha1(repr(np.random.get_state()).encode()).hexdigest()
    state["torch.grad"] = torch.is_grad_enabled()
    state["torch.dtype"] = torch.get_default_dtype()
    state["torch.autocast"] = (torch.is_autocast_enabled("cpu"), torch.is_autocast_cache_enabled())
    state["torch.modes"] = (
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
    )
    return state


def differences(before: State, after: State) -> list[str]:
    """What changed, appeared or vanished, as sentences."""
    changed = []
    for path in before.keys() | after.keys():
        if path not in after:
            changed.append(f"{path}: vanished, was {before[path]!r}")
        elif path not in before:
            changed.append(f"{path}: appeared as {after[path]!r}")
        elif before[path] != after[path]:
            changed.append(f"{path}: from {before[path]!r} to {after[path]!r}")
    return sorted(changed)


def _add_names(state: State, where: str, names: Mapping[str, Any]) -> None:
    """Of classes and modules of code: which values their names have, and plain containers."""
    for name, value in list(names.items()):
        if name.startswith("__"):
            continue
        path = f"{where}:{name}"
        if hasattr(value, "cache_info"):
            state[path] = (id(value), "cache")
        elif isinstance(value, set):
            state[path] = (id(value), sorted(id(item) for item in value))
        elif isinstance(value, dict | list):
            state[path] = (id(value), len(value), [id(item) for item in value])
        elif isinstance(value, torch.Tensor):
            state[path] = _of_tensor(value)
        else:
            state[path] = id(value)


def _add(state: State, path: str, value: Any, seen: dict[int, str]) -> None:
    if isinstance(value, _LEAVES):
        state[path] = (type(value).__name__, repr(value))
        return
    if id(value) in seen:
        state[path] = ("see", seen[id(value)])
        return
    seen[id(value)] = path
    if isinstance(value, torch.Tensor):
        state[path] = _of_tensor(value)
        if value.is_leaf and value.grad is not None:
            _add(state, f"{path}.grad", value.grad, seen)
        attributes = getattr(value, "__dict__", {})
        _add_items(state, path, attributes.items(), seen)
        return
    state[path] = (type(value).__name__, id(value))
    if isinstance(value, np.ndarray):
        state[path] = (id(value), hashlib.sha1(value.tobytes()).hexdigest())
    elif isinstance(value, types.MethodType):
        _add(state, f"{path}.__self__", value.__self__, seen)
    elif isinstance(value, _OPAQUE) or inspect.isroutine(value):
        return
    elif isinstance(value, Mapping):
        state[f"{path}#keys"] = [repr(key) for key in value]
        _add_items(state, path, value.items(), seen)
    elif isinstance(value, list | tuple):
        _add_items(state, path, enumerate(value), seen)
    elif isinstance(value, set | frozenset):
        state[f"{path}#items"] = sorted(repr(item) for item in value)
    if not isinstance(value, list | tuple | set | frozenset):
        _add_items(state, path, getattr(value, "__dict__", {}).items(), seen)


def _add_items(state: State, path: str, items: Any, seen: dict[int, str]) -> None:
    for name, item in list(items):
        _add(state, f"{path}.{name}", item, seen)


def _of_tensor(tensor: torch.Tensor) -> tuple[Any, ...]:
    meta = (
        id(tensor), type(tensor).__name__, tuple(tensor.shape), tensor.dtype, tensor.device,
        tensor.requires_grad, tensor._version if not tensor.is_inference() else None,
        tuple(getattr(tensor, "_backward_hooks", None) or ()),
    )  # fmt: skip
    if tensor.layout != torch.strided or type(tensor) not in (torch.Tensor, nn.Parameter):
        return meta
    data = tensor.detach().contiguous().reshape(-1)
    content = hashlib.sha1(data.view(torch.uint8).numpy().tobytes()).hexdigest()
    return (*meta, tensor.stride(), tensor.data_ptr(), content)
