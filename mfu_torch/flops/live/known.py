"""What is known of the kinds of steps that a loop has: their counts, or that they are unknown.

A kind of step is told by its forward calls, and by its hint (tokens, samples, shapes from
``Meter.data``) where those are not enough. A kind that is not known when it comes up is announced
as unknown; when its count is found later, that is announced under the same id.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

import torch
from msgspec.structs import replace

from mfu_torch.flops.live.gaps import GAPS, JOINED
from mfu_torch.flops.live.microbatches import (
    INPUTS_UNSEEN,
    NOTHING_SEEN,
    REFUTED,
    VARIES,
    MicroBatches,
    Piece,
    Work,
    work_of,
)
from mfu_torch.flops.shapes import NO_LAW, ShapeLaws
from mfu_torch.records import CountEntry, FlopCount

Calls = tuple[int, ...]
MadeOf = tuple[Hashable, Calls]

NO_HINT = (None, None, ())
SHAPES_HINTED = (
    "input shapes cannot be seen here: this count is used for every step with these tokens=, "
    "samples= and shapes from Meter.data. Give Meter the model, and its own inputs are looked at"
)
SHAPES_UNSEEN = (
    "input shapes cannot be seen here: this count is used for every step. Iterate over "
    "Meter.data(loader), or give tokens=, and each new shape is counted"
)


class Under(NamedTuple):
    """The hint of a step that was begun under autocast."""

    hint: Hashable
    autocast: Hashable


PENDING_LIMIT = 500
"""Kinds of steps that are waited for."""


class KnownCounts:
    """Counts by kind of step, and the ids under which they were announced.

    Args:
        on_count: Called with each :class:`CountEntry`.
        notes: Called for what has to be said of a count that is announced, as far as not empty.

    Attributes:
        micro: Counts of single forward calls, for steps that are sums of them.
        hidden: The model's forward calls cannot be seen: hints alone tell the kinds apart.
        hints: Hints of steps that were counted as a whole.
    """

    def __init__(
        self, on_count: Callable[[CountEntry], None], notes: Callable[[], Iterable[str]]
    ) -> None:
        self.micro = MicroBatches(self)
        self.hidden = False
        self.hints: set[Hashable] = set()
        self._on_count = on_count
        self._notes = notes
        self._counts: list[FlopCount | None] = []  # by id
        self._whole: dict[MadeOf, tuple[int, ...]] = {}  # steps that are not sums of their calls
        self._laws = ShapeLaws()
        self._laws_of_hints = ShapeLaws()  # whether the hint alone tells the count
        self._pending: dict[MadeOf, int] = {}  # id of kinds whose count is unknown so far
        self._unknown: dict[str, int] = {}  # ids by the reason
        # Of counted steps, by their calls alone: how many there were, and their distinct FLOPs.
        self._counted: dict[Calls, tuple[int, set[Work]]] = {}

    @property
    def waiting(self) -> bool:
        """Whether a kind of step that came up is not known yet."""
        return bool(self._pending)

    def hide(self) -> None:
        """From now on forward calls cannot be seen."""
        self.hidden = True
        self.micro.alone.clear()

    def forget(self) -> None:
        """Forget every count; what is unknown stays so."""
        self._whole.clear()
        self._pending.clear()
        self._counted.clear()
        self._laws.forget()
        self._laws_of_hints.forget()
        self.hints.clear()
        self.micro.forget()

    def are_apart(self, calls: Sequence[int]) -> bool:
        """Whether a step with these forward calls is their sum."""
        return bool(calls) and self.micro.separable and GAPS.isdisjoint(calls)

    def look_up(self, calls: Calls, hint: Hashable) -> tuple[int, ...] | None:
        """The count ids of a kind of step, if it is known."""
        if self.are_apart(calls) and not self.hidden:
            return self.micro.compose(calls)
        made_of = self._made_of(calls, hint)
        return self._whole.get(made_of) or self._evaluate(made_of)

    def foresees(self, hint: Hashable) -> bool:
        """Whether a step with this hint need not be counted for its count to be known."""
        return hint in self.hints or self._laws_of_hints.evaluate(_sizes_of(hint), hint) is not None

    def learn(
        self,
        calls: Calls,
        hint: Hashable,
        pieces: Sequence[Piece],
        *,
        from_start: bool,
        notes: tuple[str, ...],
    ) -> None:
        """A step was counted.

        Args:
            calls: Its forward calls.
            hint: Its hint.
            pieces: The count before the first call, then from each call to the next.
            from_start: Whether it was counted from its start, not from its first forward call.
            notes: What has to be said of it where no forward call was seen.
        """
        _, calls = made_of = self._made_of(calls, hint)
        times, totals = self._counted.get(_without_gaps(calls), (0, set()))
        totals = {*totals, work_of(*[piece.total for piece in pieces])}
        self._counted[_without_gaps(calls)] = times + 1, totals
        if self.are_apart(calls):
            if self.micro.learn(calls, pieces):
                return
        elif calls:
            self.micro.meet_joined()
        if from_start:
            op_calls = tuple([call for piece in pieces for call in piece.calls])
            whole = Piece(FlopCount.sum(piece.total for piece in pieces), op_calls)
            self._learn_whole(made_of, whole, notes)

    def wait_for(self, calls: Calls, hint: Hashable, reason: str) -> tuple[int, bool]:
        """The id of a kind of step that is not known yet, and whether the kind is new."""
        made_of = self._made_of(calls, hint)
        if made_of in self._pending:
            return self._pending[made_of], False
        if len(self._pending) >= PENDING_LIMIT:
            del self._pending[next(iter(self._pending))]
        self._pending[made_of] = self.publish_unknown(reason)
        return self._pending[made_of], True

    def settle(self) -> None:
        """Steps whose count was unknown have had what steps of their kind have now."""
        for (hint, calls), count_id in list(self._pending.items()):
            ids = self.look_up(calls, hint)
            counts = [count for i in ids or () if (count := self._counts[i]) is not None]
            if ids is not None and len(counts) == len(ids):
                del self._pending[hint, calls]
                self.publish(FlopCount.sum(counts), count_id)

    def settle_alike(self, calls: Calls, ids: Sequence[int], note: str) -> None:
        """Kinds that are not known have the count of one with the same forward calls.

        If all of these that were counted had the same, before and after them, and if a backward was
        seen between calls of theirs wherever one ran there.

        Args:
            calls: Its calls, with what is between them.
            ids: Its count.
            note: What has to be said of that.
        """
        times, totals = self._counted[_without_gaps(calls)]
        if times < 2 or len(totals) > 1:
            return
        counts = [count for count_id in ids if (count := self._counts[count_id]) is not None]
        alike = [one for one in self._pending if _may_be(one[1], calls)]
        for made_of in alike if len(counts) == len(ids) else ():
            count = FlopCount.sum(counts) + FlopCount(notes=(note,))
            self.publish(count, self._pending.pop(made_of))

    def publish(self, count: FlopCount, count_id: int | None = None) -> int:
        """Announce a count; with an id, one that was unknown so far."""
        if notes := tuple(filter(None, self._notes())):
            count = count + FlopCount(notes=notes)
        if count_id is None:
            count_id = len(self._counts)
            self._counts.append(count)
        self._counts[count_id] = count
        self._on_count(CountEntry(id=count_id, count=count))
        return count_id

    def publish_unknown(self, reason: str, count_id: int | None = None) -> int:
        """Announce that a count is unknown; with an id, that it is so after all."""
        if count_id is None:
            count_id = len(self._counts)
            self._counts.append(None)
        self._counts[count_id] = None
        self._on_count(CountEntry(id=count_id, unknown=reason))
        return count_id

    def id_of_unknown(self, reason: str) -> int:
        """The id of steps that are unknown for this reason, and stay so."""
        if reason not in self._unknown:
            self._unknown[reason] = self.publish_unknown(reason)
        return self._unknown[reason]

    def _made_of(self, calls: Calls, hint: Hashable) -> MadeOf:
        return hint, () if self.hidden else calls

    def _evaluate(self, made_of: MadeOf) -> tuple[int, ...] | None:
        """The count ids of a kind of step that is new, from those of other shapes."""
        count = self._laws.evaluate(self._inputs(made_of), made_of, checks=False)
        if count is None:
            return None
        self.hints.add(made_of[0])
        notes = self._notes_on_shapes(made_of)
        self._whole[made_of] = (self.publish(count + FlopCount(notes=notes)),)
        return self._whole[made_of]

    def _notes_on_shapes(self, made_of: MadeOf) -> tuple[str, ...]:
        hint, calls = made_of
        if calls:
            return (INPUTS_UNSEEN,) if any(map(self.micro.is_unseen, calls)) else ()
        hint = hint.hint if isinstance(hint, Under) else hint
        return (SHAPES_UNSEEN if hint == NO_HINT else SHAPES_HINTED,)

    def _inputs(self, made_of: MadeOf) -> Hashable:
        hint, calls = made_of
        return _sizes_of(hint), tuple([self.micro.inputs(call) for call in calls])

    def _learn_whole(self, made_of: MadeOf, whole: Piece, notes: tuple[str, ...]) -> None:
        hint, calls = made_of
        known = self._whole.get(made_of, (None,))[0]
        before = self._counts[known] if known is not None else None
        count = whole.total
        if count.hardware:
            self._observe(made_of, whole)
        if before is not None and work_of(before) == work_of(count):
            return  # counted again, and found to be the same
        notes = self._notes_on_shapes(made_of) + (() if calls else notes)
        evaluated = before is not None and before.elementwise is None
        if before is not None and known is not None and not evaluated:
            self.publish(before + FlopCount(notes=(VARIES,)), known)
            notes, known = (*notes, VARIES), None
        if self._laws.is_lawless(self._inputs(made_of)):
            notes = (*notes, NO_LAW)
            count = replace(count, uncertainty=self._laws.margin(self._inputs(made_of)))
        if count.hardware:
            count_id = self.publish(count + FlopCount(notes=notes), known)
        else:
            count_id = self.publish_unknown(NOTHING_SEEN)
        self._whole[made_of] = (count_id,)
        self.hints.add(hint)

    def _observe(self, made_of: MadeOf, whole: Piece) -> None:
        inputs = self._inputs(made_of)
        for wrong in self._laws.observe(inputs, made_of, *whole):
            self.publish_unknown(REFUTED, self._whole.pop(wrong)[0])  # type: ignore[call-overload]
        for key, off in self._laws.take_off():
            for count_id in self._whole.get(key, ()):  # type: ignore[call-overload]
                count = self._counts[count_id]
                if count is not None and count.uncertainty < off:
                    self.publish(replace(count, uncertainty=off), count_id)
        self._laws_of_hints.observe(_sizes_of(made_of[0]), made_of[0], *whole)
        self._laws_of_hints.take_off()  # of what a hint foretells nothing was announced


def _without_gaps(calls: Calls) -> Calls:
    return tuple([call for call in calls if call not in GAPS])


def _may_be(read: Calls, calls: Calls) -> bool:
    """Whether a step can have had these calls, of whose backwards some may be misread."""
    if _without_gaps(read) != _without_gaps(calls):
        return False
    return _joined(read) <= _joined(calls)


def _joined(calls: Calls) -> set[int]:
    """Which calls, by their number in the step, had no backward before them."""
    return {at - calls[:at].count(JOINED) for at, call in enumerate(calls) if call == JOINED}


def _sizes_of(hint: Hashable) -> Hashable:
    """A hint whose tokens and samples are sizes like those of tensors."""
    if isinstance(hint, Under):
        return hint.autocast, _sizes_of(hint.hint)
    if isinstance(hint, tuple) and len(hint) == 3:
        *numbers, batches = hint
        if all(number is None or type(number) is int for number in numbers):
            given = tuple([number is not None for number in numbers])
            return given, torch.Size([number or 0 for number in numbers]), batches
    return hint
