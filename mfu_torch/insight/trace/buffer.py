"""Bytes that arrive at the end and are used up from the front, in memory that is used again."""

from __future__ import annotations


class Buffer:
    """Holds what is not used up; new memory for each piece would cost more than the copy.

    Attributes:
        content: Begins with the bytes that are held.
        used: How many they are.
    """

    def __init__(self, capacity: int) -> None:
        self.content = bytearray(capacity)
        self.used = 0
        self._view = memoryview(self.content)

    def __len__(self) -> int:
        return self.used

    def append(self, chunk: bytes) -> None:
        """Puts a chunk at the end."""
        end = self.used + len(chunk)
        if end > len(self.content):
            self._grow(end)
        self._view[self.used : end] = chunk
        self.used = end

    def drop(self, count: int) -> None:
        """Lets go of the first bytes: views of them show others from now on."""
        left = self.used - count
        self._view[:left] = self._view[count : self.used]
        self.used = left

    def view(self, end: int) -> memoryview:
        """The first bytes, until some are dropped."""
        return self._view[:end]

    def take(self) -> bytes:
        """All of them, as a copy."""
        return bytes(self._view[: self.used])

    def _grow(self, least: int) -> None:
        larger = bytearray(max(least, 2 * len(self.content)))
        view = memoryview(larger)
        view[: self.used] = self._view[: self.used]
        self.content, self._view = larger, view
