"""Announced micro-batches: each step's count is right, unknown, or says what it could not see."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from audit import Audit, linear
from torch import nn

from mfu_torch.flops import calls
from mfu_torch.flops.calls import CallWatch
from mfu_torch.flops.live.microbatches import INPUTS_UNSEEN, NOTHING_SEEN, VARIES
from mfu_torch.flops.live.reasons import ANNOUNCED_ELSEWHERE, COUNTING, ELSEWHERE
from mfu_torch.records import Run

Work = Callable[[], Any]


def notes_of(run: Run) -> set[str]:
    return {note for entry in run.counts.values() if entry.count for note in entry.count.notes}


def dtypes_of(run: Run) -> list[str]:
    return [*(dtype for step in run.steps for dtype in run.count_of(step).by_dtype)]  # type: ignore[union-attr]


@pytest.fixture
def elsewhere() -> Iterator[Callable[[Work], None]]:
    """Runs work on a thread that was there before any step."""
    todo: queue.Queue[Work | None] = queue.Queue()
    done: queue.Queue[None] = queue.Queue()

    def worker() -> None:
        while (work := todo.get()) is not None:
            work()
            done.put(None)

    thread = threading.Thread(target=worker)
    thread.start()

    def run(work: Work) -> None:
        todo.put(work)
        done.get()

    yield run
    todo.put(None)
    thread.join()


# --- other threads -----------------------------------------------------------------------------


@pytest.mark.parametrize("half", [False, True])
def test_work_on_a_long_lived_thread_makes_the_step_unknown(
    half: bool, elsewhere: Callable[[Work], None], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)

    def train() -> None:
        model(torch.ones(8, 16)).sum().backward()

    def work() -> None:
        audit.meter.micro_batch(torch.ones(8, 16))
        elsewhere(train)
        if half:
            train()

    for _ in range(12):
        audit.step(work, 0)
    run, counts = audit.close()
    assert counts == [None] * 12
    assert {run.count_of(step) for step in run.steps} == {ELSEWHERE}
    assert "_compiled_call_impl" not in model.__dict__


def test_it_is_noticed_on_a_step_that_was_not_to_be_counted(
    elsewhere: Callable[[Work], None], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    for index in range(8):

        def work(index: int = index) -> None:
            def train() -> None:
                model(torch.ones(8, 16)).sum().backward()

            audit.meter.micro_batch(torch.ones(8, 16))
            elsewhere(train) if index == 4 else train()

        audit.step(work, linear(8))
    _, counts = audit.close()
    assert counts == [linear(8)] * 4 + [None] + [linear(8)] * 3


@pytest.mark.parametrize("watched", [False, True])
def test_a_step_in_which_nothing_was_seen_is_unknown(
    watched: bool, elsewhere: Callable[[Work], None], tmp_path: Path
) -> None:
    model = nn.Sequential(nn.Linear(16, 16))  # its part is called, which is not watched
    audit = Audit(model if watched else None, tmp_path)

    def work() -> None:
        audit.meter.micro_batch(torch.ones(8, 16))
        elsewhere(lambda: model[0](torch.ones(8, 16)).sum().backward())

    for _ in range(12):
        audit.step(work, 0)
    run, counts = audit.close()
    assert counts == [None] * 12
    assert {run.count_of(step) for step in run.steps} == {NOTHING_SEEN}
    assert [step.excluded for step in run.steps].count(COUNTING) < 6  # not each in vain


def test_work_that_moves_to_another_thread_is_found_out_and_said(
    elsewhere: Callable[[Work], None], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(None, tmp_path)
    for index in range(14):

        def work(index: int = index) -> None:
            def train() -> None:
                model(torch.ones(8, 16)).sum().backward()

            audit.meter.micro_batch(torch.ones(8, 16))
            elsewhere(train) if index > 4 else train()

        audit.step(work, linear(8))
    run, counts = audit.close()
    assert counts[9:] == [None] * 5  # step 9 is counted again
    assert all(VARIES in run.count_of(step).notes for step in list(run.steps)[:9])  # type: ignore[union-attr]


def test_what_is_announced_on_another_thread_makes_the_step_unknown(
    elsewhere: Callable[[Work], None], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)

    def announced() -> None:
        audit.meter.micro_batch(torch.ones(8, 16))
        model(torch.ones(8, 16)).sum().backward()

    for index in range(6):
        audit.step(lambda index=index: elsewhere(announced) if index % 2 else announced(), 0)
    run, counts = audit.close()
    assert counts == [linear(8), None] * 3
    assert {run.count_of(step) for step in list(run.steps)[1::2]} == {ANNOUNCED_ELSEWHERE}


def test_other_threads_do_not_matter_in_a_pause(
    elsewhere: Callable[[Work], None], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)

    def work() -> None:
        audit.meter.micro_batch(torch.ones(8, 16))
        loss = model(torch.ones(8, 16)).sum()
        with audit.meter.pause("eval"):
            elsewhere(lambda: model(torch.ones(4, 16)))
            audit.meter.micro_batch(torch.ones(64, 16))
        loss.backward()

    for _ in range(4):
        audit.step(work, linear(8))
    audit.assert_right()


def test_the_engines_threads_are_no_others(
    elsewhere: Callable[[Work], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Linear(16, 16)
    watch = CallWatch(model, lambda *_: None)
    watch.attach()
    elsewhere(lambda: model(torch.ones(8, 16)))
    assert watch.elsewhere == 1
    monkeypatch.setattr(calls, "_graph_task", lambda: 0)  # a checkpoint, in a device's thread
    elsewhere(lambda: model(torch.ones(8, 16)))
    assert watch.elsewhere == 1
    watch.detach()


# --- work before the first announcement ----------------------------------------------------------


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("watched", [False, True])
def test_work_before_the_first_announcement_is_in_the_count(
    watched: bool, first: int, tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model if watched else None, tmp_path)

    def train() -> None:
        model(torch.ones(8, 16)).sum().backward()

    def work(announced: bool) -> None:
        train()
        if announced:
            audit.meter.micro_batch(torch.ones(8, 16))
        train()

    for index in range(14):
        announced = index >= first
        audit.step(lambda announced=announced: work(announced), 2 * linear(8))
    audit.assert_right()


def test_a_teacher_that_is_not_watched_is_in_the_count_of_announced_steps(tmp_path: Path) -> None:
    teacher, model = nn.Linear(16, 16), nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    x = torch.ones(8, 16)

    def work() -> None:
        teacher(x).sum().backward()
        audit.meter.micro_batch(x)
        model(x).sum().backward()

    for _ in range(8):
        audit.step(work, 2 * linear(8))
    audit.assert_right()


def test_steps_that_announce_nothing_have_the_counts_of_their_calls(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    for index, rows in enumerate((8, 4, 8, 4, 16, 4, 32, 4, 64, 4, 8, 4)):

        def work(index: int = index, rows: int = rows) -> None:
            if index % 2:
                audit.meter.micro_batch(torch.ones(rows, 16))
            model(torch.ones(rows, 16)).sum().backward()

        audit.step(work, linear(rows))
    assert notes_of(audit.assert_right()) == set()


# --- what a batch shows ------------------------------------------------------------------------


@pytest.mark.parametrize("hide", [lambda x: None, lambda x: iter([x]), lambda x: object()])
def test_counts_of_batches_that_show_no_shapes_say_so_from_the_first(
    hide: Callable[[torch.Tensor], Any], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    for rows in (4, 8, 16):

        def work(rows: int = rows) -> None:
            audit.meter.micro_batch(hide(torch.ones(rows, 16)))
            model(torch.ones(rows, 16)).sum().backward()

        audit.step(work, linear(rows))
    run, _ = audit.close()
    assert all(INPUTS_UNSEEN in run.count_of(step).notes for step in run.steps)  # type: ignore[union-attr]


def test_so_do_those_of_a_model_whose_inputs_are_opaque(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(16, 16)

        def forward(self, source: Iterator[torch.Tensor]) -> torch.Tensor:
            return self.linear(next(source))

    model = Model()
    audit = Audit(model, tmp_path)
    audit.step(lambda: model(iter([torch.ones(8, 16)])).sum().backward(), linear(8))
    assert INPUTS_UNSEEN in notes_of(audit.assert_right())


def test_plain_values_in_a_batch_are_told_apart(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)
    audit = Audit(model, tmp_path)
    x = torch.ones(4, 16)
    for layers in (1, 2, 3, 1, 4, 2, 5, 1, 3, 2, 1, 5):

        def work(layers: int = layers) -> None:
            audit.meter.micro_batch({"x": x, "layers": layers})
            sum(model(x).sum() for _ in range(layers)).backward()  # type: ignore[union-attr]

        audit.step(work, layers * linear(4))
    assert notes_of(audit.assert_right()) == set()


# --- autocast ------------------------------------------------------------------------------------


def test_autocast_that_is_on_when_a_batch_is_announced_has_counts_of_its_own(
    tmp_path: Path,
) -> None:
    model, x = nn.Linear(16, 16), torch.ones(8, 16)
    audit = Audit(model, tmp_path)
    for index in range(8):

        def work(index: int = index) -> None:
            with torch.autocast("cpu", torch.bfloat16, enabled=index >= 3):
                audit.meter.micro_batch(x)
                model(x).sum().backward()

        audit.step(work, linear(8))
    assert dtypes_of(audit.assert_right()) == ["fp32"] * 3 + ["bf16"] * 5


def test_autocast_around_a_step_without_a_model_has_counts_of_its_own(tmp_path: Path) -> None:
    model, x = nn.Linear(16, 16), torch.ones(8, 16)
    audit = Audit(None, tmp_path)
    for index in range(8):
        with torch.autocast("cpu", torch.bfloat16, enabled=index in (3, 5)):
            audit.step(lambda: model(x).sum().backward(), linear(8))
    dtypes = ["bf16" if index in (3, 5) else "fp32" for index in range(8)]
    assert dtypes_of(audit.assert_right()) == dtypes


@pytest.mark.parametrize("kind", ["announced", "hidden", "watched"])
def test_equal_flops_in_another_dtype_are_found_out_by_a_check(kind: str, tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.half = nn.Linear(16, 16), False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
                return self.linear(x)

    model, x = Model(), torch.ones(8, 16)
    audit = Audit(None if kind == "hidden" else model, tmp_path)

    def work() -> None:
        if kind == "announced":
            audit.meter.micro_batch(x)
        model(x).sum().backward()

    for index in range(14):
        model.half = index >= 3
        audit.step(work, linear(8))
    run = audit.assert_right()
    assert dtypes_of(run)[10:] == ["bf16"] * 4
    assert all(VARIES in run.count_of(step).notes for step in run.steps)  # type: ignore[union-attr]


def test_a_wrapper_called_on_another_thread_is_noticed_and_shows_no_inputs(
    elsewhere: Callable[[Work], None],
) -> None:
    class Wrapper(nn.Module):  # as torch.compile makes: it is watched through hooks
        def __init__(self) -> None:
            super().__init__()
            self._orig_mod = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self._orig_mod(x)

    model, seen = Wrapper(), []
    watch = CallWatch(model, lambda *call: seen.append(call))
    watch.attach()
    elsewhere(lambda: model(torch.ones(8, 16)))
    assert (watch.elsewhere, watch.inside, seen) == (1, False, [])
    model(torch.ones(8, 16))
    assert (watch.elsewhere, watch.inside, len(seen)) == (1, False, 1)
    watch.detach()
