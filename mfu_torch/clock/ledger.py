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
from itertools import pairwise
from typing import Any

from mfu_torch.clock.clocks import Clock
from mfu_torch.clock.lead import Lead, Moment, later
from mfu_torch.clock.parts import PartMark, times_of

TAIL = "tail"
"""Label of the time between leaving a step and entering the next. No phase may have this name."""


class OpenStep:
    """A step in progress: seconds arrive as the device reaches its marks.

    Attributes:
        inside_s: Between entering and leaving it, pauses taken out.
        tail_s: Between leaving it and the next one.
        wall_s: Wall time of the run when it was closed.
        marks: Of its parts, if it is split.
        parts_s: Then seconds of each, by the numbers in :mod:`mfu_torch.clock.parts`.
        left_at, marked_at, most_at: Of the device's lead, the moments (:mod:`mfu_torch.clock.lead`)
            when the loop left the step, of the first of the marks, and of the mark with the most;
            ``None`` where the device is the host.
        lead_s: Of the device's work, what was queued when the loop left the step, at least.
        lead_most_s: Likewise, the most at any of its marks.
    """

    wall_s: float  # set when the step is closed

    __slots__ = (
        "count_ids",
        "data_wait_s",
        "excluded",
        "failed",
        "index",
        "inside_s",
        "lead_most_s",
        "lead_s",
        "left_at",
        "marked_at",
        "marks",
        "micro_batches",
        "most_at",
        "parts_s",
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
        self.marks: list[PartMark] | None = None
        self.parts_s: dict[int, float] | None = None
        self.left_at: Moment | None = None
        self.marked_at: Moment | None = None
        self.most_at: Moment | None = None
        self.lead_s: float | None = None
        self.lead_most_s: float | None = None


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
        # (mark, owner of what begins there, label, step that this mark closes, host seconds before
        # and after the mark was taken)
        self._chain: deque[tuple[Any, Owner, str, OpenStep | None, float, float]] = deque()
        behind = getattr(clock, "runs_behind", False)  # a clock of the user's may not say
        self._lead = Lead() if behind else None
        self._asked_s = 0.0  # when the device had not reached the mark that it reaches next
        # Bound once: they are called on the step path.
        self._mark = clock.mark
        self._host_s = clock.host_s if behind else _no_matter
        self._append = self._chain.append

    def begin(self, owner: Owner, label: str = "", closes: OpenStep | None = None) -> None:
        """From now on time belongs to ``owner``; ``closes`` is the step that ended here."""
        if self._lead is None:
            self._append((self._mark(), owner, label, closes, 0.0, 0.0))
            return
        before_s = self._host_s()
        self._append((self._mark(), owner, label, closes, before_s, self._host_s()))

    def poll(self, *, wait: bool = False) -> list[OpenStep | PauseTime]:
        """Parts that are complete, in order; ``wait`` for the device only when closing."""
        chain = self._chain
        done: list[OpenStep | PauseTime] = []
        # On two streams a later mark can be reached before an earlier one: ask for the first, too.
        if not self._begun and self._reached(chain[0][0], wait):
            self._begun = True
            if self._lead is not None:
                self._lead.sees(self._lead.now, held_s=chain[0][5] - chain[0][4])
        while self._begun and len(chain) > 1:
            asked_s = self._host_s()  # before: it may be reached just after
            if not self._reached(chain[1][0], wait):
                self._asked_s = asked_s
                break
            start, owner, label, _, _, host_s = chain.popleft()
            spent_s = self._clock.seconds(start, chain[0][0])
            if self._lead is not None:
                self._follow(self._lead, start, owner, host_s, spent_s)
            self._clock.release(start)
            self.wall_s += spent_s
            self._book(owner, label, spent_s)
            closes = chain[0][3]
            if type(owner) is PauseTime:
                done.append(owner)
            if closes is not None:
                closes.wall_s = self.wall_s
                self._split(closes)
                done.append(closes)
        if self._lead is not None:
            _tell_leads(done, self._lead)
        return done

    def _follow(self, lead: Lead, start: Any, past: Owner, host_s: float, spent_s: float) -> None:
        """The lead from a mark to the one that was reached last."""
        if type(past) is OpenStep and past.marks and past.marked_at is None:
            first = past.marks[0]
            if self._clock.ready(first.mark):
                device_s = self._clock.seconds(start, first.mark)
                past.marked_at = later(lead.now, device_s, first.host_s - host_s)
        _, owner, label, _, before_s, after_s = self._chain[0]
        moment = lead.moves(spent_s, after_s - host_s, after_s - before_s)
        if self._asked_s:  # it had not been reached then
            lead.sees(moment, self._asked_s - after_s)
            self._asked_s = 0.0
        if type(owner) is OpenStep and label == TAIL:
            owner.left_at = moment

    def _split(self, step: OpenStep) -> None:
        """Seconds of its parts, from its marks; all of them were taken before it was closed."""
        marks, step.marks = step.marks, None
        if marks is None:
            return
        if all(self._clock.ready(one.mark) for one in marks):  # on another stream one may not be
            times = times_of(marks, self._clock.seconds)
            # A pause in between is nobody's part, so then the parts are too long.
            if times is not None and sum(times.values()) <= step.inside_s * (1 + 1e-6) + 1e-5:
                step.parts_s = times
                if self._lead is not None and step.marked_at is not None:
                    self._find_most(step, marks, step.marked_at, self._lead)
        for one in marks:
            self._clock.release(one.mark)

    def _find_most(self, step: OpenStep, marks: list[PartMark], moment: Moment, lead: Lead) -> None:
        most = moment
        for now, following in pairwise(marks):
            device_s = self._clock.seconds(now.mark, following.mark)
            moment = later(moment, device_s, following.host_s - now.host_s)
            lead.sees(moment, held_s=following.host_s - following.before_s)
            most = max(most, moment)
        step.most_at = most

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


def _tell_leads(parts: list[OpenStep | PauseTime], lead: Lead) -> None:
    """Positions become leads once all marks that the device has reached were seen."""
    for part in parts:
        if type(part) is OpenStep:
            if part.left_at is not None:
                part.lead_s = lead.at_least_s(part.left_at)
            if part.most_at is not None:
                part.lead_most_s = lead.at_least_s(part.most_at)


def _no_matter() -> float:
    """In place of the host's time, where nothing runs behind it."""
    return 0.0
