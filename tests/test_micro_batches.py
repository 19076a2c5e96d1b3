"""Loops whose micro-batches are announced, and steps whose tokens become known on the way.

Encoder and head are Linear(16, 32) and Linear(32, 4) without bias; inputs need no gradient:

    rows 8   forward 2*8*16*32 + 2*8*32*4 = 8192 + 2048;  backward: dW 8192, dW and dX 2*2048
             model = 8192*2 + 2048*3 = 22528
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from fake_clock import FakeClock
from fakes import ListSink
from torch import nn

from mfu_torch import Meter
from mfu_torch.records import CountEntry, Run

FLOPS_8 = 22528


class Parts(nn.Module):
    """A model whose parts are called one by one, never the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(16, 32, bias=False)
        self.head = nn.Linear(32, 4, bias=False)

    def train_on(self, rows: int) -> None:
        self.head(self.encoder(torch.ones(rows, 16))).sum().backward()


def meter_of(model: nn.Module | None, folder: Path) -> Meter:
    sink = ListSink()
    return Meter(
        model, log_dir=folder, log_every=1, peak=1e6, clock=FakeClock(), sinks=[sink],
        telemetry=False,
    )  # fmt: skip


def flops_of_steps(run: Run) -> list[int | str]:
    counts = [run.count_of(step) for step in run.steps]
    return [count if isinstance(count, str) else count.model for count in counts]


@pytest.mark.parametrize("given", [True, False])
def test_announced_micro_batches_have_counts_of_their_own(given: bool, tmp_path: Path) -> None:
    model = Parts()
    meter = meter_of(model if given else None, tmp_path)
    with meter:
        for lengths in ([8], [8, 16], [16, 8, 8], [24, 32], [40]):
            with meter.step():
                for rows in lengths:
                    meter.micro_batch((torch.ones(rows, 16), ["a text"]))
                    model.train_on(rows)
    # Every product is linear in the rows.
    expected = [FLOPS_8 * sum(rows) // 8 for rows in ([8], [24], [32], [56], [40])]
    assert flops_of_steps(meter.run) == expected
    assert [step.micro_batches for step in meter.run.steps] == [1, 2, 3, 2, 1]


def test_a_known_shape_is_not_counted_again(tmp_path: Path) -> None:
    model = Parts()
    meter = meter_of(model, tmp_path)
    with meter:
        for _ in range(6):
            with meter.step():
                meter.micro_batch({"x": torch.ones(8, 16), "ids": [0] * 100})
                model.train_on(8)
    assert [step.excluded for step in meter.run.steps] == ["FLOPs were being counted"] + [""] * 5


def test_values_that_differ_each_time_are_idle_after_16_with_the_same_count(
    tmp_path: Path,
) -> None:
    model = Parts()
    meter = meter_of(model, tmp_path)
    with meter:
        for index in range(24):
            with meter.step():
                meter.micro_batch(((torch.ones(8, 16), f"page {index}"), index))
                model.train_on(8)
    assert flops_of_steps(meter.run) == [FLOPS_8] * 24
    counted = [step.excluded == "FLOPs were being counted" for step in meter.run.steps]
    assert counted == [True] * 16 + [False] * 8


def test_calls_of_the_model_do_not_matter_where_batches_are_announced(tmp_path: Path) -> None:
    model = nn.Linear(16, 32, bias=False)
    meter = meter_of(model, tmp_path)
    with meter:
        for _ in range(3):
            with meter.step():
                meter.micro_batch(torch.ones(8, 16))
                for _ in range(2):  # two calls are one micro-batch
                    model(torch.ones(8, 16)).sum().backward()
    assert flops_of_steps(meter.run) == [2 * 2 * 8192] * 3
    assert [step.micro_batches for step in meter.run.steps] == [1, 1, 1]
    assert "_compiled_call_impl" not in model.__dict__


def test_a_batch_that_cannot_be_looked_at_stops_nothing(tmp_path: Path) -> None:
    class Odd:
        @property
        def shape(self) -> tuple[int, ...]:
            raise OSError("gone")

    model = Parts()
    meter = meter_of(model, tmp_path)
    with meter:
        for _ in range(2):
            with meter.step():
                meter.micro_batch(Odd())
                model.train_on(8)
    assert flops_of_steps(meter.run) == [FLOPS_8] * 2


def test_something_compiled_inside_is_counted_on_one_eager_step(tmp_path: Path) -> None:
    model = Parts()
    model.encoder.compile(backend="eager")
    meter = meter_of(model, tmp_path)
    with meter:
        for _ in range(4):
            with meter.step():
                meter.micro_batch(torch.ones(8, 16))
                model.train_on(8)
    assert flops_of_steps(meter.run) == [FLOPS_8] * 4
    counts = [e.count for e in meter.run.counts.values() if isinstance(e, CountEntry) and e.count]
    assert "which ran eagerly: compiled code runs in it" in counts[-1].method


def test_a_micro_batch_outside_of_a_step_is_refused(tmp_path: Path) -> None:
    meter = meter_of(Parts(), tmp_path)
    with pytest.raises(RuntimeError, match=r"micro_batch\(\) outside of a step"):
        meter.micro_batch(torch.ones(8, 16))


def test_tokens_and_samples_can_be_added_as_they_become_known(tmp_path: Path) -> None:
    model = Parts()
    meter = meter_of(model, tmp_path)
    with meter:
        with meter.step(samples=1) as step:
            for rows in (8, 16):
                step.add(tokens=rows, samples=2)
                model.train_on(rows)
        with meter.step() as step:
            model.train_on(8)
            step.add(tokens=torch.tensor(5))
    first, second = meter.run.steps
    assert (first.tokens, first.samples) == (24, 5)
    assert (second.tokens, second.samples) == (5, None)


def test_a_sum_with_a_part_that_is_not_understood_is_unknown(tmp_path: Path) -> None:
    model = Parts()
    meter = meter_of(model, tmp_path)
    with meter:
        for tokens in ((8, "many", 8), (8, 8)):
            with meter.step() as step:
                for amount in tokens:
                    step.add(tokens=amount)  # type: ignore[arg-type]
                model.train_on(8)
    assert [step.tokens for step in meter.run.steps] == [None, 16]


class Unreadable(torch.Tensor):
    """A tensor that will not say what is in it, as traced ones will not."""

    def __int__(self) -> int:
        raise OSError("not known")


NO_AMOUNTS = [
    3.5, 8.0, True, "many", float("nan"), 1j, [8], torch.tensor(2.7), torch.tensor(8.0),
    torch.tensor(float("nan")), torch.tensor(1j), torch.tensor(True), torch.tensor([1, 2]),
    torch.empty((), dtype=torch.int64, device="meta"), torch.tensor(8).as_subclass(Unreadable),
]  # fmt: skip


@pytest.mark.parametrize("amount", NO_AMOUNTS)
@pytest.mark.parametrize("name", ["tokens", "samples"])
def test_an_amount_that_is_no_whole_number_leaves_its_step_unknown(
    name: str, amount: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meter = meter_of(None, tmp_path)
    with meter:
        with meter.step(**{name: amount}) as step:  # type: ignore[arg-type]
            step.add(**{name: 5})
        with meter.step(**{name: 5}) as step:
            step.add(**{name: amount})  # type: ignore[arg-type]
        with meter.step(**{name: 5}) as step:
            step.add(**{name: torch.tensor([3])})  # type: ignore[arg-type]
    assert [getattr(step, name) for step in meter.run.steps] == [None, None, 8]
    said = [record.message for record in caplog.records]
    assert len(said) == 1 and said[0].startswith(f"{name}= got a {type(amount).__name__}")


@pytest.mark.parametrize("amount", [np.int32(8), torch.tensor(8, dtype=torch.uint8)])
def test_whole_numbers_of_other_kinds_are_amounts(amount: object, tmp_path: Path) -> None:
    meter = meter_of(None, tmp_path)
    with meter, meter.step(tokens=amount) as step:  # type: ignore[arg-type]
        step.add(tokens=amount)  # type: ignore[arg-type]
    assert [step.tokens for step in meter.run.steps] == [16]


def test_adding_outside_of_a_step_is_refused(tmp_path: Path) -> None:
    meter = meter_of(Parts(), tmp_path)
    with meter, pytest.raises(RuntimeError, match=r"add\(\) outside of a step"):
        meter.step().add(tokens=1)
