"""The Lightning callback with precision plugins, and with modules that are compiled or in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from lightning_models import (
    BATCH_FLOPS,
    PACKAGES,
    callback,
    fitted,
    flops_of_steps,
    module,
    package,
    rows,
    trainer,
)
from torch import nn


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return package(request.param)


@pytest.mark.parametrize(
    ("precision", "dtype"), [("bf16-mixed", "bf16"), ("bf16-true", "bf16"), ("64-true", "fp64")]
)
def test_the_flops_of_a_precision_plugin_have_the_dtype_that_they_run_in(
    pl: Any, tmp_path: Path, precision: str, dtype: str
) -> None:
    run = fitted(pl, tmp_path, rows(3), precision=precision)
    assert flops_of_steps(run) == [BATCH_FLOPS] * 3
    count = run.count_of(next(iter(run.steps)))
    assert not isinstance(count, str) and count.by_dtype == {dtype: BATCH_FLOPS}


class Tanh(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(16, 32, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x))


@pytest.mark.parametrize("how", ["child", "child in place", "module", "training_step"])
def test_compiled_parts_are_counted_as_if_they_were_not(pl: Any, tmp_path: Path, how: str) -> None:
    def make(clock: FakeClock) -> Any:
        made = module(pl, clock)
        made.net = Tanh()
        if how == "child":
            made.net = torch.compile(made.net, backend="aot_eager")
        elif how == "child in place":
            made.net.compile(backend="aot_eager")
        elif how == "module":
            made.compile(backend="aot_eager")
        return made if how != "training_step" else torch.compile(uncounted(pl), backend="aot_eager")

    def uncounted(pl: Any) -> Any:  # a clock cannot be compiled
        made = module(pl)
        made.net = Tanh()
        return made

    torch._dynamo.reset()
    run = fitted(pl, tmp_path, rows(6), model=make)
    assert flops_of_steps(run) == [BATCH_FLOPS] * 6
    assert sum("compiling" in step.excluded for step in run.steps) <= 1
    eager = [e.count.method for e in run.counts.values() if e.count and "eagerly" in e.count.method]
    assert bool(eager) == (how in ("module", "training_step"))


def test_a_compiled_part_is_counted_beside_one_that_is_not(pl: Any, tmp_path: Path) -> None:
    def make(clock: FakeClock) -> Any:
        def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            clock.advance(0.5)
            return self.head(self.net(batch)).sum()

        made = module(pl, training_step=training_step)
        made.net = torch.compile(Tanh(), backend="aot_eager")
        made.head = nn.Linear(32, 8, bias=False)
        return made

    torch._dynamo.reset()
    run = fitted(pl, tmp_path, rows(6), accumulate_grad_batches=2, model=make)
    head = 3 * 2 * 8 * 32 * 8  # its input has a gradient, too
    assert flops_of_steps(run) == [2 * (BATCH_FLOPS + head)] * 3


def test_compiled_graphs_are_as_many_as_without(pl: Any, tmp_path: Path) -> None:
    def graphs(*callbacks: Any) -> int:
        torch._dynamo.reset()
        before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
        made = module(pl)
        made.net = torch.compile(Tanh(), backend="aot_eager")
        trainer(pl, tmp_path, *callbacks).fit(made, rows(6))
        return int(torch._dynamo.utils.counters["stats"]["unique_graphs"] - before)

    assert graphs() == graphs(callback(FakeClock())) == 1
