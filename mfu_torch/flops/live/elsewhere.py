"""Work of a step on threads other than the one that enters it: a count does not see it."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from mfu_torch.flops.calls import CallWatch
from mfu_torch.flops.live import reasons as why

_thread = threading.get_ident


class Elsewhere:
    """Notices calls of the models, and announcements, on other threads.

    Args:
        watches: Of the models.
    """

    def __init__(self, watches: Sequence[CallWatch]) -> None:
        self._watches = watches
        self._thread = _thread()
        self._announced = 0
        self._before = (0, 0)  # calls and announcements, when the step began

    def enter(self) -> None:
        """A step is counted, on this thread."""
        self._thread = _thread()
        for watch in self._watches:
            watch.thread = self._thread
        self.begin()

    def begin(self) -> None:
        """What came so far does not belong to the step."""
        self._before = self._seen()

    def pause(self) -> None:
        """What comes next does not belong to the step."""
        self._before = self._since()

    def resume(self) -> None:
        """What comes next does."""
        # What was there is (seen now) less (what had come in the step by the pause).
        calls, announced = self._seen()
        self._before = (calls - self._before[0], announced - self._before[1])

    def is_announced_here(self) -> bool:
        """Whether an announcement comes on the step's thread; if not, it is noticed."""
        here = _thread() == self._thread
        self._announced += not here
        return here

    def reason(self) -> str:
        """Why the step's count is not known, if work of it was elsewhere."""
        calls, announced = self._since()
        if announced:
            return why.ANNOUNCED_ELSEWHERE
        return why.ELSEWHERE if calls else ""

    def _since(self) -> tuple[int, int]:
        calls, announced = self._seen()
        return calls - self._before[0], announced - self._before[1]

    def _seen(self) -> tuple[int, int]:
        return sum([watch.elsewhere for watch in self._watches]), self._announced
