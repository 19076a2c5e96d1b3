"""A loop whose shapes change all the time: a few steps are counted, the others evaluated."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from audit import Audit, linear
from torch import nn

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.live.microbatches import REFUTED, VARIES
from mfu_torch.flops.shapes import NO_LAW
from mfu_torch.records import FlopCount, Run


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def lengths(seed: int, steps: int, longest: int = 400) -> Iterator[int]:
    draw = random.Random(seed)
    for _ in range(steps):
        yield draw.randint(2, longest)


def excluded(run: Run) -> int:
    return sum(step.excluded == "FLOPs were being counted" for step in run.steps)


def methods(run: Run) -> list[str]:
    return [entry.count.method.split()[0] for entry in run.counts.values() if entry.count]


def test_every_length_is_right_and_few_steps_are_counted(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    for rows in lengths(0, 120):
        x = torch.ones(rows, 16)
        audit.step(lambda x=x: model(x).sum().backward(), linear(rows))
    run = audit.assert_right()
    assert excluded(run) <= 25
    assert methods(run).count("evaluated") >= 70


def test_accumulated_batches_of_any_length_are_evaluated_one_by_one(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    audit = Audit(model, tmp_path)
    rows = lengths(1, 120)
    for two in zip(rows, rows, strict=True):

        def work(two: tuple[int, ...] = two) -> None:
            for length in two:
                model(torch.ones(length, 16)).sum().backward()
            optimizer.step()

        audit.step(work, sum(linear(length) for length in two))
    assert excluded(audit.assert_right()) <= 25


def test_the_shadow_of_a_compiled_model_is_evaluated_at_new_shapes(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    compiled = torch.compile(model, backend="eager", dynamic=True)
    audit = Audit(compiled, tmp_path)
    for rows in lengths(2, 60):
        x = torch.ones(rows, 16)
        audit.step(lambda x=x: compiled(x).sum().backward(), linear(rows))
    run = audit.assert_right()
    assert methods(run).count("evaluated") >= 25


def contrast(model: nn.Module, one: torch.Tensor, other: torch.Tensor) -> None:
    scores = model(one) @ model(other).T
    scores.sum().backward()


@pytest.mark.parametrize("early", [True, False])
def test_two_calls_before_one_backward_are_evaluated_together(early: bool, tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    rows = lengths(3, 240, longest=60)
    pairs = [(torch.ones(a, 16), torch.ones(b, 16)) for a, b in zip(rows, rows, strict=True)]
    truth = [linear(len(a)) + linear(len(b)) + 3 * 2 * len(a) * 16 * len(b) for a, b in pairs]
    if early:
        for (one, other), flops in zip(audit.meter.data(pairs), truth, strict=True):
            audit.step(lambda one=one, other=other: contrast(model, one, other), flops)
        run = audit.assert_right()
        assert excluded(run) <= 60
    else:
        for (one, other), flops in zip(pairs, truth, strict=True):
            audit.step(lambda one=one, other=other: contrast(model, one, other), flops)
        run, counts = audit.close()
        pairs_of = zip(counts, truth, strict=True)
        assert all(count in (None, flops) for count, flops in pairs_of)
        assert counts.count(None) <= 30
    assert "evaluated" in methods(run)


def test_a_teacher_before_the_student_is_evaluated_where_the_data_is_seen(tmp_path: Path) -> None:
    teacher, student = nn.Linear(16, 16), nn.Linear(16, 16)
    audit = Audit(student, tmp_path)
    for x in audit.meter.data([torch.ones(rows, 16) for rows in lengths(4, 100)]):

        def work(x: torch.Tensor = x) -> None:
            with torch.no_grad():
                target = teacher(x)
            (student(x) - target).sum().backward()

        audit.step(work, linear(len(x)) * 3 // 2)
    assert excluded(audit.assert_right()) <= 30


class ByData(nn.Module):
    """Drops half of the rows if the data says so."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x if x[0, 0] > 0 else x[: len(x) // 2])


def test_a_model_that_follows_no_law_is_counted_at_each_new_shape_and_says_so(
    tmp_path: Path,
) -> None:
    model, draw = ByData(), random.Random(5)
    audit = Audit(model, tmp_path)
    for rows in lengths(6, 70):
        kept = draw.choice([rows, rows // 2])
        x = torch.full((rows, 16), 1.0 if kept == rows else -1.0)
        audit.step(lambda x=x: model(x).sum().backward(), linear(kept))
    run, counts = audit.close()
    assert "evaluated" not in methods(run)
    assert any(NO_LAW in entry.count.notes for entry in run.counts.values() if entry.count)
    # A shape that came twice has the count of the first time, and the note that says so if it was
    # found out; every other one has its own.
    first = {}
    for step, flops in zip(run.steps, audit.truth, strict=True):
        first.setdefault(step.count_ids, flops)
    assert counts == [first[step.count_ids] for step in run.steps]


def test_counts_of_a_law_that_proves_wrong_are_withdrawn(tmp_path: Path) -> None:
    model, state = nn.Linear(16, 16), {"times": 1}

    def work(x: torch.Tensor) -> None:
        out = model(x)
        for _ in range(state["times"] - 1):
            out = out + nn.functional.linear(x, model.weight)
        out.sum().backward()

    audit = Audit(model, tmp_path)
    for index, rows in enumerate([10, 90, 31, 50, *range(60, 68), 70, 71, 72]):
        state["times"] = 1 if index < 12 else 2
        x = torch.ones(rows, 16)
        audit.step(lambda x=x: work(x), linear(rows) * state["times"])
    run, counts = audit.close()
    # The first check, after eight evaluated shapes, finds the model changed: what was evaluated
    # is not known after all, and every count that remains was counted.
    assert counts[:4] == audit.truth[:4]
    assert counts[4:12] == [None] * 8
    assert counts[12:] == audit.truth[12:]
    assert [run.count_of(step) for step in list(run.steps)[4:12]] == [REFUTED] * 8
    assert all(isinstance(run.count_of(step), FlopCount) for step in list(run.steps)[12:])


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_inputs_are_told_apart_by_their_lengths(
    layout: torch.layout, tmp_path: Path
) -> None:
    class OfNested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.cat(x.unbind()))

    model = OfNested()
    audit = Audit(model, tmp_path)
    for lengths_of in ((3, 5), (2, 9), (3, 5), (4, 4)):
        x = torch.nested.nested_tensor([torch.ones(n, 16) for n in lengths_of], layout=layout)
        audit.step(lambda x=x: model(x).sum().backward(), linear(sum(lengths_of)))
    audit.assert_right()


class Steered(nn.Module):
    """What a plain value says is done, and another one that does not matter is passed along."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x: torch.Tensor, share: float, noise: float = 0.0) -> torch.Tensor:
        return self.layer(x[: int(share * len(x))])


def test_a_number_that_steers_the_model_is_part_of_the_shape(tmp_path: Path) -> None:
    model, draw = Steered(), random.Random(7)
    audit = Audit(model, tmp_path)
    for _ in range(60):
        share = draw.choice([0.25, 0.5, 1.0])
        x = torch.ones(64, 16)
        audit.step(lambda x=x, s=share: model(x, s).sum().backward(), linear(int(64 * share)))
    audit.assert_right()


def test_a_number_that_does_not_matter_costs_no_count_at_each_step(tmp_path: Path) -> None:
    model, draw = Steered(), random.Random(8)
    audit = Audit(model, tmp_path)
    for rows in lengths(9, 100):
        x, noise = torch.ones(rows, 16), draw.random()
        audit.step(lambda x=x, n=noise: model(x, 1.0, n).sum().backward(), linear(rows))
    assert excluded(audit.assert_right()) <= 45


def test_equal_calls_that_do_more_together_are_counted_together(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    x = torch.ones(8, 16)

    def inner_and_outer() -> None:
        loss = model(x).sum()
        (grad,) = torch.autograd.grad(loss, model.weight, create_graph=True)
        (model(x).sum() + (grad @ grad.T).sum()).backward()

    for _ in range(3):
        audit.step(lambda: model(x).sum().backward(), linear(8))
    truth = count_flops(inner_and_outer).model
    for _ in range(8):
        audit.step(inner_and_outer, truth)
    _, counts = audit.close()
    known = [(c, t) for c, t in zip(counts, audit.truth, strict=True) if c is not None]
    assert all(c == t for c, t in known) and len(known) >= 10


def test_what_varies_is_said_of_every_count_of_the_run(tmp_path: Path) -> None:
    model, state = nn.Linear(16, 16), {"times": 1}

    def work() -> None:
        out = model(torch.ones(8, 16))
        if state["times"] == 2:
            out = out + nn.functional.linear(torch.ones(8, 16), model.weight)
        out.sum().backward()

    audit = Audit(model, tmp_path)
    for index in range(12):
        state["times"] = 1 if index < 5 else 2
        audit.step(work, linear(8) * state["times"])
    run, _ = audit.close()
    assert all(VARIES in run.count_of(step).notes for step in run.steps)
