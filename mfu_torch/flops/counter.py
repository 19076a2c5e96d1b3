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

import sys
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mfu_torch.flops.balance import Balance
from mfu_torch.flops.captured import CapturedWork
from mfu_torch.flops.dispatch import CAN_WATCH as CAN_WATCH
from mfu_torch.flops.dispatch import CountingMode as CountingMode
from mfu_torch.flops.dynamo import EagerStance
from mfu_torch.flops.higher_order import SelfCompiled
from mfu_torch.flops.meta_results import Key, MetaResults
from mfu_torch.flops.op_info import Op, OpInfo, info_of
from mfu_torch.flops.opaque import import_notes, opaque_caller, opaque_note
from mfu_torch.flops.ops import Counted, NoFormula, OpFlops, count_call
from mfu_torch.flops.ops.registry import kernel_function
from mfu_torch.flops.ops.triton_kernels import counted_launch
from mfu_torch.flops.phases import PhaseRule
from mfu_torch.flops.shapes.columns import CountedCall
from mfu_torch.flops.threads import OtherThreads
from mfu_torch.flops.triton_launches import TritonLaunches
from mfu_torch.flops.uncounted import looks_like_contraction
from mfu_torch.records import FlopCount, FlopTerm, Phase
from mfu_torch.records.facts import failed_formula

NO_CONTRACTION = (
    "no contraction was seen: what ran in other threads, other processes or opaque kernels is "
    "invisible here"
)


class _Change(Protocol):
    def install(self) -> None: ...

    def remove(self) -> None: ...


_Tally = dict[tuple[Phase, str, str], list[int]]  # phase, op, dtype -> full, causal, calls


class FlopCounter:
    """Counts the FLOPs of the code that runs inside it, on this thread and autograd's.

    It may be entered anywhere in a step, a module's forward-pre-hook for example, and left at the
    step's end; not while it is active already.

    Args:
        fake_mode: Ops on its fake tensors are counted. Those of any other mode are not: sharding
            propagation and tracing compute with them on the side.
        where: Count only ops for which it is true, and let compiled code run (a part of what is in
            there is invisible). Needs :data:`CAN_WATCH`.
        scope: Called at every contraction; the count is also split by what it returns
            (:meth:`scoped`).

    Example:
        A linear layer of 16 x 32 with a batch of 8, whose input needs no gradient, is
        2 * 8 * 16 * 32 = 8192 FLOPs forward and as many backward.
    """

    def __init__(
        self,
        fake_mode: FakeTensorMode | None = None,
        *,
        where: Callable[[], bool] | None = None,
        scope: Callable[[], str] | None = None,
    ) -> None:
        self.fake_mode = fake_mode
        self.where = where
        self.scope = scope
        self._mode: CountingMode | None = None
        self.seen = 0  # contractions, counted or not
        self._phases = PhaseRule()
        self._infos: dict[Op, OpInfo] = {}
        self.idle: set[Op] = set()  # ops of which nothing is counted, as far as they were met
        self._undo: list[Callable[[], None]] = []  # what leaving has to do, last first
        self._balance = Balance()
        self._meta_results = MetaResults()
        self._clear()

    def __enter__(self) -> FlopCounter:
        if self._undo:
            raise RuntimeError(
                "this FlopCounter is active already: leave it first, or use a second one"
            )
        self._meta_results = MetaResults()
        self._infos, self.idle = {}, set()  # formulas may have been registered since
        self._balance = Balance()
        try:
            self._install()
            return self
        except BaseException:  # Ctrl-C, say
            self._leave()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self._leave()
        finally:
            self._leave()  # what an interrupt kept it from

    def _install(self) -> None:
        # An interrupt may come anywhere: what undoes a change is there before the change, and
        # undoes as much of it as was made.
        mode = CountingMode(self)
        self._mode = mode
        changes: list[_Change] = [
            self._phases,
            CapturedWork(self._see_captured),
            TritonLaunches(self._see_launch),
            OtherThreads(self._see_work_elsewhere),
        ]
        if self.where is None:
            compiled = SelfCompiled(mode, keep_mode=CAN_WATCH, on_unseen=self._see_captured)
            changes += [compiled, EagerStance()]
        for change in changes:
            self._undo.append(change.remove)
            change.install()
        self._undo.append(mode.leave)
        mode.__enter__()  # type: ignore[no-untyped-call]

    def _leave(self) -> None:
        while self._undo:
            self._undo[-1]()
            self._undo.pop()

    def take(self, method: str = "", calls: list[CountedCall] | None = None) -> FlopCount:
        """What was counted since the last call of this, or since the start; starts anew.

        Args:
            method: How the count came about, as a phrase ("counted while it ran once").
            calls: Extended by the calls that the count is the sum of, in order.
        """
        if calls is not None:
            calls += self._calls
        if any(phase == "backward" for phase, _, _ in self._tally):
            self._notes.update(dict.fromkeys(import_notes()))
        count = FlopCount(
            terms=_terms(self._tally),
            uncounted=dict(self._uncounted),
            elementwise=self._elementwise,
            notes=(
                *self._notes,
                *self._phases.doubts,
                *self._balance.doubts(self._phases.transformed),
            ),
            method=method,
        )
        self._clear()
        return count

    def _looks(self) -> bool:
        return self.where is None or self.where()

    def _see_captured(self, name: str) -> None:
        if self._looks():
            self._uncounted[name] += 1

    def _see_work_elsewhere(self, note: str) -> None:
        if self._looks():
            self._notes[note] = None

    def _see_launch(self, kernel: Any, arguments: dict[str, Any]) -> None:
        # Inside of an op the mode is off: that op is what is counted.
        if (
            self.where is None or self.where()
        ) and self._mode in _get_current_dispatch_mode_stack():
            self._saw()
            self._count_safely(
                f"triton.{kernel_function(kernel).__name__}",
                lambda: counted_launch(kernel, arguments),
            )

    def scoped(self) -> dict[str, FlopCount]:
        """The contractions that :meth:`take` would give now, split by ``scope``."""
        return {label: FlopCount(terms=_terms(tally)) for label, tally in self._scoped.items()}

    def _clear(self) -> None:
        self._tally: _Tally = {}
        self._scoped: dict[str, _Tally] = {}
        self._calls: list[CountedCall] = []
        self._uncounted: Counter[str] = Counter()
        self._elementwise = 0
        self._notes: dict[str, None] = {}  # in order, each once
        self._phases.doubts.clear()

    def info(self, op: Op) -> OpInfo:
        """What is done with an op."""
        info = self._infos.get(op)
        if info is None:
            try:
                info = info_of(op)
            except Exception as error:
                # This asks torch's internals about an op that is still to run; whatever they
                # answer, the user's op runs.
                info = OpInfo(str(op), None, suspicious=False, elementwise=False, composite=False)
                self._notes[f"{op} was not examined: {type(error).__name__}: {error}"] = None
            self._infos[op] = info
            if not (info.formula or any(info[2:])) and isinstance(op, OpOverload):
                self.idle.add(op)
        return info

    def count(
        self, op: Op, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """Add one call to the tally."""
        if info.allocates and (package := opaque_caller(sys._getframe(1))):
            self._notes[opaque_note(package)] = None
        if info.formula is not None:
            self._saw()
            formula = info.formula
            self._count_safely(info.name, lambda: count_call(formula, args, kwargs, result))
        elif info.elementwise:
            self._elementwise += max(_elements((result,)), _elements(args))
        elif info.suspicious and looks_like_contraction(op, args, kwargs):
            self._saw()
            self._uncounted[info.name] += 1

    def run_on_meta(
        self, key: Key, op: Op, info: OpInfo, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Count an op on the meta device and give its result; it runs if ``key`` is a new one."""
        metadata = self._meta_results.get(key)
        if metadata is None:
            result, before = op(*args, **kwargs), self._elementwise
            self.count(op, info, args, kwargs, result)
            self._meta_results.keep(key, result, self._elementwise - before)
            return result
        self._elementwise += metadata.elements
        return metadata.tensor()

    def _saw(self) -> None:
        self.seen += 1
        self._balance.saw()

    def _count_safely(self, name: str, call: Callable[[], Counted | None]) -> None:
        try:
            counted = call()
        except NoFormula as missing:
            self._uncounted[missing.op] += 1
            return
        except Exception as error:
            # Formulas are also written by users and libraries, and an op may be called in ways
            # that its formula does not know. None of it is a reason to end a training run.
            self._uncounted[name] += 1
            self._notes[f"{failed_formula(name)}{type(error).__name__}: {error}"] = None
            return
        if counted is not None:
            self._add(counted.op or name, counted)

    def _add(self, name: str, counted: Counted) -> None:
        flops: OpFlops = counted.flops
        if flops.full:
            phase = self._phases.current()
            self._add_term((phase, name, counted.dtype), flops.full, flops.causal)
            self._balance.add(phase, self._phases.within, flops.full)
        if flops.kernel_recompute:
            key: tuple[Phase, str, str] = ("kernel_recompute", name, counted.dtype)
            self._add_term(key, flops.kernel_recompute, flops.kernel_recompute_causal)
        if flops.note:
            self._notes[flops.note] = None

    def _add_term(self, key: tuple[Phase, str, str], full: int, causal: int) -> None:
        self._calls.append(CountedCall(key, full, causal))
        _add_to(self._tally, key, full, causal)
        if self.scope is not None:
            _add_to(self._scoped.setdefault(self.scope(), {}), key, full, causal)


def count_flops(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> FlopCount:
    """Run ``fn`` once and count its FLOPs: its forward, and its backward if it calls one.

    Args:
        fn: What to count. Its result is dropped.
        *args: Passed on to ``fn``.
        **kwargs: Passed on to ``fn``.

    Example:
        ``count_flops(lambda: model(x).sum().backward()).model``
    """
    counter = FlopCounter()
    try:
        with counter:
            fn(*args, **kwargs)
    finally:
        counter.__exit__(None, None, None)  # Ctrl-C may have come while it was left
    count = counter.take("counted while it ran once")
    if count.hardware:
        return count
    return count + FlopCount(notes=(NO_CONTRACTION,))


def _add_to(tally: _Tally, key: tuple[Phase, str, str], full: int, causal: int) -> None:
    term = tally.get(key)
    if term is None:
        tally[key] = [full, causal, 1]
    else:
        term[0] += full
        term[1] += causal
        term[2] += 1


def _terms(tally: _Tally) -> tuple[FlopTerm, ...]:
    return tuple(
        FlopTerm(phase=phase, op=op, dtype=dtype, flops=full, causal_flops=causal, calls=calls)
        for (phase, op, dtype), (full, causal, calls) in tally.items()
    )


def _elements(values: Any) -> int:
    total = 0
    for value in values:
        if isinstance(value, torch.Tensor):
            total += value.numel()
        elif isinstance(value, tuple | list):
            total += _elements(value)
    return total
