"""What a step is to the Lightning callback, and its FLOPs: all worked out by hand.

One batch is 16384 FLOPs, 0.25 s at peak, and takes 0.5 s: see ``lightning_models``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
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
from torch.utils.data import DataLoader, IterableDataset

from mfu_torch import read_run
from mfu_torch.figures import run_figures

CHECKED = 3  # of the first 11 steps: counted to be known, and to be checked


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return package(request.param)


@pytest.fixture
def one() -> Any:
    """Where the two packages cannot differ."""
    return package(PACKAGES[0])


# --- gradient accumulation -----------------------------------------------------------------------


@pytest.mark.parametrize("accumulated", [1, 2, 4])
def test_gradient_accumulation_does_not_change_the_mfu(
    pl: Any, tmp_path: Path, accumulated: int
) -> None:
    run = fitted(pl, tmp_path, rows(10 * accumulated), accumulate_grad_batches=accumulated)
    assert flops_of_steps(run) == [accumulated * BATCH_FLOPS] * 10
    assert [step.duration_s for step in run.steps] == [accumulated * BATCH_S] * 10
    assert {step.micro_batches for step in run.steps} == {accumulated}
    assert {step.samples for step in run.steps} == {8 * accumulated}
    now = run_figures(run)
    assert now.mfu == now.end_to_end == 0.5  # 0.25 s / 0.5 s
    assert now.samples_per_s == 16.0


def test_the_last_short_accumulation_of_an_epoch_is_a_step_of_its_own(
    one: Any, tmp_path: Path
) -> None:
    run = fitted(one, tmp_path, rows(10), accumulate_grad_batches=4, max_epochs=2)
    assert [step.micro_batches for step in run.steps] == [4, 4, 2] * 2
    assert flops_of_steps(run) == [4 * BATCH_FLOPS, 4 * BATCH_FLOPS, 2 * BATCH_FLOPS] * 2


def test_training_that_ends_within_an_accumulation_has_no_step_for_it(
    one: Any, tmp_path: Path
) -> None:
    def stop(self: Any, *_: Any) -> None:
        self.trainer.should_stop = self.trainer.fit_loop.epoch_loop.batch_idx == 4

    run = fitted(
        one,
        tmp_path,
        rows(9),
        accumulate_grad_batches=2,
        min_epochs=0,
        model=lambda clock: module(one, clock, on_train_batch_end=stop),
    )
    assert flops_of_steps(run) == [2 * BATCH_FLOPS] * 2
    assert run.end is not None and run.end.reason == "completed"


def test_max_steps_counts_updates_as_steps_do(one: Any, tmp_path: Path) -> None:
    run = fitted(one, tmp_path, rows(12), accumulate_grad_batches=4, max_steps=2, max_epochs=-1)
    assert flops_of_steps(run) == [4 * BATCH_FLOPS] * 2


# --- what a batch can be, and how many there are -------------------------------------------------


def test_each_call_of_the_closure_by_lbfgs_is_a_micro_batch(one: Any, tmp_path: Path) -> None:
    def make(clock: FakeClock) -> Any:
        def configure_optimizers(self: Any) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(self.parameters(), lr=1e-4, max_iter=3)

        return module(one, clock, configure_optimizers=configure_optimizers)

    run = fitted(one, tmp_path, rows(4), model=make)
    assert {step.samples for step in run.steps} == {8}  # the same ones again
    assert flops_of_steps(run) == [step.micro_batches * BATCH_FLOPS for step in run.steps]


def shapes_of_step(batch: Any) -> torch.Tensor:
    if isinstance(batch, dict):
        return batch["x"]
    return batch.x if hasattr(batch, "x") else batch[0] if isinstance(batch, list) else batch


@pytest.mark.parametrize(
    "collate",
    [
        lambda rows: {"x": torch.stack(rows), "y": torch.zeros(len(rows)), "name": ["a"]},
        lambda rows: [torch.stack(rows), torch.zeros(len(rows))],
        lambda rows: SimpleNamespace(x=torch.stack(rows)),
    ],
    ids=["dict", "list", "an object"],
)
def test_batches_of_any_kind_are_counted_by_their_shapes(
    one: Any, tmp_path: Path, collate: Any
) -> None:
    def make(clock: FakeClock) -> Any:
        def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
            clock.advance(BATCH_S)
            return self.net(shapes_of_step(batch)).sum()

        return module(one, None, training_step=training_step)

    loader = DataLoader(torch.ones(20, 16), batch_size=8, collate_fn=collate)  # 8, 8 and 4 rows
    run = fitted(one, tmp_path, loader, model=make)
    assert flops_of_steps(run) == [BATCH_FLOPS, BATCH_FLOPS, BATCH_FLOPS // 2]
    assert [step.samples for step in run.steps] == [8, 8, 4]


def test_batches_of_ever_new_sizes_are_known_without_counting_each(
    one: Any, tmp_path: Path
) -> None:
    sizes = [(2 + n % 3, 5 + 7 * n % 31) for n in range(40)]
    run = fitted(
        one, tmp_path, DataLoader([torch.ones(*size, 16) for size in sizes], batch_size=None)
    )
    assert flops_of_steps(run) == [2 * 2 * b * s * 16 * 32 for b, s in sizes]
    assert sum("counted" in step.excluded for step in run.steps) < 20


def test_lengths_that_differ_tell_no_samples_and_a_function_does(one: Any, tmp_path: Path) -> None:
    def collate(rows: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.stack(rows), torch.zeros(3)]

    clock = FakeClock()
    followed = callback(clock, tokens=lambda batch: batch[0].numel())

    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch[0]).sum()

    loader = DataLoader(torch.ones(16, 16), batch_size=8, collate_fn=collate)
    trainer(one, tmp_path, followed).fit(module(one, training_step=training_step), loader)
    for step in read_run(tmp_path).steps:
        assert step.samples is None and step.tokens == 8 * 16


def test_images_in_a_list_are_not_as_many_as_their_channels(one: Any, tmp_path: Path) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(torch.cat(batch)).sum()

    loader = DataLoader(torch.ones(20, 3, 16), batch_size=8, collate_fn=list)
    run = fitted(
        one, tmp_path, loader, model=lambda clock: module(one, training_step=training_step)
    )
    assert [step.samples for step in run.steps] == [None, None, None]


def test_input_ids_tell_the_tokens(one: Any, tmp_path: Path) -> None:
    def training_step(self: Any, batch: Any, batch_idx: int) -> torch.Tensor:
        return self.net(batch["x"]).sum()

    def collate(rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"x": torch.stack(rows), "input_ids": torch.ones(len(rows), 5, dtype=torch.long)}

    loader = DataLoader(torch.ones(16, 16), batch_size=8, collate_fn=collate)
    run = fitted(
        one,
        tmp_path,
        loader,
        accumulate_grad_batches=2,
        model=lambda clock: module(one, training_step=training_step),
    )
    assert [(step.tokens, step.samples) for step in run.steps] == [(80, 16)]


def test_a_function_for_tokens_that_fails_costs_the_tokens_and_one_warning(
    one: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    followed = callback(FakeClock(), tokens=lambda batch: batch.no_such_key)
    trainer(one, tmp_path, followed).fit(module(one), rows(3))
    assert [step.tokens for step in read_run(tmp_path).steps] == [None] * 3
    (said,) = [text for text in caplog.messages if "tokens" in text]
    assert said.startswith("tokens= failed on a batch of type Tensor (")


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.ones(5 * 8, 16)


def test_an_iterable_dataset_without_a_length_is_followed(pl: Any, tmp_path: Path) -> None:
    run = fitted(pl, tmp_path, DataLoader(Stream(), batch_size=8), accumulate_grad_batches=2)
    assert [step.micro_batches for step in run.steps] == [2, 2, 1]


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"overfit_batches": 3}, 3),
        ({"limit_train_batches": 0.5}, 4),
        ({"limit_train_batches": 5}, 5),
    ],
)
def test_limits_on_the_batches_limit_the_steps(
    one: Any, tmp_path: Path, options: dict[str, Any], steps: int
) -> None:
    run = fitted(one, tmp_path, rows(8), **options)
    assert flops_of_steps(run) == [BATCH_FLOPS] * steps


def test_no_batches_make_no_run(one: Any, tmp_path: Path) -> None:
    followed = callback()
    trainer(one, tmp_path, followed, limit_train_batches=0).fit(module(one), rows(2))
    assert followed.meter is None and not list(tmp_path.iterdir())


def test_a_fast_development_run_leaves_no_file(one: Any, tmp_path: Path) -> None:
    followed = callback(FakeClock())
    trainer(one, tmp_path, followed, fast_dev_run=True).fit(module(one), rows(2))
    assert followed.meter is not None and len(list(followed.meter.run.steps)) == 1
    assert not list(tmp_path.rglob("run*.jsonl"))


def test_an_epoch_that_the_module_skips_has_no_steps_and_counts_none(
    one: Any, tmp_path: Path
) -> None:
    def on_train_batch_start(self: Any, batch: Any, batch_idx: int) -> int | None:
        return -1 if self.current_epoch == 1 or batch_idx == 3 else None

    run = fitted(
        one,
        tmp_path,
        rows(5),
        max_epochs=3,
        model=lambda clock: module(one, clock, on_train_batch_start=on_train_batch_start),
    )
    assert flops_of_steps(run) == [BATCH_FLOPS] * 6  # three, none, three
    assert {step.micro_batches for step in run.steps} == {1}


def test_a_step_whose_module_skips_the_backward_is_left_out(one: Any, tmp_path: Path) -> None:
    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor | None:
        loss = self.net(batch).sum()
        return None if batch_idx == 3 else loss

    run = fitted(
        one,
        tmp_path,
        rows(10),
        accumulate_grad_batches=2,
        model=lambda clock: module(one, training_step=training_step),
    )
    assert [step.index for step in run.steps] == [0, 2, 3, 4]
    assert flops_of_steps(run) == [2 * BATCH_FLOPS] * 4
    assert [pause.after_step for pause in run.pauses if pause.name == "interrupted step"] == [1]


def test_the_epoch_for_the_statistics_of_an_averaged_model_is_left_out(
    one: Any, tmp_path: Path
) -> None:
    def make(clock: FakeClock) -> Any:
        made = module(one, clock)
        made.norm = torch.nn.BatchNorm1d(16)  # without it there is no such epoch
        return made

    averaging = one.callbacks.StochasticWeightAveraging(swa_lrs=1e-3, swa_epoch_start=1)
    clock = FakeClock()
    fit = trainer(one, tmp_path, callback(clock), averaging, max_epochs=3)
    fit.fit(make(clock), rows(4))
    run = read_run(tmp_path)
    assert flops_of_steps(run) == [BATCH_FLOPS] * 12
    assert pauses(run, "interrupted step") == 4 * BATCH_S


def test_a_step_that_takes_its_batches_itself_is_counted(pl: Any, tmp_path: Path) -> None:
    def training_step(self: Any, dataloader_iter: Any) -> torch.Tensor:
        batch, _, _ = next(dataloader_iter)
        return self.net(batch).sum()

    loader = DataLoader(torch.ones(20, 16), batch_size=8)  # 8, 8 and 4 rows
    run = fitted(pl, tmp_path, loader, model=lambda clock: module(pl, training_step=training_step))
    assert flops_of_steps(run) == [BATCH_FLOPS, BATCH_FLOPS, BATCH_FLOPS // 2]
    assert [step.samples for step in run.steps] == [8, 8, 4]


@pytest.mark.parametrize("what", ["lr_find", "scale_batch_size"])
def test_a_tuner_before_the_fit_makes_no_steps(one: Any, tmp_path: Path, what: str) -> None:
    def train_dataloader(self: Any) -> Any:
        return rows(6, self.batch_size)

    made = module(one, train_dataloader=train_dataloader)
    made.lr, made.batch_size = 1e-4, 2
    fit = trainer(one, tmp_path, callback(FakeClock()))
    tuner = one.tuner.Tuner(fit)
    if what == "lr_find":
        tuner.lr_find(made, num_training=4)
    else:
        tuner.scale_batch_size(made, max_trials=2, steps_per_trial=2)
    assert not list(tmp_path.rglob("run*.jsonl"))
    fit.fit(made)
    (path,) = tmp_path.rglob("run*.jsonl")
    assert len(list(read_run(path).steps)) == 6
