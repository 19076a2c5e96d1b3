"""Counts the FLOPs of what really runs, without changing a bit of it.

::

    with FlopCounter() as counter:          op  ->  runs as it would  ->  its formula x its phase
        loss = model(batch).loss
        loss.backward()
        optimizer.step()
    count = counter.take()                  FlopCount(forward=.., backward=.., optimizer=..)

A dispatch mode sees every op below autograd and autocast, and calls it with what it was given.
While it is active compiled functions run eagerly: a fused kernel cannot be counted, and a
function that compiles below a dispatch mode would never be compiled again. Everything that is
changed for that (the compiler's stance, the engine's entry, two optimizer hooks) is put back on
leaving, also after an exception.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import (
    TorchDispatchMode,
    is_traceable_wrapper_subclass_type,
)
from torch.utils._pytree import tree_leaves

from mfu_torch.flops.ops import Counted, Formula, OpFlops, count_call, formula_for
from mfu_torch.flops.phases import PhaseRule
from mfu_torch.flops.uncounted import (
    is_composite,
    is_elementwise,
    looks_like_contraction,
    may_contract,
)
from mfu_torch.records import FlopCount, FlopTerm, Phase

NO_CONTRACTION = (
    "no contraction was seen: what ran in other threads, other processes or opaque kernels is "
    "invisible here"
)

CAN_WATCH = hasattr(TorchDispatchMode, "ignore_compile_internals")
"""Whether this torch lets a mode stand beside compiled code without turning it off for good."""

Op = OpOverload[..., Any] | HigherOrderOperator


class OpInfo(NamedTuple):
    """What the counter does with an op; found out once per op.

    Attributes:
        suspicious: It has no formula and could contract.
        elementwise: Its elements are added up, apart from the FLOPs.
        composite: It is made of other ops, has no formula, and is seen whole only when autograd
            is off for good (``inference_mode``).
    """

    name: str
    formula: Formula | None
    suspicious: bool
    elementwise: bool
    composite: bool


class FlopCounter:
    """Counts the FLOPs of the code that runs inside it, on this thread and autograd's.

    It may be entered anywhere in a step, a module's forward-pre-hook for example, and left at the
    step's end; not while it is active already.

    Args:
        fake_mode: Ops on its fake tensors are counted. Those of any other mode are not: sharding
            propagation and tracing compute with them on the side.
        where: Count only ops for which it is true, and let compiled code run (a part of what is in
            there is invisible). Needs :data:`CAN_WATCH`.

    Example:
        A linear layer of 16 x 32 with a batch of 8, whose input needs no gradient, is
        2 * 8 * 16 * 32 = 8192 FLOPs forward and as many backward.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode | None = None,
        *,
        where: Callable[[], bool] | None = None,
    ) -> None:
        self.fake_mode = fake_mode
        self.where = where
        self._phases = PhaseRule()
        self._infos: dict[Op, OpInfo] = {}
        self._exit: ExitStack | None = None
        self._clear()

    def __enter__(self) -> FlopCounter:
        if self._exit is not None:
            raise RuntimeError(
                "this FlopCounter is active already: leave it first, or use a second one"
            )
        self._infos = {}  # formulas may have been registered since
        with ExitStack() as stack:
            if self.where is None:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            self._phases.install()
            stack.callback(self._phases.remove)
            stack.enter_context((CountingMode if self.where is None else _WatchingMode)(self))
            self._exit = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        stack, self._exit = self._exit, None
        if stack is not None:
            stack.__exit__(kind, error, traceback)

    def take(self, method: str = "") -> FlopCount:
        """What was counted since the last call of this, or since the start; starts anew.

        Args:
            method: How the count came about, as a phrase ("counted while it ran once").
        """
        terms = tuple(
            FlopTerm(phase=phase, op=op, dtype=dtype, flops=full, causal_flops=causal, calls=calls)
            for (phase, op, dtype), (full, causal, calls) in self._tally.items()
        )
        count = FlopCount(
            terms=terms,
            uncounted=dict(self._uncounted),
            elementwise=self._elementwise,
            notes=tuple(self._notes),
            method=method,
        )
        self._clear()
        return count

    def _clear(self) -> None:
        self._tally: dict[tuple[Phase, str, str], list[int]] = {}
        self._uncounted: Counter[str] = Counter()
        self._elementwise = 0
        self._notes: dict[str, None] = {}  # in order, each once

    def info(self, op: Op) -> OpInfo:
        """What is done with an op."""
        info = self._infos.get(op)
        if info is None:
            try:
                info = _info(op)
            except Exception as error:
                # This asks torch's internals about an op that is still to run; whatever they
                # answer, the user's op runs.
                info = OpInfo(str(op), None, suspicious=False, elementwise=False, composite=False)
                self._notes[f"{op} was not examined: {type(error).__name__}: {error}"] = None
            self._infos[op] = info
        return info

    def count(
        self, op: Op, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Add one call to the tally."""
        if info.formula is not None:
            self._count_by_formula(info.name, info.formula, args, kwargs, result)
        elif info.elementwise:
            self._elementwise += max(_elements((result,)), _elements(args))
        elif info.suspicious and looks_like_contraction(op, args, kwargs):
            self._uncounted[info.name] += 1

    def _count_by_formula(
        self,
        name: str,
        formula: Formula,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: Any,
    ) -> None:
        try:
            counted = count_call(formula, args, kwargs, result)
        except Exception as error:
            # Formulas are also written by users and libraries, and an op may be called in ways
            # that its formula does not know. None of it is a reason to end a training run.
            self._uncounted[name] += 1
            self._notes[f"formula for {name} failed: {type(error).__name__}: {error}"] = None
            return
        if counted is not None:
            self._add(name, counted)

    def _add(self, name: str, counted: Counted) -> None:
        flops: OpFlops = counted.flops
        if flops.full:
            phase = self._phases.current()
            self._add_term((phase, name, counted.dtype), flops.full, flops.causal)
        if flops.kernel_recompute:
            key: tuple[Phase, str, str] = ("kernel_recompute", name, counted.dtype)
            self._add_term(key, flops.kernel_recompute, flops.kernel_recompute_causal)
        if flops.note:
            self._notes[flops.note] = None

    def _add_term(self, key: tuple[Phase, str, str], full: int, causal: int) -> None:
        term = self._tally.setdefault(key, [0, 0, 0])
        term[0] += full
        term[1] += causal
        term[2] += 1


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Calls every op as it was called, and shows it to the counter."""

    supports_higher_order_operators = True

    def __init__(self, counter: FlopCounter) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._counter = counter

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        counted = True
        for kind in types:
            if issubclass(kind, FakeTensor):
                counted = not self._is_foreign(args, kwargs)
            elif is_traceable_wrapper_subclass_type(kind):
                # DTensor, NestedTensor, quantized weights: they run ops of their own on the
                # tensors inside, with the shapes and dtypes that this device really works on.
                return NotImplemented
        info = self._counter.info(func)
        if info.composite and torch.is_inference_mode_enabled():
            with self:
                return _run_composite(func, args, kwargs)
        if info.name == "cond" and not isinstance(args[0], FakeTensor):
            with self:
                return _run_branch(*args)
        result = func(*args, **kwargs)
        if counted and (self._counter.where is None or self._counter.where()):
            self._counter.count(func, info, args, kwargs, result)
        return result

    def _is_foreign(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        own = self._counter.fake_mode
        return any(
            isinstance(leaf, FakeTensor) and leaf.fake_mode is not own
            for leaf in tree_leaves((args, kwargs))
        )


class _WatchingMode(CountingMode):  # type: ignore[no-untyped-call]
    """Beside compiled code instead of in place of it."""

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def count_flops(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> FlopCount:
    """Run ``fn`` once and count its FLOPs: its forward, and its backward if it calls one.

    Args:
        fn: What to count. Its result is dropped.
        *args: Passed on to ``fn``.
        **kwargs: Passed on to ``fn``.

    Example:
        ``count_flops(lambda: model(x).sum().backward()).model``
    """
    with FlopCounter() as counter:
        fn(*args, **kwargs)
    count = counter.take("counted while it ran once")
    if count.hardware:
        return count
    return count + FlopCount(notes=(NO_CONTRACTION,))


def _info(op: Op) -> OpInfo:
    formula = formula_for(op)
    if isinstance(op, HigherOrderOperator):
        return OpInfo(op._name, formula, formula is None, elementwise=False, composite=False)
    return OpInfo(
        name=str(op.overloadpacket),
        formula=formula,
        suspicious=formula is None and may_contract(op),
        elementwise=is_elementwise(op),
        composite=formula is None and is_composite(op),
    )


def _run_composite(op: OpOverload[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The kernel that the op would run anyway, with the mode still on for the ops inside. Not
    # op.decompose(): where torch has a Python decomposition it prefers that, and rounds otherwise.
    return op._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def _run_branch(pred: Any, true_fn: Any, false_fn: Any, operands: Any) -> Any:
    # What cond does when it runs eagerly; the op itself would hide what its branch does.
    return (true_fn if pred else false_fn)(*operands)


def _elements(values: Any) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel()
        elif isinstance(value, tuple | list):
            total += _elements(value)
    return total
