"""A queue with a thread of its own at the end: what is slow there holds up nobody before it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Lane(Generic[T]):
    """Hands records on, one by one, in the order in which they were put.

    Args:
        name: Of the thread.
        take: Called with every record, on the thread.
        end: Called there after the last one.
        failed: Called with what ``take`` or ``end`` raise; the thread goes on.
        limit: Records that may wait.
    """

    def __init__(
        self,
        name: str,
        take: Callable[[T], None],
        end: Callable[[], None],
        failed: Callable[[BaseException], None],
        limit: int,
    ) -> None:
        self._take, self._end, self._failed, self._limit = take, end, failed, limit
        self._ended = False
        self._queue: queue.SimpleQueue[T | threading.Event | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    @property
    def waiting(self) -> int:
        """Records that were put and are not taken yet."""
        return self._queue.qsize()

    def put(self, record: T) -> bool:
        """Hand over a record; false, and it is dropped, when too many wait. Never blocks."""
        if self._queue.qsize() >= self._limit:
            return False
        self._queue.put(record)
        return True

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything put so far was taken; false if it was not."""
        if not self.thread.is_alive():
            return self._ended
        taken = threading.Event()
        self._queue.put(taken)
        return taken.wait(max(timeout_s, 0.0))

    def finish(self) -> None:
        """Let the thread end after what was put so far."""
        self._queue.put(None)

    def join(self, timeout_s: float) -> bool:
        """Wait until it has ended; false if it has not."""
        self.thread.join(max(timeout_s, 0.0))
        return not self.thread.is_alive()

    def _work(self) -> None:
        while (record := self._queue.get()) is not None:
            if isinstance(record, threading.Event):
                record.set()
                continue
            try:
                self._take(record)
            # Nobody sees a thread die: what waits behind this record must be taken all the same.
            except BaseException as error:
                self._failed(error)
        try:
            self._end()
        except BaseException as error:  # likewise
            self._failed(error)
        self._ended = True
