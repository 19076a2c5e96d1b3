"""A copy of a model on fake tensors, and the mode that runs it.

A fake tensor has a shape, a dtype and a device, and no data. The copy is structural: what its
forward stores on it stays on it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch._higher_order_ops import utils as higher_order
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.overrides import TorchFunctionMode

from mfu_torch.flops.ops import formula_for
from mfu_torch.records import MFUError

_GROUPED_MM = getattr(getattr(torch.ops.aten, "_grouped_mm", None), "default", None)

_SPARSE = (
    torch.sparse_coo,
    torch.sparse_csr,
    torch.sparse_csc,
    torch.sparse_bsr,
    torch.sparse_bsc,
)

_LARGE_BYTES = 1 << 20
"""Arrays above this are shared with the copy, read-only, instead of copied."""


class ShadowError(MFUError):
    """The shadow could not be counted; the message says why. The real model is untouched."""


class ShadowMode(FakeTensorMode):
    """Fake tensors as torch makes them, and what its rules for them lack."""

    supports_higher_order_operators = True  # torch's rules for them name its own mode, not ours

    def __init__(self) -> None:
        # Tensors that no copy reaches, in a closure or on a class, are taken as fake ones too.
        super().__init__(allow_non_fake_inputs=True)  # type: ignore[no-untyped-call]
        self.missed = ""  # what was asked for and fake tensors do not have, also if code went on

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if isinstance(func, HigherOrderOperator):
            return self._run_higher_order(func, types, args, kwargs or {})
        self._refuse_what_is_no_shadow(func, args, kwargs or {})
        if _GROUPED_MM is not None and func is _GROUPED_MM and args[0].dtype != torch.bfloat16:
            # Kernels exist for other dtypes; torch's rule for fake tensors knows bf16 alone.
            dtype = (kwargs or {}).get("out_dtype") or args[0].dtype
            halves = (tensor.to(torch.bfloat16) for tensor in args[:2])
            return func(*halves, *args[2:], **(kwargs or {})).to(dtype)
        try:
            return super().__torch_dispatch__(func, types, args, kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            self.missed = self.missed or f"{type(error).__name__}: {error}"
            raise

    def _refuse_what_is_no_shadow(self, func: Any, args: Any, kwargs: dict[str, Any]) -> None:
        refused = ""
        if any(isinstance(arg, torch.Tensor) and arg.layout in _SPARSE for arg in args) and (
            formula_for(func) is not None
        ):
            refused = (
                f"{func} multiplies a sparse tensor, and a fake one does not know how many "
                "elements it stores"
            )
        if isinstance(func, OpOverload) and func._schema.is_mutable and _writes(func, args, kwargs):
            refused = f"{func} would write to a tensor that is not part of the model"
        if refused:
            self.missed = self.missed or refused
            raise ShadowError(refused)

    def _run_higher_order(
        self, func: HigherOrderOperator, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        rule = func.python_key_table.get(FakeTensorMode)
        if rule is None or formula_for(func) is None:
            # torch.cond would run both branches, and a loop its body once.
            self.missed = self.missed or f"what {func._name} runs cannot be told from fake tensors"
            raise ShadowError(self.missed)
        if func in getattr(higher_order, "registered_hop_fake_fns", ()):
            return super().__torch_dispatch__(func, types, args, kwargs)  # type: ignore[arg-type]
        return rule(self, *args, **kwargs)


def _writes(func: OpOverload[..., Any], args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether an op would write to a tensor that is not a fake one."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        for tensor in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(tensor, torch.Tensor) and not isinstance(tensor, FakeTensor):
                return True
    return False


def fake_copy(
    real: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], fake_mode: FakeTensorMode
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    """A model and the arguments of a call, copied, every tensor a fake one.

    Compiled blocks are replaced by what they wrap; tied weights stay tied. Large NumPy arrays are
    shared, read-only.
    """
    memo: dict[int, Any] = {}
    for tensor in [*real.parameters(), *real.buffers()]:
        memo[id(tensor)] = fake_mode.from_tensor(tensor, static_shapes=True)
    for item in _not_copied([*(vars(module) for module in real.modules()), args, kwargs]):
        memo[id(item)] = _stand_in(item)
    with _FakeCopy(fake_mode), torch.no_grad():
        for module in real.modules():
            inner = module.__dict__.get("_modules", {}).get("_orig_mod")
            if inner is not None:  # a block compiled on its own: copy what it wraps
                memo[id(module)] = copy.deepcopy(inner, memo)
        copied: tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
        copied = copy.deepcopy((real, args, dict(kwargs)), memo)
    return copied


def _not_copied(values: Iterable[Any], depth: int = 4) -> Iterator[Any]:
    """What ``copy.deepcopy`` must not do itself, in nested containers and objects."""
    for value in values:
        if isinstance(value, torch.Generator):
            yield value
        elif isinstance(value, np.ndarray):
            if value.nbytes > _LARGE_BYTES and not value.dtype.hasobject:
                yield value
        elif isinstance(value, (list, tuple)) and depth:
            yield from _not_copied(value, depth - 1)
        elif isinstance(value, dict) and depth:
            yield from _not_copied(value.values(), depth - 1)
        elif depth and not isinstance(value, (nn.Module, torch.Tensor, type)):
            yield from _not_copied(getattr(value, "__dict__", {}).values(), depth - 1)


def _stand_in(item: Any) -> Any:
    if isinstance(item, torch.Generator):
        return item.clone_state()
    shared = item.view()
    shared.flags.writeable = False  # so that writing to it fails, and the shadow with it
    return shared


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
                memo[id(tensor)] = self._fake(tensor)
            return memo[id(tensor)]
        return func(*args, **(kwargs or {}))

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_leaf:
            return self._fake_mode.from_tensor(tensor, static_shapes=True)
        # What another model computed. Torch would put a graph of its own in front of the fake one
        # and keep it alive; this one ends with the shadow.
        fake = self._fake_mode.from_tensor(tensor.detach(), static_shapes=True)
        fake.requires_grad_(tensor.requires_grad)
        with torch.enable_grad(), self._fake_mode:
            return fake.view_as(fake)
