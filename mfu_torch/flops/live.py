"""Counts the steps of a live training loop, each distinct input shape once.

    nothing compiled     the real step is counted while it trains; no bit of it changes
    something compiled   a shadow of the model is counted on fake tensors
    the shadow fails     one real step is run eagerly to be counted; the count says which
    that fails too       unknown, with the reason

A step whose shapes are known costs a dict look-up.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn

from mfu_torch.flops.calls import CallWatch
from mfu_torch.flops.counter import CAN_WATCH, FlopCounter
from mfu_torch.flops.dynamo import CompiledEntries, compiled_graphs, is_compiled
from mfu_torch.flops.microbatches import WHOLE, MicroBatches
from mfu_torch.flops.shadow import ShadowError, shadow_count
from mfu_torch.flops.signature import signature
from mfu_torch.records import CountEntry, FlopCount

logger = logging.getLogger(__name__)

COUNTING = "FLOPs were being counted"
COMPILING = "torch.compile was compiling"
NEW = -1

# Bound once: they are called on the step path.
_mode_depth = torch._C._len_torch_dispatch_stack
_graph_task = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled


class LiveCounter:
    """Knows, at the end of every step, which count it had.

    Args:
        model: Its forward calls delimit the micro-batches and show the input shapes. ``None``: the
            first step is counted, and again when the hint changes.
        on_count: Called with each new :class:`CountEntry`; a second one with the same id replaces
            the first.
        on_error: Called with an internal error in a forward call of the model.
        given: A count supplied by the user: nothing is counted.
    """

    def __init__(
        self,
        model: nn.Module | None,
        on_count: Callable[[CountEntry], None],
        on_error: Callable[[Exception], None],
        given: FlopCount | None = None,
    ) -> None:
        self._model = model
        self._on_count = on_count
        self._on_error = on_error
        self._given = given
        self._parameters = [weakref.ref(p) for p in model.parameters()] if model is not None else []
        self._trainable: Hashable = None
        self._watch: CallWatch | None = None
        self._graphs = 0
        # What is known.
        self._micro = MicroBatches(self._publish)
        self._whole: dict[Hashable, tuple[int, ...]] = {}  # steps that are not sums of their calls
        # What a step was made of -> its id, unknown so far, and its forward calls.
        self._pending: dict[Hashable, tuple[int, tuple[int, ...]]] = {}
        self._counts: list[FlopCount | None] = []  # by id
        self._blind = model is None  # no forward call is seen: the hint stands for the shapes
        self._wanted = True  # the next step is to be counted from its start
        self._why_eager = ""
        self._meets_compiled = False  # compiled code was entered in a step
        # The step in progress.
        self._in_step = False
        self._index = 0
        self._excluded = ""
        self._hint: Hashable = None
        self._calls: list[int] = []
        self._counter: FlopCounter | None = None
        self._entries: CompiledEntries | None = None
        self._stack = contextlib.ExitStack()
        self._pieces: list[FlopCount] = []
        self._first = WHOLE  # forward call from which on it is counted
        self._carry = FlopCount()  # counted before a pause that interrupts it
        # Beside a shadow: what runs outside of the compiled model is looked at on one step.
        self._look_outside = self._looked_outside = False
        self._outside: FlopCounter | None = None
        self._depth = 0

    def attach(self) -> None:
        """Start watching the model's forward calls."""
        if self._given is not None:
            self._publish(self._given)
        elif self._model is not None:
            self._watch = CallWatch(self._model, self._on_forward)
            self._watch.attach()
        self._trainable = self._which_train()
        self._graphs = compiled_graphs()

    def detach(self) -> None:
        """Leave nothing behind: no hook, no mode."""
        if self._watch is not None:
            self._watch.detach()
        self._stop_counter()
        self._stop_outside()

    def begin_step(self, index: int, hint: Hashable) -> None:
        """A step starts. ``hint`` stands for the input shapes where no forward call is seen."""
        self._calls.clear()
        self._index = index
        self._hint = hint
        self._excluded = ""
        if self._given is not None:
            return
        self._in_step = True
        self._depth = _mode_depth()
        if self._wanted or (self._blind and hint not in self._whole):
            if self._watch is not None:
                self._watch.thread = threading.get_ident()
            self._begin_counted()

    def end_step(self, *, failed: bool = False) -> tuple[tuple[int, ...], int, str]:
        """The step is over: its count ids, its forward calls, and why it is not a steady one."""
        self._in_step = False
        if self._given is not None:
            return (0,), 0, ""
        counted = self._counter is not None
        if counted:
            self._cut()
            self._stop_counter()
        elif self._outside is not None:
            self._learn_outside(self._outside, failed)
        graphs = compiled_graphs()
        if graphs != self._graphs:
            self._graphs = graphs
            self._excluded = self._excluded or COMPILING
        calls = self._calls
        if failed:
            return (), len(calls), self._excluded
        ids = None if counted else self._look_up(calls, self._hint)
        if ids is None:
            ids = self._settle(counted)
        return ids, len(calls), self._excluded

    def _look_up(self, calls: Sequence[int], hint: Hashable) -> tuple[int, ...] | None:
        if self._blind or not calls:
            return self._whole.get(hint)
        if self._micro.separable:
            return self._micro.compose(calls)
        return self._whole.get(tuple(calls))

    def pause(self) -> None:
        """Work from here on does not belong to the step that it interrupts."""
        self._in_step = False
        if self._counter is not None:
            self._carry = self._carry + self._counter.take(self._method())

    def resume(self, *, in_step: bool) -> None:
        """The pause is over."""
        self._in_step = in_step
        if self._counter is not None:
            self._counter.take()

    def revalidate(self) -> None:
        """Between windows: forget every count if parameters were frozen or unfrozen."""
        if self._given is None and self._which_train() != self._trainable:
            self._trainable = self._which_train()
            self._whole.clear()
            self._micro.forget()
            self._wanted = True

    # --- the step in progress -------------------------------------------------------------------

    def _begin_counted(self) -> None:
        if self._look_outside:
            self._begin_outside()
            return
        if not self._why_eager and self._is_compiled():
            if self._model is not None and not self._blind:
                return  # a shadow is made as soon as a forward call shows its inputs
            self._why_eager = (
                "compiled code runs in it, and Meter was given no model"
                if self._model is None
                else "the model was compiled after Meter was given it, which hides its inputs "
                "(give Meter the compiled model)"
            )
        self._start_counter(first=WHOLE)

    def _is_compiled(self) -> bool:
        return self._meets_compiled or (self._model is not None and is_compiled(self._model))

    def _start_counter(self, first: int) -> None:
        self._excluded = COUNTING
        self._first = first
        self._pieces = [FlopCount()] * (first - WHOLE)
        self._carry = FlopCount()
        with contextlib.ExitStack() as stack:
            self._entries = None if self._why_eager else stack.enter_context(CompiledEntries())
            beside = self._entries is not None and self._entries.available and CAN_WATCH
            # Compiled code that the step meets all the same runs as ever; then the count is void.
            self._counter = stack.enter_context(FlopCounter(where=_always if beside else None))
            self._stack = stack.pop_all()

    def _stop_counter(self) -> None:
        self._counter = None
        self._stack.close()

    def _expect_outside(self) -> None:
        self._wanted = self._look_outside = not self._looked_outside and CAN_WATCH
        if self._look_outside and not self._micro.beside:
            reason = "what runs beside the compiled model is looked at on the step after the first"
            self._micro.beside = (self._publish_unknown(reason),)

    def _begin_outside(self) -> None:
        watch = self._watch
        assert watch is not None  # a shadow was made of its model
        self._excluded = COUNTING
        self._look_outside = self._wanted = False
        outside = FlopCounter(where=lambda: not watch.inside and _graph_task() == -1)
        outside.__enter__()
        self._outside = outside

    def _stop_outside(self) -> None:
        outside, self._outside = self._outside, None
        if outside is not None:
            outside.__exit__(None, None, None)

    def _learn_outside(self, outside: FlopCounter, failed: bool) -> None:
        self._stop_outside()
        if failed:
            self._look_outside = self._wanted = True
            return
        self._looked_outside = True
        count = outside.take(f"counted on step {self._index}, beside the compiled model")
        if count.forward:
            # Inside the engine, what belongs to the model cannot be told from what does not.
            note = (
                f"step {self._index} ran contractions outside of the compiled model, in the loss "
                "say: their forward is in the count, their backward (about twice as much) is not"
            )
            count = count + FlopCount(notes=(note,))
        self._publish(count, *self._micro.beside)
        self._resolve_pending()

    def _cut(self) -> None:
        assert self._counter is not None
        self._pieces.append(self._carry + self._counter.take(self._method()))
        self._carry = FlopCount()

    def _method(self) -> str:
        if self._why_eager:
            return f"counted on step {self._index}, which ran eagerly: {self._why_eager}"
        return f"counted on step {self._index} as it trained"

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # A checkpoint that recomputes the whole model calls it inside the engine.
        if not self._in_step or _graph_task() != -1:
            return
        try:
            micro = self._micro
            training = module.training
            described = signature(args, kwargs, micro.ints_matter, training, _is_grad_enabled())
            call = micro.numbers.get(described, NEW)
            if call == NEW:
                call = micro.number(described)
            if self._counter is not None:
                self._cut()
            elif call not in micro.ids and micro.separable:
                self._meet(call, args, kwargs)
            self._calls.append(call)
        except Exception as error:  # ours, inside the user's forward: it must not get there
            self._on_error(error)

    def _meet(self, call: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The model is called with inputs that no count is known for."""
        assert self._model is not None
        if not self._why_eager and self._is_compiled():
            self._excluded = COUNTING
            try:
                self._micro.add(call, shadow_count(self._model, args, kwargs))
                self._expect_outside()
                return
            except ShadowError as error:
                self._why_eager = str(error)
                logger.warning(
                    "no shadow of the model can be counted: %s. Step %d runs eagerly, once, to be "
                    "counted.",
                    error,
                    self._index,
                )
        if _mode_depth() == self._depth:
            # A mode entered here is left at the step's end: the stack must be as at its start.
            self._start_counter(first=len(self._calls))

    # --- from what was counted to what is known --------------------------------------------------

    def _settle(self, counted: bool) -> tuple[int, ...]:
        """A step made of a new combination: its count ids, unknown with a reason if need be."""
        if counted and not self._calls:
            self._blind = True
        made_of: Hashable = self._hint if self._blind or not self._calls else tuple(self._calls)
        if counted and self._entries is not None and self._entries.count:
            self._meets_compiled = True
            counted = False
        ids = self._learn(made_of) if counted else None
        if ids is None:
            ids = self._look_up(self._calls, self._hint)
        self._wanted = ids is None or self._look_outside
        if ids is not None:
            self._resolve_pending()
            return ids
        if made_of not in self._pending:
            count_id = self._publish_unknown(self._why_unknown())
            self._pending[made_of] = (count_id, tuple(self._calls))
        return (self._pending[made_of][0],)

    def _learn(self, made_of: Hashable) -> tuple[int, ...] | None:
        pieces, self._pieces = self._pieces, []
        separable = bool(self._calls) and not self._blind
        if separable and self._micro.learn(self._calls, pieces, self._first):
            return None  # it is looked up
        if self._first != WHOLE:
            return None
        count = FlopCount.sum(pieces)
        if count.hardware:
            count_id = self._publish(count)
        else:
            count_id = self._publish_unknown(
                "no contraction was seen in the step: did its work run in another thread?"
            )
        self._whole[made_of] = (count_id,)
        return self._whole[made_of]

    def _why_unknown(self) -> str:
        if self._meets_compiled and not self._why_eager:
            return "compiled code ran in the step; it is counted on the next one"
        if not self._calls:
            self._blind = True
            return "the model given to Meter was not called; the next step is counted as a whole"
        return "an input shape came up in the middle of a step; the next step is counted"

    def _publish(self, count: FlopCount, count_id: int | None = None) -> int:
        """Announce a count; with an id, one that was unknown so far."""
        if count_id is None:
            count_id = len(self._counts)
            self._counts.append(count)
        self._counts[count_id] = count
        self._on_count(CountEntry(id=count_id, count=count))
        return count_id

    def _publish_unknown(self, reason: str) -> int:
        count_id = len(self._counts)
        self._counts.append(None)
        self._on_count(CountEntry(id=count_id, unknown=reason))
        return count_id

    def _resolve_pending(self) -> None:
        """Steps whose count was unknown have had what steps of their kind have now."""
        for made_of, (count_id, calls) in list(self._pending.items()):
            ids = self._look_up(calls, made_of)
            counts = [count for i in ids or () if (count := self._counts[i]) is not None]
            if ids is not None and len(counts) == len(ids):
                del self._pending[made_of]
                self._publish(FlopCount.sum(counts), count_id)

    def _which_train(self) -> Hashable:
        alive = (reference() for reference in self._parameters)
        return tuple(p.requires_grad for p in alive if p is not None)


def _always() -> bool:
    return True
