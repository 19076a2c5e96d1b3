"""Everything that is slow about recording, on threads of its own.

    training thread     put(record)  put(window)            never blocks, never raises
                            |            |
    recorder thread         +--> run file, figures          waits for the disk only
                                     |
    sinks thread                     +--> console, TensorBoard, ...

A sink that fails is dropped with one warning; the others and the training go on. What does not
reach the run file is told by the run's notes.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from mfu_torch.figures import Figures, figures
from mfu_torch.messages import first_line
from mfu_torch.records import (
    CountEntry,
    End,
    Entry,
    Header,
    MFUError,
    Pause,
    PeakEntry,
    Run,
    Window,
)
from mfu_torch.records.names import Names
from mfu_torch.run.lane import Lane
from mfu_torch.run.runfile import RunFileSink, read_run
from mfu_torch.run.sinks import Sink
from mfu_torch.run.tally import Tally
from mfu_torch.wall import WallSoFar

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
"""How long closing waits for slow sinks before it gives up on them."""

STUCK_TIMEOUT_S = 1.0
"""How long anything waits for a run file that did not answer in time before."""

QUEUE_LIMIT = 10_000
"""Records waiting for sinks. When one of them hangs, newer ones are dropped, with a warning."""

BEHIND = 1_000
"""Records waiting for sinks at which a warning says so."""

FILE_QUEUE_LIMIT = 10_000
"""Records waiting for the run file. When the disk hangs, newer ones are dropped likewise."""

MEMORY_LIMIT = 10_000
"""Records kept in memory when there is no run file to read them back from."""

_DISK = "is the disk or the network share of log_dir stuck?"


class Recorder:
    """Hands records to sinks from its own threads and adds the figures of each window.

    The run file has a thread of its own: it waits for no other sink.

    Args:
        header: The run's first record, written at once.
        sinks: Where records go.
        keep: Keep the records in memory too (when there is no run file).

    Attributes:
        header: As given.
    """

    def __init__(self, header: Header, sinks: Iterable[Sink], *, keep: bool = False) -> None:
        everything = list(sinks)
        self._pid = os.getpid()
        self.header = header
        self._file = next((s for s in everything if isinstance(s, RunFileSink)), None)
        others = [s for s in everything if s is not self._file]
        # Those that only keep what they are given, for another thread, wait for no other sink.
        self._prompt: list[Sink] = [s for s in others if getattr(s, "is_prompt", False)]
        self._sinks: list[Sink] = [s for s in others if not getattr(s, "is_prompt", False)]
        self._kept: list[Entry] | None = [] if keep else None
        self._tally = Tally()
        self._end: End | None = None
        self._counts: dict[int, CountEntry] = {}
        self._peaks: dict[str, PeakEntry] = {}
        self._wall = WallSoFar(header)
        self._phases = Names()
        self._writing = ""  # the sink that has a record now
        self._closed = self._stuck = self._behind = False
        self.notes: list[str] = []
        self.best_hfu = 0.0
        # The second is there before the first needs it.
        self._to_sinks: Lane[Entry | Figures] = Lane(
            "mfu_torch sinks", self._to_each_sink, self._close_sinks, self._failed, QUEUE_LIMIT
        )
        self._lane: Lane[Entry] = Lane(
            "mfu_torch recorder", self._record, self._close_file, self._failed, FILE_QUEUE_LIMIT
        )
        self.put(header)

    # --- on the training thread -----------------------------------------------------------------

    def put(self, record: Entry) -> None:
        """Hand over a record. Never blocks; drops it, with a note, when the run file is stuck."""
        if self._closed or self.refuses():
            return
        if isinstance(record, End):
            self._end = record
        self._tally.put(record)
        if self._kept is not None:
            self._keep(record)
        if not self._lane.put(record):
            self._tally.dropped += 1
            self.warn_once(
                f"the run file is stuck: {FILE_QUEUE_LIMIT} records wait, newer ones are dropped "
                f"({_DISK})"
            )

    def _keep(self, record: Entry) -> None:
        assert self._kept is not None
        if len(self._kept) < MEMORY_LIMIT or isinstance(record, End):
            self._kept.append(record)
            self._tally.kept(record)

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that records, and only has a copy.

        The files are the other process's; the threads, and who frees the locks, are not here.
        """
        return os.getpid() != self._pid

    def refuses(self) -> bool:
        """Whether nothing can be recorded here, in a forked process; said once where it is so."""
        if not self.is_forked:
            return False
        self.warn_once(
            f"this process was forked from the one that the meter measures (process {self._pid}): "
            "its own steps are recorded nowhere. Make a Meter in this process to measure them"
        )
        return True

    def warn(self, message: str, *args: object) -> None:
        """Log a warning and keep it for the report."""
        logger.warning(message, *args)
        self.notes.append(message % args if args else message)

    def warn_once(self, message: str) -> None:
        """Like :meth:`warn`, unless it was said before."""
        if message not in self.notes:
            self.warn("%s", message)

    def written(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until the run file has everything put so far; false if it is stuck."""
        if self.is_forked:
            return False
        self._stuck = not self._lane.flush(self._patience_s(timeout_s))
        return not self._stuck

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until everything put so far has reached the sinks; false if they are stuck."""
        by = time.monotonic() + timeout_s
        return self.written(timeout_s) and self._to_sinks.flush(by - time.monotonic())

    def settle(self, timeout_s: float = STUCK_TIMEOUT_S) -> None:
        """Wait a little until the sinks have everything: what fails there is then in the notes."""
        by = time.monotonic() + timeout_s
        if not self.refuses() and not self._stuck and self._lane.flush(timeout_s):
            self._to_sinks.flush(by - time.monotonic())

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is left and close the sinks."""
        if self.is_forked:
            return
        self._closed = True
        timeout_s = self._patience_s(timeout_s)
        by = time.monotonic() + timeout_s
        self._lane.finish()
        if not self._lane.join(timeout_s):
            self.warn_once(
                f"the run file has not finished writing after {timeout_s:.0f} s; its last records "
                f"may be missing ({_DISK})"
            )
        elif not self._to_sinks.join(by - time.monotonic()):
            self.warn_once(
                f"{self._writing or 'a sink'} has not finished writing after {timeout_s:.0f} s: "
                f"the last {self._to_sinks.waiting} records may be missing in all sinks but the "
                "run file (does it wait for a network, or is the disk of log_dir stuck?)"
            )

    def _patience_s(self, timeout_s: float) -> float:
        return min(timeout_s, STUCK_TIMEOUT_S) if self._stuck else timeout_s

    def read_back(self, path: Path | None) -> Run:
        """The run as it was written, or as it was kept when there is no run file.

        Its notes say how much of the run is not in it, and why; and what was warned of so far.
        """
        self.written()
        if path is None:
            run = Run.from_entries(list(self._kept or [self.header]))
        else:
            try:
                run = read_run(path)
            except MFUError as error:  # a disk that is full from the first line on, a folder gone
                run = Run.from_entries([self.header], notes=(str(error),))
        missing = () if self.is_forked else self._tally.missing(self._why_missing())
        if missing and self._end is not None and (run.end is None or path is None):
            # Up to where it is recorded, or the time of what is missing would count as lost.
            wall_s = msgspec.structs.replace(run, end=None).wall_s
            run = msgspec.structs.replace(
                run, end=msgspec.structs.replace(self._end, wall_s=wall_s)
            )
        told = run.end.notes if run.end else ()
        later = (note for note in tuple(self.notes) if note not in told)
        return msgspec.structs.replace(run, notes=(*run.notes, *missing, *later))

    def _why_missing(self) -> str:
        if self._kept is not None:
            return f"only the first {MEMORY_LIMIT} records are kept in memory; log_dir= keeps all"
        if self._tally.failure:
            return self._tally.failure
        if self._tally.dropped:
            return (
                f"the run file could not be written as fast as they came ({_DISK}); the end-to-end "
                "MFU is too low without them"
            )
        return f"they are not written yet ({_DISK})"

    # --- on the recorder's thread ---------------------------------------------------------------

    def _record(self, record: Entry) -> None:
        if isinstance(record, CountEntry):
            self._counts[record.id] = record
        elif isinstance(record, PeakEntry):
            self._peaks[record.dtype] = record
        elif isinstance(record, Pause):
            self._wall.add(record)
        if self._file is not None:
            self._to_file(self._file, record)
        self._to_others(record)
        if isinstance(record, Window):
            self._guarded_figures(record)

    def _to_file(self, file: RunFileSink, record: Entry) -> None:
        problem = self._guarded(file, lambda: file.write(record))
        if problem:
            self._file = None
            self._tally.failure = problem
        else:
            self._tally.kept(record)

    def _guarded_figures(self, window: Window) -> None:
        # A mistake of ours in reading a window must not cost what comes after it.
        try:
            self._to_others(self._figures(window))
        except Exception as error:
            self.warn_once(f"no figures for a window: {type(error).__name__}: {error}")

    def _figures(self, window: Window) -> Figures:
        if self._tally.dropped:
            self._wall.lose("records were dropped before they could be written")
        self._wall.add(window)
        found = figures(
            window.steps,
            self._counts,
            self._peaks,
            self.header.attention,
            end_to_end=self._wall.end_to_end(self._counts, self._peaks),
            memory_bytes=window.memory_bytes,
            goodput=self._wall.shares(self._counts, self._peaks),
        )
        self.best_hfu = max(self.best_hfu, found.hfu or 0.0)
        phases = {self._phases.of(name): share for name, share in found.phases.items()}
        return msgspec.structs.replace(found, phases=phases)

    def _to_others(self, record: Entry | Figures) -> None:
        for sink in self._prompt:
            self._guarded(sink, lambda sink=sink: sink.write(record))  # type: ignore[misc]
        waiting = self._to_sinks.waiting
        if waiting >= BEHIND and not self._behind:
            self._behind = True
            self.warn(
                "%d records wait for %s, which is slower than the run; the run file waits for no "
                "other sink",
                waiting,
                self._writing or "a sink",
            )
        if not self._to_sinks.put(record):
            self.warn_once(
                f"{self._writing or 'a sink'} is stuck: {QUEUE_LIMIT} records wait, newer ones are "
                "dropped"
            )

    def _close_file(self) -> None:
        if self._file is not None:
            self._guarded(self._file, self._file.close)
        self._to_sinks.finish()

    # --- on the sinks' thread -------------------------------------------------------------------

    def _to_each_sink(self, record: Entry | Figures) -> None:
        for sink in self._sinks:
            if self._guarded(sink, lambda sink=sink: sink.write(record)):  # type: ignore[misc]
                # By identity: sinks may be equal, and what they compare is their own code.
                self._sinks = [other for other in self._sinks if other is not sink]

    def _close_sinks(self) -> None:
        for sink in self._sinks:
            self._guarded(sink, sink.close)

    def _guarded(self, sink: Sink, action: Callable[[], None]) -> str:
        """Do it; what went wrong, after saying so, or an empty text."""
        name = type(sink).__name__
        self._writing = name if sink is not self._file else self._writing
        # A sink is code of others (a logger, a network, a full disk): whatever it raises, even
        # SystemExit, must cost the run that sink and nothing else.
        try:
            action()
        except BaseException as error:
            problem = f"{name} failed and gets no more records: {_said(error)}"
            self.warn("%s", problem)
            return problem
        finally:
            if sink is not self._file:
                self._writing = ""
        return ""

    def _failed(self, error: BaseException) -> None:
        """The last resort on a thread: what raised here may be the logging itself."""
        note = f"a record was lost: {_said(error)}"
        if note not in self.notes:
            self.notes.append(note)


def _said(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")
    except Exception as another:  # the text of an exception is code of others, too
        return f"{type(error).__name__}, whose text cannot be had ({type(another).__name__})"
