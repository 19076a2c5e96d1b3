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

from collections.abc import Callable, Hashable, Sequence

from mfu_torch.flops.signature import without_values
from mfu_torch.records import FlopCount

IDLE_AFTER = 16
"""Inputs that differ only in plain values, all with the same count, before these are idle."""

NUMBERS_LIMIT = 20_000
"""Distinct inputs that are told apart; beyond, plain values are no longer looked at."""


VARIES = (
    "inputs of equal shape had other FLOPs on an earlier step: what the model does depends on more "
    "than the shapes of its inputs, and steps that were not counted can have had either"
)


class MicroBatches:
    """Count ids of single forward calls with their backward, by the inputs of the call.

    Args:
        publish: Announces a count and returns its id.

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

    def __init__(self, publish: Callable[[FlopCount], int]) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.ids: dict[int, int] = {}
        self.beside: tuple[int, ...] = ()
        self.separable = True
        self.alone: dict[int, tuple[int, ...]] = {}
        self._publish = publish
        self._counts: dict[int, FlopCount] = {}
        self._groups: dict[Hashable, list[int]] = {}  # calls that differ only in plain values
        self._next = 0

    def number(self, inputs: Hashable) -> int:
        """The number of a call whose inputs are new."""
        group = without_values(inputs)
        members = self._groups.setdefault(group, [])
        if self._is_idle(members) or len(self.numbers) > NUMBERS_LIMIT:
            call = members[0] if members else self._fresh(members)
        else:
            call = self._fresh(members)
        if len(self.numbers) <= NUMBERS_LIMIT:
            self.numbers[inputs] = call
        return call

    def add(self, call: int, count: FlopCount) -> None:
        """Remember the count of a forward call."""
        self.ids[call] = self._publish(count)
        self._counts[call] = count
        self.alone[call] = (self.ids[call], *self.beside)

    def forget(self) -> None:
        """Forget every count, as after parameters were frozen."""
        self.ids.clear()
        self.alone.clear()
        self._counts.clear()

    def learn(self, calls: Sequence[int], pieces: Sequence[FlopCount]) -> bool:
        """Take apart a step that was counted.

        Args:
            calls: The step's forward calls.
            pieces: The count before the first call, then from each call to the next.

        Returns:
            Whether the pieces can be told apart, and are known now.
        """
        before, *most, last = pieces
        rest, optimizer = last.split("optimizer")
        micro = [*most, rest]
        trained = {bool(count.backward) for count in micro}
        if before.hardware or len(trained) > 1:
            self.separable = False
            self.alone.clear()
            return False
        for call, count in zip(calls, micro, strict=True):
            if call not in self.ids:
                self.add(call, count)
            elif count.hardware != self._counts[call].hardware:
                self.add(call, count + FlopCount(notes=(VARIES,)))
        if optimizer.hardware and not self.beside:
            self.put_beside(self._publish(optimizer))
        return True

    def put_beside(self, count_id: int) -> None:
        """From now on every step has this count beside its forward calls."""
        self.beside = (count_id,)
        self.alone = {call: (known, count_id) for call, known in self.ids.items()}

    def compose(self, calls: Sequence[int]) -> tuple[int, ...] | None:
        """The count ids of a step made of these forward calls, if all of them are known."""
        ids = self.ids
        try:
            return (*[ids[call] for call in calls], *self.beside) if calls else None
        except KeyError:
            return None

    def _fresh(self, members: list[int]) -> int:
        members.append(self._next)
        self._next += 1
        return members[-1]

    def _is_idle(self, members: list[int]) -> bool:
        # An integer may steer the model ("keep the last n logits") or merely number the step. Many
        # values with one and the same count show that it is idle.
        if len(members) < IDLE_AFTER:
            return False
        counts = [self._counts.get(call) for call in members]
        known = {count.hardware for count in counts if count is not None}
        return len(known) == 1 and None not in counts
