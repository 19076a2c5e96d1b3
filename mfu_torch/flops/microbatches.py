"""A step as the sum of its micro-batches, each remembered by the shape of its inputs.

    before | forward 1 ... backward 1 | forward 2 ... backward 2 ... optimizer
           ^                          ^
           the model is called        the model is called again

With them, steps that accumulate batches of many lengths need one count per length, not one per
combination of lengths.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch

from mfu_torch.records import FlopCount

WHOLE = -1
"""Instead of the number of a forward call: counted from the start of the step."""

INTS_LIMIT = 16
"""Inputs that differ only in integers before those are tested for making a difference."""


class MicroBatches:
    """Counts of single forward calls with their backward, by the inputs of the call.

    Attributes:
        separable: Whether the work between two forward calls belongs to the first of them. False
            once all forwards were seen to run before all backwards.
        ints_matter: Whether inputs are told apart by the value of their integers.
    """

    def __init__(self) -> None:
        self.separable = True
        self.ints_matter = True
        self._known: dict[Hashable, FlopCount] = {}
        self._before = FlopCount()
        self._optimizer = FlopCount()

    def __contains__(self, inputs: Hashable) -> bool:
        return inputs in self._known

    def add(self, inputs: Hashable, count: FlopCount) -> None:
        """Remember the count of a forward call."""
        self._known[inputs] = count
        if self.ints_matter and len(self._known) % INTS_LIMIT == 0:
            self._drop_idle_ints()

    def forget(self) -> None:
        """Forget every count, as after parameters were frozen."""
        self._known.clear()

    def learn(self, calls: Sequence[Hashable], pieces: Sequence[FlopCount], first: int) -> bool:
        """Take apart a step that was counted from its forward call number ``first`` on.

        Args:
            calls: Inputs of the step's forward calls.
            pieces: The count before the first call, then from each call to the next.
            first: :data:`WHOLE` when the work before the first call was counted too.

        Returns:
            Whether the pieces can be used for other combinations of the same calls.
        """
        *most, last = pieces[1:]
        rest, optimizer = last.split("optimizer")
        micro = [*most, rest]
        if first == WHOLE:
            first = 0
            self._before, self._optimizer = pieces[0], optimizer
        trained = {bool(count.backward) for count in micro[first:]}
        trained |= {bool(self._known[call].backward) for call in calls[:first]}
        if len(trained) > 1:
            self.separable = False
            self._known.clear()
            return False
        for call, count in zip(calls[first:], micro[first:], strict=True):
            if call not in self._known:
                self.add(call, count)
        return True

    def compose(self, calls: Sequence[Hashable]) -> FlopCount | None:
        """The count of a step made of these forward calls, if all of them are known."""
        parts = [self._known.get(call) for call in calls]
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        return FlopCount.sum([self._before, *known, self._optimizer])

    def _drop_idle_ints(self) -> None:
        # An integer may steer the model ("keep the last n logits") or merely number the step. Many
        # values with one and the same count show that it is idle.
        groups: dict[Hashable, FlopCount] = {}
        for call, count in self._known.items():
            groups[without_ints(call)] = count
        hardware = {count.hardware for count in self._known.values()}
        if len(groups) == 1 and len(hardware) == 1:
            self.ints_matter = False
            self._known = groups


def without_ints(call: Hashable) -> Hashable:
    """The inputs of a call with the value of every integer forgotten; shapes stay."""
    if type(call) is int:
        return int
    if isinstance(call, tuple) and not isinstance(call, torch.Size):
        return tuple(without_ints(part) for part in call)
    return call
