"""The sink: what of a run's records goes into an event file, and when."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from mfu_torch.figures import Figures
from mfu_torch.integrations.tensorboard import hparams as table
from mfu_torch.integrations.tensorboard import waterfall
from mfu_torch.integrations.tensorboard.breakdown import Curves
from mfu_torch.integrations.tensorboard.breakdown import table as breakdown_table
from mfu_torch.integrations.tensorboard.counted import Counted
from mfu_torch.integrations.tensorboard.layout import Layout, stacked
from mfu_torch.integrations.tensorboard.page import how_computed
from mfu_torch.integrations.tensorboard.picture import draw
from mfu_torch.integrations.tensorboard.totals import Totals
from mfu_torch.messages import first_line
from mfu_torch.records import (
    BreakdownEntry,
    CountEntry,
    End,
    Entry,
    Header,
    Pause,
    PeakEntry,
    Telemetry,
    Window,
)
from mfu_torch.tags import device_scalars, scalars

logger = logging.getLogger(__name__)

_NEEDED = ("add_scalar", "add_text", "add_image", "flush")  # of a writer


class TensorBoardSink:
    """Writes figures as scalars over the steps completed; what is not known writes no scalar.

    Args:
        log_dir: Folder of the event file.
        writer: A ``SummaryWriter`` of somebody else (a logger, a callback), in place of a folder.
            It is flushed and left open, and gets no hparams, since its owner may write its own.
        hparams: What the run was made with, beside what its records tell: numbers, texts, truth
            values. Given with ``writer``, hparams are written there all the same.

    Raises:
        TypeError: If there is neither a folder nor a writer, or both, or one is something else.
    """

    def __init__(
        self,
        log_dir: str | os.PathLike[str] | None = None,
        *,
        writer: SummaryWriter | None = None,
        hparams: Mapping[str, object] | None = None,
    ) -> None:
        if (log_dir is None) == (writer is None):
            raise TypeError(
                f"TensorBoardSink got {'no' if writer is None else 'a'} log_dir and "
                f"{'no' if writer is None else 'a'} writer; expected one of them: the folder for "
                "events, or a SummaryWriter that exists"
            )
        if not (log_dir is None or isinstance(log_dir, (str, os.PathLike))):
            raise TypeError(f"log_dir is {log_dir!r}; expected a path, such as 'runs/first'")
        if writer is not None and not all(hasattr(writer, name) for name in _NEEDED):
            raise TypeError(
                f"writer is {writer!r}; expected a torch.utils.tensorboard.SummaryWriter, or give "
                "the folder for events instead: TensorBoardSink('runs/first')"
            )
        if not (hparams is None or isinstance(hparams, Mapping)):
            raise TypeError(f"hparams is {hparams!r}; expected a dict, such as {{'lr': 0.01}}")
        self._owned = writer is None
        self._left = False  # the owner of the writer is done with it
        self._writer = writer or SummaryWriter(str(log_dir))
        self._given = dict(hparams or {})
        self._with_hparams = self._owned or hparams is not None
        self._layout = Layout()
        self._totals: Totals | None = None
        self._peaks: dict[str, PeakEntry] = {}
        self._counts: dict[int, CountEntry] = {}
        self._counted = Counted()
        self._curves = Curves()
        self._pauses: set[str] = set()
        self._goodput: dict[str, float] = {}
        self._absent: dict[str, str] = {}
        self._last: dict[str, float] = {}
        self._ended = ""  # why the run ended
        self._started = False  # its hparams are written
        self._text = ""
        self._said: object = None  # what its text said, other numbers aside
        self._stale = False
        self._step = 0

    def write(self, record: Entry | Figures) -> None:
        """Write the scalars of a window, or note what is to be said of the run."""
        self._look_at_writer()
        if isinstance(record, Figures):
            self._window(record)
        elif isinstance(record, Window):
            if self._totals is not None:
                self._totals.add(record)
        elif isinstance(record, Telemetry):
            for tag, value in device_scalars(record):
                self._scalar(tag, value, record.after_step)
        elif isinstance(record, BreakdownEntry):
            self._breakdown(record)
        elif isinstance(record, Pause):
            self._pauses.add(record.name)
        elif isinstance(record, Header):
            self._totals, self._stale = Totals(record), True
        elif isinstance(record, PeakEntry):
            self._peaks[record.dtype], self._stale = record, True
        elif isinstance(record, CountEntry):
            self._counts[record.id], self._stale = record, True
            self._counted.add(record)
        elif isinstance(record, End):
            self._ended = record.reason
            if self._totals is not None:
                self._totals.add(Window(steps=(), wall_s=record.wall_s))

    def close(self) -> None:
        """Write what is pending; close the event file, if it is the sink's own."""
        self._look_at_writer()
        try:
            self._write_text(at_end=True)
            self._write_totals(at_end=True)
            if self._started:
                self._add(table.session_end(self._ended))
            goodput = self._goodput
            self._picture("wall_time", "the wall time", lambda: draw(goodput), self._step)
        finally:
            if self._owned or self._left:
                self._writer.close()
            else:
                self._writer.flush()

    def _look_at_writer(self) -> None:
        # An owner that is done before the run is closes its writer. Writing opens it again, and
        # then nobody else will close it.
        self._left = self._left or getattr(self._writer, "file_writer", self) is None

    def _scalar(self, tag: str, value: float, step: int) -> None:
        self._layout.saw(tag)
        self._writer.add_scalar(tag, value, step)

    def _window(self, now: Figures) -> None:
        self._step = now.step
        self._goodput, self._absent = now.goodput, now.absent
        self._write_text()
        for tag, value in (*scalars(now), *stacked(now.goodput, self._pauses)):
            self._scalar(tag, value, now.step)
        self._write_totals()
        changed = self._layout.summary()
        if changed is not None:
            self._add(changed)
        self._writer.flush()

    def _write_text(self, *, at_end: bool = False) -> None:
        """Again when there is more to say than other numbers, and with those at the end.

        A run can count a new shape in every step, and each text stays in the event file.
        """
        if self._totals is None or not (self._stale or at_end):
            return
        self._stale = False
        said = (self._totals.header, tuple(self._peaks.values()), self._counted.kinds())
        if said == self._said and not at_end:
            return
        self._said = said
        text = how_computed(self._totals.header, self._peaks, self._counted)
        if text != self._text:
            self._text = text
            self._writer.add_text("mfu/how_computed", text, self._step)

    def _write_totals(self, *, at_end: bool = False) -> None:
        """The figures of the whole run so far, and once what it was made with."""
        if self._totals is None or not self._totals.steady_steps:
            return
        if self._with_hparams and not self._started:
            self._started = True
            known = table.of_run(self._totals, self._peaks) | self._given
            shown = {*table.SHOWN, *map(str, self._given)}
            for summary in table.session_start(known, shown):
                self._add(summary)
        found = self._totals.figures(self._counts, self._peaks)
        if "end_to_end" in self._absent:  # for a reason that is not known here: records were lost
            found.pop("run/end_to_end", None)
        for tag, value in found.items():
            # The last window had all steps; only wall time can have passed since then.
            if not at_end or self._last.get(tag) != value:
                self._last[tag] = value
                self._writer.add_scalar(tag, value, self._step)

    def _breakdown(self, entry: BreakdownEntry) -> None:
        at = entry.after_step
        for tag, value in self._curves.of(entry):
            self._scalar(tag, value, at)
        self._writer.add_text("breakdown/table", breakdown_table(entry), at)
        self._picture("waterfall", "the traced steps", lambda: waterfall.draw(entry), at)

    def _picture(self, name: str, of: str, draws: Callable[[], Any], step: int) -> None:
        try:
            picture = draws()
        except Exception as error:  # matplotlib reads the user's settings and fonts: anything
            logger.warning(
                "TensorBoard has no picture of %s, and everything else (%s: %s)",
                of,
                type(error).__name__,
                first_line(error),
            )
            return
        if picture is not None:
            self._writer.add_image(f"breakdown/{name}", picture, step, dataformats="HWC")

    def _add(self, summary: object) -> None:
        self._writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]
