"""What of a model's inputs its FLOPs depend on: shapes, dtypes, and plain values that steer it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch

from mfu_torch.flops.shapes.inside import Inside, Length, Unseen, Value

_Tensor = torch.Tensor
_AUTOCAST_DEVICES = ("cpu", "cuda", "xpu", "mps")
# Bound once: they are called on the step path.
_is_autocast_enabled = torch._C._is_any_autocast_enabled
_is_on, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype


def signature(args: tuple[Any, ...], kwargs: Mapping[str, Any], *state: Hashable) -> Hashable:
    """A key that is equal for inputs of equal shape. It can be made of any inputs.

    Args:
        args: Positional inputs; containers and objects (a cache, a dataclass) are searched.
        kwargs: Keyword inputs.
        *state: What else the FLOPs depend on; part of the key.
    """
    parts: list[Hashable] = [*state]
    inside: Inside | None = None
    for value in args:
        if type(value) is _Tensor and not value.is_nested:  # spelled out: it is on the step path
            parts += (value.shape, value.dtype, value.requires_grad)
        else:
            inside = inside or Inside()
            parts.append(inside.part(value))
    for name, value in kwargs.items():
        if type(value) is _Tensor and not value.is_nested:
            parts += (name, value.shape, value.dtype, value.requires_grad)
        elif value is None or type(value) is bool:
            parts += (name, value)
        else:
            inside = inside or Inside()
            parts += (name, inside.part(value))
    return tuple(parts)


def autocast_in_force() -> tuple[torch.dtype | None, ...] | None:
    """What autocast casts to, by kind of device; ``None`` where it is off."""
    if not _is_autocast_enabled():
        return None
    return tuple([_autocast_dtype(d) if _is_on(d) else None for d in _AUTOCAST_DEVICES])


def without_values(inputs: Hashable) -> Hashable:
    """A signature with its plain values forgotten; shapes and types stay."""
    if type(inputs) is Value:
        return type(inputs[0]).__name__
    if type(inputs) is tuple:
        return tuple([without_values(part) for part in inputs])
    return inputs


def values_in(inputs: Hashable) -> tuple[Hashable, ...]:
    """The plain values in a signature."""
    return tuple([leaf for leaf in leaves_of(inputs) if type(leaf) is Value])


def leaves_of(inputs: Hashable) -> Iterator[Hashable]:
    """The parts of a signature that have no parts."""
    if type(inputs) is tuple:
        for part in inputs:
            yield from leaves_of(part)
    else:
        yield inputs


def hides_shapes(inputs: Hashable, *, announced: bool) -> bool:
    """Whether the FLOPs can depend on what a signature does not show.

    Args:
        inputs: The signature, without the state before it.
        announced: It is of a batch, of which the model need not be called with anything that is in
            it. The inputs of a model show what they are if they are plain values.
    """
    kinds = {type(leaf) if not isinstance(leaf, type) else type for leaf in leaves_of(inputs)}
    if Unseen in kinds:
        return True
    return kinds.isdisjoint((torch.Size, torch.dtype)) and (announced or type in kinds)


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
    if kind is Length:
        sizes.append(part[0])
        return Length
    if kind is tuple:
        return tuple([_without_sizes(item, sizes) for item in part])
    return part  # type: ignore[no-any-return]


def shapes_of(batch: object) -> Hashable:
    """The shapes in a batch of any kind, without its plain values."""
    return without_values(signature((batch,), {}))
