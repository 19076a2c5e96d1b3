"""Work that a count of one step does not see: it is found out later, or makes the step unknown."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from audit import Audit, linear
from torch import nn

from mfu_torch.flops.live import microbatches
from mfu_torch.flops.live.microbatches import OPTIMIZER_VARIES
from mfu_torch.flops.live.reasons import ELSEWHERE, REPLICAS


def test_an_optimizer_that_multiplies_on_some_steps_only_is_found_out(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    optimizer = torch.optim.Muon([model.weight], lr=0.01)
    for index in range(40):

        def work(index: int = index) -> None:
            model(torch.ones(8, 16)).sum().backward()
            if index % 2:
                optimizer.step()

        audit.step(work, linear(8))
    run = audit.assert_right()
    steps = list(run.steps)
    assert run.count_of(steps[1]).optimizer == 0  # counted on step 0, which had none
    last: Any = run.count_of(steps[-1])
    assert last.optimizer > 0 and OPTIMIZER_VARIES in last.notes


def test_work_of_the_first_step_only_is_found_out_on_the_third(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(None, tmp_path)
    for index in range(6):

        def work(index: int = index) -> None:
            if index == 0:
                model(torch.ones(8, 16))  # a dry run, for the shapes
            model(torch.ones(8, 16)).sum().backward()

        audit.step(work, linear(8) * 3 // 2 if index == 0 else linear(8))
    _, counts = audit.close()
    assert counts[0] == audit.truth[0]
    assert counts[2:] == audit.truth[2:]


def test_a_model_called_on_another_thread_makes_the_step_unknown(tmp_path: Path) -> None:
    model, other = nn.Linear(16, 16), nn.Linear(16, 16)
    audit = Audit(model, tmp_path)

    def work() -> None:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(model, torch.ones(8, 16)).result()
        other(torch.ones(8, 16)).sum().backward()

    for _ in range(4):
        audit.step(work, 0)
    run, counts = audit.close()
    assert counts == [None] * 4
    assert {run.count_of(step) for step in run.steps} == {ELSEWHERE}


def test_replicas_of_data_parallel_make_the_step_unknown(tmp_path: Path) -> None:
    model = nn.DataParallel(nn.Linear(16, 16))
    model.device_ids = [0, 1]  # as on two devices; here nothing is replicated
    audit = Audit(nn.Sequential(model), tmp_path)
    for _ in range(3):
        audit.step(lambda: model.module(torch.ones(8, 16)).sum().backward(), 0)
    run, _ = audit.close()
    assert {run.count_of(step) for step in run.steps} == {REPLICAS}


def test_more_kinds_of_inputs_than_are_told_apart_do_not_end_the_counting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microbatches, "NUMBERS_LIMIT", 3)
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    for rows in range(1, 12):
        batches = [torch.ones(rows, 16), torch.ones(rows + 1, 16)]
        audit.step(
            lambda two=batches: [model(x).sum().backward() for x in two], linear(2 * rows + 1)
        )
    run, counts = audit.close()
    assert len(list(run.steps)) == 11  # the meter did not stand down
    known = [(c, t) for c, t in zip(counts, audit.truth, strict=True) if c is not None]
    assert known and all(c == t for c, t in known)


def test_inputs_of_many_parts_are_remembered_up_to_a_limit_and_counted_beyond(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(microbatches, "LEAVES_LIMIT", 1000)
    monkeypatch.setattr(microbatches, "PASSING_LIMIT", 3)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: list[torch.Tensor]) -> torch.Tensor:
            return self.linear(x[0]).sum()

    model = Model()
    audit = Audit(model, tmp_path)
    for rows in range(1, 30):
        x = [torch.ones(rows, 16)] + [torch.ones(rows * (1 + n % 7)) for n in range(64)]
        audit.step(lambda x=x: model(x).backward(), linear(rows))
    micro = audit.meter._live._known.micro
    assert len(micro.numbers) < 8  # of 3 * 65 parts each
    assert len(micro._inputs) < 8 + 3
    audit.assert_right()


def test_a_value_that_numbers_the_steps_brings_no_new_count_with_each(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor, step: int) -> torch.Tensor:
            return self.linear(x)

    model = Model()
    audit = Audit(model, tmp_path)
    for step in range(200):
        rows = 4 + step % 5
        audit.step(
            lambda rows=rows, step=step: model(torch.ones(rows, 16), step).sum().backward(),
            linear(rows),
        )
    run = audit.assert_right()
    assert len(run.counts) < 40
    assert len(audit.meter._live._known.micro._inputs) < 60
