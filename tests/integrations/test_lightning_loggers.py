"""What stands in the loggers of a Trainer, at which x, and what it costs the step."""

from __future__ import annotations

import csv
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink
from lightning_models import BATCH_S, PACKAGES, callback, module, package, rows, trainer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mfu_torch import read_run
from mfu_torch.integrations.lightning import MFUCallback
from mfu_torch.integrations.lightning.loggers import TensorBoardLoggerSink
from mfu_torch.records import Telemetry

# Windows of two steps, seven batches: x is that of the last batch of each window, from 0.
POINTS = [(1, 0.5), (3, 0.5), (5, 0.5), (6, 0.5)]


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return package(request.param)


@pytest.fixture
def one() -> Any:
    """Where the two packages cannot differ."""
    return package(PACKAGES[0])


def logged(pl: Any, folder: Path, logger: Any, tag: str = "loss", **options: Any) -> Any:
    """A Trainer after seven batches, whose module logs a figure of its own."""
    clock = FakeClock()

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        clock.advance(BATCH_S)
        self.log(tag, float(batch_idx))
        return self.net(batch).sum()

    fit = trainer(pl, folder, callback(clock), logger=logger, log_every_n_steps=2, **options)
    fit.fit(module(pl, training_step=training_step), rows(7 * fit.accumulate_grad_batches))
    return fit


def points(folder: str, tag: str) -> list[tuple[int, float]]:
    events = EventAccumulator(folder).Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_the_curves_stand_in_tensorboard_beside_those_of_the_training(
    pl: Any, tmp_path: Path
) -> None:
    fit = logged(pl, tmp_path, pl.loggers.TensorBoardLogger(tmp_path))
    assert points(fit.log_dir, "mfu/mfu") == POINTS
    assert points(fit.log_dir, "loss") == [(1, 1.0), (3, 3.0), (5, 5.0)]
    tags = EventAccumulator(fit.log_dir).Reload().Tags()
    assert {"mfu/hfu", "mfu/end_to_end", "time/step_s", "throughput/samples_per_s"} <= {
        *tags["scalars"]
    }
    assert {"mfu/how_computed/text_summary", "custom_scalars__config__"} <= {*tags["tensors"]}
    assert read_run(fit.log_dir).end is not None  # the run file is beside them


def test_accumulated_steps_have_the_x_of_the_training_too(one: Any, tmp_path: Path) -> None:
    logger = one.loggers.TensorBoardLogger(tmp_path)
    fit = logged(one, tmp_path, logger, accumulate_grad_batches=2)
    assert points(fit.log_dir, "mfu/mfu") == POINTS
    assert [x for x, _ in points(fit.log_dir, "loss")] == [1, 3, 5]


def test_a_sink_that_comes_late_to_the_windows_has_their_x_all_the_same(
    one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, late = TensorBoardLoggerSink.write, []
    monkeypatch.setattr(TensorBoardLoggerSink, "write", lambda self, record: late.append(record))
    close = TensorBoardLoggerSink.close

    def closing(self: TensorBoardLoggerSink) -> None:
        for record in late:  # the training is over by now
            write(self, record)
        close(self)

    monkeypatch.setattr(TensorBoardLoggerSink, "close", closing)
    logger = one.loggers.TensorBoardLogger(tmp_path)
    fit = logged(one, tmp_path, logger, accumulate_grad_batches=2)
    assert late and points(fit.log_dir, "mfu/mfu") == POINTS


def test_windows_are_as_long_as_the_trainers_own_unless_told(one: Any, tmp_path: Path) -> None:
    for options, expected in (({}, 3), ({"log_every": 5}, 5)):
        followed = MFUCallback(peak=1e12, telemetry=False, clock=FakeClock(), **options)
        trainer(one, tmp_path, followed, log_every_n_steps=3).fit(module(one), rows(3))
        assert followed.meter is not None and followed.meter.run.header.log_every == expected


def test_a_run_that_goes_on_has_the_x_of_the_training_too(one: Any, tmp_path: Path) -> None:
    logger = remembering(one)
    fit = logged(one, tmp_path / "first", logger)
    fit.save_checkpoint(tmp_path / "saved.ckpt")
    clock = FakeClock()
    second = trainer(one, tmp_path / "second", callback(clock), logger=logger, max_epochs=2)
    second.fit(module(one, clock), rows(7), ckpt_path=tmp_path / "saved.ckpt")
    assert logger.of("mfu/mfu") == [*POINTS, (8, 0.5), (10, 0.5), (12, 0.5), (13, 0.5)]


def test_a_csv_file_has_new_columns_and_keeps_its_own(pl: Any, tmp_path: Path) -> None:
    fit = logged(pl, tmp_path, pl.loggers.CSVLogger(tmp_path))
    with (Path(fit.log_dir) / "metrics.csv").open() as file:
        table = list(csv.DictReader(file))
    ours = [(int(row["step"]), float(row["mfu/mfu"])) for row in table if row["mfu/mfu"]]
    theirs = [(int(row["step"]), float(row["loss"])) for row in table if row["loss"]]
    assert ours == POINTS
    assert theirs == [(1, 1.0), (3, 3.0), (5, 5.0)]


def test_wandb_has_the_values_over_the_trainers_steps(
    one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    logger = one.loggers.WandbLogger(offline=True, save_dir=tmp_path, project="mfu")
    logged(one, tmp_path, logger)
    summary = dict(logger.experiment.summary)
    assert (summary["mfu/mfu"], summary["trainer/global_step"]) == (0.5, 6)
    assert "loss" in summary
    assert logger.experiment.config["mfu_torch/attention"] == "full"
    logger.experiment.finish()


def test_mlflow_has_the_values_over_the_trainers_steps(
    one: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logger = one.loggers.MLFlowLogger(tracking_uri=(tmp_path / "mlruns").as_uri())
    logged(one, tmp_path, logger)
    history = logger.experiment.get_metric_history(logger.run_id, "mfu/mfu")
    assert [(metric.step, metric.value) for metric in history] == POINTS
    parameters = logger.experiment.get_run(logger.run_id).data.params
    assert parameters["mfu_torch/attention"] == "full"


class Remembers:
    """Made into a Logger of either package by :func:`remembering`."""

    name = version = "remembers"

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.metrics: list[tuple[int | None, dict[str, float]]] = []
        self.hyperparameters: list[dict[str, Any]] = []
        self.error = error

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        if self.error is not None and "mfu/mfu" in metrics:
            raise self.error
        self.metrics.append((step, dict(metrics)))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        self.hyperparameters.append(dict(params))

    def of(self, tag: str) -> list[tuple[int | None, float]]:
        return [(step, metrics[tag]) for step, metrics in self.metrics if tag in metrics]


def remembering(pl: Any, error: Exception | None = None) -> Any:
    return type("Remembering", (Remembers, pl.loggers.Logger), {})(error)


def test_every_logger_of_several_gets_the_figures(pl: Any, tmp_path: Path) -> None:
    loggers = [remembering(pl), pl.loggers.CSVLogger(tmp_path), remembering(pl)]
    logged(pl, tmp_path, loggers)
    assert loggers[0].of("mfu/mfu") == loggers[2].of("mfu/mfu") == POINTS


def test_the_peak_and_the_convention_are_among_the_hyperparameters(pl: Any, tmp_path: Path) -> None:
    logger = remembering(pl)
    logged(pl, tmp_path, logger)
    (ours,) = [given for given in logger.hyperparameters if "mfu_torch/attention" in given]
    assert ours["mfu_torch/attention"] == "full"
    assert ours["mfu_torch/peak_fp32"].startswith("65.5 kFLOP/s dense, given")
    assert all(name.startswith("mfu_torch/") for name in ours)


def test_a_logger_that_fails_gets_no_more_figures_and_costs_nothing_else(
    pl: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = remembering(pl, ConnectionError("no network")), remembering(pl)
    fit = logged(pl, tmp_path, [bad, good])
    assert fit.global_step == 7
    assert good.of("mfu/mfu") == POINTS
    assert [step for step, _ in bad.of("loss")] == [1, 3, 5]
    (said,) = [text for text in caplog.messages if "no network" in text]
    assert said == ("Remembering failed and gets no more MFU figures: ConnectionError: no network")


def test_a_tensorboard_writer_that_fails_costs_our_curves_and_nothing_else(
    one: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    logger = one.loggers.TensorBoardLogger(tmp_path)
    writer, other = logger.experiment, remembering(one)
    original = writer.add_scalar

    def add_scalar(tag: str, *args: Any, **kwargs: Any) -> None:
        if tag.startswith("mfu/"):
            raise OSError("no space left on device")
        original(tag, *args, **kwargs)

    writer.add_scalar = add_scalar
    fit = logged(one, tmp_path, [logger, other])
    assert points(fit.log_dir, "loss") == [(1, 1.0), (3, 3.0), (5, 5.0)]
    assert other.of("mfu/mfu") == POINTS
    (said,) = [text for text in caplog.messages if "no space left" in text]
    assert said.startswith("TensorBoardLoggerSink failed and gets no more records: OSError")


@pytest.mark.parametrize("of", ["TensorBoardLogger", "remembering"])
def test_a_tag_of_the_training_stays_its_own(
    one: Any, tmp_path: Path, of: str, caplog: pytest.LogCaptureFixture
) -> None:
    tensorboard = of == "TensorBoardLogger"
    logger = one.loggers.TensorBoardLogger(tmp_path) if tensorboard else remembering(one)
    fit = logged(one, tmp_path, logger, tag="mfu/mfu")

    def curve(tag: str) -> list[Any]:
        return points(fit.log_dir, tag) if tensorboard else logger.of(tag)

    assert curve("mfu/mfu") == [(1, 1.0), (3, 3.0), (5, 5.0)]
    assert curve("mfu_torch/mfu/mfu") == POINTS
    assert sum("logs mfu/mfu, too" in text for text in caplog.messages) == 1


def test_without_a_logger_the_run_file_has_everything(pl: Any, tmp_path: Path) -> None:
    logged(pl, tmp_path, False)
    assert len(list(read_run(tmp_path).steps)) == 7


def test_a_folder_of_ones_own_is_where_the_run_file_goes(one: Any, tmp_path: Path) -> None:
    followed = callback(FakeClock(), log_dir=str(tmp_path / "mine"))
    fit = trainer(one, tmp_path, followed, logger=one.loggers.CSVLogger(tmp_path / "logs"))
    fit.fit(module(one), rows(2))
    assert len(list(read_run(tmp_path / "mine").steps)) == 2
    assert followed.meter is not None and followed.meter.log_dir == tmp_path / "mine"
    assert not list((tmp_path / "logs").rglob("run*.jsonl"))


def test_a_folder_of_another_machine_has_no_run_file_and_says_so(
    one: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    logger = remembering(one)
    logger.__class__.save_dir = "s3://bucket/logs"
    followed = callback(FakeClock())
    trainer(one, tmp_path, followed, logger=logger).fit(module(one), rows(2))
    assert followed.meter is not None and followed.meter.log_dir is None
    assert any("s3://bucket/logs, which is no local folder" in text for text in caplog.messages)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("own", [False, True])
def test_the_progress_bar_shows_the_mfu_unless_it_shows_one_of_the_trainings(
    one: Any, tmp_path: Path, own: bool
) -> None:
    shown: list[Any] = []
    clock = FakeClock()

    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        clock.advance(BATCH_S)
        if own:
            self.log("mfu", 7.0, prog_bar=True)
        shown.append(self.trainer.progress_bar_metrics.get("mfu"))
        assert followed.meter is not None
        followed.meter._recorder.written()  # figures are made on another thread
        return self.net(batch).sum()

    followed = callback(clock)
    fit = trainer(one, tmp_path, followed)
    fit.fit(module(one, training_step=training_step), rows(7))
    assert shown[-1] == (7.0 if own else 0.5)


def test_sinks_of_ones_own_get_the_records_with_steps_completed_as_x(
    one: Any, tmp_path: Path
) -> None:
    from mfu_torch.figures import Figures

    sink, clock = ListSink(), FakeClock()
    followed = callback(clock, sinks=[sink])
    trainer(one, tmp_path, followed).fit(module(one, clock), rows(7))
    assert [now.step for now in sink.of(Figures)] == [2, 4, 6, 7]


def test_what_the_device_did_is_logged_too(one: Any, tmp_path: Path) -> None:
    from mfu_torch.integrations.lightning.loggers import TrainerLoggers

    logger = remembering(one)
    fit = trainer(one, tmp_path, logger=logger)
    seen = Telemetry(after_step=4, samples=2, time_s=2.0, gpu_util=0.75, sm_clock_hz=1.5e9)
    TrainerLoggers(fit).write(seen, 3)
    assert logger.metrics == [(3, {"device/gpu_util": 0.75, "device/sm_clock_mhz": 1500.0})]


# --- what it costs -------------------------------------------------------------------------------


class Waits(Counter[str]):
    """How often something that would wait for a device is called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        for owner, name in (
            (torch.cuda, "synchronize"),
            (torch.cuda.Event, "synchronize"),
            (torch.Tensor, "item"),
            (torch.Tensor, "cpu"),
            (torch.Tensor, "tolist"),
            (torch.Tensor, "numpy"),
            (torch.Tensor, "__bool__"),
            (torch.Tensor, "__float__"),
            (torch.Tensor, "__int__"),
        ):
            monkeypatch.setattr(owner, name, self._counting(name, getattr(owner, name)))

    def _counting(self, name: str, original: Any) -> Any:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self[name] += 1
            return original(*args, **kwargs)

        return counted


def test_no_hook_waits_for_the_device(
    pl: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()

    def waits(*callbacks: Any) -> Waits:
        def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            clock.advance(BATCH_S)
            loss = self.net(batch).sum()
            self.log("loss", loss, prog_bar=True)
            return loss

        with monkeypatch.context() as patched:
            counted = Waits(patched)
            fit = trainer(pl, tmp_path, *callbacks, logger=remembering(pl), log_every_n_steps=2)
            fit.fit(module(pl, training_step=training_step), rows(12))
        assert fit.logger.of("loss")
        assert bool(fit.logger.of("mfu/mfu")) == bool(callbacks)
        return counted

    without = waits()
    assert without["item"]  # Lightning's own: the counting works
    assert waits(callback(clock)) == without


def test_training_is_the_same_to_the_bit(one: Any, tmp_path: Path) -> None:
    def weights(*callbacks: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = module(one)
        fit = trainer(one, tmp_path, *callbacks, accumulate_grad_batches=2)
        fit.fit(model, rows(9))
        return torch.cat([model.net.weight.detach().flatten(), torch.rand(3)])

    assert torch.equal(weights(), weights(callback(FakeClock())))


def test_device_and_convention_are_said_first_and_one_line_at_the_end(
    one: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "mfu_torch")
    logged(one, tmp_path, False)
    first, line = [said for said in capsys.readouterr().out.splitlines() if "mfu_torch" in said]
    assert first.endswith(", attention full")
    assert line.startswith("mfu_torch: MFU 50.0 % steady-state, 50.0 % end-to-end")
    assert not [record for record in caplog.records if record.name.startswith("mfu_torch")]
