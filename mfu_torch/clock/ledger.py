"""Where the run's wall time goes: a chain of marks in which every moment belongs to one owner.

    init | step 0        .tail| step 1  |pause| step 1 .tail| step 2 ...   .tail | finish
         ^               ^                                                 ^
         step() entered  step() left                                      the run is closed

A step lasts from its start to the start of the next, so what happens between two steps (waiting
for data, logging) is part of the first of them: its tail. Pauses are taken out of the step that
they interrupt. The tail of the last step belongs to no step and becomes the pause ``finish``.
Because the parts form a chain, they sum to the wall time by construction.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from mfu_torch.clock.clocks import Clock

TAIL = "tail"
"""Label of the time between leaving a step and entering the next. No phase may have this name."""


class OpenStep:
    """A step in progress: seconds arrive as the device reaches its marks.

    Attributes:
        inside_s: Between entering and leaving it, pauses taken out.
        tail_s: Between leaving it and the next one.
        wall_s: Wall time of the run when it was closed.
    """

    wall_s: float  # set when the step is closed

    __slots__ = (
        "count_ids",
        "data_wait_s",
        "excluded",
        "failed",
        "index",
        "inside_s",
        "micro_batches",
        "phases",
        "samples",
        "tail_s",
        "tokens",
        "wall_s",
    )

    def __init__(
        self, index: int, tokens: int | None, samples: int | None, data_wait_s: float | None
    ) -> None:
        self.index = index
        self.tokens = tokens
        self.samples = samples
        self.data_wait_s = data_wait_s
        self.inside_s = self.tail_s = 0.0
        self.count_ids: tuple[int, ...] = ()
        self.micro_batches = 0
        self.excluded = ""
        self.failed = False
        self.phases: dict[str, float] | None = None


class PauseTime:
    """Resolved time that belongs to no step."""

    __slots__ = ("after_step", "duration_s", "name")

    def __init__(self, name: str, after_step: int, duration_s: float = 0.0) -> None:
        self.name = name
        self.after_step = after_step
        self.duration_s = duration_s


Owner = OpenStep | PauseTime


class Ledger:
    """The chain of marks of one run.

    Attributes:
        wall_s: Seconds from the first mark to the last one that the device has reached.
    """

    def __init__(self, clock: Clock) -> None:
        self.wall_s = 0.0
        self._clock = clock
        self._begun = False  # the device has reached the first mark
        # (mark, owner of what begins there, label, step that this mark closes)
        self._chain: deque[tuple[Any, Owner, str, OpenStep | None]] = deque()
        # Bound once: they are called on the step path.
        self._mark = clock.mark
        self._append = self._chain.append

    def begin(self, owner: Owner, label: str = "", closes: OpenStep | None = None) -> None:
        """From now on time belongs to ``owner``; ``closes`` is the step that ended here."""
        self._append((self._mark(), owner, label, closes))

    def poll(self, *, wait: bool = False) -> list[OpenStep | PauseTime]:
        """Parts that are complete, in order; ``wait`` for the device only when closing."""
        chain = self._chain
        done: list[OpenStep | PauseTime] = []
        # On two streams a later mark can be reached before an earlier one: ask for the first, too.
        self._begun = self._begun or self._reached(chain[0][0], wait)
        while self._begun and len(chain) > 1:
            if not self._reached(chain[1][0], wait):
                break
            start, owner, label, _ = chain.popleft()
            spent_s = self._clock.seconds(start, chain[0][0])
            self._clock.release(start)
            self.wall_s += spent_s
            self._book(owner, label, spent_s)
            closes = chain[0][3]
            if type(owner) is PauseTime:
                done.append(owner)
            if closes is not None:
                closes.wall_s = self.wall_s
                done.append(closes)
        return done

    def _reached(self, mark: Any, wait: bool) -> bool:
        if wait:
            self._clock.wait(mark)
            return True
        return self._clock.ready(mark)

    @staticmethod
    def _book(owner: Owner, label: str, spent_s: float) -> None:
        if type(owner) is PauseTime:
            owner.duration_s += spent_s
            return
        assert type(owner) is OpenStep  # the chain holds nothing else
        if label == TAIL:
            owner.tail_s += spent_s
            return
        owner.inside_s += spent_s
        if label:
            if owner.phases is None:
                owner.phases = {}
            owner.phases[label] = owner.phases.get(label, 0.0) + spent_s
