"""Weights & Biases: runs are written offline, and their file is read back."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("wandb")

import wandb
from samples import header
from samples import step as step_of
from tracker_records import (
    CURVES,
    FACTS,
    FIRST,
    SECOND,
    SEEN,
    message_without,
    run_documented,
    write_from_another_thread,
)
from wandb.proto import wandb_internal_pb2

from mfu_torch.figures import Figures
from mfu_torch.integrations.wandb import STEP, WandbSink
from mfu_torch.records import End, Window
from mfu_torch.run.recorder import Recorder


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Opens offline runs in a folder of the test."""
    monkeypatch.setenv("WANDB_SILENT", "true")
    quiet = wandb.Settings(
        console="off", disable_git=True, x_disable_meta=True, x_disable_stats=True
    )

    def open_run(mode: str = "offline") -> Any:
        return wandb.init(project="project", dir=str(tmp_path), mode=mode, settings=quiet)

    yield open_run
    wandb.finish()


def records(run: Any) -> list[Any]:
    """Everything that a finished offline run holds.

    W&B's own process writes it, and may still be at it when ``finish`` returns.
    """
    (path,) = Path(run.dir).parent.glob("*.wandb")
    deadline = time.monotonic() + 30
    while True:
        found = list(records_in(path.read_bytes()))
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        assert time.monotonic() < deadline, "the file of the run is not complete"
        time.sleep(0.01)


def records_in(raw: bytes) -> Iterator[Any]:
    """LevelDB's log format behind a header of 7 bytes, as far as it is written."""
    at, whole = 7, b""
    while at + 7 <= len(raw):
        if (left := 32768 - at % 32768) < 7:  # no room for a header at the end of a block
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", raw[at : at + 7])
        if at + 7 + size > len(raw):
            return
        whole += raw[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # complete, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(whole)
            yield record
            whole = b""


def rows(run: Any) -> list[dict[str, Any]]:
    """The history of a finished offline run, without W&B's times."""
    return [
        {
            key: json.loads(item.value_json)
            for item in record.history.item
            if (key := item.key or "/".join(item.nested_key)) not in ("_timestamp", "_runtime")
        }
        for record in records(run)
        if record.WhichOneof("record_type") == "history"
    ]


def curves(history: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    """Over the steps completed; the tags of ours."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in history:
        for tag in row.keys() - {STEP, "_step", "loss"}:
            found.setdefault(tag, []).append((row[STEP], row[tag]))
    return found


def test_every_known_figure_is_in_the_history_of_the_open_run(opened: Callable[..., Any]) -> None:
    run = opened()
    write_from_another_thread(WandbSink())
    run.finish()
    assert curves(rows(run)) == CURVES


def test_every_curve_has_the_steps_completed_as_its_x_axis(opened: Callable[..., Any]) -> None:
    run = opened()
    write_from_another_thread(WandbSink())
    run.finish()
    metrics = [r.metric for r in records(run) if r.WhichOneof("record_type") == "metric"]
    assert {m.name: m.step_metric for m in metrics if m.name != STEP} == dict.fromkeys(CURVES, STEP)


def test_the_facts_behind_the_numbers_are_in_the_config(opened: Callable[..., Any]) -> None:
    run = opened()
    write_from_another_thread(WandbSink())
    assert {name: run.config[f"mfu_torch/{name}"] for name in FACTS} == FACTS


def test_rows_that_the_script_numbers_itself_are_all_kept(opened: Callable[..., Any]) -> None:
    run = opened()
    sink = WandbSink(run)
    for step in range(30):
        run.log({"loss": 30.0 - step}, step=step)
        if step in (10, 20):
            sink.write(FIRST if step == 10 else SECOND)
            run.log({"accuracy": step / 100}, step=step)  # into the same row, after ours
    sink.close()
    run.finish()
    history = rows(run)
    assert [(row["_step"], row["loss"]) for row in history] == [(n, 30.0 - n) for n in range(30)]
    assert [row["accuracy"] for row in history if "accuracy" in row] == [0.1, 0.2]
    assert [(row[STEP], row["mfu/mfu"]) for row in history if STEP in row] == [
        (10, 0.25),
        (20, 0.0),
    ]


def test_rows_that_wandb_numbers_are_not_shifted(opened: Callable[..., Any]) -> None:
    run = opened()
    sink = WandbSink(run)
    for step in range(30):
        run.log({"loss": 30.0 - step})
        if step in (10, 20):
            sink.write(FIRST if step == 10 else SECOND)
    run.finish()
    history = rows(run)
    assert [(row["_step"], row["loss"]) for row in history] == [(n, 30.0 - n) for n in range(30)]
    assert [row["mfu/mfu"] for row in history if "mfu/mfu" in row] == [0.25, 0.0]


def test_the_run_is_not_finished(opened: Callable[..., Any]) -> None:
    run = opened()
    write_from_another_thread(WandbSink())
    assert wandb.run is run
    run.log({"loss": 1.5})
    run.finish()
    assert rows(run)[-1]["loss"] == 1.5


def test_a_run_that_is_finished_first_costs_one_warning_and_no_wait(
    opened: Callable[..., Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened()
    recorder = Recorder(header(), [WandbSink()], keep=True)
    assert recorder.flush()
    run.finish()

    def asked(*_: object, **__: object) -> None:
        raise AssertionError("W&B waits 30 s for the answer of a finished run")

    for name in ("log", "define_metric"):
        monkeypatch.setattr(run, name, asked)
    monkeypatch.setattr(type(run), "step", property(asked))
    for after in range(1, 3):
        recorder.put(Window(steps=(step_of(after, 1.0, count_ids=()),), wall_s=after))
    recorder.close()
    assert [record.getMessage() for record in caplog.records if "mfu" in record.name] == [
        "WandbSink failed and gets no more records: RuntimeError: the W&B run is finished, what "
        "came after is not in it; close the meter before wandb.finish()"
    ]


def test_a_run_that_is_finished_when_there_is_nothing_more_to_log_warns_of_nothing(
    opened: Callable[..., Any],
) -> None:
    run = opened()
    sink = WandbSink()
    sink.write(FIRST)
    run.finish()
    sink.write(End(wall_s=1.0, reason="completed"))
    sink.close()


def test_what_is_no_open_run_is_refused(opened: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"run is 5; expected a W&B run: what wandb\.init"):
        WandbSink(5)
    run = opened()
    run.finish()
    with pytest.raises(ValueError, match="the W&B run is finished"):
        WandbSink(run)


def test_a_pause_of_any_name_is_in_the_history(opened: Callable[..., Any]) -> None:
    names = {".": 0.1, "": 0.2, "e" * 300: 0.3, "a/../b": 0.4}
    run = opened()
    WandbSink().write(Figures(step=1, steps=1, time_s=1.0, goodput=names))
    run.finish()
    (row,) = rows(run)
    assert sorted(value for tag, value in row.items() if tag.startswith("goodput/")) == [
        *(0.1, 0.2, 0.3, 0.4),
    ]


def test_a_run_that_is_disabled_takes_everything_and_keeps_nothing(
    opened: Callable[..., Any],
) -> None:
    opened(mode="disabled")
    write_from_another_thread(WandbSink())


def test_in_a_run_of_several_processes_every_window_is_a_row() -> None:
    run = SharedRun()
    sink = WandbSink(run)
    for record in (header(), SEEN, FIRST, SECOND):
        sink.write(record)
    assert [(row[STEP], row["mfu/mfu"]) for row in run.rows] == [(10, 0.25), (20, 0.0)]
    assert run.rows[0]["device/gpu_util"] == 0.75


class SharedRun:
    """As a run with ``mode="shared"``, whose rows are not numbered; it needs a server."""

    class settings:
        mode = "shared"

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.config: Any = self
        self.update = self.define_metric = lambda *_, **__: None

    @property
    def step(self) -> int:
        raise RuntimeError("no step in shared mode")

    def log(self, data: dict[str, Any]) -> None:
        self.rows.append(data)


def test_what_the_documentation_says_works(
    opened: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_CONSOLE", "off")
    wandb.teardown()  # the next wandb.init reads the environment again
    run_documented("WandbSink", monkeypatch, tmp_path)
    run = wandb.run
    assert run is not None
    run.finish()
    assert [row[STEP] for row in rows(run) if "mfu/mfu" in row] == [10, 20]


def test_without_an_open_run_the_message_says_what_to_call() -> None:
    with pytest.raises(ValueError, match=r"call wandb.init\(...\) before, or pass run="):
        WandbSink()


def test_without_the_library_the_message_says_what_to_install() -> None:
    assert message_without("wandb", "wandb") == (
        "ImportError: WandbSink needs wandb: pip install 'mfu_torch[wandb]'"
    )
