"""The parts of a step, from marks of a clock that a test moves."""

from __future__ import annotations

import threading

import pytest
from fake_clock import FakeClock

from mfu_torch.clock.parts import (
    BACKWARD,
    BUDGET,
    FORWARD,
    LOSS,
    MARKS_LIMIT,
    OPTIMIZER,
    REST,
    Splitter,
    times_of,
)


class Loop:
    """A loop that goes through the parts of a step; times in seconds."""

    def __init__(self, mark_cost_s: float = 0.0) -> None:
        self.clock = FakeClock()
        self.may_mark = True
        self.splitter = Splitter(self.clock, mark_cost_s, lambda: self.may_mark)

    def rest(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def part(self, part: int, seconds: float) -> None:
        self.splitter.enter(part)
        self.clock.advance(seconds)
        self.splitter.leave(part)

    def times(self) -> dict[int, float] | None:
        marks = self.splitter.ends()
        return None if marks is None else times_of(marks, self.clock.seconds)


def test_a_step_is_split_where_its_parts_begin_and_end() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.rest(0.5)
    loop.part(FORWARD, 4.0)
    loop.rest(1.0)  # the loss
    loop.part(BACKWARD, 8.0)
    loop.rest(0.25)
    loop.part(OPTIMIZER, 2.0)
    loop.rest(0.125)
    assert loop.times() == {REST: 0.875, FORWARD: 4.0, LOSS: 1.0, BACKWARD: 8.0, OPTIMIZER: 2.0}


def test_micro_batches_add_up() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    for _ in range(3):
        loop.part(FORWARD, 1.0)
        loop.rest(0.5)
        loop.part(BACKWARD, 2.0)
        loop.rest(0.25)
    assert loop.times() == {REST: 0.75, FORWARD: 3.0, LOSS: 1.5, BACKWARD: 6.0}


def test_after_a_forward_that_no_backward_follows_comes_the_rest() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.part(FORWARD, 1.0)  # a teacher's
    loop.rest(0.5)
    loop.part(FORWARD, 2.0)
    loop.rest(4.0)
    loop.part(OPTIMIZER, 8.0)
    assert loop.times() == {REST: 4.5, FORWARD: 3.0, OPTIMIZER: 8.0}


def test_a_closure_inside_an_optimizer_is_not_the_optimizer() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.enter(OPTIMIZER)
    loop.rest(0.5)
    loop.part(FORWARD, 1.0)
    loop.rest(0.25)
    loop.part(BACKWARD, 2.0)
    loop.rest(4.0)
    loop.splitter.leave(OPTIMIZER)
    assert loop.times() == {REST: 0.0, OPTIMIZER: 4.5, FORWARD: 1.0, LOSS: 0.25, BACKWARD: 2.0}


def test_a_forward_inside_a_forward_and_a_backward_inside_of_it() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.enter(FORWARD)
    loop.part(FORWARD, 1.0)  # a model calls another one that is watched
    loop.rest(0.5)  # forward of the outer one
    loop.part(BACKWARD, 2.0)  # forces are gradients of an energy
    loop.rest(0.25)
    loop.splitter.leave(FORWARD)
    # What lies between the inner forward and that backward is told as the loss.
    assert loop.times() == {REST: 0.0, FORWARD: 1.25, LOSS: 0.5, BACKWARD: 2.0}


def test_an_announced_forward_lasts_until_a_backward_begins() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.rest(0.125)
    loop.splitter.enter(OPTIMIZER)  # Lightning: all of it runs in the optimizer's closure
    loop.rest(0.5)
    loop.splitter.announce()
    loop.rest(1.0)
    loop.part(FORWARD, 2.0)  # a module of it
    loop.rest(4.0)
    loop.part(BACKWARD, 8.0)
    loop.rest(0.25)
    loop.part(FORWARD, 16.0)  # one that was not announced
    loop.rest(0.0625)
    loop.splitter.leave(OPTIMIZER)
    assert loop.times() == {REST: 0.125, OPTIMIZER: 0.8125, FORWARD: 23.0, BACKWARD: 8.0}


def test_an_announced_forward_without_a_backward_lasts_to_the_end_of_the_step() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.rest(0.5)
    loop.splitter.announce()
    loop.rest(1.0)
    assert loop.times() == {REST: 0.5, FORWARD: 1.0}
    loop.splitter.announce()  # outside of a step it is no matter
    loop.splitter.begins(1)
    loop.part(FORWARD, 1.0)
    loop.rest(2.0)
    assert loop.times() == {REST: 2.0, FORWARD: 1.0}


def test_what_other_threads_do_is_in_the_part_that_the_loop_is_in() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.enter(BACKWARD)
    other = threading.Thread(target=loop.part, args=(OPTIMIZER, 1.0))
    other.start()
    other.join()
    loop.splitter.leave(BACKWARD)
    assert loop.times() == {REST: 0.0, BACKWARD: 1.0}


def test_a_part_that_never_ends_leaves_the_step_whole() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.enter(OPTIMIZER)  # it raised, and the loop went on
    assert loop.times() is None
    loop.splitter.begins(1)
    loop.part(FORWARD, 1.0)
    assert loop.times() == {REST: 0.0, FORWARD: 1.0}


def test_an_end_without_a_beginning_leaves_the_step_whole() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.leave(FORWARD)
    loop.part(BACKWARD, 1.0)
    assert loop.times() is None


def test_a_part_that_is_left_before_one_inside_of_it_leaves_the_step_whole() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.enter(OPTIMIZER)
    loop.splitter.enter(FORWARD)
    loop.splitter.leave(OPTIMIZER)
    assert loop.times() is None


def test_outside_of_a_step_no_mark_is_taken() -> None:
    loop = Loop()
    loop.part(FORWARD, 1.0)
    assert loop.clock.marks == 0
    assert loop.times() is None


def test_a_step_during_which_no_mark_may_be_taken_is_not_split() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.may_mark = False  # a CUDA graph is being captured
    loop.splitter.enter(FORWARD)
    loop.may_mark = True
    loop.splitter.leave(FORWARD)
    assert loop.times() is None


def test_more_marks_than_a_step_may_have_leave_it_whole() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    for _ in range(MARKS_LIMIT):
        loop.part(FORWARD, 0.0)
    assert loop.times() is None
    assert loop.clock.marks == MARKS_LIMIT


@pytest.mark.parametrize(("step_s", "apart"), [(64.0, 1), (8.0, 1), (4.0, 2), (1.0, 8), (0.25, 32)])
def test_marks_cost_at_most_a_thousandth_of_the_steps(step_s: float, apart: int) -> None:
    # 4 marks of 2 ms are 8 ms: the budget of 8 s. With 1 s steps every 8th is split.
    loop = Loop(mark_cost_s=0.002)
    split = []
    for index in range(80):
        loop.splitter.begins(index)
        loop.part(FORWARD, step_s)
        if loop.times() is not None:
            split.append(index)
    assert split == list(range(0, 80, apart))
    assert BUDGET * apart * step_s >= 4 * 0.002


def test_steps_whose_parts_lie_on_streams_of_their_own_may_not_be_in_order() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.part(FORWARD, 1.0)
    marks = loop.splitter.ends()
    assert marks is not None
    marks[1].mark += 2.0  # the GPU reached it after the next one
    assert times_of(marks, loop.clock.seconds) is None
