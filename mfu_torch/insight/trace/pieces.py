"""A trace piece by piece: no more than some megabytes of it are in memory at a time.

A piece is cut where one event ends and the next begins. Where that is cannot be seen from a few
bytes, since names hold braces too; but "[" + piece + "]" is JSON only if the piece ends there.
The brackets are written into the buffer: one over the comma before the events, one over that after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from mfu_torch.insight.trace.buffer import Buffer
from mfu_torch.insight.trace.decode import (
    Event,
    Head,
    NotJSON,
    Text,
    TooDeep,
    decode_document,
    decode_events,
    decode_head,
)
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.other_files import PROBED_BYTES, other_file

PIECE_BYTES = 1 << 19
"""Decoded at a time: what is made of it fits the processor's caches."""
FIRST_BYTES = 1 << 18
"""The first time: so much is there soon."""
LIMIT_BYTES = 64 << 20
"""Of one event, and of what stands before or after the events."""

_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
_BETWEEN = re.compile(rb"\}\s*,\s*\Z")
_GAP = 256
_TRIES = 4
_BRACES = 10_000
_EVENTS = b'{"traceEvents":'
_BEGIN = re.compile(rb"(?:\xef\xbb\xbf)?[ \t\r\n]*")
_OPEN, _CLOSE = b"[]"


@dataclass
class Pieces:
    """Reads a trace from chunks of its JSON.

    Attributes:
        name: Of the file, for messages.
        chunks: Of its JSON.
        heads: What stands before the events and after them.
        raw_bytes: Read so far.
        skipped: Entries of the list that are no events.
        stamped: Whether the next piece should have its time stamps as text.
    """

    name: str
    chunks: Iterator[bytes]
    heads: list[Head] = field(default_factory=list)
    raw_bytes: int = 0
    skipped: int = 0
    stamped: bool = False
    _buffer: Buffer = field(default_factory=lambda: Buffer(2 * PIECE_BYTES))

    def __iter__(self) -> Iterator[tuple[list[Event], Text]]:
        """Events of each piece, and the JSON that holds them: a list, or an object at the end.

        Both are to be used up before the next piece: it stands in the same memory.

        Raises:
            TraceError: The file is no trace, or not all of one.
        """
        is_list = self._start()
        wanted, first, begin = min(FIRST_BYTES, PIECE_BYTES), True, 0
        while True:
            ended = self._fill(wanted)
            with self._not_too_deep():
                found = None if ended else self._cut()
                if found is not None:
                    events, text, begin = found
                    wanted = PIECE_BYTES
                elif ended:
                    events, text = self._last(is_list)
                else:
                    wanted = self._more()
                    continue
            if first and (events or self.skipped) and not any(event.ph for event in events):
                raise TraceError(f"{self.name}: JSON, but no trace: its entries are no events")
            first = False
            yield events, text
            if ended:
                return
            del events, text, found  # before the next are made
            self._buffer.drop(begin)

    @contextmanager
    def _not_too_deep(self) -> Iterator[None]:
        """Each cut begins where an event does: what is nested in it is nested in the file."""
        try:
            yield
        except TooDeep as error:
            raise TraceError(
                f"{self.name}: its lists or objects are nested too deeply; no trace of "
                "torch.profiler"
            ) from error

    def _fill(self, wanted: int) -> bool:
        """Reads until the buffer has ``wanted`` bytes; says whether the file ended."""
        buffer = self._buffer
        while len(buffer) < wanted:
            chunk = next(self.chunks, b"")
            if not chunk:
                return True
            self.raw_bytes += len(chunk)
            buffer.append(chunk)
        return False

    def _start(self) -> bool:
        """Reads to the bracket that opens the events; says whether they are all there is."""
        ended, buffer = self._fill(min(FIRST_BYTES, PIECE_BYTES)), self._buffer
        if other := other_file(bytes(buffer.view(min(len(buffer), PROBED_BYTES)))):
            raise TraceError(f"{self.name}: {other}")
        begin = _BEGIN.match(buffer.content, 0, len(buffer))
        buffer.drop(begin.end() if begin else 0)
        opening = bytes(buffer.view(1))
        if opening == b"[":
            return True
        if opening != b"{":
            raise TraceError(
                f"{self.name}: no JSON object; a trace of torch.profiler is a JSON object"
            )
        while not self._events_begin():
            if ended:
                raise TraceError(
                    f'{self.name}: no "traceEvents" in it: not a trace of torch.profiler '
                    "(export_chrome_trace writes one), or the file was cut"
                )
            ended = self._fill(self._more())
        return False

    def _events_begin(self) -> bool:
        """Drops all before the bracket that opens the events, if it is there."""
        buffer = self._buffer
        keys = _EVENTS_KEY.finditer(buffer.content, 0, len(buffer))
        for found, _ in zip(keys, range(_TRIES), strict=False):
            try:  # JSON only if the key stands at the top, not inside a value
                with self._not_too_deep():
                    head = decode_head(bytes(buffer.view(found.start())) + b'"traceEvents":[]}')
            except NotJSON:
                continue
            self.heads.append(head)
            buffer.drop(found.end() - 1)
            return True
        return False

    def _cut(self) -> tuple[list[Event], Text, int] | None:
        """Events of the longest piece that ends with one, its text, and where the next begins."""
        content = self._buffer.content
        content[0] = _OPEN
        brace, tries = len(self._buffer), 0
        for _ in range(_BRACES):
            brace = content.rfind(b"{", 0, brace)
            if brace <= 0 or tries == _TRIES:
                break
            between = _BETWEEN.search(content, max(brace - _GAP, 0), brace)
            if between is None:
                continue
            tries += 1
            end = between.start() + 1
            was, content[end] = content[end], _CLOSE
            text = self._buffer.view(end + 1)
            try:
                events, skipped = decode_events(text, stamped=self.stamped)
            except TooDeep:
                raise
            except NotJSON:
                content[end] = was
                continue
            self.skipped += skipped
            return events, text, brace - 1
        return None

    def _last(self, is_list: bool) -> tuple[list[Event], Text]:
        self._buffer.content[0] = _OPEN
        text = self._buffer.take()
        try:
            if is_list:
                events, skipped = decode_events(text)
            else:
                text = _EVENTS + text
                document, skipped = decode_document(text)
                self.heads.append(document)
                if _EVENTS_KEY.search(text, len(_EVENTS)):  # its events are the later ones
                    raise TraceError(f'{self.name}: "traceEvents" stands in it twice; no trace')
                events = document.events
        except TooDeep:
            raise
        except NotJSON as error:
            raise TraceError(
                f"{self.name}: the JSON is cut or damaged in its last {len(self._buffer) - 1} "
                f"bytes of {self.raw_bytes}; record or copy the trace again"
            ) from error
        self.skipped += skipped
        return events, text

    def _more(self) -> int:
        """How many bytes the buffer shall have where there are too few.

        Raises:
            TraceError: There cannot be more.
        """
        have = len(self._buffer)
        if have >= LIMIT_BYTES:
            raise TraceError(
                f"{self.name}: no end of an event in {LIMIT_BYTES >> 20} MiB; the JSON is damaged, "
                "or no trace"
            )
        return max(2 * have, PIECE_BYTES)
