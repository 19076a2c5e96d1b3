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
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from mfu_torch.flops.dtypes import Kind, contraction_dtype, first_contraction_dtype

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
            which is only added and may have another dtype. ``None``: the first tensor found.
        kind: Which backend setting allows TF32 for it.
        given: It came from outside this package: its number is final.
    """

    fn: Callable[..., Any]
    operand: int | None = 0
    kind: Kind = "matmul"
    given: bool = False


class Counted(NamedTuple):
    """One counted call: the dtype that it ran in and its FLOPs."""

    dtype: str
    flops: OpFlops


_formulas: dict[str, Formula] = {}
_given: dict[str, Formula] = {}


def formula(*names: str, operand: int = 0, kind: Kind = "matmul") -> Callable[[_F], _F]:
    """Register the decorated function as this package's formula of the ops ``names``."""

    def register(fn: _F) -> _F:
        for name in names:
            _formulas[name] = Formula(fn, operand, kind)
        return fn

    return register


def register_flops(
    op: OpOverload[..., Any] | OpOverloadPacket[..., Any] | HigherOrderOperator | str,
    fn: Callable[..., int | OpFlops],
) -> None:
    """Teach the counter an op that it does not know, or correct one that it does.

    A later registration of the same op replaces an earlier one; formulas registered here win over
    built-in ones.

    Args:
        op: ``torch.ops.mylib.myop``, one of its overloads, or its name, ``"mylib::myop"`` or as
            reports print it, ``"mylib.myop"``. A name may be given before the library that defines
            it is imported.
        fn: Called as ``fn(*args, result=result, **kwargs)``; returns the FLOPs of that call, a
            multiply-add being 2: for ``(m, k) @ (k, n)`` this is ``2 * m * k * n``.

    Raises:
        TypeError: If ``op`` is not an op or a name, or ``fn`` cannot be called.
        ValueError: If ``op`` is a string that does not have the form of an op name.
    """
    if not callable(fn):
        raise TypeError(
            f"register_flops({op!r}, fn): fn is {fn!r}; expected a function that is called as "
            "fn(*args, result=result, **kwargs) and returns the FLOPs as an int"
        )
    _given[_key(op)] = Formula(fn, operand=None, given=True)


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
        dtype = first_contraction_dtype((args, kwargs, result), formula.kind)
        return Counted(dtype, _as_op_flops(formula.fn(*args, result=result, **kwargs)))
    operand = args[formula.operand] if formula.operand < len(args) else _first_tensor(kwargs)
    own_dtype = contraction_dtype(operand, formula.kind)
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
    raise TypeError(
        f"register_flops({op!r}, ...): {type(op).__name__} is not an op; expected "
        'torch.ops.mylib.myop, one of its overloads, or its name "mylib::myop"'
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
