"""What is inside of containers and objects: the part of a signature that takes a search.

The search is bounded, whatever it is given. What it cannot see is told by an :class:`Unseen`.
"""

from __future__ import annotations

import enum
import numbers
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import Any

import torch

PLAIN = (numbers.Number, str, bytes, enum.Enum, torch.dtype, torch.device, range)
"""Values that can steer a model: a share that is masked, the name of a path."""

LONG = 64
"""Plain values in one container that are told apart; of more, their number and types count."""

LONG_TEXT = 256
"""Characters of a text that are kept; of a longer one, its length and hash."""

NODES_LIMIT = 8192
"""Values that are looked at in one search: a few milliseconds."""

_DEPTH = 20
"""Levels of containers that are searched for tensors."""

_OBJECT = 4
"""Levels that an object stands for: a fifth of them all."""

_Tensor = torch.Tensor
_BARE = frozenset({type(None), bool})
_SIMPLE = frozenset({int, float, complex, str, bytes})
_CONTAINERS = (list, tuple, set, frozenset)


class Value(tuple[Any]):
    """A plain value (an integer, a text) in a signature: it may or may not matter."""

    __slots__ = ()


class Length(tuple[int]):
    """The number of plain values in a long container: a size, like those of tensors."""

    __slots__ = ()


class Unseen(str):
    """In the place of inputs that cannot be looked at, or not all: why."""

    __slots__ = ()


class Inside:
    """One search through the inputs of a call."""

    def __init__(self) -> None:
        self._left = NODES_LIMIT
        self._objects: dict[int, Any] = {}  # that were looked at, by identity; kept alive
        self._in_object = False

    def part(self, value: Any) -> Hashable:
        """What stands for a value in a signature. It can be hashed."""
        return self._part(value, _DEPTH)

    def _part(self, value: Any, depth: int) -> Hashable:
        kind = type(value)
        if kind in _SIMPLE:
            return _short(value) if kind is str or kind is bytes else Value((value,))
        if kind in _BARE:
            return value  # type: ignore[no-any-return]
        if depth <= 0:  # what belongs to an object is, from some level on, of its surroundings
            return Unseen("too deep") if not self._in_object else kind.__name__
        self._left -= 1
        if self._left < 0:
            return Unseen("too much")
        # Inputs can be objects of any kind, whose own code runs when they are looked at; none of
        # it must end the loop over them.
        try:
            return self._of_any(value, kind, depth)
        except Exception as error:
            return Unseen(f"not readable: {type(error).__name__}")

    def _of_any(self, value: Any, kind: type, depth: int) -> Hashable:
        if isinstance(value, _Tensor):
            if value.is_nested:
                return *_nested_shape(value), value.dtype, value.requires_grad
            return value.shape, value.dtype, value.requires_grad
        if isinstance(value, PLAIN):
            plain = int(value) if isinstance(value, numbers.Integral) else value
            hash(plain)
            return _short(plain) if isinstance(plain, (str, bytes)) else Value((plain,))
        if isinstance(value, _CONTAINERS):
            if len(value) > LONG and (types := _plain_types(value)):
                return types, Length((len(value),))
            if isinstance(value, (list, tuple)):
                return self._of_items(value, depth)
            return _short(repr(value)) if len(value) <= LONG else Unseen("a large set")
        if isinstance(value, slice):
            return _short(repr(value))
        if isinstance(value, torch.nn.Module):
            return kind, id(value)
        if isinstance(value, Mapping):
            items = value.items()
            if len(items) > LONG and (types := _plain_types([item for _, item in items])):
                return types, Length((len(items),))
            names = tuple([str(key) for key in value])
            return names, self._of_items([item for _, item in items], depth)
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):  # an array of another library
            return torch.Size(shape), str(getattr(value, "dtype", kind))
        return kind, self._attributes(value, depth - _OBJECT)

    def _of_items(self, items: Collection[Any], depth: int) -> tuple[Hashable, ...]:
        parts: list[Hashable] = []
        for item in items:
            parts.append(self._part(item, depth - 1))
            if self._left < 0:
                parts.append(Length((len(items),)))
                break
        return tuple(parts)

    def _attributes(self, value: Any, depth: int) -> Hashable:
        """Of an object what holds tensors or plain values: others may change at every step."""
        if depth <= 0 or isinstance(value, type) or id(value) in self._objects:
            return ()
        self._objects[id(value)] = value
        outer, self._in_object = self._in_object, True
        held = [self._part(item, depth) for item in _held_by(value) if not callable(item)]
        self._in_object = outer
        return tuple([part for part in held if type(part) is Value or _is_shown(part)])


def _held_by(value: Any) -> Iterator[Any]:
    """The attributes of an object, whether they are in its dict or in slots."""
    yield from (getattr(value, "__dict__", None) or {}).values()
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            mangled = f"_{kind.__name__.lstrip('_')}{name}" if private else name
            if name not in ("__dict__", "__weakref__") and hasattr(value, mangled):
                yield getattr(value, mangled)


def _plain_types(values: Collection[Any]) -> str:
    """The names of the types in a container, if all that it holds is plain."""
    types = set(map(type, values))
    if all(kind in _BARE or issubclass(kind, PLAIN) for kind in types):
        return ", ".join(sorted(kind.__name__ for kind in types))
    return ""


def _short(text: str | bytes) -> Value:
    return Value((text if len(text) <= LONG_TEXT else f"{len(text)}, {hash(text)}",))


def _nested_shape(value: Any) -> tuple[Hashable, ...]:
    """The lengths in a nested tensor, as far as they are on the host."""
    if value.layout == torch.strided:
        return ("nested", tuple([tuple(shape) for shape in value._nested_tensor_size().tolist()]))
    offsets = value.offsets()
    lengths = tuple(offsets.tolist()) if offsets.device.type == "cpu" else None
    return "jagged", lengths, value.values().shape


def _is_shown(part: Hashable) -> bool:
    """Whether a tensor is in a part of a signature, or could be in what was not looked at."""
    return type(part) in (torch.Size, Unseen) or (
        type(part) is tuple and any(_is_shown(item) for item in part)
    )
