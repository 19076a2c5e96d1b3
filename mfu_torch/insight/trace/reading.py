"""A trace of torch.profiler, read into columns.

The file is not trusted: what is read is listed in ``decode``, and every value is checked before it
is kept.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from mfu_torch.insight.trace.assembly import Assembly
from mfu_torch.insight.trace.columns import Columns
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.events import Trace
from mfu_torch.insight.trace.pieces import Pieces
from mfu_torch.insight.trace.source import MAX_RAW_BYTES, raw_chunks, shown_name


def read_trace(
    path: str | Path, *, max_raw_bytes: int = MAX_RAW_BYTES, step_name: str | None = None
) -> Trace:
    """Reads a trace that ``torch.profiler`` exported (chrome JSON, plain or gzip).

    A trace of 263 MB takes some two seconds. No more than some megabytes of JSON are in memory.

    Args:
        path: A file or a pipe; its name need not end in ``.gz`` to be gzip. ``-``: the standard
            input, if there is no file of that name.
        max_raw_bytes: Most bytes of JSON that are read, 2 GiB if not given.
        step_name: Regular expression: annotations in which it is found are the steps, instead of
            ``ProfilerStep#N``.

    Raises:
        TraceError: The file is no trace, is damaged, is larger than the limit, holds nothing to
            analyse, or no annotation is a step by ``step_name``.
        ValueError: ``step_name`` is no regular expression.
    """
    path = Path(path)
    file = shown_name(path)
    try:
        pattern = None if step_name is None else re.compile(step_name)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"step_name: no regular expression: {error}") from error
    columns = Columns()
    chunks = raw_chunks(path, max_raw_bytes)
    pieces = Pieces(file, chunks)
    with closing(chunks), no_collection():
        for events, text in pieces:
            columns.add(events, text)
            columns.check(file)
            pieces.stamped = columns.origin.of_text
            del events, text  # before the next are made
        columns.finish()
        return Assembly(file, columns, pieces, pattern).trace()


@contextmanager
def no_collection() -> Iterator[None]:
    """Events hold no cycles; the collector would visit millions of them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


__all__ = ["TraceError", "no_collection", "read_trace"]
