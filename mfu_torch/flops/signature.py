"""What of a model's inputs its FLOPs depend on: shapes, dtypes, and plain values that steer it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch

_PLAIN = (bool, str, type(None))
_Tensor = torch.Tensor


def signature(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], ints: bool, *state: Hashable
) -> Hashable:
    """A key that is equal for inputs of equal shape.

    Args:
        args: Positional inputs; containers are searched.
        kwargs: Keyword inputs.
        ints: Whether integers count by value. They can steer a model ("keep the last n logits") or
            merely number the step, and only counting tells which.
        *state: What else the FLOPs depend on; part of the key.
    """
    parts: list[Hashable] = [*state]
    for value in args:
        if type(value) is _Tensor:  # spelled out, because it is on the step path
            parts += (value.shape, value.dtype)
        else:
            parts.append(_part(value, ints))
    for name, value in kwargs.items():
        if type(value) is _Tensor:
            parts += (name, value.shape, value.dtype)
        else:
            parts += (name, _part(value, ints))
    return tuple(parts)


def _part(value: Any, ints: bool) -> Hashable:
    if isinstance(value, _Tensor):
        return value.shape, value.dtype
    kind: type = type(value)
    if kind in _PLAIN or (ints and kind is int):
        return value  # type: ignore[no-any-return]
    if isinstance(value, (list, tuple)):
        return tuple([_part(item, ints) for item in value])
    if isinstance(value, Mapping):
        return tuple([(str(key), _part(item, ints)) for key, item in value.items()])
    return kind
