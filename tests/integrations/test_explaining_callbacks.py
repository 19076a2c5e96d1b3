"""explain_every through the callbacks: the steps of a trainer are recorded like any others."""

from __future__ import annotations

import copy
import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import lightning_models
import pytest
from event_files import read
from explained_loop import InstantAnalysis, instant, profiler_is_off
from fake_clock import FakeClock
from hf_models import Stops, trainer_of
from lightning_models import PACKAGES, package

from mfu_torch import read_run
from mfu_torch.integrations.huggingface import MFUCallback as HuggingFaceCallback
from mfu_torch.integrations.lightning import MFUCallback as LightningCallback
from mfu_torch.integrations.loop import FollowedLoop

__all__ = ["instant"]


def test_steps_of_a_hugging_face_trainer_are_recorded(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    options = {"log_dir": tmp_path / "run", "explain_every": 10}
    trainer, ours, _ = trainer_of(tmp_path, options=options, max_steps=30)
    with redirect_stdout(io.StringIO()) as printed:
        trainer.train()
    run = read_run(tmp_path / "run")
    assert run.breakdowns and len(run.breakdowns[0].steps) == 3
    excluded = {step.index: step.excluded for step in run.steps}
    assert {excluded[index] for index in run.breakdowns[0].steps} == {"being profiled"}
    assert "45.0 % idle: data wait" in printed.getvalue()
    events = read(tmp_path / "run")
    assert events.Scalars("breakdown/idle/data_wait")[0].step == run.breakdowns[0].after_step
    assert ours.meter is not None and profiler_is_off()


def test_ctrl_c_in_a_trainer_leaves_no_profiler_behind(
    tmp_path: Path, instant: type[InstantAnalysis]
) -> None:
    options = {"log_dir": tmp_path / "run", "explain_every": 10}
    stops = Stops(13, KeyboardInterrupt())
    trainer, _, _ = trainer_of(tmp_path, options=options, max_steps=30)
    trainer.add_callback(stops)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert profiler_is_off()
    run = read_run(tmp_path / "run")
    assert run.end is not None and run.end.reason == "KeyboardInterrupt"
    assert "being profiled" in {step.excluded for step in run.steps}


@pytest.mark.parametrize("name", PACKAGES)
def test_steps_of_a_lightning_trainer_are_recorded_on_its_x_axis(
    tmp_path: Path, instant: type[InstantAnalysis], name: str
) -> None:
    pl = package(name)
    clock = FakeClock()
    ours = lightning_models.callback(clock, log_dir=str(tmp_path / "run"), explain_every=10)
    logger = package(name).loggers.TensorBoardLogger(tmp_path, name="tb", version=0)
    lightning_models.trainer(
        pl, tmp_path, ours, logger=logger, accumulate_grad_batches=2, log_every_n_steps=2
    ).fit(lightning_models.module(pl, clock), lightning_models.rows(60))
    run = read_run(tmp_path / "run")
    assert run.breakdowns
    # Windows of two steps; the Trainer's logs of n completed steps stand at n - 1.
    after_step = run.breakdowns[0].after_step
    (first, *_) = read(tmp_path / "tb" / "version_0").Scalars("breakdown/matrix")
    assert first.step == after_step + after_step % 2 - 1
    assert profiler_is_off()


@pytest.mark.parametrize("kind", [LightningCallback, HuggingFaceCallback, FollowedLoop])
def test_what_is_no_number_of_steps_is_refused_at_once(kind: Any) -> None:
    with pytest.raises(ValueError, match="explain_every is 3; expected a number of steps"):
        kind(explain_every=3)


def test_copies_of_the_callbacks_keep_it() -> None:
    theirs = copy.deepcopy(HuggingFaceCallback(explain_every=20))
    assert theirs._options["explain_every"] == 20
    other = copy.deepcopy(LightningCallback(explain_every=20))
    assert other._options["explain_every"] == 20
