"""Counts the steps of a live training loop, each distinct input shape once.

    nothing compiled     the real step is counted while it trains; no bit of it changes
    something compiled   a shadow of the model is counted on fake tensors
    the shadow fails     one real step is run eagerly to be counted; the count says which
    that fails too       unknown, with the reason

A step whose shapes are known costs a dict look-up, one whose shapes follow from others that were
counted an evaluation (:mod:`mfu_torch.flops.shapes`). A step whose count is not known when it ends
is announced as unknown; when a later step of its kind is counted, its count is announced again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch
from torch import nn

from mfu_torch.flops.calls import CallWatch
from mfu_torch.flops.dynamo import compiled_graphs
from mfu_torch.flops.live import reasons as why
from mfu_torch.flops.live.announcing import Announcing
from mfu_torch.flops.live.counted_step import CountedStep
from mfu_torch.flops.live.gaps import MISREAD, Gaps, forwards
from mfu_torch.flops.live.known import KnownCounts, Under
from mfu_torch.flops.live.obstacles import Obstacles
from mfu_torch.flops.live.schedule import check_steps, is_alert
from mfu_torch.flops.live.shadowed import Shadowed
from mfu_torch.flops.live.structure import Structure
from mfu_torch.flops.shapes.signature import autocast_in_force, signature
from mfu_torch.records import CountEntry, FlopCount

NEW = -1

# Bound once: they are called on the step path.
_mode_depth = torch._C._len_torch_dispatch_stack
_graph_task = torch._C._current_graph_task_id
_is_grad_enabled = torch.is_grad_enabled
_is_autocast_enabled = torch._C._is_any_autocast_enabled


class LiveCounter:
    """Knows, at the end of every step, which count it had.

    Args:
        models: Their forward calls delimit the micro-batches and show the input shapes. Empty: the
            hint stands for the shapes.
        on_count: Called with each new :class:`CountEntry`; a second one with the same id replaces
            the first.
        on_error: Called with an internal error in a forward call of the model.
        given: A count supplied by the user: nothing is counted.
        first: Index of the first step: not 0 where an earlier attempt is resumed.
    """

    def __init__(
        self,
        models: Sequence[nn.Module],
        on_count: Callable[[CountEntry], None],
        on_error: Callable[[Exception], None],
        given: FlopCount | None = None,
        first: int = 0,
    ) -> None:
        self._models = tuple(models)
        self._several = len(models) > 1
        self._numbers = {id(model): number for number, model in enumerate(models)}
        self._on_error = on_error
        self._given = given
        self._structure = Structure(models)
        self._watches = [CallWatch(model, self._on_forward) for model in models]
        self._graphs = self._graphs_before = 0
        self._gaps = Gaps(self._models)
        self._known = KnownCounts(on_count, lambda: (self._structure.note, self._gaps.remark))
        self._micro = self._known.micro
        self._known.hidden = not models
        # What is to be counted next.
        self._by_hint = not models  # as far as the last step tells, calls are not enough
        self._hints_early = True  # the loop takes its data before the step, not in it
        self._checked_start = False  # it is known whether something runs before the first call
        self._wanted = True  # the next step is to be counted from its start
        self._checks = check_steps(first, calls_seen=bool(models))
        self._check_at = next(self._checks)
        self._alert_since = 0  # step that brought the last kind that is waited for
        self._missing = 0  # steps in a row that did not call the model
        self._obstacles = Obstacles(self._models)
        self._announcing = Announcing(self._models, self._watches)
        self._elsewhere = self._announcing.elsewhere
        self._shadowed = Shadowed(self._known, self._obstacles)
        self._outside = self._shadowed.outside
        # The step in progress.
        self._in_step = False
        self._listening = self._listens_again = False  # models' calls matter: none was announced
        self._index = 0
        self._hint: Hashable = None
        self._autocast: Hashable = None  # in force when the step began, where that may matter
        self._excluded = ""
        self._depth = 0
        self._calls: list[int] = []
        self._count = CountedStep()

    def attach(self) -> None:
        """Start watching the model's forward calls."""
        self._graphs = self._graphs_before = compiled_graphs()
        if self._given is not None:
            self._known.publish(self._given)
        else:
            for watch in self._watches:
                watch.attach()

    def detach(self) -> None:
        """Leave nothing behind: no hook, no mode."""
        for watch in self._watches:
            watch.detach()
        self._count.stop()
        self._outside.stop()

    def begin_step(self, index: int, hint: Hashable) -> None:
        """A step starts. ``hint`` stands for the input shapes where no forward call is seen."""
        self._calls.clear()
        self._index = index
        self._hint = hint
        self._excluded = ""
        if self._given is not None:
            return
        self._in_step = self._listening = True
        self._autocast = autocast_in_force() if self._by_hint else None
        if self._autocast is not None:
            self._hint = hint = Under(hint, self._autocast)
        self._depth = _mode_depth()
        if self._announcing.begun:
            self._elsewhere.begin()
        # Without calls that tell, a step is counted from its start or not at all.
        is_new = self._by_hint and self._hints_early and not self._known.foresees(hint)
        if is_new or self._wanted or index == self._check_at:
            self._begin_counted()

    def end_step(self, hint: Hashable, *, failed: bool = False) -> tuple[tuple[int, ...], int, str]:
        """The step is over: its count ids, its forward calls, and why it is not a steady one."""
        self._in_step = self._listening = False
        if self._autocast is not None:
            hint = Under(hint, self._autocast)
        if hint != self._hint:
            self._hint, self._hints_early = hint, False
        if self._given is not None:
            return (0,), 0, ""
        counted = self._count.active
        if counted:
            self._end_counted(failed)
        elif self._outside.active:
            self._wanted &= not self._shadowed.end_outside(self._index, failed=failed)
        graphs = compiled_graphs()
        if graphs != self._graphs:
            self._graphs = graphs
            # Compiling takes longer than counting, where one step does both.
            self._excluded = why.COMPILING
        if self._announcing.begun and not failed and (lost := self._elsewhere.reason()):
            self._wanted, self._count.pieces = False, []  # what was counted is not all
            lost_id = self._known.id_of_unknown(lost)
            return (lost_id,), forwards(self._calls), self._excluded or why.UNKNOWN
        calls = self._calls
        if not counted and not failed and len(calls) == 1:
            ids = self._micro.alone.get(calls[0])
            if ids is not None:
                self._by_hint = False
                return ids, 1, self._excluded
        return self._end_other(counted, failed), forwards(self._calls), self._excluded

    def _end_counted(self, failed: bool) -> None:
        self._gaps.mark()
        self._count.cut()
        self._count.stop()
        if not failed and not self._count.met_compiled:
            self._calls = self._gaps.learn(self._calls, self._count.pieces)

    def _end_other(self, counted: bool, failed: bool) -> tuple[int, ...]:
        self._missing = 0 if self._calls else self._missing + 1
        if self._missing:
            for watch in self._watches:
                watch.keep()
        known = () if failed else self._known.look_up(tuple(self._calls), self._hint)
        ids = self._settle(counted) if known is None or (counted and not failed) else known
        self._by_hint = self._known.hidden or not self._known.are_apart(self._calls)
        if self._known.waiting and not self._wanted:
            # A kind of step that could not be counted comes again, though maybe not next.
            since = self._index - self._alert_since
            self._wanted = is_alert(since, costly=bool(self._obstacles.eager))
        return ids

    def pause(self) -> None:
        """Work from here on does not belong to the step that it interrupts."""
        self._listens_again = self._listening
        self._in_step = self._listening = False
        self._elsewhere.pause()
        if self._count.active:
            self._count.pause()

    def resume(self, *, in_step: bool) -> None:
        """The pause is over."""
        self._in_step = in_step
        self._listening = in_step and self._listens_again
        self._elsewhere.resume()
        if self._count.active:
            self._count.resume()

    def revalidate(self) -> None:
        """Between windows: forget every count if the model itself was changed."""
        if self._given is None and self._structure.changed():
            self._known.forget()
            self._gaps.forget()
            self._wanted = True

    # --- the step in progress -------------------------------------------------------------------

    def _begin_counted(self) -> None:
        self._count.stop()  # left over where Ctrl-C came between two of our lines
        obstacles = self._obstacles
        if obstacles.blind:
            return
        if self._index == self._check_at:
            self._check_at = next(self._checks, NEW)
            if not self._wanted and (obstacles.eager or obstacles.is_compiled()):
                return
        if self._outside.wanted:
            self._excluded = why.COUNTING
            self._outside.begin(self._watches)
            return
        if not obstacles.eager and obstacles.is_compiled():
            if self._models and not (self._known.hidden or self._announcing.begun):
                return  # a shadow is made as soon as a forward call shows its inputs
            obstacles.take_eager(announced=self._announcing.begun)
        self._start_counter(from_start=True)

    def _start_counter(self, *, from_start: bool) -> None:
        self._elsewhere.enter()
        self._excluded = why.COUNTING
        eager = self._obstacles.eager
        self._gaps.start_counted()
        self._count.start(
            why.method(self._index, eager=eager), from_start=from_start, eagerly=bool(eager)
        )

    def announce(self, batch: object) -> None:
        """Work on these inputs begins; till the step ends, the models' own calls do not matter."""
        if self._given is not None or not self._in_step:
            return
        if not self._announcing.begun:
            self._announcing.begin(counted=self._count.active)
            self._known.hidden = self._by_hint = self._checked_start = False
        inputs = self._announcing.inputs(batch)
        if inputs is not None:
            self._listening = False
            self._on_forward(None, (), {}, inputs)

    def _on_forward(
        self,
        module: nn.Module | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: Hashable = None,
    ) -> None:
        # A checkpoint that recomputes the whole model calls it inside the engine.
        if (not self._listening and module is not None) or _graph_task() != -1:
            return
        try:
            micro = self._micro
            if module is not None:
                number = 0
                if self._several:
                    if sum(watch.inside for watch in self._watches) > 1:
                        return  # called by another watched model, whose call stands for both
                    number = self._numbers[id(module)]
                autocast = autocast_in_force() if _is_autocast_enabled() else None
                state = (number, module.training, _is_grad_enabled(), autocast)  # STATE of them
                inputs = signature(args, kwargs, *state)
            call = micro.numbers.get(inputs, NEW)
            if call == NEW:
                call = micro.number(inputs)
            counted = self._count.active
            if counted:
                self._count.cut()
            elif call not in micro.ids and micro.separable:
                self._meet(call, module, args, kwargs)
            # What is announced has its backward before the next. The one call of a step has no gap.
            if module is not None and (counted or self._calls or self._gaps.watching):
                self._gaps.note(self._calls, counted=self._count.active)
            self._calls.append(call)
        except Exception as error:  # ours, inside the user's forward: it must not get there
            self._on_error(error)

    def _meet(
        self, call: int, model: nn.Module | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A model is called with inputs that no count is known for, or such are announced."""
        # A check is made where the step can be counted: not from its middle on.
        if self._micro.evaluate(call, checks=not self._calls):
            return
        obstacles = self._obstacles
        if not obstacles.eager and obstacles.is_compiled():
            if model is None:
                obstacles.take_eager(announced=True)
            else:
                self._excluded = why.COUNTING
                if self._shadowed.count(call, model, args, kwargs):
                    return
            if compiled_graphs() == self._graphs_before:
                return  # code whose first run is an eager one is compiled otherwise, or never
        if self._calls or _mode_depth() != self._depth:
            # An earlier call's backward could still come. And a mode entered here is left at the
            # step's end: the stack must be as at its start.
            return
        if self._checked_start or obstacles.eager:
            self._start_counter(from_start=False)

    # --- from what was counted to what is known --------------------------------------------------

    def _settle(self, counted: bool) -> tuple[int, ...]:
        """A step of a new kind, or one that was counted: its count ids."""
        known, calls, hint = self._known, tuple(self._calls), self._hint
        if counted and self._count.met_compiled:
            self._obstacles.meets_compiled = True
            counted = False
        if counted and (blind := self._elsewhere.reason()):
            self._obstacles.blind = blind
            counted = False
        if counted:
            self._learn(calls)
        ids = known.look_up(calls, hint)
        self._wanted = ids is None or self._outside.wanted
        if ids is not None:
            known.settle()
            if counted and self._gaps.misread:
                known.settle_alike(self._gaps.misread, ids, MISREAD)
            return ids
        self._excluded = self._excluded or why.UNKNOWN
        unseen = not known.micro.numbers or self._missing > 1
        if not calls and unseen and self._obstacles.is_compiled():
            known.hide()  # it was compiled after the meter was made
        reason = self._obstacles.why_unknown(called=bool(calls))
        count_id, is_new = known.wait_for(calls, hint, reason)
        if is_new:
            self._alert_since = self._index
        return (count_id,)

    def _learn(self, calls: tuple[int, ...]) -> None:
        from_start = self._count.from_start
        pieces, self._count.pieces = self._count.pieces, []
        self._checked_start = self._checked_start or (from_start and bool(calls))
        not_called = bool(self._models) and not self._known.hidden
        self._known.learn(
            calls,
            self._hint,
            pieces,
            from_start=from_start,
            notes=(why.NOT_CALLED,) if not_called else (),
        )
