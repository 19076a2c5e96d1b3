"""What of a model's inputs its FLOPs depend on: shapes, dtypes, and plain values that steer it."""

from __future__ import annotations

import enum
import numbers
from collections.abc import Hashable, Mapping
from typing import Any

import torch

_Tensor = torch.Tensor
PLAIN = (numbers.Number, str, bytes, enum.Enum, torch.dtype, torch.device, range)
"""Values that can steer a model: a share that is masked, the name of a path."""

_DEPTH = 5
"""Levels of containers and objects that are searched for tensors."""


class Value(tuple[Any]):
    """A plain value (an integer, a text) in a signature: it may or may not matter."""

    __slots__ = ()


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any], *state: Hashable) -> Hashable:
    """A key that is equal for inputs of equal shape.

    Args:
        args: Positional inputs; containers and objects (a cache, a dataclass) are searched.
        kwargs: Keyword inputs.
        *state: What else the FLOPs depend on; part of the key.
    """
    parts: list[Hashable] = [*state]
    for value in args:
        if type(value) is _Tensor and not value.is_nested:  # spelled out: it is on the step path
            parts += (value.shape, value.dtype, value.requires_grad)
        else:
            parts.append(_part(value, _DEPTH))
    for name, value in kwargs.items():
        if type(value) is _Tensor and not value.is_nested:
            parts += (name, value.shape, value.dtype, value.requires_grad)
        else:
            parts += (name, _part(value, _DEPTH))
    return tuple(parts)


def autocast_dtypes() -> tuple[torch.dtype, ...]:
    """What autocast casts to, on either device."""
    return torch.get_autocast_dtype("cpu"), torch.get_autocast_dtype("cuda")


def without_values(inputs: Hashable) -> Hashable:
    """A signature with its plain values forgotten; shapes and types stay."""
    if type(inputs) is Value:
        return type(inputs[0]).__name__
    if type(inputs) is tuple:
        return tuple([without_values(part) for part in inputs])
    return inputs


def values_in(inputs: Hashable) -> tuple[Hashable, ...]:
    """The plain values in a signature."""
    if type(inputs) is Value:
        return (inputs,)
    if type(inputs) is tuple:
        return tuple([value for part in inputs for value in values_in(part)])
    return ()


def template(inputs: Hashable) -> tuple[Hashable, tuple[int, ...]]:
    """A signature with its sizes taken out, and these sizes.

    Inputs with equal templates differ in nothing but their sizes.
    """
    sizes: list[int] = []
    return _without_sizes(inputs, sizes), tuple(sizes)


def _without_sizes(part: Any, sizes: list[int]) -> Hashable:
    kind = type(part)
    if kind is torch.Size:
        sizes += part
        return len(part)
    if kind is tuple:
        return tuple([_without_sizes(item, sizes) for item in part])
    return part  # type: ignore[no-any-return]


def shapes_of(batch: object) -> Hashable:
    """The shapes in a batch of any kind; what cannot be looked at is told apart by the error."""
    # A batch can be an object of any kind, and looking at one must not end the loop over them.
    try:
        shapes = without_values(signature((batch,), {}))
        hash(shapes)
    except Exception as error:
        return f"not readable: {type(error).__name__}"
    return shapes


def _part(value: Any, depth: int) -> Any:
    if isinstance(value, _Tensor):
        if value.is_nested:
            return *_nested_shape(value), value.dtype, value.requires_grad
        return value.shape, value.dtype, value.requires_grad
    if value is None or type(value) is bool:
        return value
    kind = type(value)
    if isinstance(value, PLAIN):
        return Value((int(value) if isinstance(value, numbers.Integral) else value,))
    if depth == 0:
        return kind
    if isinstance(value, (list, tuple)):
        return tuple([_part(item, depth - 1) for item in value])
    if isinstance(value, (set, frozenset, slice)):
        return Value((repr(value),))
    if isinstance(value, torch.nn.Module):
        return kind, id(value)
    if isinstance(value, Mapping):
        return tuple([(str(key), _part(item, depth - 1)) for key, item in value.items()])
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):  # an array of another library
        return torch.Size(shape), str(getattr(value, "dtype", kind))
    return kind, _attributes(value, depth - 1)


def _nested_shape(value: Any) -> tuple[Hashable, ...]:
    """The lengths in a nested tensor, as far as they are on the host."""
    if value.layout == torch.strided:
        return ("nested", tuple([tuple(shape) for shape in value._nested_tensor_size().tolist()]))
    offsets = value.offsets()
    lengths = tuple(offsets.tolist()) if offsets.device.type == "cpu" else None
    return "jagged", lengths, value.values().shape


def _attributes(value: Any, depth: int) -> Hashable:
    """Of an object what holds tensors or plain values: others may change at every step."""
    attributes = getattr(value, "__dict__", None)
    if not attributes or isinstance(value, type):
        return ()
    held = (_part(item, depth) for item in attributes.values() if not callable(item))
    return tuple([part for part in held if type(part) is Value or _has_shape(part)])


def _has_shape(part: Hashable) -> bool:
    return type(part) is torch.Size or (
        type(part) is tuple and any(_has_shape(item) for item in part)
    )
