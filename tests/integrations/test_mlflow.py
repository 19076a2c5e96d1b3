"""MLflow: a local store is written, and read back with MLflow's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mlflow")

import mlflow
from samples import count
from tracker_records import (
    CURVES,
    FACTS,
    message_without,
    run_documented,
    write_from_another_thread,
)

from mfu_torch.figures import Figures
from mfu_torch.integrations.mlflow import MLflowSink


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A store of files in a folder of the test; nothing is sent anywhere."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    yield
    while mlflow.active_run() is not None:
        mlflow.end_run()
    mlflow.set_tracking_uri(before)


def test_every_known_figure_is_a_metric_of_the_active_run_at_its_step() -> None:
    run = mlflow.start_run()
    write_from_another_thread(MLflowSink())
    client = mlflow.MlflowClient()
    names = client.get_run(run.info.run_id).data.metrics
    found = {
        name: [(m.step, m.value) for m in client.get_metric_history(run.info.run_id, name)]
        for name in names
    }
    assert found == CURVES


def test_the_facts_behind_the_numbers_are_tags() -> None:
    run = mlflow.start_run()
    write_from_another_thread(MLflowSink())
    tags = mlflow.MlflowClient().get_run(run.info.run_id).data.tags
    ours = {name: text for name, text in tags.items() if name.startswith("mfu_torch.")}
    assert ours == {f"mfu_torch.{name}": text for name, text in FACTS.items()}


def test_the_run_goes_on_and_there_is_no_other() -> None:
    run = mlflow.start_run()
    write_from_another_thread(MLflowSink())
    assert mlflow.active_run() is not None
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).info.status == "RUNNING"
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    assert len(client.search_runs(experiments)) == 1


def test_a_run_can_be_named_that_is_not_the_active_one() -> None:
    with mlflow.start_run() as other:
        pass
    with mlflow.start_run() as active:
        write_from_another_thread(MLflowSink(run_id=other.info.run_id))
    client = mlflow.MlflowClient()
    assert client.get_run(other.info.run_id).data.metrics["mfu/hfu"] == 0.5
    assert client.get_run(active.info.run_id).data.metrics == {}


def test_a_run_that_was_ended_first_has_every_figure_all_the_same() -> None:
    with mlflow.start_run() as run:
        sink = MLflowSink()
    write_from_another_thread(sink)
    client = mlflow.MlflowClient()
    assert client.get_run(run.info.run_id).data.metrics.keys() == CURVES.keys()
    assert client.get_run(run.info.run_id).info.status == "FINISHED"


def test_a_pause_of_any_name_is_a_metric() -> None:
    names = {".": 0.1, "..": 0.2, "": 0.3, "e" * 300: 0.4, "e" * 301: 0.5, "a/../b": 0.6}
    with mlflow.start_run() as run:
        now = Figures(step=1, steps=1, time_s=1.0, mfu=0.5, goodput=names)
        MLflowSink().write(now)
        MLflowSink().write(count(uncounted={"my::" + "x" * 300: 1}))
    data = mlflow.MlflowClient().get_run(run.info.run_id).data
    assert sorted(data.metrics.values()) == [0.1, 0.2, 0.3, 0.4, 0.5, 0.5, 0.6]
    assert max(map(len, data.metrics)) == 250
    assert any(name.startswith("mfu_torch.not_counted_my__xxx") for name in data.tags)


def test_a_run_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"run_id is 'nope', which file:.* expected that of a run"):
        MLflowSink("nope")
    with mlflow.start_run() as run, pytest.raises(TypeError, match=r"that of run\.info\.run_id"):
        MLflowSink(run)  # type: ignore[arg-type]


def test_what_the_documentation_says_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_documented("MLflowSink", monkeypatch, tmp_path)
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert 0 < run.data.metrics["mfu/mfu"] < 1
    assert run.data.tags["mfu_torch.peak_fp32"].startswith("10.0 TFLOP/s dense, given")


def test_without_an_active_run_the_message_says_what_to_call() -> None:
    with pytest.raises(ValueError, match=r"call mlflow.start_run\(\) before, or pass run_id="):
        MLflowSink()


def test_without_the_library_the_message_says_what_to_install() -> None:
    assert message_without("mlflow", "mlflow") == (
        "ImportError: MLflowSink needs mlflow: pip install 'mfu_torch[mlflow]'"
    )
