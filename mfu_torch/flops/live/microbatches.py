"""A step as the sum of its micro-batches, each remembered by the shape of its inputs.

    forward 1 ... backward 1 | forward 2 ... backward 2 ... optimizer
    ^                        ^
    the model is called      the model is called again

With them, steps that accumulate batches of many lengths need one count per length, not one per
combination of lengths. It takes that all of a step's work belongs to a call of the model: not if
something runs before the first of them (a teacher, an encoder), and not if all forwards run before
the first backward.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Hashable, Sequence
from typing import NamedTuple, Protocol

from msgspec.structs import replace

from mfu_torch.flops.live.plain_values import PlainValues
from mfu_torch.flops.shapes import NO_LAW, ShapeLaws
from mfu_torch.flops.shapes.columns import CountedCall
from mfu_torch.flops.shapes.signature import hides_shapes, leaves_of, without_values
from mfu_torch.records import FlopCount

NUMBERS_LIMIT = 20_000
"""Distinct inputs that are remembered; of those beyond, each is counted when it comes."""

LEAVES_LIMIT = 200_000
"""Parts of all signatures that are remembered together: some tens of megabytes."""

PASSING_LIMIT = 1000
"""Inputs beyond these limits that are kept, for the steps that they are in."""

STATE = 4
"""Leading entries of a signature that are no inputs: model, training, gradients, autocast."""

ANNOUNCED = -1
"""In the place of the model's number, in the signature of inputs that were announced."""

VARIES = (
    "inputs of equal shape had other FLOPs on an earlier step, or the same in another dtype: what "
    "the model does depends on more than the shapes of its inputs, and steps that were not counted "
    "can have had either"
)

INPUTS_UNSEEN = (
    "not all shapes of the inputs can be seen (there is no tensor in them, or they cannot be "
    "looked at): this count is used for all inputs that look the same"
)

NOTHING_SEEN = "no contraction was seen in the step: did its work run in another thread?"

OPTIMIZER_VARIES = (
    "the optimizer had other contractions on an earlier step (it steps on some steps only, or its "
    "work depends on data): steps that were not counted can have had either"
)

REFUTED = "it was evaluated by a law in the sizes of the inputs that a later count contradicted"


class Piece(NamedTuple):
    """A part of a step that was counted: from one forward call to the next."""

    total: FlopCount
    calls: tuple[CountedCall, ...] = ()

    def and_then(self, later: Piece) -> Piece:
        """This part and the one that follows it, as one."""
        return Piece(self.total + later.total, (*self.calls, *later.calls))

    def split_optimizer(self) -> tuple[Piece, FlopCount]:
        """Without the optimizer's contractions, and these."""
        rest, optimizer = self.total.split("optimizer")
        calls = tuple([call for call in self.calls if call.key[0] != "optimizer"])
        return Piece(rest, calls), optimizer


Work = frozenset[tuple[str, int]]


def work_of(*counts: FlopCount) -> Work:
    """The FLOPs of counts by dtype: what has to be equal for them to be the same."""
    return frozenset(FlopCount.sum(counts).by_dtype.items())


class Publisher(Protocol):
    """Where counts are announced."""

    def publish(self, count: FlopCount, count_id: int | None = None) -> int:
        """Announce a count; with an id, in place of what was announced under it."""

    def publish_unknown(self, reason: str, count_id: int | None = None) -> int:
        """Announce that a count is unknown; with an id, that it is so after all."""


class MicroBatches:
    """Count ids of single forward calls with their backward, by the inputs of the call.

    Args:
        publisher: Where counts are announced.

    Attributes:
        numbers: Number of a call by the signature of its inputs; calls are compared every step,
            and numbers compare fastest.
        ids: Count id by number of the call.
        beside: Ids of what a step has beside its forward calls: contractions in the optimizer, or
            what runs beside a compiled model. Usually empty.
        separable: Whether steps are sums of their forward calls.
        alone: Count ids of a step that has one forward call, by its number: what nearly every step
            looks up.
    """

    def __init__(self, publisher: Publisher) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.ids: dict[int, int] = {}
        self.beside: tuple[int, ...] = ()
        self.separable = True
        self.alone: dict[int, tuple[int, ...]] = {}
        self._publisher = publisher
        self._counts: dict[int, FlopCount] = {}
        self._inputs: dict[int, Hashable] = {}  # signatures by number
        self._laws = ShapeLaws()
        self._valueless = ShapeLaws()  # of inputs whose plain values are left out
        self._values = PlainValues()
        self._withdrawn: dict[int, int] = {}  # ids of counts that proved wrong
        self._optimizer: FlopCount | None = None  # as it was counted last
        self._varies = False  # equal inputs had other counts
        self._patterns: set[tuple[bool, Hashable]] | None = (
            None  # of calls that were counted together
        )
        self._leaves = 0  # parts of all signatures that are kept
        self._passing: deque[int] = deque()  # calls with inputs beyond the limits
        self._next = 0

    def number(self, inputs: Hashable) -> int:
        """The number of a call whose inputs are new."""
        idle = self._values.call_like(inputs)
        if idle is not None:
            self._inputs.setdefault(idle, inputs)  # if that call was forgotten
            return idle
        call, self._next = self._next, self._next + 1
        self._inputs[call] = inputs
        if len(self.numbers) < NUMBERS_LIMIT and self._leaves < LEAVES_LIMIT:
            self.numbers[inputs] = call
            self._leaves += sum(1 for _ in leaves_of(inputs))
            return call
        self._passing.append(call)
        if len(self._passing) > PASSING_LIMIT:
            passed = self._passing.popleft()
            for known in (self._inputs, self.ids, self._counts, self.alone, self._withdrawn):
                known.pop(passed, None)
        return call

    def inputs(self, call: int) -> Hashable:
        """The signature of a call's inputs."""
        return self._inputs.get(call)

    def evaluate(self, call: int, *, checks: bool = False) -> bool:
        """Whether the count of a forward call is known now, from those of other shapes."""
        if call in self._withdrawn:
            return False
        inputs = self._inputs.get(call)
        count = self._laws.evaluate(inputs, call, checks=checks)
        if count is None and self._values.seem_idle(inputs):
            count = self._valueless.evaluate(without_values(inputs), call, checks=checks)
            if count is not None:
                self._values.learn_by_law(inputs, call)
        if count is not None:
            self.add(call, count)
        return count is not None

    def observe(self, call: int, piece: Piece) -> None:
        """A forward call was counted, the first one with these inputs or another."""
        inputs, known = self._inputs.get(call), self._counts.get(call)
        wrong = self._laws.observe(inputs, call, *piece)
        shapes = without_values(inputs)
        if shapes != inputs:
            self._values.observe(inputs, call, work_of(piece.total))
            wrong += self._valueless.observe(shapes, call, *piece)
        if wrong:
            self._values.forget_laws()
        for other in wrong:
            assert isinstance(other, int)
            self._counts.pop(other, None)
            self.alone.pop(other, None)
            if other in self.ids:
                self._withdrawn[other] = self.ids.pop(other)
                self._publisher.publish_unknown(REFUTED, self._withdrawn[other])
        for laws in (self._laws, self._valueless):
            for other, off in laws.take_off():
                assert isinstance(other, int)
                self._widen(other, off)
        if known is None:
            lawless = self._laws.is_lawless(inputs)
            # The count of this shape is for all steps that have it, and they scatter.
            scatter = FlopCount(notes=(NO_LAW,)) if lawless else FlopCount()
            count = replace(piece.total, uncertainty=self._laws.margin(inputs))
            self.add(call, count + scatter)
        elif work_of(piece.total) != work_of(known):
            if known.elementwise is None:  # evaluated: the step that had it is put right
                self._withdrawn[call] = self.ids[call]
            else:
                self._say_that_it_varies()
            self.add(call, piece.total)

    def _widen(self, call: int, off: float) -> None:
        """An estimate proved to be further off than it says."""
        count = self._counts.get(call)
        if count is not None and call in self.ids and count.uncertainty < off:
            self._counts[call] = replace(count, uncertainty=off)
            self._publisher.publish(self._counts[call], self.ids[call])

    def add(self, call: int, count: FlopCount) -> None:
        """Remember the count of a forward call."""
        notes = (VARIES,) if self._varies else ()
        if self.is_unseen(call):
            notes = (*notes, INPUTS_UNSEEN)
        if notes:
            count = count + FlopCount(notes=notes)
        self.ids[call] = self._publisher.publish(count, self._withdrawn.pop(call, None))
        self._counts[call] = count
        self.alone[call] = (self.ids[call], *self.beside)

    def _say_that_it_varies(self) -> None:
        """Every count so far may have been another, and so may every one to come."""
        if self._varies:
            return
        self._varies = True
        for call, count in self._counts.items():
            self._counts[call] = count + FlopCount(notes=(VARIES,))
            self._publisher.publish(self._counts[call], self.ids[call])

    def is_unseen(self, call: int) -> bool:
        """Whether the inputs of a call are such that other shapes would look the same."""
        inputs = self._inputs.get(call)
        shown = inputs[STATE:] if isinstance(inputs, tuple) else ()
        return hides_shapes(shown, announced=self._is_announced(call))

    def _lose(self, call: int) -> None:
        """A call that was announced was counted, and nothing was seen: what it runs is unknown."""
        if call in self._counts:
            self._say_that_it_varies()
            del self._counts[call]
        self.ids[call] = self._publisher.publish_unknown(NOTHING_SEEN)
        self.alone[call] = (self.ids[call], *self.beside)

    def _is_announced(self, call: int) -> bool:
        inputs = self._inputs.get(call)
        return isinstance(inputs, tuple) and inputs[0] == ANNOUNCED

    def forget(self) -> None:
        """Forget every count, as after parameters were frozen."""
        self.ids.clear()
        self.alone.clear()
        self._counts.clear()
        self._laws.forget()
        self._valueless.forget()
        self._values.forget()
        self._withdrawn.clear()
        self._patterns = None

    def learn(self, calls: Sequence[int], pieces: Sequence[Piece]) -> bool:
        """Take apart a step that was counted.

        Args:
            calls: The step's forward calls.
            pieces: The count before the first call, then from each call to the next.

        Returns:
            Whether the pieces can be told apart, and are known now.
        """
        before, *most, last = pieces
        rest, optimizer = last.split_optimizer()
        micro = [*most, rest]
        if before.total.hardware or not self._are_of_their_calls(calls, micro):
            self._stop_taking_apart()
            return False
        self._add_pattern(calls)
        for call, piece in zip(calls, micro, strict=True):
            if not piece.total.hardware and self._is_announced(call):
                self._lose(call)
            else:
                self.observe(call, piece)
        self._observe_optimizer(optimizer)
        return True

    def meet_joined(self) -> None:
        """A step was counted in which several calls had one backward."""
        if not any(several for several, _ in self._patterns or ()):
            self._stop_taking_apart()

    def _stop_taking_apart(self) -> None:
        self.separable = False
        self.alone.clear()

    def _are_of_their_calls(self, calls: Sequence[int], pieces: Sequence[Piece]) -> bool:
        """Whether each piece is the work of its call, whatever the others are."""
        if len(calls) == 1:
            return True
        if len({bool(piece.total.backward) for piece in pieces}) > 1:
            return False
        counts: dict[int, Work] = {}
        for call, piece in zip(calls, pieces, strict=True):
            known = self._counts.get(call)
            if known is not None and known.elementwise is not None:
                counts.setdefault(call, work_of(known))
            work = work_of(piece.total)
            if counts.setdefault(call, work) != work:
                return False
        return True

    def _add_pattern(self, calls: Sequence[int]) -> None:
        self._patterns = self._patterns or set()
        self._patterns.add(self._pattern(calls))

    def _pattern(self, calls: Sequence[int]) -> tuple[bool, Hashable]:
        """What a step is like, its sizes apart: which models are called in which state, in order.

        How often in a row makes no difference, only whether it is more than once.
        """
        states = [self._inputs.get(call) for call in calls]
        kinds = [state[:STATE] if isinstance(state, tuple) else state for state in states]
        return len(calls) > 1, tuple([kind for kind, _ in itertools.groupby(kinds)])

    def _observe_optimizer(self, count: FlopCount) -> None:
        before, self._optimizer = self._optimizer, count
        if before is None:
            if count.hardware and not self.beside:
                self.put_beside(self._publisher.publish(count))
        elif work_of(count) != work_of(before):
            varying = count + FlopCount(notes=(OPTIMIZER_VARIES,))
            self.put_beside(self._publisher.publish(varying))

    def put_beside(self, count_id: int) -> None:
        """From now on every step has this count beside its forward calls."""
        self.beside = (count_id,)
        self.alone = {call: (known, count_id) for call, known in self.ids.items()}

    def compose(self, calls: Sequence[int]) -> tuple[int, ...] | None:
        """The count ids of a step made of these forward calls, if all of them are known."""
        ids = self.ids
        patterns = self._patterns
        if len(calls) > 1 and patterns is not None and self._pattern(calls) not in patterns:
            return None  # calls that are known one by one may do more together
        try:
            return (*[ids[call] for call in calls], *self.beside) if calls else None
        except KeyError:
            # A shape that could not be evaluated when it came, later perhaps can.
            missing = dict.fromkeys([call for call in calls if call not in ids])
            return self.compose(calls) if all(map(self.evaluate, missing)) else None
