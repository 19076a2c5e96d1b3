"""Where FLOP formulas are found: by op name, so that an op need not exist for its formula to.

A formula answers one question, how many FLOPs did this call do, and is called as
``fn(*args, result=result, **kwargs)`` with the op's own arguments and its result. The formulas of
this package stand in :mod:`mfu_torch.flops.ops` and the two files on attention;
:func:`register_flops` adds the user's, and what neither has is looked up in torch's own
registry, so that formulas given to ``torch.utils.flop_counter`` work here as well.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import torch
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from mfu_torch.flops.ops.dtypes import Kind, contraction_dtype, first_contraction_dtype
from mfu_torch.flops.ops.formula_signature import check_formula, schemas_of

_F = TypeVar("_F", bound=Callable[..., Any])

# As torch and the reports print it: "mylib.myop", "mylib.myop.default".
_DOTTED = re.compile(r"^([A-Za-z_]\w*)\.(\w+)(?=$|\.)")
# A schema name ("aten::mm") with an optional overload (".dtype").
_NAME = re.compile(r"[A-Za-z_]\w*::\w+(\.\w+)?")


class OpFlops(NamedTuple):
    """FLOPs of one call where the attention conventions differ.

    Attributes:
        full: Every attention score counted.
        causal: Only the scores that the mask keeps.
        kernel_recompute: Work that a fused backward repeats, not part of ``full``.
        kernel_recompute_causal: The same, for the scores that the mask keeps.
        note: A sentence on what limits this count; empty if it is exact.
    """

    full: int
    causal: int
    kernel_recompute: int = 0
    kernel_recompute_causal: int = 0
    note: str = ""


class Formula(NamedTuple):
    """A formula and what is needed to read the dtype of its contraction.

    Attributes:
        operand: Position of an argument that is multiplied, so not the ``self`` of ``addmm``,
            which is only added and may have another dtype; a list stands for its first tensor.
            ``None``: the first tensor found, and the number is final: in real operations.
        kind: Which backend setting allows TF32 for it.
        runs_in: The dtype that the kernel multiplies in, whatever its operands come in.
        given: It came from outside this package: its number is final.
    """

    fn: Callable[..., Any]
    operand: int | None = 0
    kind: Kind = "matmul"
    runs_in: str | None = None
    given: bool = False


class Counted(NamedTuple):
    """One counted call: the dtype that it ran in and its FLOPs.

    ``op``: The name to list it under where that is not the op's own: a Triton kernel's.
    """

    dtype: str
    flops: OpFlops
    op: str = ""


class NoFormula(LookupError):
    """A call that has no formula although its op has one: that of another Triton kernel.

    Attributes:
        op: What to list as uncounted.
    """

    def __init__(self, op: str) -> None:
        super().__init__(f"no formula for {op}")
        self.op = op


_formulas: dict[str, Formula] = {}
_given: dict[str, Formula] = {}
_kernels: dict[Any, Formula] = {}  # Triton's, by the function that was decorated


def formula(
    *names: str,
    operand: int | None = 0,
    kind: Kind = "matmul",
    runs_in: str | None = None,
) -> Callable[[_F], _F]:
    """Register the decorated function as this package's formula of the ops ``names``."""

    def register(fn: _F) -> _F:
        for name in names:
            _formulas[name] = Formula(fn, operand, kind, runs_in)
        return fn

    return register


def register_flops(
    op: OpOverload[..., Any] | OpOverloadPacket[..., Any] | HigherOrderOperator | str | Any,
    fn: Callable[..., int | OpFlops],
) -> None:
    """Teach the counter an op that it does not know, or correct one that it does.

    A later registration of the same op replaces an earlier one; formulas registered here win over
    built-in ones.

    Args:
        op: ``torch.ops.mylib.myop``, one of its overloads, or its name, ``"mylib::myop"`` or as
            reports print it, ``"mylib.myop"``. A name may be given before the library that defines
            it is imported. Also what ``torch.library.custom_op`` and ``triton_op`` return, and a
            Triton kernel (``@triton.jit``, with ``@triton.autotune`` or not), or its name,
            ``"triton::mykernel"``: it is counted where it is launched outside of an op.
        fn: Called as ``fn(*args, result=result, **kwargs)``; returns the FLOPs of that call, a
            multiply-add being 2: for ``(m, k) @ (k, n)`` this is ``2 * m * k * n``. That of a
            Triton kernel is called with the kernel's arguments by their names, and ``result=None``.

    The name of an op that does not exist (yet) is taken, since its library may be loaded later: a
    misspelt one is not noticed here, and the op that was meant stays listed as not counted. So
    what ``fn`` takes is held against the op's schema only where the op exists by now.

    Raises:
        TypeError: If ``op`` is not an op or a name, ``fn`` cannot be called, or not in this way: it
            takes no ``result``, or more or fewer arguments than any overload of the op has.
        ValueError: If ``op`` is a string that does not have the form of an op name.
    """
    if not callable(fn):
        raise TypeError(
            f"register_flops({op!r}, fn): fn is {fn!r}; expected a function that is called as "
            "fn(*args, result=result, **kwargs) and returns the FLOPs as an int"
        )
    given = Formula(fn, operand=None, given=True)
    if is_triton_kernel(op):
        check_formula(op, fn, ())
        _kernels[kernel_function(op)] = given
    else:
        key = _key(op)
        check_formula(op, fn, schemas_of(key))
        _given[key] = given


def formula_for(op: OpOverload[..., Any] | HigherOrderOperator) -> Formula | None:
    """The formula of an op, or ``None``: the user's first, then ours, then torch's."""
    keys = _keys(op)
    for table in (_given, _formulas):
        for key in keys:
            if key in table:
                return table[key]
    return _formula_of_torch(op)


def count_call(
    formula: Formula, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
) -> Counted | None:
    """FLOPs of one call by its formula; ``None`` if it multiplies integers, which is no FLOP.

    Raises:
        TypeError, ValueError: If the formula returned something other than a count.
    """
    if formula.given or formula.operand is None:
        value = formula.fn(*args, result=result, **kwargs)
        if isinstance(value, Counted):
            return value
        dtype = formula.runs_in or first_contraction_dtype((args, kwargs, result), formula.kind)
        return Counted(dtype, _as_op_flops(value))
    operand = args[formula.operand] if formula.operand < len(args) else _first_tensor(kwargs)
    if isinstance(operand, list | tuple):
        operand = operand[0] if operand else None
    own_dtype = formula.runs_in or contraction_dtype(operand, formula.kind)
    if operand is None or own_dtype is None:
        return None
    flops = _as_op_flops(formula.fn(*args, result=result, **kwargs))
    if operand.is_complex():
        # (a + bi)(c + di): 4 multiplies, 2 adds, and 2 adds to accumulate: 8 for 2.
        flops = OpFlops(
            4 * flops.full,
            4 * flops.causal,
            4 * flops.kernel_recompute,
            4 * flops.kernel_recompute_causal,
            flops.note,
        )
    return Counted(own_dtype, flops)


def kernel_formula(kernel: Any) -> Formula | None:
    """The formula that a user gave for a Triton kernel, to us or to torch, or ``None``."""
    function = kernel_function(kernel)
    return _kernels.get(function) or _given.get(f"triton::{function.__name__}")


def is_triton_kernel(op: object) -> bool:
    """Whether this is what ``triton.jit`` or one of its decorators returns."""
    return type(op).__module__.split(".")[0] == "triton" and hasattr(op, "fn")


def kernel_function(kernel: Any) -> Any:
    """The function inside a Triton kernel, below the tuning and heuristics around it."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


def _first_tensor(kwargs: dict[str, Any]) -> torch.Tensor | None:
    return next((value for value in kwargs.values() if isinstance(value, torch.Tensor)), None)


def _as_op_flops(value: Any) -> OpFlops:
    if isinstance(value, OpFlops):
        full, causal, again, again_causal = (operator.index(count) for count in value[:4])
        flops = OpFlops(full, causal, again, again_causal, value.note)
    else:
        try:
            count = operator.index(value)
        except TypeError:
            raise TypeError(
                f"it returned {value!r}; expected the FLOPs as an int, or an OpFlops"
            ) from None
        flops = OpFlops(count, count)
    if min(flops[:4]) < 0:
        raise ValueError(f"it returned {value!r}; expected a count that is not negative")
    return flops


def _key(op: object) -> str:
    if isinstance(op, str):
        given, op = op, _DOTTED.sub(r"\1::\2", op)
        if not _NAME.fullmatch(op):
            raise ValueError(
                f"register_flops({given!r}, ...): not the name of an op; expected the form "
                '"library::op", e.g. "aten::mm" or "mylib::myop"'
            )
        return op
    if isinstance(op, OpOverload | HigherOrderOperator):
        return _keys(op)[0]
    if isinstance(op, OpOverloadPacket):
        return str(op._qualified_op_name)
    if isinstance(op, CustomOpDef):
        return str(op._qualname)
    raise TypeError(
        f"register_flops({op!r}, ...): {type(op).__name__} is not an op; expected "
        'torch.ops.mylib.myop, one of its overloads, its name "mylib::myop", or a Triton kernel'
    )


def _keys(op: OpOverload[..., Any] | HigherOrderOperator) -> tuple[str, ...]:
    if isinstance(op, HigherOrderOperator):
        return (f"higher_order::{op._name}",)
    name = str(op.overloadpacket._qualified_op_name)
    return (f"{name}.{op._overloadname}", name)


def _formula_of_torch(op: OpOverload[..., Any] | HigherOrderOperator) -> Formula | None:
    # Imported late: the module probes for triton, and a user may register in it at any time.
    from torch.utils.flop_counter import flop_registry

    target = op if isinstance(op, HigherOrderOperator) else op.overloadpacket
    stock = flop_registry.get(target)
    if stock is None:
        return None

    def fn(*args: Any, result: Any, **kwargs: Any) -> Any:
        return stock(*args, out_val=result, **kwargs)

    return Formula(fn, operand=None, given=True)
