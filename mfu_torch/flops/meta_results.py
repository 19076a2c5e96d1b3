"""Results of ops on the meta device, worked out once for arguments with equal metadata.

A tensor on the meta device is a size, strides and a dtype, and nothing else. Torch works those out
anew for every elementwise op, in Python, and that is most of the time of a step that computes
nothing: 80 equal layers ask 80 times the same. Here the op runs once; where it comes again with
equal arguments, it gets a new tensor with the metadata of that result.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._ops import OpOverload

from mfu_torch.flops.uncounted import is_elementwise

MOST = 10_000  # kept; a step whose scalars differ at every op would keep them without bound

OTHER_OPS = frozenset(
    f"aten::{name}"
    for name in (
        "cat",
        "mean",
        "select_backward",
        "slice_backward",
        "sum",
        "_softmax",
        "_softmax_backward_data",
    )
)
"""Not tagged as elementwise by torch; the metadata of their results follows all the same."""

_PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
_CONSTANTS = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device})

_has_names = getattr(torch.Tensor, "has_names", lambda _: False)  # gone from torch 2.13

Key = tuple[Any, ...]


class Metadata(NamedTuple):
    """All there is to a new tensor on the meta device, and the elements that its op went over."""

    size: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    elements: int

    def tensor(self) -> torch.Tensor:
        """A new tensor with this metadata."""
        return torch.empty_strided(self.size, self.stride, dtype=self.dtype, device="meta")


class MetaResults:
    """What ops on the meta device returned, by op and metadata of their arguments."""

    def __init__(self) -> None:
        self._known: dict[Key, Metadata] = {}

    def get(self, key: Key) -> Metadata | None:
        """What the op of ``key`` returned, if it was seen."""
        return self._known.get(key)

    def keep(self, key: Key, result: Any, elements: int) -> None:
        """Remember a result, if it is a tensor of its own that can be made again."""
        if type(result) is not torch.Tensor or _part(result) is None or len(self._known) >= MOST:
            return
        metadata = Metadata(result.size(), result.stride(), result.dtype, elements)
        made = metadata.tensor()
        same_storage = made.untyped_storage().nbytes() == result.untyped_storage().nbytes()
        if same_storage and not result.storage_offset() and not result.requires_grad:
            self._known[key] = metadata


def follows_metadata(op: OpOverload[..., Any]) -> bool:
    """Whether an op returns one new tensor whose metadata follows from that of its arguments."""
    schema = op._schema
    known = is_elementwise(op) or schema.name in OTHER_OPS
    if not known or op.namespace != "aten" or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    returns = [str(one.type) for one in schema.returns]
    return returns == ["Tensor"] and all(
        one.alias_info is None for one in (*schema.returns, *schema.arguments)
    )


def key_of(op: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Key | None:
    """What the metadata of a result follows from; ``None`` off the meta device, or if more may."""
    if torch._C._len_torch_dispatch_stack():
        return None  # a mode below this one sees the op, or answers it
    # Without a dtype of their own, integers that are divided become the default dtype.
    key: list[Any] = [op, torch.get_default_dtype()]
    for value in (*args, *kwargs.items()) if kwargs else args:
        part = _part(value)
        if part is None:
            return None
        key.append(part)
    return tuple(key)


def _part(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if not value.is_meta or value.layout is not torch.strided or value.is_nested:
            return None
        if value.is_complex() or _has_names(value):  # a conjugate may still have to be taken
            return None
        return value.size(), value.stride(), value.dtype
    if kind in _CONSTANTS:
        return kind, value  # 1, 1.0 and True are equal, and promote differently
    if kind is tuple or kind is list:
        parts = tuple(_part(one) for one in value)
        return None if None in parts else parts
    return None
