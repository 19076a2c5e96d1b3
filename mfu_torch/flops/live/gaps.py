"""Whether a backward ran between two forward calls of a step, told without touching the engine.

    forward 1, backward | forward 2, backward     two micro-batches, each with a count of its own
    forward 1           | forward 2, backward     one piece of work: a contrastive loss, a GAN

The calls are the same, the work is not. What tells them apart is the trace that a backward leaves
in the gradients. Which parameter shows it after every backward, and only then, is learned from the
steps that are counted, where it is known what ran. From then on that one parameter is looked at,
and only in loops that call the models more than once a step.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

from torch import Tensor, nn

from mfu_torch.flops.live.microbatches import Piece

JOINED = -2
"""In a step's calls: no backward ran between the call before and the one after."""

UNTOLD = -3
"""In a step's calls: it is not known whether one ran."""

GAPS = frozenset({JOINED, UNTOLD})


class Gaps:
    """Finds what is between the forward calls of a step.

    Args:
        models: Whose calls they are.
    """

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self._watching = False  # looks at steps that are not counted
        self._models = models
        self._telling: list[Tensor] | None = None  # parameters that told right so far
        self._marks: list[list[Hashable]] = []  # of a counted step: all of them, at each call
        self._before: Hashable = None

    def forget(self) -> None:
        """The parameters are others now, or train otherwise."""
        self._telling, self._marks = None, []

    def note(self, calls: list[int], *, counted: bool) -> None:
        """A forward call begins; what is between it and the one before is added to ``calls``."""
        if counted:
            self.mark()
        elif self._telling and (calls or self._watching):
            before, self._before = self._before, _mark(self._telling[-1])
            if calls and not self._watching:
                self._watching = True
                calls.append(UNTOLD)  # the first call of this step was not looked at
            elif calls and before == self._before:
                calls.append(JOINED)

    def start_counted(self) -> None:
        """The step is counted from here on."""
        self._marks = []
        if self._telling is None:
            parameters = [p for model in self._models for p in model.parameters()]
            self._telling = [p for p in parameters if p.requires_grad and not p.is_inference()]

    def mark(self) -> None:
        """In a step that is counted a forward call begins, or it ends."""
        self._marks.append([_mark(parameter) for parameter in self._telling or ()])

    def learn(self, calls: list[int], pieces: Sequence[Piece]) -> list[int]:
        """A step was counted: its calls, with what is between them.

        Args:
            calls: Its forward calls.
            pieces: The count before the first call, then from each call to the next.
        """
        ran = [bool(piece.total.backward) for piece in pieces[1:]]
        marks, self._marks = self._marks, []
        whole = len(ran) == len(calls) == len(marks) - 1  # no call raised, or was left out
        if not calls or not whole or not self._telling:
            return calls
        self._watching = self._watching or len(calls) > 1
        told = [_tells(of_one, ran) for of_one in zip(*marks, strict=True)]
        self._telling = [p for p, right in zip(self._telling, told, strict=True) if right]
        if not self._telling:
            return calls
        marked = calls[:1]
        for call, backward in zip(calls[1:], ran, strict=False):
            marked += [call] if backward else [JOINED, call]
        return marked


def _tells(marks: Sequence[Hashable], ran: Sequence[bool]) -> bool:
    """Whether the marks of one parameter changed where a backward ran, and nowhere else."""
    changed = [before != after for before, after in itertools.pairwise(marks)]
    # After the last backward come the optimizer and zero_grad, which change the gradients, too.
    return changed[:-1] == list(ran[:-1]) and changed[-1] >= ran[-1]


def _mark(parameter: Tensor) -> Hashable:
    gradient = parameter.grad
    if gradient is None:  # so far, or again: an optimizer in the backward has used it already
        return parameter._version
    return id(gradient), gradient._version


def forwards(calls: Sequence[int]) -> int:
    """How many forward calls there are among ``calls``."""
    return sum(call not in GAPS for call in calls)
