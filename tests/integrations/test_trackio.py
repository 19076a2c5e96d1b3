"""Trackio: its local storage is written, and read back; nothing is sent anywhere."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trackio", minversion="0.20")  # log(step=), local storage without a server

import trackio
from tracker_records import (
    CURVES,
    FACTS,
    message_without,
    run_documented,
    write_from_another_thread,
)
from trackio.sqlite_storage import SQLiteStorage

from mfu_torch.integrations.trackio import TrackioSink


@pytest.fixture(autouse=True)
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for module in ("trackio.utils", "trackio.sqlite_storage"):
        monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path, raising=False)
    yield
    trackio.context_vars.current_run.set(None)


def opened() -> Any:
    return trackio.init(
        project="project", name="run", embed=False, auto_log_cpu=False, auto_log_gpu=False
    )


def stored() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = SQLiteStorage.get_logs("project", "run")
    return rows


def curves(rows: list[dict[str, Any]]) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(rows, key=lambda row: row["step"]):
        for tag in row.keys() - {"step", "timestamp"}:
            found.setdefault(tag, []).append((row["step"], row[tag]))
    return found


def test_every_known_figure_is_a_metric_of_the_open_run_at_its_step() -> None:
    run = opened()
    write_from_another_thread(TrackioSink())
    run.finish()
    assert curves(stored()) == CURVES


def test_the_run_stays_open_for_the_script() -> None:
    run = opened()
    write_from_another_thread(TrackioSink())
    trackio.log({"loss": 1.5}, step=20)
    run.finish()
    assert curves(stored())["loss"] == [(20, 1.5)]


def test_the_facts_behind_the_numbers_are_in_the_config() -> None:
    run = opened()
    write_from_another_thread(TrackioSink(run))
    assert run.config.items() >= {f"mfu_torch/{name}": text for name, text in FACTS.items()}.items()


def test_what_the_documentation_says_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_documented("TrackioSink", monkeypatch, tmp_path)
    run = trackio.context_vars.current_run.get()
    run.finish()
    rows = SQLiteStorage.get_logs("mine", run.name)
    assert [row["step"] for row in rows if "mfu/mfu" in row] == [10, 20]


def test_without_an_open_run_the_message_says_what_to_call() -> None:
    with pytest.raises(ValueError, match=r"call trackio.init\(...\) before, or pass run="):
        TrackioSink()


def test_what_is_no_run_is_refused() -> None:
    with pytest.raises(TypeError, match=r"run is 5; expected a trackio run: what trackio\.init"):
        TrackioSink(5)


def test_a_run_that_was_finished_first_has_every_figure_all_the_same() -> None:
    run = opened()
    sink = TrackioSink()
    run.finish()
    write_from_another_thread(sink)
    assert curves(stored()) == CURVES


def test_a_run_takes_metrics_and_their_step() -> None:
    assert list(inspect.signature(trackio.Run.log).parameters) == ["self", "metrics", "step"]


def test_without_the_library_the_message_says_what_to_install() -> None:
    assert message_without("trackio", "trackio") == (
        "ImportError: TrackioSink needs trackio: pip install 'mfu_torch[trackio]'"
    )
