"""Where the values of a Hugging Face training appear, and that each point is written once."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hf_models import (
    EVAL_BATCH_S,
    MICRO_BATCH_S,
    PEAK,
    SEQ,
    TimedTrainer,
    counted,
    gpt2,
    rows,
    trainer_of,
)
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback

from mfu_torch.figures import ABOVE_PEAK, Figures
from mfu_torch.insight.report import render_report
from mfu_torch.integrations.huggingface.callback import logged
from mfu_torch.integrations.loop import FollowedLoop
from mfu_torch.integrations.remarks import RemarksSink
from mfu_torch.run.runfile import read_run

MFU = counted(gpt2()).model / (MICRO_BATCH_S * PEAK)
TOKENS_PER_S = 2 * SEQ / MICRO_BATCH_S


def events_of(folder: Path) -> EventAccumulator:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return events


def values_of(events: EventAccumulator, tag: str) -> list[tuple[int, float]]:
    return [(point.step, point.value) for point in events.Scalars(tag)]


def events_folder(folder: Path) -> Path:
    """The one folder with event files in it, of which there is one."""
    files = [path for path in folder.rglob("*tfevents*") if path.parent.parent.name == "runs"]
    assert len(files) == 1
    return files[0].parent


@pytest.mark.parametrize("reporter", ["tensorboard", "none"])
def test_the_values_are_in_the_event_file(tmp_path: Path, reporter: str) -> None:
    trainer, ours, _ = trainer_of(tmp_path, max_steps=12, logging_steps=4, report_to=reporter)
    trainer.train()
    folder = events_folder(tmp_path)
    events = events_of(folder)
    points = values_of(events, "mfu/mfu")
    assert [step for step, _ in points] == [2, 4, 6, 8, 10, 12]
    assert [value for _, value in points] == pytest.approx([MFU] * 6, rel=1e-6)
    assert {value for _, value in values_of(events, "throughput/tokens_per_s")} == {TOKENS_PER_S}
    for tag in ("mfu/hfu", "mfu/mfu_causal", "mfu/end_to_end", "time/step_s"):
        assert tag in events.Tags()["scalars"]
    if reporter == "tensorboard":
        assert [step for step, _ in values_of(events, "train/loss")] == [4, 8, 12]
        mfu = dict(values_of(events, "train/mfu"))
        assert set(mfu) == {4, 8, 12}
        assert list(mfu.values()) == pytest.approx([MFU] * 3, rel=1e-6)
    # The run file is beside it.
    assert ours.meter is not None and ours.meter.log_dir == folder
    assert len(list(read_run(folder / "run.jsonl").steps)) == 12
    assert f"{100 * MFU:.4f} %" in render_report(read_run(folder / "run.jsonl"))


def test_no_point_is_written_twice_under_a_tag(tmp_path: Path) -> None:
    trainer, _, _ = trainer_of(
        tmp_path, max_steps=12, logging_steps=3, report_to="tensorboard", eval_strategy="steps",
        eval_steps=4, more={"eval_dataset": rows(4)},
    )  # fmt: skip
    trainer.train()
    events = events_of(events_folder(tmp_path))
    tags = [tag for tag in events.Tags()["scalars"] if tag != "train/epoch"]  # in every log
    assert {"mfu/mfu", "train/mfu", "train/loss", "eval/loss"} <= set(tags)
    for tag in tags:
        times = Counter(step for step, _ in values_of(events, tag))
        assert set(times.values()) == {1}, tag


def test_the_values_are_in_the_log_history_and_in_the_printed_logs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, _, _ = trainer_of(
        tmp_path, max_steps=12, logging_steps=4, eval_strategy="steps", eval_steps=4,
        more={"eval_dataset": rows(4)},
    )  # fmt: skip
    result = trainer.train()
    trained = [log for log in trainer.state.log_history if "loss" in log]
    assert [log["step"] for log in trained] == [4, 8, 12]
    for log in trained:
        assert log["mfu"] == pytest.approx(MFU, rel=1e-12)
        assert log["hfu"] > log["mfu"] > log["mfu_end_to_end"] > 0 or log["step"] == 4
        assert log["tokens_per_s"] == TOKENS_PER_S
        assert log["model_tflops_per_s"] == pytest.approx(MFU * PEAK / 1e12, rel=1e-12)
    assert all("mfu" not in log for log in trainer.state.log_history if "eval_loss" in log)
    printed = [
        ast.literal_eval(line)
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("{")
    ]
    found = [float(log["mfu"]) for log in printed if "loss" in log]
    assert found == pytest.approx([MFU] * 3, rel=1e-3)
    # The last log is of the whole training, and what train() returns.
    last = trainer.state.log_history[-1]
    assert last["train_mfu"] == result.metrics["train_mfu"] == pytest.approx(MFU, rel=1e-12)
    wall_s = 12 * MICRO_BATCH_S + 3 * 2 * EVAL_BATCH_S
    expected = MFU * 12 * MICRO_BATCH_S / wall_s
    assert last["train_mfu_end_to_end"] == pytest.approx(expected, rel=1e-12)


def test_logs_of_the_users_own_are_left_alone(tmp_path: Path) -> None:
    class Logs(TimedTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            self.log({"temperature": 1.0})
            return super().compute_loss(*args, **kwargs)

    trainer, _, _ = trainer_of(tmp_path, cls=Logs, max_steps=12, logging_steps=4)
    trainer.train()
    history = trainer.state.log_history
    assert [log["step"] for log in history if "mfu" in log] == [4, 8, 12]
    assert not [log for log in history if "mfu" in log and "temperature" in log]


def test_every_other_reporter_has_the_values(tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []

    class Reporter(TrainerCallback):  # type: ignore[misc]
        """Stands where those of ``report_to`` stand: before all callbacks of the user."""

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any
        ) -> None:
            seen.append(dict(logs))

    trainer, _, _ = trainer_of(tmp_path)
    trainer.callback_handler.callbacks.insert(1, Reporter())
    trainer.train()
    assert [log["mfu"] for log in seen if "mfu" in log][-1] == pytest.approx(MFU, rel=1e-12)
    names = [type(one).__name__ for one in trainer.callback_handler.callbacks]
    assert names[0] == "MFUCallback" and names[-1] == "MFUPauses"


def test_a_store_of_mlflow_has_the_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    before = mlflow.get_tracking_uri()
    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    try:
        trainer, _, _ = trainer_of(tmp_path, report_to="mlflow")
        trainer.train()
        while mlflow.active_run() is not None:
            mlflow.end_run()
        (run,) = mlflow.search_runs(search_all_experiments=True, output_format="list")
    finally:
        mlflow.set_tracking_uri(before)
    assert run.data.metrics["mfu"] == pytest.approx(MFU, rel=1e-6)


def test_what_stands_behind_the_numbers_is_said_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, _, _ = trainer_of(tmp_path, max_steps=12)
    trainer.train()
    said = capsys.readouterr().out
    assert said.count("attention full\n") == 1 and said.count("peak fp32 1.10 TFLOP/s dense") == 1
    assert "step     4" not in said  # the console's line of a window


def test_where_the_mfu_is_unknown_or_above_1_it_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink = RemarksSink()
    for step in (2, 4):
        sink.write(Figures(step=step, steps=2, time_s=2.0, absent={"mfu": "no peak is known"}))
        sink.write(Figures(step=step, steps=2, time_s=2.0, mfu=1.5, hfu=1.5))
        sink.write(Figures(step=step, steps=2, time_s=2.0, mfu=0.5, hfu=0.5))
    said = [record.getMessage() for record in caplog.records]
    assert said == ["MFU unknown: no peak is known", f"MFU {ABOVE_PEAK}"]


def test_a_log_has_flops_per_second_where_the_mfu_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = Figures(step=2, steps=2, time_s=2.0, model_flops_per_s=3e12, absent={"mfu": "why"})
    monkeypatch.setattr(FollowedLoop, "windows", lambda self: [unknown])
    trainer, _, _ = trainer_of(tmp_path)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    assert len(logs) == 3
    assert all("mfu" not in log and log["model_tflops_per_s"] == 3.0 for log in logs)


def test_the_figures_of_several_windows_are_weighted_by_their_time() -> None:
    windows = [
        Figures(step=2, steps=0, time_s=0.0, absent={"mfu": "no steady step"}),
        Figures(step=4, steps=2, time_s=1.0, mfu=0.5, hfu=0.6, tokens_per_s=100.0, end_to_end=0.1),
        Figures(step=6, steps=2, time_s=3.0, mfu=0.1, hfu=0.2, tokens_per_s=20.0, end_to_end=0.2),
    ]
    # (0.5 * 1 + 0.1 * 3) / 4, (0.6 + 0.6) / 4, (100 + 60) / 4
    assert logged(windows) == pytest.approx(
        {"mfu": 0.2, "hfu": 0.3, "tokens_per_s": 40.0, "mfu_end_to_end": 0.2}
    )
    assert logged(windows[:1]) == {}
    gap = Figures(step=8, steps=2, time_s=1.0, mfu=None, tokens_per_s=20.0)
    assert "mfu" not in logged([*windows, gap])


def test_figures_of_the_same_name_in_the_users_logs_stay_theirs(tmp_path: Path) -> None:
    class Logs(TimedTrainer):
        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "loss" in logs:
                logs["mfu"] = 0.5
            super().log(logs, *args, **kwargs)

    trainer, _, _ = trainer_of(tmp_path, cls=Logs, max_steps=4, logging_steps=4)
    trainer.train()
    log = next(log for log in trainer.state.log_history if "loss" in log)
    assert log["mfu"] == 0.5 and log["hfu"] != 0.5
