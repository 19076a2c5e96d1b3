"""One call of an op as a trace records it: shapes, types and the arguments that are no tensors.

A trace is not trusted: what is not a shape is refused with a reason, never taken for one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import msgspec

Shape = tuple[int, ...]

LARGEST_SIZE = 2**48
"""Of one dimension; a larger one is a damaged trace, not a tensor."""

_BYTES = {
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::complex<c10::Half>": 4,
    "long": 8,
    "long int": 8,
    "int": 4,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "char": 1,
    "bool": 1,
    "c10::qint8": 1,
    "c10::quint8": 1,
    "c10::qint32": 4,
    "unsigned short": 2,
    "unsigned int": 4,
    "unsigned long": 8,
}

_DTYPES = {
    "float": "fp32",
    "double": "fp64",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "c10::complex<float>": "fp32",
    "c10::complex<double>": "fp64",
    "c10::complex<c10::Half>": "fp16",
    "signed char": "int8",
    "unsigned char": "int8",
    "char": "int8",
    "c10::qint8": "int8",
    "c10::quint8": "int8",
}


class NotRecordedError(Exception):
    """What a formula needs is not in the trace; the message says what."""


def dtype_of_type(name: str) -> str | None:
    """``"c10::BFloat16"`` -> ``"bf16"``; ``None`` for what has no peak or is no tensor."""
    if name.startswith("c10::Float8"):
        return "fp8"
    if name.startswith("c10::Float4"):
        return "fp4"
    return _DTYPES.get(name)


def bytes_of_type(name: str) -> int | None:
    """Bytes of one element; ``None`` for what is no tensor or not known."""
    if name.startswith(("c10::Float8", "c10::Float4")):  # two fp4 values are stored as one element
        return 1
    return _BYTES.get(name)


@dataclass(frozen=True, slots=True)
class OpCall:
    """The recorded arguments of one call, in the order of the op's schema.

    Attributes:
        name: With its namespace: ``aten::mm``.
        dims: Shape of argument i; of a list of tensors their shapes; empty for anything else.
        types: Type of argument i; empty for ``None``.
        concrete: Argument i as text if it is a number or a list of numbers, else empty. Old
            profilers do not record them.
    """

    name: str
    dims: tuple[Any, ...]
    types: tuple[str, ...]
    concrete: tuple[str, ...]

    def has(self, index: int) -> bool:
        """Whether the argument is a tensor (of known type, or with a shape)."""
        if not 0 <= index < len(self.dims):
            return False
        if index < len(self.types):
            return bytes_of_type(self.types[index]) is not None
        return bool(self.dims[index])

    def shape(self, index: int) -> Shape:
        """Shape of a tensor.

        Raises:
            NotRecordedError: If the argument is none.
        """
        if not self.has(index):
            raise NotRecordedError(f"the shape of argument {index} is not recorded")
        shape = self.dims[index]
        if not all(isinstance(size, int) for size in shape):
            raise NotRecordedError(f"argument {index} is a list of tensors, not one")
        return tuple(shape)

    def matrix(self, index: int, rank: int) -> Shape:
        """Shape of a tensor that must have ``rank`` dimensions.

        Raises:
            NotRecordedError: If it has not.
        """
        shape = self.shape(index)
        if len(shape) != rank:
            raise NotRecordedError(f"argument {index} has {len(shape)} dimensions, not {rank}")
        return shape

    def shapes(self, index: int) -> tuple[Shape, ...]:
        """Shapes of a list of tensors.

        Raises:
            NotRecordedError: If the argument is no list of tensors.
        """
        found = self.dims[index] if 0 <= index < len(self.dims) else ()
        if not found or not all(isinstance(shape, tuple) for shape in found):
            raise NotRecordedError(f"the shapes in argument {index} are not recorded")
        return tuple(found)

    def value(self, index: int) -> Any:
        """A number, truth value or list of them; ``None`` where the argument was ``None``.

        Raises:
            NotRecordedError: If the profiler recorded none at all, or it cannot be read.
        """
        if not self.concrete:
            raise NotRecordedError(
                "arguments that are no tensors (strides, padding, masks) are not recorded: the "
                "trace is of an old torch"
            )
        # A negative index counts from the end, as that of a list.
        if not -len(self.concrete) <= index < len(self.concrete):
            return None
        text = self.concrete[index].strip()
        if text in ("", "None"):
            return None
        try:
            return json.loads(text.replace("True", "true").replace("False", "false").rstrip("."))
        except ValueError:
            raise NotRecordedError(f"argument {index} cannot be read as a number") from None

    def flag(self, index: int) -> bool:
        """A truth value, ``None`` is false.

        Raises:
            NotRecordedError: If it is something else.
        """
        value = self.value(index)
        if value is not None and not isinstance(value, bool):
            raise NotRecordedError(f"argument {index} is no truth value")
        return bool(value)

    def integers(self, index: int) -> list[int]:
        """A list of whole numbers; empty for ``None``.

        Raises:
            NotRecordedError: If it is something else.
        """
        value = self.value(index)
        found = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(one, int) and abs(one) < LARGEST_SIZE for one in found):
            raise NotRecordedError(f"argument {index} is no list of whole numbers")
        return found

    def dtype(self, index: int) -> str | None:
        """By the names that peaks have; ``None`` where it is not known."""
        return dtype_of_type(self.types[index]) if 0 <= index < len(self.types) else None

    def item_bytes(self, index: int) -> int | None:
        """Bytes of one element of a tensor."""
        return bytes_of_type(self.types[index]) if 0 <= index < len(self.types) else None

    def bytes_of(self, *indices: int) -> int | None:
        """Bytes of these tensors together, those that are ``None`` apart; ``None``: not known."""
        total = 0
        for index in indices:
            if not self.has(index):
                continue
            size = self.item_bytes(index)
            if size is None:
                return None
            total += size * prod(self.shape(index))
        return total


def call_of(name: str, dims: bytes, types: bytes, concrete: bytes) -> OpCall:
    """The call, from the three JSON texts of the trace (empty where it has none).

    Raises:
        NotRecordedError: If there are no shapes, or they are not shapes.
    """
    if not dims:
        raise NotRecordedError("the trace has no shapes of it (profile with record_shapes=True)")
    try:
        shapes, names, values = (_loaded(text or b"[]") for text in (dims, types, concrete))
    except (ValueError, RecursionError):
        raise NotRecordedError("its recorded shapes are no JSON") from None
    if not all(isinstance(found, list) for found in (shapes, names, values)):
        raise NotRecordedError("its recorded shapes are no list")
    return OpCall(
        name=name,
        dims=tuple(_shape(one) for one in shapes),
        types=tuple(str(one) for one in names),
        concrete=tuple(str(one) for one in values),
    )


def _loaded(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)  # many times as fast, and stricter
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json.loads(text)


def _shape(value: Any, depth: int = 0) -> tuple[Any, ...]:
    if not isinstance(value, list) or depth > 1:
        raise NotRecordedError("a recorded shape is no list of sizes")
    if value and all(isinstance(one, list) for one in value):
        return tuple(_shape(one, depth + 1) for one in value)
    if not all(type(one) is int and 0 <= one < LARGEST_SIZE for one in value):
        raise NotRecordedError("a recorded shape has a size that is no size")
    return tuple(value)
