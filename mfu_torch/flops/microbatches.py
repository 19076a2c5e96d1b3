"""A step as the sum of its micro-batches, each remembered by the shape of its inputs.

    beside | forward 1 ... backward 1 | forward 2 ... backward 2 ... optimizer
           ^                          ^
           the model is called        the model is called again

With them, steps that accumulate batches of many lengths need one count per length, not one per
combination of lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import torch

from mfu_torch.records import FlopCount

WHOLE = -1
"""Instead of the position of a forward call: counted from the start of the step."""

INTS_LIMIT = 16
"""Inputs that differ only in integers before those are tested for making a difference."""


class MicroBatches:
    """Count ids of single forward calls with their backward, by the inputs of the call.

    Args:
        publish: Announces a count and returns its id.

    Attributes:
        numbers: Number of a call by the description of its inputs; calls are compared every step,
            and numbers compare fastest.
        ids: Count id by number of the call.
        beside: Ids of what a step has beside its forward calls: work before the first of them, and
            contractions in the optimizer. Usually empty.
        separable: Whether the work between two forward calls belongs to the first of them. False
            once all forwards were seen to run before all backwards.
        ints_matter: Whether inputs are told apart by the value of their integers.
    """

    def __init__(self, publish: Callable[[FlopCount], int]) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.ids: dict[int, int] = {}
        self.beside: tuple[int, ...] = ()
        self.separable = True
        self.ints_matter = True
        self._publish = publish
        self._counts: dict[int, FlopCount] = {}
        self._next = 0

    def number(self, described: Hashable) -> int:
        """A number for a call whose inputs are new."""
        number = self.numbers[described] = self._next
        self._next += 1
        return number

    def add(self, call: int, count: FlopCount) -> None:
        """Remember the count of a forward call."""
        self.ids[call] = self._publish(count)
        self._counts[call] = count
        if self.ints_matter and len(self.ids) % INTS_LIMIT == 0:
            self._drop_idle_ints()

    def forget(self) -> None:
        """Forget every count, as after parameters were frozen."""
        self.ids.clear()
        self._counts.clear()

    def learn(self, calls: Sequence[int], pieces: Sequence[FlopCount], first: int) -> bool:
        """Take apart a step that was counted from the forward call at position ``first`` on.

        Args:
            calls: The step's forward calls.
            pieces: The count before the first call, then from each call to the next.
            first: :data:`WHOLE` when the work before the first call was counted too.

        Returns:
            Whether the pieces can be told apart, and are known now.
        """
        *most, last = pieces[1:]
        rest, optimizer = last.split("optimizer")
        micro = [*most, rest]
        start = max(first, 0)
        trained = {bool(count.backward) for count in micro[start:]}
        trained |= {bool(self._counts[call].backward) for call in calls[:start]}
        if len(trained) > 1:
            self.separable = False
            self.forget()
            return False
        for call, count in zip(calls[start:], micro[start:], strict=True):
            if call not in self.ids:
                self.add(call, count)
        beside = pieces[0] + optimizer
        if first == WHOLE:
            self.beside = (self._publish(beside),) if beside.hardware or beside.uncounted else ()
        return True

    def compose(self, calls: Sequence[int]) -> tuple[int, ...] | None:
        """The count ids of a step made of these forward calls, if all of them are known."""
        ids = self.ids
        try:
            return (*[ids[call] for call in calls], *self.beside) if calls else None
        except KeyError:
            return None

    def _drop_idle_ints(self) -> None:
        # An integer may steer the model ("keep the last n logits") or merely number the step. Many
        # values with one and the same count show that it is idle.
        groups = {without_ints(inputs): number for inputs, number in self.numbers.items()}
        hardware = {count.hardware for count in self._counts.values()}
        if len(groups) == 1 and len(hardware) == 1:
            self.ints_matter = False
            self.numbers = groups


def without_ints(inputs: Hashable) -> Hashable:
    """Described inputs with the value of every integer forgotten; shapes stay."""
    if type(inputs) is int:
        return int
    if isinstance(inputs, tuple) and not isinstance(inputs, torch.Size):
        return tuple(without_ints(part) for part in inputs)
    return inputs
