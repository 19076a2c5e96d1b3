"""Everything that is slow about recording, on a thread of its own.

    training thread     put(record)  put(window)            never blocks, never raises
                            |            |
    recorder thread         +--> figures --> run file, console, TensorBoard, ...

A sink that fails is dropped with one warning; the others and the training go on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterable
from pathlib import Path

from mfu_torch.figures import figures
from mfu_torch.records import CountEntry, End, Entry, Header, Pause, PeakEntry, Run, Window
from mfu_torch.run.runfile import read_run
from mfu_torch.run.sinks import Sink
from mfu_torch.wall import WallSoFar

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT_S = 30.0
"""How long closing waits for slow sinks before it gives up on them."""

QUEUE_LIMIT = 10_000
"""Records waiting to be written. When a sink hangs, newer ones are dropped, with a warning."""

MEMORY_LIMIT = 10_000
"""Records kept in memory when there is no run file to read them back from."""


class Recorder:
    """Hands records to sinks from its own thread and adds the figures of each window.

    Args:
        header: The run's first record, written at once.
        sinks: Where records go.
        keep: Keep the records in memory too (when there is no run file).
    """

    def __init__(self, header: Header, sinks: Iterable[Sink], *, keep: bool = False) -> None:
        self._header = header
        self._sinks = list(sinks)
        self._kept: list[Entry] | None = [] if keep else None
        self._counts: dict[int, CountEntry] = {}
        self._peaks: dict[str, PeakEntry] = {}
        self._wall = WallSoFar(header)
        self._dropped = 0
        self.notes: list[str] = []
        self.best_hfu = 0.0
        self._queue: queue.SimpleQueue[Entry | threading.Event | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="mfu_torch recorder", daemon=True)
        self._thread.start()
        self.put(header)

    def put(self, record: Entry) -> None:
        """Hand over a record. Never blocks; drops it, with a note, when the sinks are stuck."""
        if self._queue.qsize() < QUEUE_LIMIT:
            self._queue.put(record)
            return
        self._dropped += 1
        if self._dropped == 1:
            self.warn("a sink is stuck: %d records wait, newer ones are dropped", QUEUE_LIMIT)

    def warn(self, message: str, *args: object) -> None:
        """Log a warning and keep it for the report."""
        logger.warning(message, *args)
        self.notes.append(message % args if args else message)

    def warn_once(self, message: str) -> None:
        """Like :meth:`warn`, unless it was said before."""
        if message not in self.notes:
            self.warn("%s", message)

    def flush(self, timeout_s: float = CLOSE_TIMEOUT_S) -> bool:
        """Wait until everything put so far has reached the sinks; false if they are stuck."""
        if not self._thread.is_alive():  # closed: everything was written then
            return True
        written = threading.Event()
        self._queue.put(written)
        return written.wait(timeout_s)

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is left and close the sinks."""
        self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            logger.warning(
                "a sink has not finished writing after %.0f s; the last records may be missing "
                "there (is the disk or the network share of log_dir stuck?)",
                timeout_s,
            )

    def read_back(self, path: Path | None) -> Run:
        """The run as it was written, or as it was kept when there is no run file."""
        if path is not None:
            return read_run(path)
        entries = list(self._kept or [self._header])
        notes = (f"{self._dropped} records were dropped",) if self._dropped else ()
        return Run.from_entries(entries, notes=notes)

    def _work(self) -> None:
        while True:
            record = self._queue.get()
            if record is None:
                break
            if isinstance(record, threading.Event):
                record.set()
                continue
            self._emit(record)
            if isinstance(record, Window):
                self._guarded_figures(record)
        for sink in list(self._sinks):
            self._guarded(sink, sink.close)

    def _emit(self, record: Entry) -> None:
        if isinstance(record, CountEntry):
            self._counts[record.id] = record
        elif isinstance(record, PeakEntry):
            self._peaks[record.dtype] = record
        elif isinstance(record, Pause):
            self._wall.add(record)
        if self._kept is not None:
            if len(self._kept) < MEMORY_LIMIT or isinstance(record, End):
                self._kept.append(record)
            else:
                self._dropped += 1
        for sink in list(self._sinks):
            self._guarded(sink, lambda sink=sink: sink.write(record))

    def _guarded_figures(self, window: Window) -> None:
        # A mistake of ours in reading a window must not end the thread, and the run file with it.
        try:
            self._emit_figures(window)
        except Exception as error:
            self.warn_once(f"no figures for a window: {type(error).__name__}: {error}")

    def _emit_figures(self, window: Window) -> None:
        self._wall.add(window)
        record = figures(
            window.steps,
            self._counts,
            self._peaks,
            self._header.attention,
            end_to_end=self._wall.end_to_end(self._counts, self._peaks),
            memory_bytes=window.memory_bytes,
            goodput=self._wall.shares(self._counts, self._peaks),
        )
        self.best_hfu = max(self.best_hfu, record.hfu or 0.0)
        for sink in list(self._sinks):
            self._guarded(sink, lambda sink=sink: sink.write(record))

    def _guarded(self, sink: Sink, action: object) -> None:
        # A sink is code of others (a logger, a network, a full disk): whatever it raises must cost
        # the run that sink and nothing else.
        try:
            action()  # type: ignore[operator]
        except Exception as error:
            if sink in self._sinks:
                self._sinks.remove(sink)
            self.warn(
                "%s failed and gets no more records: %s: %s",
                type(sink).__name__,
                type(error).__name__,
                error,
            )
