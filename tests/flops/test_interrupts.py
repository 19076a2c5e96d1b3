"""Ctrl-C at any line of this package's own code leaves nothing behind.

An interrupt is raised at the first line that runs in the files below, then at the second, and so
on, until one run gets through. What Python itself does between two of our lines is out of reach.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest
import torch
from blocks import PLAIN, Net, in_units, inputs
from surroundings import surroundings
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from mfu_torch.flops import (
    balance,
    captured,
    counter,
    dispatch,
    dynamo,
    frames,
    patches,
    phases,
    threads,
)
from mfu_torch.flops.counter import FlopCounter, count_flops
from mfu_torch.flops.dynamo import CompiledEntries

FILES = (balance, captured, counter, dispatch, dynamo, frames, patches, phases, threads)
OURS = {module.__file__ for module in FILES}


@contextlib.contextmanager
def interrupt_at(line: int) -> Iterator[list[int]]:
    """Raise ``KeyboardInterrupt`` at the line that runs as the ``line``-th in our files."""
    passed = [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            passed[0] += 1
            if passed[0] == line:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)


def count_a_product() -> None:
    count_flops(lambda: torch.ones(2, 2) @ torch.ones(2, 2))


def count_a_step() -> None:
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def closure() -> torch.Tensor:
        loss = net(inputs()).sum()
        loss.backward()
        return loss

    count_flops(lambda: optimizer.step(closure))


def enter_and_leave_twice() -> None:
    active = FlopCounter()
    try:
        active.__enter__()
        active.__exit__(None, None, None)
    finally:
        active.__exit__(None, None, None)


def watch_entries() -> None:
    with contextlib.ExitStack() as stack:
        entries = CompiledEntries()
        stack.push(entries)
        stack.push(entries)  # the second one if the first is interrupted
        entries.__enter__()


@pytest.mark.parametrize(
    ("run", "stride"),
    [(count_a_product, 1), (count_a_step, 17), (enter_and_leave_twice, 1), (watch_entries, 1)],
)
def test_an_interrupt_at_any_line_leaves_nothing_behind(
    run: Callable[[], None], stride: int
) -> None:
    run()  # what is imported and cached on first use
    before = surroundings()
    line = interrupted = 0
    while True:
        line += stride
        try:
            with interrupt_at(line) as passed:
                run()
        except KeyboardInterrupt:
            interrupted += 1
            assert surroundings() == before, f"at line {line} of our code"
        if passed[0] < line:
            break
    assert interrupted > 5
    assert surroundings() == before


def test_a_counter_that_was_interrupted_counts_again() -> None:
    net, active = Net(), FlopCounter()
    with pytest.raises(KeyboardInterrupt), interrupt_at(20):
        active.__enter__()
    with active:
        net(inputs()).sum().backward()
    assert in_units(active.take()) == PLAIN


class Stop(Exception):
    pass


@pytest.mark.parametrize("kind", [Stop, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("place", ["forward", "backward", "optimizer", "op"])
def test_what_is_raised_in_the_step_passes_through_and_leaves_nothing_behind(
    kind: type[BaseException], place: str
) -> None:
    def fail(*_: Any) -> None:
        raise kind

    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step() -> None:
        x = inputs()
        if place == "forward":
            net.register_forward_hook(fail)
        elif place == "backward":
            x.register_hook(fail)
        elif place == "op":
            torch.ones(2, 3) @ torch.ones(2, 3)
        net(x).sum().backward()
        optimizer.step(fail)

    before = surroundings()
    with pytest.raises(RuntimeError if place == "op" else kind):
        count_flops(step)
    assert surroundings() == before


class Passing(TorchDispatchMode):
    ops = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        return func(*args, **(kwargs or {}))


def test_a_counter_that_is_left_below_another_mode_leaves_that_one_alone() -> None:
    before = surroundings()
    active = FlopCounter()
    active.__enter__()
    with Passing() as theirs:
        Net()(inputs()).sum().backward()
        active.__exit__(None, None, None)
        assert _get_current_dispatch_mode_stack() == [theirs]
        ops = theirs.ops
        torch.ones(2) + 1
        assert theirs.ops == ops + 2
    assert in_units(active.take()) == PLAIN
    assert surroundings() == before


def test_a_wrapper_that_somebody_put_on_top_of_the_engine_stays_and_works() -> None:
    before = surroundings()
    calls = []
    active = FlopCounter()
    with active:
        wrapped = torch.autograd.graph._engine_run_backward

        def theirs(*args: Any, **kwargs: Any) -> Any:
            calls.append(1)
            return wrapped(*args, **kwargs)

        torch.autograd._engine_run_backward = torch.autograd.graph._engine_run_backward = theirs
    try:
        with active:  # on top of theirs, which is on top of the old one of ours
            Net()(inputs()).sum().backward()
        assert in_units(active.take()) == PLAIN
        assert torch.autograd._engine_run_backward is theirs
        assert calls == [1]
    finally:
        torch.autograd._engine_run_backward = before[2]
        torch.autograd.graph._engine_run_backward = before[3]
    assert surroundings() == before
