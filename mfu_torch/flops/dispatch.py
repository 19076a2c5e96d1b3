"""The dispatch modes that show every op to a counter, and change nothing of it.

A mode sees an op below autograd and autocast. Where an argument is a tensor subclass with ops of
its own (DTensor, a quantised weight), the subclass has the first say, and the mode sees what it
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass_type,
)

from mfu_torch.flops.higher_order import CALLS_FUNCTIONS, leave, with_bodies_seen
from mfu_torch.flops.meta_results import key_of

if TYPE_CHECKING:
    from mfu_torch.flops.counter import FlopCounter
    from mfu_torch.flops.op_info import OpInfo

CAN_WATCH = hasattr(TorchDispatchMode, "ignore_compile_internals")
"""Whether this torch lets a mode stand beside compiled code without turning it off for good."""


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls every op as it was called, and shows it to the counter."""

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter
        self._passed = False  # the op that comes next is left to the subclass of its arguments

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Torch asks for this; ``False`` would keep what compiles below it from ever compiling."""
        return True

    def leave(self) -> None:
        """Leave the mode, if it was entered; modes above it stay."""
        leave(self)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        counter = self._counter
        if not types and func in counter.idle:  # a view, a copy: half of the ops of a model
            return func(*args, **kwargs)
        counted, wrapped = True, False
        for kind in types:
            if issubclass(kind, FakeTensor):
                counted = not self._is_foreign(args, kwargs)
            elif is_traceable_wrapper_subclass_type(kind):
                # DTensor, NestedTensor, quantized weights: they run ops of their own on the
                # tensors inside, with the shapes and dtypes that this device really works on.
                return NotImplemented
            else:
                wrapped = wrapped or _dispatches(kind)
        info = counter.info(func)
        if wrapped:
            return self._run_wrapped(func, info, args, kwargs)
        if info.composite:  # it came past autograd: in inference mode, or in a higher-order op
            with self:
                return _run_composite(func, args, kwargs)
        if isinstance(func, HigherOrderOperator):
            fake = _first_fake((args, kwargs))  # types tells nothing
            counted = fake is None or fake.fake_mode is counter.fake_mode
            if fake is None and info.formula is None and info.name in CALLS_FUNCTIONS:
                return func(*with_bodies_seen(args, self), **kwargs)
        if info.by_metadata and counted and counter.where is None:
            key = key_of(func, args, kwargs)
            if key is not None:
                return counter.run_on_meta(key, func, info, args, kwargs)
        result = func(*args, **kwargs)
        if counted and (counter.where is None or counter.where()):
            counter.count(func, info, args, kwargs, result)
        return result

    def _run_wrapped(
        self, func: Any, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        # A subclass of any other kind, too, has the first say on what it runs. But it may do that
        # out of sight: then the op counts as it was called.
        if self._passed:
            self._passed = False
            return NotImplemented
        self._passed = True
        seen = self._counter.seen
        with self:
            result = func(*args, **kwargs)
        self._passed = False
        if self._counter.seen == seen and (self._counter.where is None or self._counter.where()):
            self._counter.count(func, info, args, kwargs, result)
        return result

    def _is_foreign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        fake = _first_fake((args, kwargs))
        return fake is not None and fake.fake_mode is not self._counter.fake_mode


def has_own_kernel(op: OpOverload[..., Any]) -> bool:
    """Whether an op that is made of others has a kernel of its own all the same (silu_backward).

    It is then run as it is: made of others, it would round otherwise.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return has_kernel(op._name, "CPU") or has_kernel(op._name, "CUDA")


def _run_composite(op: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The kernel that the op would run anyway, with the mode still on for the ops inside. Not
    # op.decompose(): where torch has a Python decomposition it prefers that, and rounds otherwise.
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _dispatches(kind: type) -> bool:
    return (
        kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__  # type: ignore[attr-defined]
        and not issubclass(kind, FunctionalTensor)
    )


def _first_fake(values: Any) -> FakeTensor | None:
    # Any will do: torch does not let tensors of two modes meet.
    for value in values:
        if isinstance(value, FakeTensor):
            return value
        if isinstance(value, dict):
            value = value.values()
        elif not isinstance(value, tuple | list):
            continue
        if value and (fake := _first_fake(value)) is not None:
            return fake
    return None
