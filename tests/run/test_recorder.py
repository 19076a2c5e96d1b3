"""The recorder: what reaches the sinks, in which order, and what never reaches the training."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorder_sinks import ListSink, StuckSink, pause, window
from samples import count, entries, header, peak

from mfu_torch.figures import Figures
from mfu_torch.records import CountEntry, End, Header, PeakEntry, Window
from mfu_torch.run import recorder as module
from mfu_torch.run.recorder import Recorder
from mfu_torch.run.runfile import RunFileSink, read_run

NAMES = ("other", "another")


@pytest.fixture
def stuck(request: pytest.FixtureRequest) -> StuckSink:
    sink = StuckSink()
    request.addfinalizer(sink.let_go.set)  # no thread outlives a test that failed
    return sink


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


# --- order --------------------------------------------------------------------------------------


def test_every_sink_gets_every_record_in_order_and_the_figures_right_after_their_window() -> None:
    sinks = [ListSink(), ListSink()]
    recorder = Recorder(header(), sinks)
    for record in entries()[1:]:
        recorder.put(record)
    recorder.close()
    for sink in sinks:
        assert [each for each in sink.records if type(each) is not Figures] == entries()
        assert sink.kinds() == [
            "Header", "PeakEntry", "PeakEntry", "CountEntry", "Pause", "Pause",
            "Window", "Figures", "Pause", "Window", "Figures", "End",
        ]  # fmt: skip
        assert sink.closed == 1


def test_the_header_is_written_without_being_asked_for() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    assert recorder.flush()
    assert sink.records == [header()]
    recorder.close()


def test_sinks_are_called_on_one_thread_that_is_not_the_training_loops() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    recorder.put(window(0, 1))
    recorder.close()
    assert sink.threads == {"mfu_torch sinks"}


def test_the_figures_are_over_the_window_and_end_to_end_over_the_run_so_far() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    for record in (peak("bf16", 100e12), peak("fp32", 50e12), count()):
        recorder.put(record)
    recorder.put(window(0, 1, 2, wall_s=4.0))
    recorder.put(window(3, 4, wall_s=6.0))
    recorder.close()
    first, second = (record for record in sink.records if type(record) is Figures)
    # The model's ideal time is 0.30 s, steps last 1 s; the first step is not a steady one.
    assert (first.step, first.steps, first.mfu) == (3, 2, pytest.approx(0.30))
    assert (second.step, second.steps, second.mfu) == (5, 2, pytest.approx(0.30))
    assert first.end_to_end == pytest.approx(0.225)  # 3 * 0.30 / 4.0
    assert second.end_to_end == pytest.approx(0.25)  # 5 * 0.30 / 6.0
    assert first.memory_bytes == 1000


def test_a_count_that_replaces_another_holds_from_the_next_window_on() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    for record in (peak("bf16"), peak("fp32"), CountEntry(id=0, unknown="not counted yet")):
        recorder.put(record)
    recorder.put(window(0, 1))
    recorder.put(count(0))
    recorder.put(window(2, 3, wall_s=4.0))
    recorder.close()
    first, second = (record for record in sink.records if type(record) is Figures)
    assert first.mfu is None and first.absent["mfu"] == "not counted yet"
    assert first.end_to_end is None
    assert second.mfu == pytest.approx(0.30)
    assert second.end_to_end == pytest.approx(0.30)  # all 4 steps have it now: 4 * 0.30 / 4.0


def test_under_the_causal_convention_end_to_end_is_causal_too() -> None:
    sink = ListSink()
    recorder = Recorder(header(attention="causal"), [sink])
    for record in (peak("bf16"), peak("fp32"), count(), window(0, 1, wall_s=2.0)):
        recorder.put(record)
    recorder.close()
    figures = sink.records[-1]
    assert (figures.mfu, figures.end_to_end) == (pytest.approx(0.27), pytest.approx(0.27))


# --- flush and close ----------------------------------------------------------------------------


def test_flush_returns_when_everything_put_so_far_has_reached_the_sinks() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    for number in range(1000):
        recorder.put(pause(number))
    assert recorder.flush()
    assert len(sink.records) == 1001
    assert sink.closed == 0
    recorder.close()


def test_flush_after_close_returns_at_once() -> None:
    recorder = Recorder(header(), [ListSink()])
    recorder.close()
    # A record of one that still waited would never come: the limit would run out.
    assert recorder.flush(timeout_s=1e9)


def test_closing_twice_closes_the_sinks_once() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    recorder.close()
    recorder.close()
    assert sink.closed == 1


def test_a_record_put_after_close_raises_nothing_and_is_written_nowhere() -> None:
    sink = ListSink()
    recorder = Recorder(header(), [sink])
    recorder.close()
    recorder.put(pause(1))
    assert sink.records == [header()]


def test_flush_says_so_when_a_sink_is_stuck(stuck: StuckSink) -> None:
    recorder = Recorder(header(), [stuck])
    assert stuck.entered.wait(60)
    assert recorder.flush(timeout_s=0.0) is False
    stuck.let_go.set()
    assert recorder.flush()
    recorder.close()


def test_closing_gives_up_on_a_stuck_sink_with_a_warning_that_says_where_to_look(
    stuck: StuckSink, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = Recorder(header(), [stuck])
    assert stuck.entered.wait(60)
    recorder._lane.finish()
    recorder._lane.thread.join()
    recorder.close(timeout_s=0.0)
    (warning,) = warnings(caplog)
    assert "StuckSink has not finished writing after 0 s: the last 1 records" in warning
    assert recorder.notes == [warning]
    stuck.let_go.set()
    recorder._to_sinks.thread.join()
    assert stuck.closed == 1  # late, and whole


# --- what is too much ---------------------------------------------------------------------------


def test_when_a_sink_is_stuck_newer_records_are_dropped_with_one_warning(
    stuck: StuckSink, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_LIMIT", 4)
    recorder = Recorder(header(), [stuck])
    assert stuck.entered.wait(60)  # the header is out of the queue: four places are free
    for number in range(10):
        recorder.put(pause(number))
    assert recorder.written()
    stuck.let_go.set()
    recorder.close()
    assert stuck.records == [header(), *(pause(number) for number in range(4))]
    message = "StuckSink is stuck: 4 records wait, newer ones are dropped"
    assert warnings(caplog) == [message]
    assert recorder.notes == [message]


def test_a_sink_that_is_free_again_gets_records_again(
    stuck: StuckSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "QUEUE_LIMIT", 1)
    recorder = Recorder(header(), [stuck], keep=True)
    assert stuck.entered.wait(60)
    for number in range(3):
        recorder.put(pause(number))
    assert recorder.written()
    stuck.let_go.set()
    assert recorder.flush()
    recorder.put(pause(7))
    recorder.close()
    assert stuck.records == [header(), pause(0), pause(7)]
    assert recorder.read_back(None).pauses == (pause(0), pause(1), pause(2), pause(7))


def test_in_memory_the_first_records_and_the_end_are_kept_and_a_note_tells_how_many_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MEMORY_LIMIT", 3)
    sink = ListSink()
    recorder = Recorder(header(), [sink], keep=True)
    for number in range(6):
        recorder.put(pause(number))
    recorder.put(End(wall_s=8.0, reason="completed"))
    recorder.close()
    run = recorder.read_back(None)
    assert run.pauses == (pause(0), pause(1))
    # The wall time of what is kept: that of the others would count as time without work.
    assert run.end == End(wall_s=2.0, reason="completed")
    assert run.notes == (
        "4 records are not in it: only the first 3 records are kept in memory; log_dir= keeps all",
    )
    assert len(sink.records) == 8  # sinks get all of them


# --- reading back -------------------------------------------------------------------------------


def test_without_a_file_the_run_is_read_back_from_memory() -> None:
    recorder = Recorder(header(), [], keep=True)
    for record in entries()[1:]:
        recorder.put(record)
    recorder.close()
    run = recorder.read_back(None)
    assert run.header == header() and run.notes == ()
    assert [len(each.steps) for each in run.windows] == [3, 2]
    assert run.end == entries()[-1]


def test_before_anything_is_written_the_run_is_its_header(stuck: StuckSink) -> None:
    recorder = Recorder(header(), [stuck])
    assert recorder.read_back(None).header == header()
    stuck.let_go.set()
    recorder.close()


def test_with_a_file_the_run_is_read_back_from_it(tmp_path: Path) -> None:
    sink = RunFileSink(tmp_path)
    recorder = Recorder(header(), [sink])
    for record in entries()[1:]:
        recorder.put(record)
    recorder.close()
    assert recorder.read_back(sink.path) == read_run(tmp_path)
    assert recorder.read_back(sink.path).end == entries()[-1]


# --- sinks that fail ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Header, PeakEntry, Window, Figures])
def test_a_sink_that_fails_is_left_out_with_one_warning_and_the_others_go_on(
    kind: type, caplog: pytest.LogCaptureFixture
) -> None:
    failing, healthy = ListSink(fail_on=kind), ListSink()
    recorder = Recorder(header(), [failing, healthy])
    for record in (peak(), window(0), peak("fp32"), window(1)):
        recorder.put(record)
    recorder.close()
    message = (
        "ListSink failed and gets no more records: OSError: [Errno 28] No space left on device"
    )
    assert warnings(caplog) == [message]
    assert recorder.notes == [message]
    assert healthy.kinds() == [
        "Header", "PeakEntry", "Window", "Figures", "PeakEntry", "Window", "Figures"
    ]  # fmt: skip
    written = healthy.kinds().index(kind.__name__)
    assert failing.kinds() == healthy.kinds()[:written]


def test_a_sink_that_fails_to_close_does_not_keep_the_others_from_closing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Failing(ListSink):
        def close(self) -> None:
            raise OSError("the share is gone")

    last = ListSink()
    recorder = Recorder(header(), [Failing(), last])
    recorder.close()
    assert last.closed == 1
    assert warnings(caplog) == [
        "Failing failed and gets no more records: OSError: the share is gone"
    ]


# --- warnings -----------------------------------------------------------------------------------


def test_a_warning_is_logged_and_noted_in_full(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(header(), [])
    recorder.warn("%s holds %d %% of it", "one", 50)
    assert warnings(caplog) == recorder.notes == ["one holds 50 % of it"]
    recorder.close()


def test_warn_once_says_the_same_thing_once_and_other_things_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(header(), [])
    for _ in range(3):
        for name in NAMES:
            recorder.warn_once(f"{name} is 100 % wrong")  # no format: a percent sign is text
    assert warnings(caplog) == ["other is 100 % wrong", "another is 100 % wrong"]
    assert recorder.notes == warnings(caplog)
    recorder.close()


def test_a_warning_without_arguments_is_text_percent_signs_and_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(header(), [])
    try:
        recorder.warn("log_dir runs/50%done cannot be written")
        assert recorder.notes == ["log_dir runs/50%done cannot be written"]
    finally:
        recorder.close()


def test_warnings_are_logged_under_the_name_of_the_package(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = Recorder(header(), [])
    recorder.warn("hear, hear")
    recorder.close()
    assert [(r.name, r.levelno) for r in caplog.records] == [
        ("mfu_torch.run.recorder", logging.WARNING)
    ]


@pytest.mark.parametrize("read", [Recorder.flush, Recorder.close])
def test_nothing_of_the_recorder_runs_on_after_it_was_closed(read: Callable[..., Any]) -> None:
    recorder = Recorder(header(), [ListSink()])
    recorder.close()
    read(recorder)
    assert not recorder._lane.thread.is_alive() and not recorder._to_sinks.thread.is_alive()
