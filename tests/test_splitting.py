"""Where real loops go from part to part of a step, on a fake clock."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from slow_loop import Loop, last_parts, seconds
from torch import nn

from mfu_torch import Meter


def test_a_plain_loop_is_split_into_its_parts() -> None:
    loop = Loop()

    def step() -> None:
        loop.lasts(0.125)  # moving the batch
        loop.train()
        loop.lasts(0.0625)

    steps = loop.run(step)
    # The loss's own backward is the engine's.
    assert seconds(last_parts(steps)) == (1.0, 0.25, 2.5, 4.0, 0.0)
    assert steps[-1].duration_s == 0.1875 + 7.75
    assert last_parts(steps).lead_s is None


def test_the_time_between_two_steps_is_the_tail() -> None:
    loop = Loop()
    with loop.meter:
        for _ in range(3):
            with loop.meter.step():
                loop.train()
            loop.lasts(0.5)
    steps = list(loop.meter.run.steps)
    assert seconds(steps[1].parts) == (1.0, 0.25, 2.5, 4.0, 0.5)  # type: ignore[arg-type]
    assert last_parts(steps).tail_s == 0.0  # what follows the last step is the run's


def test_micro_batches_and_clipping() -> None:
    loop = Loop()

    def step() -> None:
        for _ in range(3):
            loop.loss(torch.ones(2, 4)).backward()
            loop.lasts(0.125)
        torch.nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.lasts(0.5)
        loop.optimizer.step()

    steps = loop.run(step)
    assert seconds(last_parts(steps)) == (3.0, 0.75, 7.5, 4.0, 0.0)
    assert steps[-1].duration_s == 3.0 + 0.75 + 7.5 + 4.0 + 3 * 0.125 + 0.5


def test_gradients_that_are_asked_for_are_a_backward_too() -> None:
    loop = Loop()

    def step() -> None:
        torch.autograd.grad(loop.loss(torch.ones(2, 4)), list(loop.model.parameters()))

    assert seconds(last_parts(loop.run(step))) == (1.0, 0.25, 2.5, 0.0, 0.0)


def test_a_closure_of_the_optimizer_is_no_part_of_it() -> None:
    loop = Loop()

    def closure() -> torch.Tensor:
        loss = loop.loss(torch.ones(2, 4))
        loss.backward()
        return loss

    steps = loop.run(lambda: loop.optimizer.step(closure))
    assert seconds(last_parts(steps)) == (1.0, 0.25, 2.5, 4.0, 0.0)


def test_a_forward_without_gradients_is_a_forward() -> None:
    loop = Loop()

    def step() -> None:
        with torch.no_grad():
            loop.model(torch.ones(2, 4))
        loop.lasts(0.125)
        loop.train()

    assert seconds(last_parts(loop.run(step))) == (2.0, 0.25, 2.5, 4.0, 0.0)


def test_a_model_that_a_checkpoint_runs_again_is_in_the_backward() -> None:
    loop = Loop()

    def step() -> None:
        x = torch.ones(2, 4, requires_grad=True)
        with torch.utils.checkpoint.set_checkpoint_early_stop(False):
            out = torch.utils.checkpoint.checkpoint(loop.model, x, use_reentrant=False)
            out.sum().backward()

    # The engine: 1 s of recompute, which is a call of the model, and 2 s.
    assert seconds(last_parts(loop.run(step))) == (1.0, 0.0, 3.0, 0.0, 0.0)


def test_a_model_that_was_wrapped_by_the_compiler_is_split() -> None:
    loop = Loop()
    compiled = torch.compile(nn.Linear(4, 4), backend="eager")
    meter = Meter(compiled, log_dir="", sinks=[], peak=1e12, clock=loop.clock)
    with meter:
        for _ in range(4):
            with meter.step():
                loss = compiled(torch.ones(2, 4)).sum()
                loop.lasts(0.5)
                loss.backward()
    parts = last_parts(list(meter.run.steps))
    assert seconds(parts) == (0.0, 0.5, 0.0, 0.0, 0.0)


def test_an_announced_micro_batch_is_a_forward_until_its_backward() -> None:
    loop = Loop()

    def step() -> None:
        for _ in range(2):
            x = torch.ones(2, 4)
            loop.meter.micro_batch(x)
            loop.loss(loop.model.linear(x)).backward()
            loop.lasts(0.125)
        loop.optimizer.step()

    steps = loop.run(step)
    assert seconds(last_parts(steps)) == (2.5, 0.0, 5.0, 4.0, 0.0)  # the loss is in the forward
    assert steps[-1].duration_s == 11.75


def test_a_forward_can_be_announced_without_its_inputs() -> None:
    loop = Loop()

    def step() -> None:
        loop.meter.forward_from_here()
        loop.lasts(0.5)
        loop.train()

    assert seconds(last_parts(loop.run(step))) == (1.75, 0.0, 2.5, 4.0, 0.0)
    with pytest.raises(RuntimeError, match=r"forward_from_here\(\) outside of a step"):
        Loop().meter.forward_from_here()


def test_without_a_model_backward_and_optimizer_are_told() -> None:
    loop = Loop()
    meter = Meter(log_dir="", sinks=[], peak=1e12, clock=loop.clock)
    with meter:
        for _ in range(3):
            with meter.step():
                loop.train()
    assert seconds(last_parts(list(meter.run.steps))) == (None, None, 2.5, 4.0, 0.0)


def test_given_flops_do_not_hide_the_parts() -> None:
    loop = Loop(flops={"fp32": 1e9})
    assert seconds(last_parts(loop.run(loop.train))) == (1.0, 0.25, 2.5, 4.0, 0.0)


def test_a_pause_inside_a_step_leaves_it_whole() -> None:
    loop = Loop()

    def step() -> None:
        loop.train()
        with loop.meter.pause("eval"):
            loop.model(torch.ones(2, 4))

    steps = loop.run(step)
    assert [step.parts for step in steps] == [None] * 3
    assert [step.duration_s for step in steps] == [7.75] * 3


def test_an_optimizer_that_raises_leaves_that_step_whole_and_no_other() -> None:
    loop = Loop()
    broken = SimpleNamespace(now=False)

    def before(*_: Any) -> None:
        if broken.now:
            raise RuntimeError("out of memory")

    loop.optimizer.register_step_pre_hook(before)
    steps = []
    with loop.meter:
        for index in range(4):
            broken.now = index == 2
            with loop.meter.step(), contextlib.suppress(RuntimeError):
                loop.train()
    steps = list(loop.meter.run.steps)
    assert [step.parts is not None for step in steps] == [True, True, False, True]


def test_work_outside_of_steps_takes_no_marks() -> None:
    loop = Loop()
    loop.run(loop.train)
    marks = loop.clock.marks
    with contextlib.suppress(RuntimeError):
        loop.train()
    assert loop.clock.marks == marks


def test_the_watch_of_the_backward_is_not_taken_for_a_hook_of_the_users() -> None:
    loop = Loop()
    loop.run(loop.train)
    counts = [entry.count for entry in loop.meter.run.counts.values() if entry.count]
    assert counts and [note for count in counts for note in count.notes] == []
