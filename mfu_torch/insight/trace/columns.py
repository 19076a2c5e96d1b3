"""Events of pieces, gathered into columns; the events themselves are let go."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.collectives import FACTS
from mfu_torch.insight.trace.decode import Args, Complete, texts
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.ids import external, ids, ints, leading_numbers
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
from mfu_torch.insight.trace.recording import PYTHON
from mfu_torch.insight.trace.times import Origin
from mfu_torch.insight.trace.values import (
    concrete_text,
    dims_text,
    grid_blocks,
    types_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from mfu_torch.insight.trace.decode import Event, Text
    from mfu_torch.insight.trace.events import Ints

MOST_ROWS = 20_000_000
MOST_DISTINCT = 2_000_000
Fact = tuple[Any, ...]

_EMPTY = Args()
_fact = attrgetter(*FACTS[:-1])
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
        if not (raws and raws[0]) and not any(raws):
            return np.full(len(raws), self[b""])
        return ints([self[text] for text in texts(raws)])


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
            self._parts[name].append(ints(values))

    def taken(self, keep: npt.NDArray[np.bool_] | None = None) -> dict[str, Ints]:
        """All of them, or those to keep."""
        empty = np.zeros(0, np.int64)
        joined = {name: np.concatenate([empty, *parts]) for name, parts in self._parts.items()}
        return joined if keep is None else {name: col[keep] for name, col in joined.items()}


class _Timed(NamedTuple):
    """Events with their times; ``valid`` says which of those there were are still there."""

    events: list[Event]
    start: Ints
    end: Ints
    valid: npt.NDArray[np.bool_] | None = None

    @property
    def args(self) -> list[Args]:
        return [event.args or _EMPTY for event in self.events]

    def only(self, keep: npt.NDArray[np.bool_]) -> _Timed:
        """Some of them."""
        kept = list(compress(self.events, keep.tolist()))
        return _Timed(kept, self.start[keep], self.end[keep])


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
        lost_work: Those of a device: number of the name -> how many.
        not_read: Events of a kind that only a device has.
        python_calls: Calls of Python functions.
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
    lost_work: Counter[int] = field(default_factory=Counter)
    not_read: int = 0
    python_calls: int = 0
    origin: Origin = field(default_factory=Origin)
    pairs: Pairs = field(default_factory=Pairs)
    _dims: _Texts = field(init=False)
    _types: _Texts = field(init=False)
    _concrete: _Texts = field(init=False)
    _grids: _Texts = field(default_factory=lambda: _Texts(grid_blocks, {b"": -1}))
    _coded: dict[str, dict[str, int]] = field(init=False)
    _of_process: dict[Any, dict[Any, int]] = field(init=False)

    def __post_init__(self) -> None:
        numbers, threads = self.texts, self.threads
        self._coded = {category: _Found(partial(self._code, category)) for category in OPS}
        self._of_process = _Found(lambda pid: _Found(lambda tid: threads[pid, tid]))
        self._dims = _Texts(lambda raw: numbers[dims_text(raw)])
        self._types = _Texts(lambda raw: numbers[types_text(raw)])
        self._concrete = _Texts(lambda raw: numbers[concrete_text(raw)])

    def add(self, events: list[Event], text: Text) -> None:
        """Takes what is read of a piece; ``text`` is its JSON."""
        shifted = self.origin.shifted(events, text)
        by_category: dict[str | None, list[Event]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        work: dict[int, list[Event]] = {}
        for category, found in by_category.items():
            kind = WORK.get(category) if category else None
            if kind is not None:
                work.setdefault(kind, []).extend(found)
            elif category in _READ:
                self._add(category, found, shifted)
            elif category in PYTHON:
                self.python_calls += len(found)
            elif category and OF_A_DEVICE.search(category):
                self.not_read += len(found)
        if work:
            self._add_work(work, shifted)

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
        complete = self._complete(events, shifted)
        if category is None or not complete:
            return
        if category in WORK:
            self._add_work({WORK[category]: complete}, shifted)
            return
        timed = self._timed(complete, shifted)
        if category in RUNTIME:
            self._add_calls(timed)
        elif category == ANNOTATION:
            self._add_annotations(timed)
        else:
            self._add_ops(category, timed)

    def _complete(self, events: list[Event], shifted: bool) -> list[Event]:
        """Those that are no begin or end."""
        if isinstance(events[0], Complete) or {event.ph for event in events} == {"X"}:
            return events
        self.pairs.add(events, 0 if shifted else self.origin.us or 0)
        return [event for event in events if event.ph == "X"]

    def _timed(self, events: list[Event], shifted: bool) -> _Timed:
        start, end, valid = self.origin.times(events, shifted)
        if valid is not None:
            self.impossible += int((~valid).sum())
            events = list(compress(events, valid.tolist()))
        return _Timed(events, start, end, valid)

    def _add_work(self, by_kind: dict[int, list[Event]], shifted: bool) -> None:
        by_kind = {kind: self._complete(events, shifted) for kind, events in by_kind.items()}
        complete = [*chain(*by_kind.values())]
        if not complete:
            return
        timed = self._timed(complete, shifted)
        events, args, names = timed.events, timed.args, self.names
        kind = np.repeat([*by_kind], [len(found) for found in by_kind.values()])
        if timed.valid is not None:
            lost = compress(complete, (~timed.valid).tolist())
            self.lost_work.update(names[event.name] for event in lost)
        pairs = list(zip(events, args, strict=True))
        correlation = ids([a.correlation for a in args])
        self.work.add(
            start=timed.start,
            end=timed.end,
            kind=kind if timed.valid is None else kind[timed.valid],
            name=[names[event.name] for event in events],
            stream=leading_numbers([e.tid if a.stream is None else a.stream for e, a in pairs]),
            device=leading_numbers([e.pid if a.device is None else a.device for e, a in pairs]),
            correlation=correlation,
            external=external(args, correlation),
            blocks=self._grids.of([a.grid for a in args]),
            fact=self._facts(args),
        )

    def _code(self, category: str, name: str) -> int:
        """Of the name of an event among the ops: twice its number, one more for an annotation."""
        return 2 * self.names[name] + is_annotation(category, name)

    def _add_ops(self, category: str, timed: _Timed) -> None:
        coded = self._coded[category]
        name = ints([coded[event.name] for event in timed.events])
        name, aside = name >> 1, (name & 1).astype(bool)
        if aside.any():
            self._add_annotations(timed.only(aside))
            timed, name = timed.only(~aside), name[~aside]
        args = timed.args
        dims = self._dims.of([a.dims for a in args])
        missing = np.flatnonzero(dims == 0)
        if len(missing):
            dims[missing] = self._dims.of([args[i].dims_old for i in missing.tolist()])
        self.ops.add(
            start=timed.start,
            end=timed.end,
            name=name,
            thread=self._threads(timed.events),
            external=external(args),
            dims=dims,
            types=self._types.of([a.types for a in args]),
            concrete=self._concrete.of([a.concrete for a in args]),
            fact=self._facts(args),
        )

    def _add_calls(self, timed: _Timed) -> None:
        names = self.names
        self.calls.add(
            start=timed.start,
            end=timed.end,
            name=[names[event.name] for event in timed.events],
            thread=self._threads(timed.events),
            correlation=ids([a.correlation for a in timed.args]),
        )

    def _add_annotations(self, timed: _Timed) -> None:
        names = self.names
        self.annotations.add(
            start=timed.start,
            end=timed.end,
            name=[names[event.name] for event in timed.events],
            thread=self._threads(timed.events),
        )

    def _threads(self, events: list[Event]) -> Ints:
        pids, tids = [event.pid for event in events], [event.tid for event in events]
        if pids and pids.count(pids[0]) == len(pids):  # of one process, as in most traces
            numbers = self._of_process[pids[0]]
            return ints([numbers[tid] for tid in tids])
        return ints([self.threads[key] for key in zip(pids, tids, strict=True)])

    def _facts(self, args: list[Args]) -> Ints:
        found = np.full(len(args), -1, np.int64)
        named = [a.collective for a in args]
        if named.count(None) < len(named):
            for i in [i for i, name in enumerate(named) if name is not None]:
                found[i] = self.facts[(*_fact(args[i]), bytes(args[i].group_ranks))]
        return found
