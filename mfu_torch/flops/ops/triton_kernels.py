"""Triton kernels, launched through ``torch.library.wrap_triton`` or past torch.

What a kernel does cannot be told from its launch, so there is no formula of ours. It is counted by
the user's; a kernel without one is listed as uncounted under its own name.
"""

from __future__ import annotations

from typing import Any

from mfu_torch.flops.ops.dtypes import first_contraction_dtype
from mfu_torch.flops.ops.registry import (
    Counted,
    Formula,
    NoFormula,
    count_call,
    formula,
    kernel_formula,
    kernel_function,
)


@formula("higher_order::triton_kernel_wrapper_mutation", operand=None)
@formula("higher_order::triton_kernel_wrapper_functional", operand=None)
def _launch(*_: Any, kernel_idx: int, result: Any, **launch: Any) -> Counted:
    # launch: constant_args_idx, grid, tma_descriptor_metadata, kwargs (the tensors, by name)
    from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table

    kernel = kernel_side_table.get_kernel(kernel_idx)
    name = f"triton.{kernel_function(kernel).__name__}"
    constants = kernel_side_table.get_constant_args(launch["constant_args_idx"])
    arguments = {**constants, **launch["kwargs"]}
    given = kernel_formula(kernel)
    if given is None:
        given, arguments = _formula_of_torch(kernel, name), {"kernel_idx": kernel_idx, **launch}
    counted = count_call(given, (), arguments, None)
    assert counted is not None  # a given formula always counts
    return counted._replace(dtype=first_contraction_dtype(launch["kwargs"]), op=name)


def counted_launch(kernel: Any, arguments: dict[str, Any]) -> Counted:
    """A kernel that was launched as ``kernel[grid](...)``, with its arguments by name.

    Raises:
        NoFormula: If none was given for it.
    """
    name = f"triton.{kernel_function(kernel).__name__}"
    given = kernel_formula(kernel)
    if given is None:
        raise NoFormula(name)
    counted = count_call(given, (), arguments, None)
    assert counted is not None  # a given formula always counts
    return counted._replace(dtype=first_contraction_dtype(arguments), op=name)


def _formula_of_torch(kernel: Any, name: str) -> Formula:
    # torch.utils.flop_counter.register_flop_formula also takes kernels, without tuning around
    # them; its formulas are called with the launch's own arguments.
    from torch.utils.flop_counter import flop_registry

    inner = kernel
    while inner not in flop_registry and hasattr(inner, "fn"):
        inner = inner.fn
    stock = flop_registry.get(inner)
    if stock is None:
        raise NoFormula(name)

    def fn(*args: Any, result: Any, **kwargs: Any) -> Any:
        return stock(*args, out_val=result, **kwargs)

    return Formula(fn, operand=None, given=True)
