"""A trace piece by piece: no more than some megabytes of it are in memory at a time.

A piece is cut where one event ends and the next begins. Where that is cannot be seen from a few
bytes, since names hold braces too; but "[" + piece + "]" is JSON only if the piece ends there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from mfu_torch.insight.trace.decode import (
    Event,
    Head,
    NotJSON,
    decode_document,
    decode_events,
    decode_head,
)
from mfu_torch.insight.trace.errors import TraceError

PIECE_BYTES = 1 << 20
"""Decoded at a time: what is made of it fits the processor's caches."""
LIMIT_BYTES = 64 << 20
"""Of one event, and of what stands before or after the events."""

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\Z")
_GAP = 256
_TRIES = 4
_BRACES = 10_000
_SPACE = b" \t\r\n"


@dataclass
class Pieces:
    """Reads a trace from chunks of its JSON.

    Attributes:
        name: Of the file, for messages.
        chunks: Of its JSON.
        heads: What stands before the events and after them.
        raw_bytes: Read so far.
        skipped: Entries of the list that are no events.
    """

    name: str
    chunks: Iterator[bytes]
    heads: list[Head] = field(default_factory=list)
    raw_bytes: int = 0
    skipped: int = 0

    def __iter__(self) -> Iterator[tuple[list[Event], bytes]]:
        """Events of each piece, and the JSON that holds them: a list, or an object at the end.

        Raises:
            TraceError: The file is no trace, or not all of one.
        """
        buffer, is_list = self._start()
        wanted, first = PIECE_BYTES, True
        while True:
            buffer, ended = self._fill(buffer, wanted)
            found = None if ended else self._cut(buffer)
            if found is not None:
                events, text, begin = found
                buffer, wanted = buffer[begin:], PIECE_BYTES
            elif ended:
                events, text = self._last(buffer, is_list)
            else:
                wanted = self._more_than(buffer)
                continue
            if first and (events or self.skipped) and not any(event.ph for event in events):
                raise TraceError(f"{self.name}: JSON, but no trace: its entries are no events")
            first = False
            yield events, text
            if ended:
                return

    def _fill(self, buffer: bytes, wanted: int) -> tuple[bytes, bool]:
        """The buffer with more bytes, until it has ``wanted``; and whether the file ended."""
        parts, have = [buffer], len(buffer)
        while have < wanted:
            chunk = next(self.chunks, b"")
            if not chunk:
                return b"".join(parts), True
            self.raw_bytes += len(chunk)
            parts.append(chunk)
            have += len(chunk)
        return b"".join(parts), False

    def _start(self) -> tuple[bytes, bool]:
        """What follows the bracket that opens the events, and whether they are all there is."""
        buffer, ended = self._fill(b"", PIECE_BYTES)
        buffer = buffer.removeprefix(b"\xef\xbb\xbf").lstrip(_SPACE)
        if buffer[:1] == b"[":
            return buffer[1:], True
        if buffer[:1] != b"{":
            what = "HTML" if buffer[:1] == b"<" else "no JSON object"
            raise TraceError(f"{self.name}: {what}; a trace of torch.profiler is a JSON object")
        while (begin := self._events_begin(buffer)) is None:
            if ended:
                raise TraceError(
                    f'{self.name}: no "traceEvents" in it: not a trace of torch.profiler '
                    "(export_chrome_trace writes one), or the file was cut"
                )
            buffer, ended = self._fill(buffer, self._more_than(buffer))
        return buffer[begin:], False

    def _events_begin(self, buffer: bytes) -> int | None:
        for found, _ in zip(_EVENTS_KEY.finditer(buffer), range(_TRIES), strict=False):
            try:  # JSON only if the key stands at the top, not inside a value
                head = decode_head(buffer[: found.start()] + b'"traceEvents":[]}')
            except NotJSON:
                continue
            self.heads.append(head)
            return found.end()
        return None

    def _cut(self, buffer: bytes) -> tuple[list[Event], bytes, int] | None:
        """Events of the longest piece that ends with one, its text, and where the next begins."""
        view = memoryview(buffer)
        brace = len(buffer)
        tries = 0
        for _ in range(_BRACES):
            brace = buffer.rfind(b"{", 0, brace)
            if brace <= 0 or tries == _TRIES:
                break
            between = _BETWEEN.search(buffer, max(brace - _GAP, 0), brace)
            if between is None:
                continue
            tries += 1
            text = b"".join((b"[", view[: between.start() + 1], b"]"))
            try:
                events, skipped = decode_events(text)
            except NotJSON:
                continue
            self.skipped += skipped
            return events, text, brace
        return None

    def _last(self, buffer: bytes, is_list: bool) -> tuple[list[Event], bytes]:
        try:
            if is_list:
                text = b"[" + buffer
                events, skipped = decode_events(text)
            else:
                text = b'{"traceEvents":[' + buffer
                document, skipped = decode_document(text)
                self.heads.append(document)
                if _EVENTS_KEY.search(buffer):  # the decoder took the events of the later one
                    raise TraceError(f'{self.name}: "traceEvents" stands in it twice; no trace')
                events = document.events
        except NotJSON as error:
            raise TraceError(
                f"{self.name}: the JSON is cut or damaged in its last {len(buffer)} bytes of "
                f"{self.raw_bytes}; record or copy the trace again"
            ) from error
        self.skipped += skipped
        return events, text

    def _more_than(self, buffer: bytes) -> int:
        if len(buffer) >= LIMIT_BYTES:
            raise TraceError(
                f"{self.name}: no end of an event in {LIMIT_BYTES >> 20} MiB; the JSON is damaged, "
                "or no trace"
            )
        return max(2 * len(buffer), PIECE_BYTES)
