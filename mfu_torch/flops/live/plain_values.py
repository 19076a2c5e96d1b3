"""Whether plain values among the inputs steer the model, or merely number the step.

An integer can be "keep the last n logits" or the index of the batch. Many values with one and the
same count show that they are idle; until then each is counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from mfu_torch.flops.shapes.signature import template, values_in, without_values

IDLE_AFTER = 16
"""Inputs that differ only in plain values, all with the same count, before these are idle."""

GROUPS_LIMIT = 2000
"""Inputs, and kinds of them, whose values are looked into; then the oldest is forgotten."""


class _Group:
    """Inputs that differ in plain values alone."""

    __slots__ = ("call", "counted", "steers", "work")

    def __init__(self, call: int, work: Hashable) -> None:
        self.call = call  # that was counted first
        self.work = work
        self.counted: set[Hashable] = set()  # values
        self.steers = False


class PlainValues:
    """What the plain values among inputs turned out to be."""

    def __init__(self) -> None:
        self._groups: dict[Hashable, _Group] = {}  # by the inputs without values
        self._counted: dict[Hashable, set[Hashable]] = {}  # values, by the same without sizes
        self._by_law: dict[
            Hashable, int
        ] = {}  # calls that a law told, by the inputs without values

    def forget(self) -> None:
        """The model was changed."""
        self._groups.clear()
        self._counted.clear()
        self._by_law.clear()

    def call_like(self, inputs: Hashable) -> int | None:
        """The number of a call that differs from one with these inputs in idle values only."""
        if not self._groups:
            return None
        shapes = without_values(inputs)
        if shapes in self._by_law:
            return self._by_law[shapes]
        group = self._groups.get(shapes)
        if group is None or group.steers or len(group.counted) < IDLE_AFTER:
            return None
        return group.call

    def seem_idle(self, inputs: Hashable) -> bool:
        """Whether a law that leaves them out is to be believed, as it holds for many of them."""
        shapes = without_values(inputs)
        return shapes != inputs and len(self._counted.get(template(shapes)[0], ())) >= IDLE_AFTER

    def learn_by_law(self, inputs: Hashable, call: int) -> None:
        """A call was evaluated by such a law: others with these shapes are as this one."""
        self._by_law[without_values(inputs)] = call
        _limit(self._by_law)

    def forget_laws(self) -> None:
        """A law was contradicted."""
        self._by_law.clear()

    def observe(self, inputs: Hashable, call: int, work: Hashable) -> None:
        """A call with plain values was counted."""
        shapes, values = without_values(inputs), values_in(inputs)
        group = self._groups.pop(shapes, None) or _Group(call, work)
        self._groups[shapes] = group  # the last used one last
        group.steers |= work != group.work
        kind = template(shapes)[0]
        counted = self._counted.pop(kind, set())
        self._counted[kind] = counted
        for seen in (group.counted, counted):
            if len(seen) < IDLE_AFTER:
                seen.add(values)
        _limit(self._groups)
        _limit(self._counted)


def _limit(known: dict[Hashable, Any]) -> None:
    if len(known) > GROUPS_LIMIT:
        del known[next(iter(known))]
