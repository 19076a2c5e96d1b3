"""Columns as they were recorded, joined and sorted into a Trace."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.collectives import collectives
from mfu_torch.insight.trace.columns import Columns
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.events import MEMCPY, DeviceWork, Ints, Ops, Spans, Trace
from mfu_torch.insight.trace.heads import job_of
from mfu_torch.insight.trace.launches import launching_calls, ops_by_number
from mfu_torch.insight.trace.missing import missing, without_device
from mfu_torch.insight.trace.names import (
    ALLOC,
    DATA,
    LOADER,
    PAGEABLE,
    STARTS_WORK,
    STEP,
    SYNC,
    Numbers,
    clean,
    matching,
)
from mfu_torch.insight.trace.nesting import encloses, innermost, outermost, parents
from mfu_torch.insight.trace.pieces import Pieces
from mfu_torch.insight.trace.recording import kept_share, recorded_with
from mfu_torch.insight.trace.times import DAY_US
from mfu_torch.insight.trace.user_patterns import TooSlow, found_in

Table = dict[str, Ints]

_PLAIN_THREAD = re.compile(r"-?[0-9]{1,20}|thread [0-9]{1,20}")


@dataclass
class Assembly:
    """Makes a :class:`Trace` of what was gathered.

    Attributes:
        file: Name of the file.
        columns: Of all pieces.
        pieces: Where they came from.
        step_name: Of the annotations that are steps; ``None``: ``ProfilerStep#N``.
        notes: What is left out.
        warnings: What makes the trace say less than it seems to.
    """

    file: str
    columns: Columns
    pieces: Pieces
    step_name: re.Pattern[str] | None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def trace(self) -> Trace:
        """The trace.

        Raises:
            TraceError: There is nothing in it, or no step where a name was given.
        """
        self._names = list(self.columns.names)
        self._note_broken()
        work, ops, calls, annotations = self._tables()
        threads = self._threads([ops, calls, annotations])
        warnings, notes = missing(self._names, calls, work, self.columns.lost_work)
        self.warnings += warnings
        self.notes += notes
        work, device = self._one_device(work)
        work = self._without_copies(work)
        parent = parents(ops["start"], ops["end"], ops["thread"])
        call = launching_calls(work["correlation"], calls)
        op = self._ops_around(call, calls, work, ops, parent)
        spans = self._spans(work, call, calls, annotations)
        facts = collectives(work, op, ops, parent, self._names, list(self.columns.facts))
        starting = int(matching(STARTS_WORK, self._names, calls["name"]).sum())
        launched = {
            "call": call,
            "launch": _taken(calls["start"], call),
            "launch_end": _taken(calls["end"], call),
            "launch_thread": _taken(calls["thread"], call),
            "op": op,
        }
        return self._built(
            work | launched,
            ops | {"parent": parent},
            spans,
            threads,
            device,
            facts,
            starting,
        )

    def _tables(self) -> list[Table]:
        """Work, ops, calls and annotations, sorted; what lies days away is left out."""
        columns = self.columns
        tables = [rows.taken() for rows in (columns.work, columns.ops, columns.calls)]
        tables.append(columns.annotations.taken())
        starts = np.concatenate([table["start"] for table in tables])
        if len(starts) and np.ptp(starts) > DAY_US * 1000:
            middle = np.partition(starts, len(starts) // 2)[len(starts) // 2]
            near = [np.abs(table["start"] - middle) <= DAY_US * 1000 for table in tables]
            away = len(starts) - sum(int(keep.sum()) for keep in near)
            self._note(away, "event{s} more than a day away from the others")
            self.columns.lost_work.update(tables[0]["name"][~near[0]].tolist())
            tables = [_rows(table, keep) for table, keep in zip(tables, near, strict=True)]
        if not len(tables[0]["start"]) and not len(tables[1]["start"]):
            raise TraceError(
                f"{self.file}: no kernels and no ops in it: nothing was recorded (with a schedule, "
                "prof.step() has to be called in every step, and until the active ones are over), "
                "or by a tool other than torch.profiler"
            )
        return [_in_order(table) for table in tables]

    def _note(self, count: int, what: str) -> None:
        if count:
            noun = what.replace("{s}", "" if count == 1 else "s")
            verb = "was" if count == 1 else "were"
            self.notes.append(f"{count} {noun} {verb} left out")

    def _note_broken(self) -> None:
        self._note(self.pieces.skipped, "object{s} among the events without the form of one")
        self._note(self.columns.impossible, "event{s} with an impossible time or duration")
        self._note(self.columns.pairs.lost, "begin{s} or end{s} of an event without the other")

    def _threads(self, tables: list[Table]) -> list[tuple[str, str]]:
        """Process and thread as text; the tables' numbers become indices into it."""
        numbers: Numbers[tuple[str, str]] = Numbers()  # old traces write 12 and "12" for the same
        place = [
            numbers[_thread_text(pid, 0), _thread_text(tid, number)]
            for (pid, tid), number in self.columns.threads.items()
        ]
        for table in tables:
            table["thread"] = np.array(place, np.int64)[table["thread"]]
        return list(numbers)

    def _one_device(self, work: Table) -> tuple[Table, int | None]:
        """Work of the device that has most of it."""
        if not len(work["start"]):
            return work, None
        devices, place = np.unique(work["device"], return_inverse=True)
        busy = np.bincount(place, work["end"] - work["start"])
        chosen = int(devices[busy.argmax()])
        if len(devices) == 1:
            return work, chosen
        keep = work["device"] == chosen
        others = [str(device) for device in devices.tolist() if device != chosen]
        listed = ", ".join(others[:8]) + (", ..." if len(others) > 8 else "")
        plural = "" if len(others) == 1 else "s"
        self.notes.append(
            f"the trace has work on {len(devices)} devices; device {chosen}, with most of it, is "
            f"shown; {int((~keep).sum())} kernels and copies of device{plural} {listed} were left "
            "out"
        )
        return _rows(work, keep), chosen

    def _without_copies(self, work: Table) -> Table:
        """Work in order; what is recorded twice is taken once."""
        work = _rows(work, np.lexsort((work["stream"], work["end"], work["start"])))
        keys = ("start", "end", "stream", "correlation", "name", "kind")
        order = np.lexsort([work[key] for key in reversed(keys)])
        again = np.all([work[key][order][1:] == work[key][order][:-1] for key in keys], axis=0)
        again &= (work["end"] > work["start"])[order][1:]  # of one instant there can be several
        keep = np.ones(len(order), bool)
        keep[order[1:]] = ~again
        self._note(int(again.sum()), "record{s} of work that was recorded before")
        return _rows(work, keep)

    def _ops_around(self, call: Ints, calls: Table, work: Table, ops: Table, parent: Ints) -> Ints:
        """Innermost op around each launch; the one whose number the work carries where none is."""
        moment, on = _taken(calls["start"], call), _taken(calls["thread"], call)
        around = innermost(moment, on, ops["start"], ops["end"], ops["thread"], parent)
        return np.where(around >= 0, around, ops_by_number(work["external"], ops))

    def _spans(self, work: Table, call: Ints, calls: Table, annotations: Table) -> dict[str, Table]:
        names = self._names
        blocking = (work["kind"] == MEMCPY) & (call >= 0) & matching(PAGEABLE, names, work["name"])
        waits = matching(SYNC, names, calls["name"])
        waits[call[blocking]] = True
        found = {
            "syncs": _rows(calls, waits),
            "allocs": _rows(calls, matching(ALLOC, names, calls["name"])),
        }
        name = annotations["name"]
        is_step = matching(STEP, names, name, full=True)
        if self.step_name is not None:
            try:
                is_step = found_in(self.step_name, names, name)
            except TooSlow as error:
                raise TraceError(f"{self.file}: step_name: {error}") from error
            if not is_step.any():
                raise TraceError(
                    f"{self.file}: step_name is found in none of its "
                    f"{len(name)} annotations (record_function)"
                )
        steps = _rows(annotations, is_step)
        found["steps"] = _rows(steps, outermost(steps))
        loads = _rows(annotations, matching(DATA, names, name) & ~is_step)
        parent = parents(loads["start"], loads["end"], loads["thread"])
        # `load_batch` of 1 ms around a DataLoader's 0.07 ms: the wait is 0.07 ms.
        found["data_waits"] = _rows(
            loads, ~encloses(matching(LOADER, names, loads["name"]), parent)
        )
        found["annotations"] = _rows(annotations, ~is_step)
        return found

    def _built(
        self,
        work: Table,
        ops: Table,
        spans: dict[str, Table],
        threads: list[tuple[str, str]],
        device: int | None,
        facts: dict[int, dict[str, Any]],
        calls: int,
    ) -> Trace:
        tables = [work, ops, *spans.values()]
        self._from_zero(tables, work, work["call"] >= 0)
        names = self._used_names(tables)
        used_threads = self._used_threads([ops, *spans.values()], work, threads)
        job = job_of(self.pieces.heads, device)
        for fact in facts.values():
            if "group" in fact and "ranks" in fact:
                job.groups.setdefault(fact["group"], fact["ranks"])
        return Trace(
            file=self.file,
            raw_bytes=self.pieces.raw_bytes,
            names=names,
            threads=used_threads,
            work=DeviceWork(
                **_span_columns(work, "kind", "name", "stream", "launch_thread", "op", "blocks"),
                launch_ns=work["launch"],
                launch_end_ns=work["launch_end"],
            ),
            ops=Ops(
                **_span_columns(ops, "name", "thread", "parent"),
                dims=self._texts(ops["dims"]),
                types=self._texts(ops["types"]),
                concrete=self._texts(ops["concrete"]),
            ),
            **{key: Spans(**_span_columns(rows, "name", "thread")) for key, rows in spans.items()},
            device_name=job.device_name,
            sm_count=job.sm_count,
            rank=job.rank,
            world_size=job.world_size,
            groups=job.groups,
            collectives=facts,
            recorded_with=recorded_with(self.pieces.heads, self.columns.python_calls),
            kept=kept_share(self.pieces.heads, ops),
            notes=tuple(self.notes),
            warnings=(
                *self.warnings,
                *without_device(len(work["start"]), calls, self.columns.not_read),
            ),
        )

    def _texts(self, numbers: Ints) -> list[bytes]:
        if not numbers.any():
            return [b""] * len(numbers)
        texts = list(self.columns.texts)
        return list(map(texts.__getitem__, numbers.tolist()))

    def _from_zero(self, tables: list[Table], work: Table, known: npt.NDArray[np.bool_]) -> None:
        """Times count from the earliest that is kept."""
        starts = [int(table["start"].min()) for table in tables if len(table["start"])]
        if known.any():
            starts.append(int(work["launch"][known].min()))
        for table in tables:
            table["start"] = table["start"] - min(starts)
            table["end"] = table["end"] - min(starts)
        for side in ("launch", "launch_end"):
            work[side][known] -= min(starts)

    def _used_threads(
        self, tables: list[Table], work: Table, threads: list[tuple[str, str]]
    ) -> list[str]:
        """Threads that are used, in order; the tables' numbers point into them."""
        columns = [table["thread"] for table in tables] + [work["launch_thread"]]
        used = [number - 1 for number in _distinct([column + 1 for column in columns]) if number]
        used.sort(key=threads.__getitem__)
        place = np.full(len(threads) + 1, -1, np.int64)
        place[used] = np.arange(len(used))
        for table in tables:
            table["thread"] = place[table["thread"]]
        work["launch_thread"] = place[work["launch_thread"]]
        processes = len({threads[number][0] for number in used})
        if processes > 1:
            self.notes.append(
                f"the host's events are of {processes} processes; if the file merges several "
                "ranks, give one file per rank: launches of merged ranks cannot be told apart"
            )
        return ["/".join(threads[number][processes < 2 :]) for number in used]

    def _used_names(self, tables: list[Table]) -> list[str]:
        """Names that are used, safe to print, in order; the tables' numbers point into them."""
        used = _distinct([table["name"] for table in tables])
        cleaned = {number: clean(self._names[number]) for number in used}
        names = sorted(set(cleaned.values()))
        index = {name: place for place, name in enumerate(names)}
        place = np.zeros(len(self._names) + 1, np.int64)
        place[used] = [index[cleaned[number]] for number in used]
        for table in tables:
            table["name"] = place[table["name"]]
        return names


def _span_columns(table: Table, *more: str) -> dict[str, Ints]:
    return {"start_ns": table["start"], "end_ns": table["end"], **{key: table[key] for key in more}}


def _taken(column: Ints, index: Ints) -> Ints:
    """``column[index]``, and -1 where the index is -1."""
    return np.append(column, -1)[index]


def _rows(table: Table, keep: npt.NDArray[Any]) -> Table:
    return {name: column[keep] for name, column in table.items()}


def _in_order(table: Table) -> Table:
    """Sorted by start; of two that begin together, the longer comes first."""
    start, end = table["start"], table["end"]
    order = np.argsort(start, kind="stable")  # which is quick with what is mostly in order
    again = np.diff(start[order]) == 0
    together = order[alike := np.flatnonzero(np.append(False, again) | np.append(again, False))]
    order[alike] = together[np.lexsort((-end[together], start[together]))]
    return _rows(table, order)


def _distinct(columns: list[Ints]) -> list[int]:
    """The numbers in columns, in order; none is negative, or much larger than they are many."""
    return np.flatnonzero(np.bincount(np.concatenate(columns))).tolist()


def _thread_text(value: Any, number: int) -> str:
    text = str(value)
    return text if _PLAIN_THREAD.fullmatch(text) else f"thread {number}"
