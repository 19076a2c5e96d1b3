"""What the counter does with an op; found out once per op."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch._ops import HigherOrderOperator, OpOverload

from mfu_torch.flops.dispatch import has_own_kernel
from mfu_torch.flops.meta_results import follows_metadata
from mfu_torch.flops.opaque import ALLOCATES, opaque_packages
from mfu_torch.flops.ops import Formula, formula_for
from mfu_torch.flops.uncounted import is_composite, is_elementwise, may_contract

Op = OpOverload[..., Any] | HigherOrderOperator


class OpInfo(NamedTuple):
    """What the counter does with an op; found out once per op.

    Attributes:
        suspicious: It has no formula and could contract.
        elementwise: Its elements are added up, apart from the FLOPs.
        composite: It is made of other ops, has no formula, and is seen whole only where autograd
            is passed by: in ``inference_mode``, in the functions of higher-order ops.
        allocates: A kernel past the dispatcher may be about to fill its result, as a package that
            launches such kernels is imported.
        by_metadata: On the meta device it need not run again for arguments with equal metadata.
    """

    name: str
    formula: Formula | None
    suspicious: bool
    elementwise: bool
    composite: bool
    allocates: bool = False
    by_metadata: bool = False


def info_of(op: Op) -> OpInfo:
    """Ask torch and the formulas about an op."""
    formula = formula_for(op)
    if isinstance(op, HigherOrderOperator):
        return OpInfo(op._name, formula, formula is None, elementwise=False, composite=False)
    return OpInfo(
        name=str(op.overloadpacket),
        formula=formula,
        suspicious=formula is None and may_contract(op),
        elementwise=is_elementwise(op),
        composite=formula is None and is_composite(op) and not has_own_kernel(op),
        by_metadata=formula is None and follows_metadata(op),
        allocates=str(op.overloadpacket) in ALLOCATES and bool(opaque_packages()),
    )
