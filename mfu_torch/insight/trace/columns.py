"""Events of pieces, gathered into columns; the events themselves are let go."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.collectives import FACTS
from mfu_torch.insight.trace.decode import Args, texts
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.names import (
    ANNOTATION,
    OF_A_DEVICE,
    OPS,
    RUNTIME,
    WORK,
    Numbers,
    is_annotation,
)
from mfu_torch.insight.trace.pairs import Pairs
from mfu_torch.insight.trace.times import Origin
from mfu_torch.insight.trace.values import concrete_text, dims_text, grid_blocks, types_text

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from mfu_torch.insight.trace.decode import Event
    from mfu_torch.insight.trace.events import Ints

MOST_ROWS = 20_000_000
MOST_DISTINCT = 2_000_000
Fact = tuple[Any, ...]

_EMPTY = Args()
_fact = attrgetter(*FACTS[:-1])
_DIGITS = re.compile(r"\d{1,18}")
_READ = {*WORK, *RUNTIME, *OPS, ANNOTATION, None}  # None: ends of pairs are among them


class _Found(dict[Any, Any]):
    """Computes the value of each distinct key once."""

    def __init__(self, compute: Callable[[Any], Any], known: dict[Any, Any] | None = None) -> None:
        super().__init__(known or {})
        self._compute = compute

    def __missing__(self, key: Any) -> Any:
        value = self[key] = self._compute(key)
        return value


class _Texts(_Found):
    """The same for JSON, for many at a time."""

    def of(self, raws: list[Raw]) -> Ints:
        if not any(raws):
            return np.full(len(raws), self[b""])
        return _ints([self[text] for text in texts(raws)])


class Rows:
    """Columns that grow by whole pieces."""

    def __init__(self, *columns: str) -> None:
        self._rows = 0
        self._parts: dict[str, list[npt.NDArray[np.integer]]] = {name: [] for name in columns}

    def __len__(self) -> int:
        return self._rows

    def add(self, **columns: Any) -> None:
        """A piece: every column, equally long."""
        self._rows += len(columns["start"])
        for name, values in columns.items():
            self._parts[name].append(_ints(values))

    def taken(self, keep: npt.NDArray[np.bool_] | None = None) -> dict[str, Ints]:
        """All of them, or those to keep."""
        empty = np.zeros(0, np.int64)
        joined = {name: np.concatenate([empty, *parts]) for name, parts in self._parts.items()}
        return joined if keep is None else {name: col[keep] for name, col in joined.items()}


@dataclass
class Columns:
    """What is kept of a trace while it is read; every time counts from :attr:`origin`.

    Attributes:
        work: Kernels and copies.
        ops: Of the host.
        calls: Of the runtime.
        annotations: Of the user and the profiler.
        names: As they are recorded -> number.
        threads: ``(pid, tid)`` -> number.
        texts: Shapes, types and arguments -> number; 0 is the empty text.
        facts: What events say of a collective -> number.
        impossible: Events whose time stamp or duration cannot be.
    """

    work: Rows = field(
        default_factory=lambda: Rows(
            *("start", "end", "kind", "name", "stream", "device", "correlation", "external"),
            *("blocks", "fact"),
        )
    )
    ops: Rows = field(
        default_factory=lambda: Rows(
            *("start", "end", "name", "thread", "external", "dims", "types", "concrete", "fact")
        )
    )
    calls: Rows = field(
        default_factory=lambda: Rows("start", "end", "name", "thread", "correlation")
    )
    annotations: Rows = field(default_factory=lambda: Rows("start", "end", "name", "thread"))
    names: Numbers[str] = field(default_factory=Numbers)
    threads: Numbers[tuple[Any, Any]] = field(default_factory=Numbers)
    texts: Numbers[bytes] = field(default_factory=lambda: Numbers({b"": 0}))
    facts: Numbers[Fact] = field(default_factory=Numbers)
    impossible: int = 0
    not_read: int = 0
    origin: Origin = field(default_factory=Origin)
    pairs: Pairs = field(default_factory=Pairs)
    _dims: _Texts = field(init=False)
    _types: _Texts = field(init=False)
    _concrete: _Texts = field(init=False)
    _grids: _Texts = field(default_factory=lambda: _Texts(grid_blocks, {b"": -1}))
    _asides: dict[str, dict[str, bool]] = field(
        default_factory=lambda: {
            category: _Found(partial(is_annotation, category)) for category in OPS
        }
    )

    def __post_init__(self) -> None:
        numbers = self.texts
        self._dims = _Texts(lambda raw: numbers[dims_text(raw)])
        self._types = _Texts(lambda raw: numbers[types_text(raw)])
        self._concrete = _Texts(lambda raw: numbers[concrete_text(raw)])

    def add(self, events: list[Event], text: bytes) -> None:
        """Takes what is read of a piece; ``text`` is its JSON."""
        shifted = self.origin.shifted(events, text)
        by_category: dict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        for category, found in by_category.items():
            if category in _READ:
                self._add(category, found, shifted)
            elif category and OF_A_DEVICE.search(category):
                self.not_read += len(found)

    def check(self, file: str) -> None:
        """Raises :class:`TraceError` where no trace of a few steps can come from."""
        rows = sum(len(table) for table in (self.work, self.ops, self.calls, self.annotations))
        distinct = len(self.names) + len(self.threads) + len(self.texts) + len(self.facts)
        if rows > MOST_ROWS or distinct > MOST_DISTINCT:
            raise TraceError(
                f"{file}: more than {MOST_ROWS} events or {MOST_DISTINCT} different names and "
                "shapes; record fewer steps"
            )

    def finish(self) -> None:
        """Joins begins and ends that stood apart; to be called once, after the last piece."""
        for category, events in self.pairs.joined().items():
            self._add(category, events, True)

    def _add(self, category: str | None, events: list[Event], shifted: bool) -> None:
        if {event.ph for event in events} != {"X"}:
            self.pairs.add(events, 0 if shifted else self.origin.us or 0)
            events = [event for event in events if event.ph == "X"]
        if category is None or not events:
            return
        start, end, valid = self.origin.times(events, shifted)
        if valid is not None:
            self.impossible += int((~valid).sum())
            events = [event for event, good in zip(events, valid.tolist(), strict=True) if good]
        kind = WORK.get(category)
        if kind is not None:
            self._add_work(events, start, end, kind)
        elif category in RUNTIME:
            self._add_calls(events, start, end)
        elif category == ANNOTATION:
            self._add_annotations(events, start, end)
        else:
            self._add_ops(category, events, start, end)

    def _add_work(self, events: list[Event], start: Ints, end: Ints, kind: int) -> None:
        args = [event.args or _EMPTY for event in events]
        names, pairs = self.names, list(zip(events, args, strict=True))
        correlation = _correlation(args)
        self.work.add(
            start=start,
            end=end,
            kind=np.full(len(events), kind),
            name=[names[event.name] for event in events],
            stream=[_number(e.tid if a.stream is None else a.stream) for e, a in pairs],
            device=[_number(e.pid if a.device is None else a.device) for e, a in pairs],
            correlation=correlation,
            external=_external(args, correlation),
            blocks=self._grids.of([a.grid for a in args]),
            fact=self._facts(args),
        )

    def _add_ops(self, category: str, events: list[Event], start: Ints, end: Ints) -> None:
        names, threads = self.names, self.threads
        asides = self._asides[category]
        is_aside = [asides[event.name] for event in events]
        if any(is_aside):
            aside = np.array(is_aside)
            self._add_annotations(list(compress(events, is_aside)), start[aside], end[aside])
            events = list(compress(events, ~aside))
            start, end = start[~aside], end[~aside]
        args = [event.args or _EMPTY for event in events]
        dims = self._dims.of([a.dims for a in args])
        if not dims.all():
            dims = np.where(dims == 0, self._dims.of([a.dims_old for a in args]), dims)
        self.ops.add(
            start=start,
            end=end,
            name=[names[event.name] for event in events],
            thread=[threads[event.pid, event.tid] for event in events],
            external=_external(args),
            dims=dims,
            types=self._types.of([a.types for a in args]),
            concrete=self._concrete.of([a.concrete for a in args]),
            fact=self._facts(args),
        )

    def _add_calls(self, events: list[Event], start: Ints, end: Ints) -> None:
        names, threads = self.names, self.threads
        args = [event.args or _EMPTY for event in events]
        self.calls.add(
            start=start,
            end=end,
            name=[names[event.name] for event in events],
            thread=[threads[event.pid, event.tid] for event in events],
            correlation=_correlation(args),
        )

    def _add_annotations(self, events: list[Event], start: Ints, end: Ints) -> None:
        names, threads = self.names, self.threads
        self.annotations.add(
            start=start,
            end=end,
            name=[names[event.name] for event in events],
            thread=[threads[event.pid, event.tid] for event in events],
        )

    def _facts(self, args: list[Args]) -> Ints:
        found = np.full(len(args), -1, np.int64)
        for i in [i for i, a in enumerate(args) if a.collective is not None]:
            found[i] = self.facts[(*_fact(args[i]), bytes(args[i].group_ranks))]
        return found


def _ints(values: Ints | list[int]) -> Ints:
    return np.fromiter(values, np.int64, len(values)) if isinstance(values, list) else values


def _correlation(args: list[Args]) -> Ints:
    return _ints([-1 if a.correlation is None else a.correlation for a in args])


def _external(args: list[Args], correlation: Ints | None = None) -> Ints:
    """Number of the op that an event is or belongs to; -1 where it only repeats a correlation."""
    number = _ints([-1 if a.external is None else a.external for a in args])
    missing = np.flatnonzero(number == -1)
    if correlation is not None:
        number[number == correlation] = -1
    old = [args[i].external_old for i in missing.tolist()]
    number[missing] = [-1 if value is None else value for value in old]
    return number


def _number(value: int | str | None) -> int:
    """``7`` and ``"stream 7"`` -> 7."""
    if type(value) is int:
        return value
    digits = _DIGITS.search(value) if isinstance(value, str) else None
    return int(digits.group()) if digits else -1
