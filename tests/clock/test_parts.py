"""The parts of a step, from marks of a clock that a test moves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

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


def test_further_backwards_of_an_announced_forward_have_forwards_too() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.rest(0.125)
    loop.splitter.announce()  # Lightning's training_step, which optimizes by itself
    for part_s in (1.0, 2.0):
        loop.rest(part_s)
        loop.part(BACKWARD, 8.0)
        loop.part(OPTIMIZER, 16.0)
    loop.rest(0.25)
    assert loop.times() == {REST: 0.375, FORWARD: 3.0, BACKWARD: 16.0, OPTIMIZER: 32.0}


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


def split_of(loop: Loop, steps: int, step_s: Callable[[int], float]) -> list[int]:
    split = []
    for index in range(steps):
        loop.splitter.begins(index)
        loop.part(FORWARD, step_s(index))
        if loop.times() is not None:
            split.append(index)
    return split


@pytest.mark.parametrize(("step_s", "apart"), [(64.0, 1), (8.0, 1), (4.0, 2), (1.0, 8), (0.25, 32)])
def test_marks_cost_at_most_a_thousandth_of_the_steps(step_s: float, apart: int) -> None:
    # 4 marks of 2 ms are 8 ms: the budget of 8 s. With 1 s steps one in 8 is split.
    split = split_of(Loop(mark_cost_s=0.002), 200 * apart, lambda index: step_s)
    assert BUDGET * apart * step_s >= 4 * 0.002
    assert len(split) == pytest.approx(200, rel=0.0 if apart == 1 else 0.15)


def test_loops_that_repeat_themselves_are_seen_in_all_that_they_do() -> None:
    # One step in 8 is split on average, of a loop whose every 4th step has the optimizer.
    split = split_of(Loop(mark_cost_s=0.002), 1600, lambda index: 1.0)
    for residue in range(4):
        share = sum(index % 4 == residue for index in split) / len(split)
        assert share == pytest.approx(0.25, abs=0.07)


def test_a_step_with_nothing_in_it_does_not_put_off_the_next_for_long() -> None:
    # Alone, 4 marks of 2 ms in a step of 1 us would be the budget of 8 million such steps.
    split = split_of(Loop(mark_cost_s=0.002), 300, lambda index: 1.0 if index % 10 else 1e-6)
    assert len(split) > 20
    assert all(later - one < 64 for one, later in pairwise(split))


def test_marks_of_steps_that_end_up_whole_cost_too() -> None:
    loop = Loop(mark_cost_s=0.002)
    for index in range(800):
        loop.splitter.begins(index)
        loop.part(FORWARD, 1.0)
        loop.splitter.spoil()  # a pause in every step
        assert loop.times() is None
    assert loop.clock.marks == pytest.approx(3 * 800 / 6, rel=0.2)  # 3 marks: one step in 6


def test_marks_of_a_step_that_is_not_split_are_given_back() -> None:
    loop = Loop()
    given_back: list[float] = []
    loop.clock.release = given_back.append  # type: ignore[assignment]
    splitter = Splitter(loop.clock, 0.0)
    never_ends = lambda: splitter.enter(OPTIMIZER)  # noqa: E731
    for index, spoil in enumerate((splitter.spoil, never_ends)):
        splitter.begins(index)
        splitter.enter(FORWARD)
        splitter.leave(FORWARD)
        spoil()
        assert splitter.ends() is None
    assert len(given_back) == 3 + 4


def test_a_closure_that_skips_its_backward_ends_what_was_announced() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.splitter.enter(OPTIMIZER)
    loop.splitter.announce()
    loop.rest(1.0)
    loop.splitter.leave(OPTIMIZER)
    loop.rest(0.5)
    loop.part(FORWARD, 2.0)
    loop.rest(0.25)
    assert loop.times() == {REST: 0.75, OPTIMIZER: 0.0, FORWARD: 3.0}


def test_steps_whose_parts_lie_on_streams_of_their_own_may_not_be_in_order() -> None:
    loop = Loop()
    loop.splitter.begins(0)
    loop.part(FORWARD, 1.0)
    marks = loop.splitter.ends()
    assert marks is not None
    marks[1].mark += 2.0  # the GPU reached it after the next one
    assert times_of(marks, loop.clock.seconds) is None
