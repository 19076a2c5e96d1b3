"""Whether a backward ran between two forward calls of a step, told without touching the engine.

    forward 1, backward | forward 2, backward     two micro-batches, each with a count of its own
    forward 1           | forward 2, backward     one piece of work: a contrastive loss, a GAN

The calls are the same, the work is not. What tells them apart is the trace that a backward leaves
in the gradients. Which parameters show it after a backward, and only then, is learned from the
steps that are counted, where it is known what ran. From then on a few of them are looked at, and
only in loops that call the models more than once a step. Where none tells (gradients that are
kept elsewhere, or taken away at once), the counts say so.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

from torch import Tensor, nn

from mfu_torch.flops.live.microbatches import Piece

WATCHED = 8
"""Parameters that are looked at: one alone may be of an expert that no token went to."""

BLIND = (
    "whether a backward ran between the forward calls of a step cannot be told from the gradients "
    "here: if it does on some steps and not on others, a step that was not counted itself can have "
    "the count of the other kind"
)

MISREAD = (
    "on a step that was not counted itself, it could not be told whether a backward ran between "
    "its forward calls: it has the count that steps with the same calls had before and after it"
)

JOINED = -2
"""In a step's calls: no backward ran between the call before and the one after."""

UNTOLD = -3
"""In a step's calls: it is not known whether one ran."""

GAPS = frozenset({JOINED, UNTOLD})


_Mark = tuple[weakref.ref[Tensor], int] | None
"""A gradient, by identity (its memory may be another's by now), and how often it was written."""

_Parameter = weakref.ref[Tensor]


class Gaps:
    """Finds what is between the forward calls of a step.

    Args:
        models: Whose calls they are.

    Attributes:
        remark: What has to be said of counts from here on.
        watching: It looks at steps that are not counted, from their first call on.
        misread: Calls of the step that was counted last, with what is between them, if it showed
            that a backward was read off steps before it where none need have run: from gradients
            that were cleared, say. Else empty.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.remark = ""
        self.misread: tuple[int, ...] = ()
        self.watching = False
        self._lost = False  # the parameters that told are gone; others have to be found
        self._models = models
        self._telling: list[_Parameter] | None = None  # all that told right so far
        self._watched: list[_Parameter] = []  # a few of them
        self._marks: list[list[_Mark]] = []  # of a counted step: of all that tell, at each call
        self._before: list[_Mark] = []

    def forget(self) -> None:
        """The parameters are others now, or train otherwise."""
        self.remark = ""
        self._telling, self._watched, self._marks = None, [], []

    def note(self, calls: list[int], *, counted: bool) -> None:
        """A forward call begins; what is between it and the one before is added to ``calls``."""
        if counted:
            self.mark()
        elif (self._watched or self._lost) and (calls or self.watching):
            before, self._before = self._before, [_mark(one) for one in self._watched]
            if any(one() is None for one in self._watched):
                self.forget()  # the model has other parameters now
                self._lost = True
            if calls and self._lost:
                calls.append(UNTOLD)
            elif calls and not self.watching:
                self.watching = True
                calls.append(UNTOLD)  # the first call of this step was not looked at
            elif calls and not any(map(_differ, before, self._before)):
                calls.append(JOINED)

    def start_counted(self) -> None:
        """The step is counted from here on."""
        self._marks = []
        if self._telling is None:
            parameters = [p for model in self._models for p in model.parameters()]
            self._telling = [
                weakref.ref(p) for p in parameters if p.requires_grad and not p.is_inference()
            ]

    def mark(self) -> None:
        """In a step that is counted a forward call begins, or it ends."""
        self._marks.append([_mark(one) for one in self._telling or ()])

    def learn(self, calls: list[int], pieces: Sequence[Piece]) -> list[int]:
        """A step was counted: its calls, with what is between them.

        Args:
            calls: Its forward calls.
            pieces: The count before the first call, then from each call to the next.
        """
        ran = [bool(piece.total.backward) for piece in pieces[1:]]
        marks, self._marks = self._marks, []
        self.misread = ()
        whole = len(ran) == len(calls) == len(marks) - 1  # no call raised, or was left out
        if not calls or not whole or not self._telling:
            return calls
        several, self._lost = len(calls) > 1, False
        changed = [_changes(of_one) for of_one in zip(*marks, strict=True)]
        told = [one == ran[:-1] for one in changed]
        marked = calls[:1]
        for call, backward in zip(calls[1:], ran, strict=False):
            marked += [call] if backward else [JOINED, call]
        watched = {id(one) for one in self._watched}
        read = [one for p, one in zip(self._telling, changed, strict=True) if id(p) in watched]
        if _is_read_where_none_ran(read, ran[:-1]):
            self.misread = tuple(marked)
        self._telling = [one for one, right in zip(self._telling, told, strict=True) if right]
        stride = max(1, len(self._telling) // WATCHED)
        self._watched = self._telling[::-1][::stride][:WATCHED]
        self.watching = self.watching or several
        if not self._telling:
            self.remark = BLIND if several or self.watching else ""
            return calls
        return marked


def _changes(marks: Sequence[_Mark]) -> list[bool]:
    """Between which calls the marks of one parameter changed.

    What comes after the last call says nothing: optimizer and zero_grad change gradients, too.
    """
    return [_differ(before, after) for before, after in itertools.pairwise(marks)][:-1]


def _is_read_where_none_ran(read: Sequence[Sequence[bool]], ran: Sequence[bool]) -> bool:
    """Whether parameters err about what ran, and only by seeing a backward too much."""
    wrong = [one for one in read if one != ran]
    return bool(wrong) and all(
        seen or not real for one in wrong for seen, real in zip(one, ran, strict=True)
    )


def _mark(parameter: _Parameter) -> _Mark:
    alive = parameter()
    gradient = None if alive is None else alive.grad
    return None if gradient is None else (weakref.ref(gradient), gradient._version)


def _differ(before: _Mark, after: _Mark) -> bool:
    if before is None or after is None:
        return before is not after
    return before[0]() is not after[0]() or before[1] != after[1]


def forwards(calls: Sequence[int]) -> int:
    """How many forward calls there are among ``calls``."""
    return sum(call not in GAPS for call in calls)
