"""What belongs to no step of a Lightning fit, and how a fit ends, fails, and goes on later."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from lightning_models import (
    BATCH_FLOPS,
    BATCH_S,
    PACKAGES,
    callback,
    fitted,
    flops_of_steps,
    module,
    package,
    pauses,
    rows,
    trainer,
)

from mfu_torch import read_run
from mfu_torch.figures import run_figures


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return package(request.param)


@pytest.fixture
def one() -> Any:
    """Where the two packages cannot differ."""
    return package(PACKAGES[0])


def validated(pl: Any, seconds: float = 0.75) -> Callable[[FakeClock], Any]:
    """A model whose validation step takes that long, and multiplies as training does."""

    def make(clock: FakeClock) -> Any:
        def validation_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
            self.net(batch)
            clock.advance(seconds)

        def val_dataloader(self: Any) -> Any:
            return rows(2)

        return module(pl, clock, validation_step=validation_step, val_dataloader=val_dataloader)

    return make


def saved_slowly(pl: Any, seconds: float) -> Callable[[FakeClock], Any]:
    def make(clock: FakeClock) -> Any:
        def on_save_checkpoint(self: Any, checkpoint: Any) -> None:
            clock.advance(seconds)

        return module(pl, clock, on_save_checkpoint=on_save_checkpoint)

    return make


# --- validation and checkpoints ------------------------------------------------------------------


@pytest.mark.parametrize("accumulated", [1, 2])
def test_ten_steps_with_validation_between_have_the_mfu_of_ten_without(
    pl: Any, tmp_path: Path, accumulated: int
) -> None:
    options: dict[str, Any] = {"accumulate_grad_batches": accumulated}
    batches = 10 * accumulated
    plain = fitted(pl, tmp_path / "plain", rows(batches), **options)
    between = fitted(
        pl,
        tmp_path / "between",
        rows(batches),
        model=validated(pl),
        val_check_interval=5,  # in the middle of an accumulation, too
        num_sanity_val_steps=1,
        **options,
    )
    assert flops_of_steps(plain) == flops_of_steps(between) == [accumulated * BATCH_FLOPS] * 10
    assert run_figures(plain).mfu == run_figures(between).mfu == 0.5
    evaluations = batches // 5
    assert pauses(between, "eval") == evaluations * 2 * 0.75
    assert pauses(between, "sanity check") == 0.75
    steps_s = batches * BATCH_S
    assert run_figures(between).end_to_end == 0.5 * steps_s / (steps_s + 1.5 * evaluations + 0.75)


def test_saving_a_checkpoint_is_a_pause(pl: Any, tmp_path: Path) -> None:
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "saved", every_n_train_steps=2, save_top_k=-1)
    clock = FakeClock()
    followed = callback(clock)
    fit = trainer(pl, tmp_path, saver, followed, enable_checkpointing=True)
    fit.fit(saved_slowly(pl, 1.0)(clock), rows(6))
    run = read_run(tmp_path)
    assert pauses(run, "checkpoint") == 3.0
    assert run_figures(run).mfu == 0.5


def test_saving_inside_of_validation_is_saving(one: Any, tmp_path: Path) -> None:
    saver = one.callbacks.ModelCheckpoint(tmp_path / "saved", save_on_train_epoch_end=False)
    clock = FakeClock()
    model = validated(one)(clock)
    model.on_save_checkpoint = lambda checkpoint: clock.advance(4.0)
    fit = trainer(one, tmp_path, saver, callback(clock), enable_checkpointing=True)
    fit.fit(model, rows(4))
    run = read_run(tmp_path)
    assert pauses(run, "checkpoint") == 4.0
    assert pauses(run, "eval") == 1.5
    assert run_figures(run).mfu == 0.5


def test_what_was_wrapped_for_a_fit_is_as_before_after_it(one: Any, tmp_path: Path) -> None:
    fit = trainer(one, tmp_path, callback(FakeClock()))
    owners = (fit, fit.strategy, fit.fit_loop.epoch_loop.val_loop)
    before = [set(vars(owner)) for owner in owners]
    loader = rows(2)
    fit.fit(module(one), loader)
    gained = [set(vars(owner)) - names for owner, names in zip(owners, before, strict=True)]
    wrapped = {"save_checkpoint", "training_step", "process_dataloader", "run"}
    assert not any(names & wrapped for names in gained)
    assert "_get_iterator" not in vars(loader)


@pytest.mark.parametrize("what", ["validate", "test", "predict"])
def test_a_trainer_that_does_not_fit_is_left_alone(
    pl: Any, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    def a_step(self: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.net(batch).sum()

    followed = callback()
    model = module(pl, validation_step=a_step, test_step=a_step, predict_step=a_step)
    getattr(trainer(pl, tmp_path, followed), what)(model, rows(2))
    assert followed.meter is None
    assert not list(tmp_path.iterdir())
    assert not [record for record in caplog.records if record.name.startswith("mfu_torch")]


# --- the wait for data ---------------------------------------------------------------------------


class Slow(torch.utils.data.Dataset[torch.Tensor]):
    """A row takes 1/32 s to load, a batch of 8 thus 0.25 s."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        self.clock.advance(1 / 32)
        return torch.ones(16)


def test_the_wait_for_data_is_measured_from_the_first_epoch_on(pl: Any, tmp_path: Path) -> None:
    clock = FakeClock()
    loader = torch.utils.data.DataLoader(Slow(clock), batch_size=8)
    fit = trainer(pl, tmp_path, callback(clock), max_epochs=2)
    fit.fit(module(pl, clock), loader)
    steps = list(read_run(tmp_path).steps)
    assert [step.data_wait_s for step in steps] == [0.25] * 9 + [0.0]
    assert [step.duration_s for step in steps] == [0.75] * 9 + [0.5]


def test_so_is_the_wait_for_a_loader_that_was_asked_for_before_the_fit(
    pl: Any, tmp_path: Path
) -> None:
    def configure_optimizers(self: Any) -> Any:
        assert self.trainer.estimated_stepping_batches == 10  # as for a schedule
        return torch.optim.SGD(self.parameters(), lr=1e-3)

    clock = FakeClock()
    loader = torch.utils.data.DataLoader(Slow(clock), batch_size=8)
    fit = trainer(pl, tmp_path, callback(clock), max_epochs=2)
    fit.fit(module(pl, clock, configure_optimizers=configure_optimizers), loader)
    steps = list(read_run(tmp_path).steps)
    assert [step.data_wait_s for step in steps] == [0.25] * 9 + [0.0]
    assert flops_of_steps(read_run(tmp_path)) == [BATCH_FLOPS] * 10


def test_the_waits_for_several_loaders_are_added(one: Any, tmp_path: Path) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        clock.advance(BATCH_S)
        return self.net(batch["a"]).sum() + self.net(batch["b"]).sum()

    clock = FakeClock()
    loaders = {name: torch.utils.data.DataLoader(Slow(clock), batch_size=8) for name in "ab"}
    trainer(one, tmp_path, callback(clock)).fit(module(one, training_step=training_step), loaders)
    run = read_run(tmp_path)
    assert [step.data_wait_s for step in run.steps] == [0.5] * 4 + [0.0]
    assert flops_of_steps(run) == [2 * BATCH_FLOPS] * 5


# --- how a fit ends ------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ValueError("bad batch"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["training_step", "validation_step", "on_save_checkpoint"])
def test_an_exception_ends_the_run_with_its_name_and_goes_on(
    pl: Any, tmp_path: Path, error: BaseException, where: str
) -> None:
    clock = FakeClock()
    model = validated(pl)(clock)
    original = getattr(model, where)

    def failing(*args: Any) -> Any:
        if model.global_step >= 3:
            raise error
        return original(*args)

    setattr(model, where, failing)
    saver = pl.callbacks.ModelCheckpoint(tmp_path / "saved", every_n_train_steps=1)
    fit = trainer(
        pl, tmp_path, callback(clock), saver, enable_checkpointing=True, val_check_interval=1
    )
    if isinstance(error, KeyboardInterrupt):
        with contextlib.suppress(SystemExit):  # newer versions leave the program on Ctrl-C
            fit.fit(model, rows(6))
        assert fit.interrupted
    else:
        with pytest.raises(ValueError) as caught:
            fit.fit(model, rows(6))
        assert caught.value is error
    run = read_run(tmp_path)
    assert run.end is not None and run.end.reason == type(error).__name__
    assert flops_of_steps(run) == [BATCH_FLOPS] * 3
    assert "save_checkpoint" not in vars(fit)


def test_fitting_twice_makes_two_runs(pl: Any, tmp_path: Path) -> None:
    clock = FakeClock()
    followed = callback(clock)
    fit = trainer(pl, tmp_path, followed)
    model = module(pl, clock)
    fit.fit(model, rows(3))
    fit.fit_loop.max_epochs = 2
    fit.fit(model, rows(3))
    for name in ("run.jsonl", "run-2.jsonl"):
        run = read_run(tmp_path / name)
        assert flops_of_steps(run) == [BATCH_FLOPS] * 3
        assert run.end is not None and run.end.reason == "completed"
    assert "run-2" in str(sorted(tmp_path.iterdir())) and followed.meter is not None
    assert "3 steps" in followed.summary()


# --- going on later ------------------------------------------------------------------------------


def test_steps_are_numbered_on_after_a_checkpoint_is_loaded(pl: Any, tmp_path: Path) -> None:
    first = trainer(pl, tmp_path / "first", callback(FakeClock()))
    first.fit(module(pl), rows(4))
    first.save_checkpoint(tmp_path / "saved.ckpt")
    second = trainer(pl, tmp_path / "second", callback(FakeClock()), max_epochs=2)
    second.fit(module(pl), rows(4), ckpt_path=tmp_path / "saved.ckpt")
    run = read_run(tmp_path / "second")
    assert [step.index for step in run.steps] == [4, 5, 6, 7]
    assert run.header.earlier is not None
    assert run.header.earlier.steps == 4
    assert run.header.earlier.ideal_s["full"] == 4 * 0.25


def test_a_checkpoint_loaded_by_either_package_holds_the_state(tmp_path: Path) -> None:
    one, other = map(package, PACKAGES)
    first = trainer(one, tmp_path / "first", callback(FakeClock()))
    first.fit(module(one), rows(4))
    first.save_checkpoint(tmp_path / "saved.ckpt")
    state = torch.load(tmp_path / "saved.ckpt", weights_only=True)["callbacks"]["MFUCallback"]
    assert state["steps"] == 4
    second = trainer(other, tmp_path / "second", callback(FakeClock()), max_epochs=2)
    second.fit(module(other), rows(4), ckpt_path=tmp_path / "saved.ckpt")
    assert [step.index for step in read_run(tmp_path / "second").steps] == [4, 5, 6, 7]


def test_a_checkpoint_that_was_tested_is_not_gone_on_from(one: Any, tmp_path: Path) -> None:
    followed = callback(FakeClock())
    fit = trainer(one, tmp_path / "first", followed)
    model = module(one, test_step=lambda self, batch, batch_idx: None)
    fit.fit(model, rows(4))
    fit.save_checkpoint(tmp_path / "saved.ckpt")
    other = trainer(one, tmp_path / "second", followed)
    other.test(model, rows(2), ckpt_path=tmp_path / "saved.ckpt")
    other.fit(model, rows(2))
    assert [step.index for step in read_run(tmp_path / "second").steps] == [0, 1]


def test_a_state_that_cannot_be_read_leaves_what_came_before_unknown_and_says_so(
    one: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = trainer(one, tmp_path / "first", callback(FakeClock()))
    first.fit(module(one), rows(4))
    first.save_checkpoint(tmp_path / "saved.ckpt")
    saved = torch.load(tmp_path / "saved.ckpt", weights_only=False)
    saved["callbacks"]["MFUCallback"]["version"] = 99
    torch.save(saved, tmp_path / "saved.ckpt")
    second = trainer(one, tmp_path / "second", callback(FakeClock()), max_epochs=2)
    second.fit(module(one), rows(4), ckpt_path=tmp_path / "saved.ckpt")
    run = read_run(tmp_path / "second")
    assert [step.index for step in run.steps] == [4, 5, 6, 7]
    assert run.header.earlier is not None and run.header.earlier.unknown
    assert any("cannot be gone on from: resume has version 99" in text for text in caplog.messages)


def test_of_a_checkpoint_without_our_state_it_is_unknown_what_came_before(
    one: Any, tmp_path: Path
) -> None:
    plain = trainer(one, tmp_path / "first")
    plain.fit(module(one), rows(4))
    plain.save_checkpoint(tmp_path / "saved.ckpt")
    clock = FakeClock()
    fit = trainer(one, tmp_path / "second", callback(clock), max_epochs=2)
    fit.fit(module(one, clock), rows(4), ckpt_path=tmp_path / "saved.ckpt")
    run = read_run(tmp_path / "second")
    assert [step.index for step in run.steps] == [4, 5, 6, 7]
    now = run_figures(run)
    assert now.mfu == 0.5 and now.end_to_end is None
    assert now.absent["end_to_end"] == (
        "of an earlier attempt: the checkpoint after 4 steps has no state of MFUCallback"
    )
