"""What is not in a run is told by it; and the run file waits for nobody."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from recorder_sinks import ListSink, StuckSink, pause, window
from samples import count, header, peak

from mfu_torch import Meter
from mfu_torch.figures import Figures, run_figures
from mfu_torch.insight.report import render_report
from mfu_torch.records import End, Window
from mfu_torch.run import recorder as module
from mfu_torch.run.lane import Lane
from mfu_torch.run.recorder import Recorder
from mfu_torch.run.runfile import RunFileSink, read_run

END = End(wall_s=60.0, reason="completed")


class SmallDisk(RunFileSink):
    """Has room for some records."""

    room = 4

    def write(self, record: Any) -> None:
        if not self.room:
            raise OSError(28, "No space left on device")
        self.room -= 1
        super().write(record)


class StuckDisk(RunFileSink):
    """Takes a window only when it is let go."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.let_go = threading.Event()

    def write(self, record: Any) -> None:
        if isinstance(record, Window):
            self.let_go.wait()
        super().write(record)


@pytest.fixture
def stuck() -> Iterator[StuckSink]:
    sink = StuckSink()
    yield sink
    sink.let_go.set()


@pytest.fixture
def stuck_disk(tmp_path: Path) -> Iterator[StuckDisk]:
    disk = StuckDisk(tmp_path)
    yield disk
    disk.let_go.set()


# --- the run file -------------------------------------------------------------------------------


def test_the_run_file_is_whole_while_another_sink_hangs(tmp_path: Path, stuck: StuckSink) -> None:
    file = RunFileSink(tmp_path)
    recorder = Recorder(header(), [stuck, file])
    for number in range(100):
        recorder.put(window(number, wall_s=number + 1.0))
    assert recorder.written()
    assert len(read_run(file.path).windows) == 100 and stuck.records == []
    run = recorder.read_back(file.path)
    assert len(run.windows) == 100 and run.notes == ()
    recorder.put(END)
    recorder.close(timeout_s=0.0)
    recorder._lane.thread.join()
    assert read_run(file.path).end == END


def test_a_sink_that_falls_behind_is_named_once(
    stuck: StuckSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEHIND", 5)
    recorder = Recorder(header(), [stuck])
    assert stuck.entered.wait(60)
    for number in range(20):
        recorder.put(pause(number))
    assert recorder.written()
    stuck.let_go.set()
    recorder.close()
    assert recorder.notes == [
        "5 records wait for StuckSink, which is slower than the run; the run file waits for no "
        "other sink"
    ]
    assert len(stuck.records) == 21  # late, and all of them


def test_figures_are_made_though_a_sink_hangs(stuck: StuckSink) -> None:
    recorder = Recorder(header(), [stuck])
    fast = peak("bf16", 1e12), peak("fp32", 1e12)  # the ideal time is 40.5 s, of steps of 1 s
    for record in (*fast, count(), window(0, 1)):
        recorder.put(record)
    assert recorder.written()
    assert recorder.best_hfu == pytest.approx(40.5)


def test_reading_the_run_waits_for_no_other_sink(tmp_path: Path, stuck: StuckSink) -> None:
    model = torch.nn.Linear(4, 4)
    meter = Meter(model, log_dir=tmp_path, log_every=2, sinks=[stuck], peak=1e12, telemetry=False)
    for _ in range(9):
        with meter.step():
            model(torch.ones(2, 4)).sum().backward()
    assert [step.index for step in meter.run.steps] == list(range(8))  # the 9th goes on
    stuck.let_go.set()
    meter.close()
    assert len(list(meter.run.steps)) == 9 and meter.run.notes == ()


# --- notes --------------------------------------------------------------------------------------


def test_a_full_disk_is_in_the_run_and_its_report(tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    recorder = Recorder(header(), [disk])
    for record in (peak("bf16"), peak("fp32"), *(window(n, wall_s=n + 1.0) for n in range(5)), END):
        recorder.put(record)
    recorder.close()
    run = recorder.read_back(disk.path)
    failed = (
        "SmallDisk failed and gets no more records: OSError: [Errno 28] No space left on device"
    )
    assert len(run.windows) == 1
    assert run.notes == (f"4 of 5 steps are not in it: {failed}", failed)
    assert "4 of 5 steps are not in it" in render_report(run)
    assert run.end is not None and run.end.wall_s == 1.0  # of what is in it, not 60 s


def test_a_disk_that_is_full_from_the_beginning_leaves_the_header_and_the_reason(
    tmp_path: Path,
) -> None:
    disk = SmallDisk(tmp_path)
    disk.room = 0
    recorder = Recorder(header(), [disk])
    recorder.put(window(0))
    recorder.put(END)
    recorder.close()
    run = recorder.read_back(disk.path)
    assert run.header == header() and run.windows == ()
    assert "holds no complete line" in run.notes[0]
    assert run.notes[1].startswith("1 of 1 steps are not in it: SmallDisk failed")


def test_what_is_not_written_yet_is_told(stuck_disk: StuckDisk) -> None:
    recorder = Recorder(header(), [stuck_disk])
    recorder.put(window(0, 1, 2))
    assert not recorder.written(timeout_s=0.0)
    run = recorder.read_back(stuck_disk.path)
    assert run.windows == ()
    assert "3 of 3 steps are not in it: they are not written yet (is the disk" in run.notes[0]
    stuck_disk.let_go.set()
    recorder.close()
    assert recorder.read_back(stuck_disk.path).notes == ()


def test_what_was_dropped_before_the_disk_answered_again_is_told(
    stuck_disk: StuckDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "FILE_QUEUE_LIMIT", 3)
    sink = ListSink()
    recorder = Recorder(header(), [stuck_disk, sink])
    for record in (peak("bf16"), peak("fp32"), count()):
        assert recorder.written()
        recorder.put(record)
    assert recorder.written()
    for number in range(10):
        recorder.put(window(number, wall_s=number + 1.0))
    stuck_disk.let_go.set()
    assert recorder.written()
    recorder.put(window(10, wall_s=11.0))
    recorder.close()
    run = recorder.read_back(stuck_disk.path)
    lost = 11 - len(run.windows)
    assert lost >= 6  # one is being written, three wait
    assert run.notes[0].startswith(f"{lost} of 11 steps are not in it: the run file could not be")
    assert run.notes[0].endswith("the end-to-end MFU is too low without them")
    assert "the run file is stuck: 3 records wait, newer ones are dropped" in caplog.text
    last = [record for record in sink.records if type(record) is Figures][-1]
    assert last.end_to_end is None
    assert last.absent["end_to_end"] == "records were dropped before they could be written"


def test_in_memory_end_to_end_is_over_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMORY_LIMIT", 6)  # the header, what counts, and two windows
    recorder = Recorder(header(), [], keep=True)
    for record in (peak("bf16"), peak("fp32"), count()):
        recorder.put(record)
    for number in range(60):
        recorder.put(window(number, wall_s=number + 1.0))
    recorder.put(END)
    recorder.close()
    run = recorder.read_back(None)
    assert run.notes == ("58 of 60 steps are not in it: only the first 6 records are kept in "
                         "memory; log_dir= keeps all",)  # fmt: skip
    assert run_figures(run).end_to_end == pytest.approx(0.30)  # 2 * 0.30 s in 2 s, not in 60 s


def test_what_was_warned_of_is_in_the_notes_of_a_run_that_goes_on() -> None:
    recorder = Recorder(header(), [], keep=True)
    recorder.warn("something")
    assert recorder.read_back(None).notes == ("something",)
    recorder.put(End(wall_s=1.0, reason="completed", notes=("something",)))
    assert recorder.read_back(None).notes == ()  # the end has it
    recorder.close()


# --- sinks that fail ----------------------------------------------------------------------------


class Speechless(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Speechless()]
)
@pytest.mark.parametrize("where", ["write", "close"])
def test_whatever_a_sink_raises_costs_only_that_sink(
    where: str, error: BaseException, tmp_path: Path
) -> None:
    class Failing(ListSink):
        def __eq__(self, other: object) -> bool:
            raise AssertionError("sinks are not compared")

        __hash__ = ListSink.__hash__

    def fail(*_: object) -> None:
        raise error

    first, failing, last, file = Failing(), Failing(), Failing(), RunFileSink(tmp_path)
    setattr(failing, where, fail)
    recorder = Recorder(header(), [first, failing, last, file])
    recorder.put(window(0))
    assert recorder.flush()
    recorder.put(END)
    recorder.close()
    assert first.kinds() == last.kinds() == ["Header", "Window", "Figures", "End"]
    assert first.closed == last.closed == 1
    (note,) = recorder.notes
    assert note.startswith(f"Failing failed and gets no more records: {type(error).__name__}")
    assert read_run(file.path).end == END


def test_a_thread_outlives_what_it_is_given() -> None:
    taken: list[int] = []
    failed: list[BaseException] = []

    def take(record: int) -> None:
        if record == 1:
            raise SystemExit
        taken.append(record)

    lane = Lane("a test", take, lambda: None, failed.append, limit=100)
    for number in range(3):
        assert lane.put(number)
    assert lane.flush(60)
    lane.finish()
    assert lane.join(60) and lane.flush(0)
    assert taken == [0, 2] and [type(error) for error in failed] == [SystemExit]


# --- a forked process ---------------------------------------------------------------------------


def test_in_a_forked_process_nothing_is_recorded_and_that_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file, sink = RunFileSink(tmp_path), ListSink()
    recorder = Recorder(header(), [file, sink])
    recorder.put(window(0))
    assert recorder.flush()
    with monkeypatch.context() as child:
        child.setattr(os, "getpid", lambda: 1)
        recorder.put(window(1))
        recorder.put(window(2))
        assert not recorder.flush() and not recorder.written()
        recorder.close()
        (warning,) = caplog.messages
        assert "its own steps are recorded nowhere" in warning
        assert recorder.read_back(file.path).notes == (warning,)
    recorder.put(END)
    recorder.close()
    assert sink.closed == 1
    assert len(read_run(file.path).windows) == 1 and read_run(file.path).end == END


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_steps_of_a_forked_process_are_warned_of_and_the_run_file_stays_the_parents(
    tmp_path: Path,
) -> None:
    text = """
        import os, sys, torch
        from mfu_torch import Meter
        model = torch.nn.Linear(16, 16)
        meter = Meter(model, peak=1e12, sinks=[], log_dir=sys.argv[1], log_every=10)
        def train(steps):
            for _ in range(steps):
                with meter.step():
                    model(torch.ones(8, 16)).sum().backward()
        train(3)
        idle = os.fork()
        if idle == 0:
            sys.exit(0)
        os.waitpid(idle, 0)
        print("a child without a step is done", file=sys.stderr, flush=True)
        child = os.fork()
        if child == 0:
            train(2)
            sys.exit(0)
        assert os.waitpid(child, 0)[1] == 0
        train(2)
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": "."}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    before, after = done.stderr.split("a child without a step is done")
    assert "forked" not in before
    assert after.count("its own steps are recorded nowhere") == 1
    run = read_run(tmp_path / "run")
    assert [step.index for step in run.steps] == [0, 1, 2, 3, 4]
    assert run.end is not None and run.end.notes == ()


def test_warnings_come_from_the_recorder(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    disk = SmallDisk(tmp_path)
    disk.room = 0
    Recorder(header(), [disk]).close()
    assert [(each.name, each.levelno) for each in caplog.records] == [
        ("mfu_torch.run.recorder", logging.WARNING)
    ]
