"""The bytes of a trace, in chunks: plain or gzip, never more than a limit."""

from __future__ import annotations

import importlib
import os
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
_NOT_JSON = {
    b"PK": "a zip archive",
    b"\x28\xb5\x2f\xfd": "compressed with zstd",
    b"BZh": "compressed with bzip2",
    b"\xfd7zXZ": "compressed with xz",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}


def raw_chunks(path: Path, max_raw_bytes: int) -> Generator[bytes]:
    """The JSON of a file in small chunks, read ahead on a thread.

    Raises:
        TraceError: The file is none, cannot be read, is damaged, or holds more than
            ``max_raw_bytes``.
    """
    name = clean(path.name)
    chunks = _bounded(_opened(path, name), max_raw_bytes, name)
    with ThreadPoolExecutor(1) as reader:  # zlib lets go of the GIL
        ahead = deque(reader.submit(next, chunks, None) for _ in range(_AHEAD))
        while (chunk := ahead.popleft().result()) is not None:
            ahead.append(reader.submit(next, chunks, None))
            yield chunk


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
        # Not blocking: a pipe that nobody writes to must not hang the reader.
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise TraceError(f"{name}: not a regular file; give the path of a trace file")
            first = file.read(8)
            file.seek(0)
            if not first:
                raise TraceError(f"{name}: the file is empty")
            for magic, what in _NOT_JSON.items():
                if first.startswith(magic):
                    raise TraceError(f"{name}: {what}; a trace is JSON, plain or gzip")
            yield from _inflated(file, name) if first.startswith(_GZIP) else _plain(file)
    except IsADirectoryError as error:
        raise TraceError(f"{name}: a folder; give the path of a trace file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or "not a path"
        raise TraceError(f"{name}: cannot be read: {reason}") from error


def _plain(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(_CHUNK_BYTES):
        yield chunk


def _inflated(file: BinaryIO, name: str) -> Iterator[bytes]:
    """All members of a gzip file, one after the other; their checksums are verified."""
    inflate = _inflater()
    member = inflate()
    packed = file.read(_PACKED_BYTES)
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
