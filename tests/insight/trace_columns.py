"""All columns of a trace, to compare two traces."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from mfu_torch.insight.trace.events import Spans, Trace

_SPANS = ("steps", "syncs", "allocs", "data_waits", "annotations")
_NUMBERED = {"name": "names", "thread": "threads", "launch_thread": "threads"}


def columns(trace: Trace, *, without_names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Of everything but the file and the notes; names and threads as text.

    ``without_names``: tables whose names are left out.
    """
    found: dict[str, Any] = {
        field.name: getattr(trace, field.name)
        for field in dataclasses.fields(trace)
        if field.name not in ("file", "raw_bytes", "names", "notes", "work", "ops", *_SPANS)
    }
    for part in ("work", "ops", *_SPANS):
        table = _texts(trace, getattr(trace, part))
        if part in without_names:
            del table["name"]
        found |= {f"{part}.{key}": column for key, column in table.items()}
    return found


def differing(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Keys of columns that are not the same."""
    return [key for key in before | after if not _same(before.get(key), after.get(key))]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return bool(np.array_equal(one, other))
    return bool(one == other)


def _texts(trace: Trace, table: Spans | Any) -> dict[str, Any]:
    texts: dict[str, Any] = {}
    for field in dataclasses.fields(table):
        column = getattr(table, field.name)
        if field.name in _NUMBERED:
            words = np.array([*getattr(trace, _NUMBERED[field.name]), ""], object)
            column = words[column]
        texts[field.name] = column
    return texts
