"""The count of one step while it trains, in pieces: from one forward call to the next."""

from __future__ import annotations

from contextlib import ExitStack

from mfu_torch.flops.counter import CAN_WATCH, FlopCounter
from mfu_torch.flops.dynamo import CompiledEntries
from mfu_torch.flops.live.microbatches import Piece
from mfu_torch.flops.shapes.columns import CountedCall
from mfu_torch.records import FlopCount


class CountedStep:
    """Counts a step, if it is started in it.

    Attributes:
        active: Whether the step is being counted.
        from_start: Whether it was from its start, not from its first forward call.
        pieces: What was counted before the first forward call, then from each to the next.
    """

    def __init__(self) -> None:
        self.active = False
        self.from_start = False
        self.pieces: list[Piece] = []
        self._method = ""
        self._carry = Piece(FlopCount())  # counted before a pause that interrupts the step
        self._counter = FlopCounter()
        self._entries: CompiledEntries | None = None
        self._stack = ExitStack()

    @property
    def met_compiled(self) -> bool:
        """Whether compiled code was entered, whose ops cannot be seen: the count is void."""
        return self._entries is not None and self._entries.count > 0

    def start(self, method: str, *, from_start: bool, eagerly: bool) -> None:
        """Begin to count.

        Args:
            method: How the count comes about.
            from_start: Whether the step has just begun.
            eagerly: Compiled code is to run eagerly; else it runs as ever, and is noticed.
        """
        self._method, self.from_start = method, from_start
        self._carry = Piece(FlopCount())
        # The first piece is what ran before the first forward call; from there on there is none.
        self.pieces = [] if from_start else [Piece(FlopCount())]
        with ExitStack() as stack:
            self._entries = None if eagerly else CompiledEntries()
            beside = self._entries is not None and self._entries.available and CAN_WATCH
            self._counter = FlopCounter(where=_always if beside else None)
            for context in (self._entries, self._counter):
                if context is not None:
                    stack.push(context)  # before it is entered: Ctrl-C can come in between
                    context.__enter__()
            self._stack = stack.pop_all()
            self.active = True

    def stop(self) -> None:
        """Leave nothing behind; safe to call twice."""
        self.active = False
        self._stack.close()

    def cut(self) -> None:
        """A piece ends here."""
        self.pieces.append(self._carry.and_then(self._taken()))
        self._carry = Piece(FlopCount())

    def pause(self) -> None:
        """What comes next does not belong to the step."""
        self._carry = self._carry.and_then(self._taken())

    def resume(self) -> None:
        """What comes next does."""
        self._counter.take()

    def _taken(self) -> Piece:
        calls: list[CountedCall] = []
        return Piece(self._counter.take(self._method, calls), tuple(calls))


def _always() -> bool:
    return True
