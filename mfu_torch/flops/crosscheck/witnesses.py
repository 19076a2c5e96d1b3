"""What a witness says of a forward, and what is known of the faults of torch's own counter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mfu_torch.records import Record


class Reading(Record, frozen=True, kw_only=True):
    """What a witness says.

    Attributes:
        witness: ``"fvcore"``, ``"torch"`` or ``"closed form"``.
        flops: Forward FLOPs, a multiply-add being 2; ``None`` if it could not count.
        failure: What it raised, if it could not.
        why: What that means, in words.
        remarks: What it raised on single ops that it was kept from ending on.
    """

    witness: str
    flops: int | None = None
    failure: str = ""
    why: str = ""
    remarks: tuple[str, ...] = ()

    @classmethod
    def failed(cls, witness: str, error: Exception) -> Reading:
        """The reading of a witness that raised."""
        line = (str(error).strip().splitlines() or [""])[0][:160]
        failure = f"{type(error).__name__}: {line}"
        why = next((text for known, text in _WHY.get(witness, ()) if known in failure), "")
        return cls(witness=witness, failure=failure, why=why)


_TRACER = "fvcore counts the graph that torch.jit.trace makes, and the tracer cannot "

# What is in the failure of a witness -> what it means; the last one of each fits all.
_WHY: dict[str, tuple[tuple[str, str], ...]] = {
    "fvcore": (
        (
            "cond must be a bool",
            f"{_TRACER}run the model's checks of its sizes: while it traces, sizes are tensors, "
            "and torch._check takes none",
        ),
        (
            "Tracer cannot infer type",
            f"{_TRACER}return what this forward returns: only tensors, lists, tuples and dicts of "
            "tensors",
        ),
        ("vmap", f"{_TRACER}follow torch.vmap, with which the model makes its attention mask"),
        ("", f"{_TRACER}follow this forward; it runs without the tracer, as the other counts show"),
    ),
    "torch": (("", "torch's counter does not get through this forward; it runs without it"),),
}


class Difference(Record, frozen=True, kw_only=True):
    """A module that a witness counts otherwise.

    Attributes:
        witness: Who differs.
        module: Name of the module; what runs in its children is theirs. ``""``: the model itself.
        ours: FLOPs by this package.
        theirs: FLOPs by the witness.
        reasons: What in the witness accounts for the difference.
        unexplained: The part of ``ours - theirs`` that no reason accounts for.
    """

    witness: str
    module: str
    ours: int
    theirs: int
    reasons: tuple[str, ...] = ()
    unexplained: int = 0


# --- torch.utils.flop_counter ----------------------------------------------------------------


class Fault(NamedTuple):
    """A formula of torch's counter that is known to be wrong.

    Attributes:
        ops: Beginnings of the names of the ops that have it.
        operands: What :class:`Operands` has to have seen of the op.
        fits: Whether these FLOPs, ours and theirs, are what the fault would give.
        text: What is wrong, and where it was reported.
    """

    ops: tuple[str, ...]
    operands: str
    fits: Callable[[int, int], bool]
    text: str


_PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm", "aten.convolution")
_KERNELS = ("aten._flash_attention_", "aten._efficient_attention_")

FAULTS = (
    Fault(
        _KERNELS,
        "4-d",
        lambda ours, theirs: ours != theirs,
        "reads (b, s, h, d) as (b, h, s, d) (pytorch PR 184348)",
    ),
    Fault(
        _KERNELS,
        "3-d",
        lambda ours, theirs: ours < theirs,
        "takes every packed sequence for the longest where it cannot read the offsets",
    ),
    Fault(
        _PRODUCTS,
        "complex",
        lambda ours, theirs: ours == 4 * theirs,
        "counts a product of complex numbers, 4 real ones, as one",
    ),
    Fault(
        _PRODUCTS, "integer", lambda ours, theirs: ours == 0, "counts integers, which are no FLOPs"
    ),
    Fault(
        _PRODUCTS, "sparse", lambda ours, theirs: ours < theirs, "counts a sparse matrix as dense"
    ),
    Fault(
        ("aten.convolution_backward",),
        "grouped",
        lambda ours, theirs: ours < theirs,
        "ignores the groups in the gradient of the weight (pytorch PR 183405)",
    ),
)
"""In torch 2.13; where torch has mended one, there is no difference to explain by it."""


class Operands(TorchDispatchMode):
    """Notes what kinds of tensors each op gets, by the op's name: the evidence for a fault."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: dict[str, set[str]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(getattr(func, "overloadpacket", func))
        seen = self.seen.setdefault(name, set())
        for value in args:
            if isinstance(value, torch.Tensor):
                seen.update(_kinds(value))
        # grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups
        if name == "aten.convolution_backward" and args[9] > 1:
            seen.add("grouped")
        return func(*args, **(kwargs or {}))


def _kinds(tensor: torch.Tensor) -> Iterator[str]:
    if tensor.layout != torch.strided:
        yield "sparse"
        return
    yield f"{tensor.dim()}-d"
    if tensor.is_complex():
        yield "complex"
    elif not tensor.is_floating_point():
        yield "integer"


def explain_torch(
    module: str, ours: Counter[str], theirs: Counter[str], operands: Operands
) -> Difference:
    """Why torch's counter differs in a module, from the FLOPs of each op there.

    Args:
        module: Its name.
        ours: FLOPs by op of this package, as ``"aten.mm"``.
        theirs: The same of torch's counter.
        operands: Was active while torch's counter ran.
    """
    reasons, unexplained = [], 0
    for op in dict.fromkeys([*ours, *theirs]):
        mine, other = ours[op], theirs[op]
        if mine == other:
            continue
        reason = _reason(op, mine, other, operands.seen.get(op, set()))
        if reason:
            reasons.append(reason)
        else:
            unexplained += mine - other
    return Difference(
        witness="torch",
        module=module,
        ours=ours.total(),
        theirs=theirs.total(),
        reasons=tuple(reasons),
        unexplained=unexplained,
    )


def _reason(op: str, ours: int, theirs: int, operands: set[str]) -> str:
    if not theirs and not _torch_has_formula(op):
        return f"torch has no formula for {op}"
    for fault in FAULTS:
        if op.startswith(fault.ops) and fault.operands in operands and fault.fits(ours, theirs):
            return f"torch {fault.text}: {op}"
    return ""


def _torch_has_formula(op: str) -> bool:
    from torch.utils.flop_counter import flop_registry

    library, _, name = op.partition(".")
    if not name:  # a higher-order op, "flex_attention"
        return any(getattr(known, "_name", None) == op for known in flop_registry)
    packet = getattr(getattr(torch.ops, library, None), name, None)
    return packet in flop_registry
