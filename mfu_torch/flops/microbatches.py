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
"""Instead of the position of a forward call: counted from the start of the step."""

INTS_LIMIT = 16
"""Inputs that differ only in integers before those are tested for making a difference."""


class MicroBatches:
    """Counts of single forward calls with their backward, by the inputs of the call.

    Attributes:
        numbers: Number of a call by the description of its inputs; calls are compared every step,
            and numbers compare fastest.
        known: Count by number of the call.
        separable: Whether the work between two forward calls belongs to the first of them. False
            once all forwards were seen to run before all backwards.
        ints_matter: Whether inputs are told apart by the value of their integers.
    """

    def __init__(self) -> None:
        self.numbers: dict[Hashable, int] = {}
        self.known: dict[int, FlopCount] = {}
        self.separable = True
        self.ints_matter = True
        self._next = 0
        self._before = FlopCount()
        self._optimizer = FlopCount()

    def number(self, described: Hashable) -> int:
        """A number for a call whose inputs are new."""
        number = self.numbers[described] = self._next
        self._next += 1
        return number

    def add(self, call: int, count: FlopCount) -> None:
        """Remember the count of a forward call."""
        self.known[call] = count
        if self.ints_matter and len(self.known) % INTS_LIMIT == 0:
            self._drop_idle_ints()

    def forget(self) -> None:
        """Forget every count, as after parameters were frozen."""
        self.known.clear()

    def learn(self, calls: Sequence[int], pieces: Sequence[FlopCount], first: int) -> None:
        """Take apart a step that was counted from the forward call at position ``first`` on.

        Args:
            calls: The step's forward calls.
            pieces: The count before the first call, then from each call to the next.
            first: :data:`WHOLE` when the work before the first call was counted too.
        """
        *most, last = pieces[1:]
        rest, optimizer = last.split("optimizer")
        micro = [*most, rest]
        if first == WHOLE:
            first = 0
            self._before, self._optimizer = pieces[0], optimizer
        trained = {bool(count.backward) for count in micro[first:]}
        trained |= {bool(self.known[call].backward) for call in calls[:first]}
        if len(trained) > 1:
            self.separable = False
            self.known.clear()
            return
        for call, count in zip(calls[first:], micro[first:], strict=True):
            if call not in self.known:
                self.add(call, count)

    def learn_outside(self, count: FlopCount, step: int) -> bool:
        """What ran outside of a compiled model whose shadow was counted, if anything did.

        Of work with gradients only the forward is known: inside the engine, what belongs to the
        model cannot be told from what does not.
        """
        self._before, self._optimizer = count.split("optimizer")
        if count.forward:
            note = (
                f"step {step} ran contractions outside of the compiled model, in the loss say: "
                "their forward is in the count, their backward (about twice as much) is not"
            )
            self._before += FlopCount(notes=(note,))
        return bool(count.hardware or count.uncounted)

    def compose(self, calls: Sequence[int]) -> FlopCount | None:
        """The count of a step made of these forward calls, if all of them are known."""
        known = [self.known[call] for call in calls if call in self.known]
        if not known or len(known) < len(calls):
            return None
        return FlopCount.sum([self._before, *known, self._optimizer])

    def _drop_idle_ints(self) -> None:
        # An integer may steer the model ("keep the last n logits") or merely number the step. Many
        # values with one and the same count show that it is idle.
        groups = {without_ints(inputs): number for inputs, number in self.numbers.items()}
        hardware = {count.hardware for count in self.known.values()}
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
