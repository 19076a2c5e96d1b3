"""The bytes of a trace, in chunks: plain or gzip, never more than a limit."""

from __future__ import annotations

import importlib
import os
import select
import stat
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.names import clean

MAX_RAW_BYTES = 2 << 30
"""Default limit of the JSON: 2 GiB, some nine million events."""

_CHUNK_BYTES = 1 << 18
"""Inflated at a time: new memory for larger ones would cost as much as to inflate them."""
_AHEAD = 16
"""Chunks: none is added while the decoder keeps the GIL."""
_PACKED_BYTES = 1 << 18
_GZIP = b"\x1f\x8b"
_PIPE_WAIT_S = 10
"""For a writer of a named pipe: one that nobody ever writes to must not hang the reader."""


def raw_chunks(path: Path, max_raw_bytes: int) -> Generator[bytes]:
    """The JSON of a file in small chunks, read ahead on a thread.

    Raises:
        TraceError: The file is none, cannot be read, is damaged, or holds more than
            ``max_raw_bytes``.
    """
    name = shown_name(path)
    chunks = _bounded(_opened(path, name), max_raw_bytes, name)
    with ThreadPoolExecutor(1) as reader:  # zlib lets go of the GIL
        ahead = deque(reader.submit(next, chunks, None) for _ in range(_AHEAD))
        try:
            while (chunk := ahead.popleft().result()) is not None:
                ahead.append(reader.submit(next, chunks, None))
                yield chunk
        finally:
            for waiting in ahead:  # a pipe may say nothing more for long
                waiting.cancel()


def _bounded(chunks: Iterator[bytes], max_raw_bytes: int, name: str) -> Iterator[bytes]:
    total = 0
    for chunk in chunks:
        total += len(chunk)
        if total > max_raw_bytes:
            raise TraceError(
                f"{name}: more than {max_raw_bytes} bytes of JSON; if the trace is meant to be so "
                "large, raise max_raw_bytes (command line: --max-raw-bytes)"
            )
        yield chunk


def _opened(path: Path, name: str) -> Iterator[bytes]:
    try:
        with os.fdopen(_descriptor(path), "rb") as file:
            kind = os.fstat(file.fileno()).st_mode
            if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
                _await_writer(file.fileno(), path, name)
            elif not stat.S_ISREG(kind):
                raise TraceError(f"{name}: not a file or a pipe; give the path of a trace file")
            first = file.read(max(_CHUNK_BYTES, len(_GZIP)))
            if not first:
                raise TraceError(f"{name}: the file is empty")
            yield from (
                _inflated(first, file, name) if first.startswith(_GZIP) else _plain(first, file)
            )
    except IsADirectoryError as error:
        raise TraceError(f"{name}: a folder; give the path of a trace file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or "not a path"
        raise TraceError(f"{name}: cannot be read: {reason}") from error


def is_stdin(path: Path) -> bool:
    """Whether a path stands for the standard input: ``-``, and no file of that name is there."""
    return str(path) == "-" and not path.exists()


def shown_name(path: Path) -> str:
    """Of a file, without its folder and safe to print."""
    return "stdin" if is_stdin(path) else clean(path.name)


def _descriptor(path: Path) -> int:
    if is_stdin(path):
        return os.dup(0)
    # Not blocking: a pipe without a writer would hang while it is opened.
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))


def _await_writer(pipe: int, path: Path, name: str) -> None:
    """Waits for a named pipe; that of a shell (``-``, ``/dev/fd/63``) has its writer."""
    if hasattr(select, "poll"):  # not on Windows
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        if not is_stdin(path) and not path.is_symlink() and not waiting.poll(_PIPE_WAIT_S * 1000):
            raise TraceError(f"{name}: a pipe that nobody writes to")
        os.set_blocking(pipe, True)


def _plain(chunk: bytes, file: BinaryIO) -> Iterator[bytes]:
    """The first chunk, and the rest of the file."""
    while chunk:
        yield chunk
        chunk = file.read(_CHUNK_BYTES)


def _inflated(packed: bytes, file: BinaryIO, name: str) -> Iterator[bytes]:
    """All members of a gzip file, one after the other; their checksums are verified.

    Args:
        packed: Its first bytes.
        file: The rest.
        name: For messages.
    """
    inflate = _inflater()
    member = inflate()
    while packed:
        try:
            chunk = member.decompress(packed, _CHUNK_BYTES)
        except Exception as error:  # zlib.error, or isal's own class
            raise TraceError(f"{name}: damaged gzip data; copy or write the file again") from error
        if chunk:
            yield chunk
        if member.eof:
            packed = (member.unused_data or file.read(_PACKED_BYTES)).lstrip(b"\0")  # padding
            if packed:
                member = inflate()
        else:
            packed = member.unconsumed_tail or file.read(_PACKED_BYTES)
    if not member.eof:
        raise TraceError(
            f"{name}: the gzip data ends too early; the file was cut, copy or write it again"
        )


def _inflater() -> Any:
    try:
        module: Any = importlib.import_module("isal.isal_zlib")  # faster, where it is installed
    except ImportError:
        module = zlib
    return lambda: module.decompressobj(wbits=31)
