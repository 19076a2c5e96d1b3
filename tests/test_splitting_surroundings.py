"""Splitting steps leaves nothing behind, and compiled code as it is."""

from __future__ import annotations

import contextlib
import gc
import itertools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
import torch
from slow_loop import Loop, last_parts, seconds
from torch import nn
from torch.optim import optimizer as optim

from mfu_torch import Meter
from mfu_torch.records import Step
from mfu_torch.splitting import StepSplitter

# --- what is left behind ------------------------------------------------------------------------


def surroundings() -> tuple[Any, ...]:
    return (
        torch.autograd._engine_run_backward,
        torch.autograd.graph._engine_run_backward,
        dict(optim._global_optimizer_pre_hooks),
        dict(optim._global_optimizer_post_hooks),
    )


def test_nothing_is_left_behind() -> None:
    before = surroundings()
    loop = Loop()
    state = dict(loop.model.__dict__)
    loop.run(loop.train)
    assert surroundings() == before
    assert set(loop.model.__dict__) == set(state)
    splitter = weakref.ref(loop.meter._splitter)  # type: ignore[arg-type]
    del loop
    gc.collect()
    assert splitter() is None


def interrupted_at(line: int, work: Callable[[], None]) -> bool:
    """Ctrl-C before the so-manieth line of the package that runs; whether there was one."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if "mfu_torch" not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0:
            left = -1
            raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@pytest.mark.parametrize("when", ["attach", "detach"])
def test_an_interrupt_at_any_line_leaves_nothing_behind(when: str) -> None:
    before = surroundings()
    for line in itertools.count(1):
        loop = Loop()
        splitter = StepSplitter([loop.model], loop.clock, lambda error: None)
        if when == "detach":
            splitter.attach()
        interrupted = interrupted_at(line, getattr(splitter, when))
        if when == "attach" or line <= 2:  # as the meter does: detaching had not begun
            splitter.detach()
        assert surroundings() == before, line
        assert "_compiled_call_impl" not in vars(loop.model), line
        if not interrupted:
            break
    assert line > 10


def test_a_second_interrupt_as_the_run_is_closed_leaves_nothing_behind() -> None:
    before = surroundings()
    loop = Loop()
    loop.meter.start()
    watch = loop.meter._splitter._watches[0]  # type: ignore[union-attr]
    detach, times = watch.detach, iter([True, True, False, False])

    def detach_interrupted() -> None:
        if next(times):
            raise KeyboardInterrupt
        detach()

    watch.detach = detach_interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        loop.meter.close()
    assert surroundings() == before
    loop.meter.close()  # ends the file
    assert loop.meter.run.end is not None


def test_two_meters_may_end_in_any_order() -> None:
    before = surroundings()
    first, second = Loop(), Loop()
    first.meter.start()
    second.meter.start()
    for loop in (first, second):
        for _ in range(2):
            with loop.meter.step():
                loop.train()
    first.meter.close()
    with second.meter.step():
        second.train()
    second.meter.close()
    assert seconds(last_parts(list(second.meter.run.steps))) == (1.0, 0.25, 2.5, 4.0, 0.0)
    assert surroundings()[2:] == before[2:]
    assert first.model(torch.ones(2, 4)).sum().backward() is None  # calls still get through


def test_an_error_of_the_clock_does_not_reach_the_loop(caplog: pytest.LogCaptureFixture) -> None:
    loop = Loop()
    mark = loop.clock.mark
    broken = SimpleNamespace(now=False)

    def fails() -> float:
        if broken.now:
            raise RuntimeError("the driver is gone")
        return mark()

    loop.clock.mark = fails  # type: ignore[method-assign]
    with loop.meter:
        for index in range(3):
            with loop.meter.step():
                broken.now = index == 1
                loop.train()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    assert "the driver is gone" in caplog.text


# --- compiled code ------------------------------------------------------------------------------


@pytest.fixture
def dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def compiled_run(kind: str, watched: bool) -> tuple[dict[str, int], list[Step]]:
    """What Dynamo did for four steps of which a part is compiled, and the steps."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def part(x: torch.Tensor) -> None:
        if kind == "backward":
            model(x).sum().backward()
        optimizer.step()

    compiled = torch.compile(part, backend="eager")
    # Counting is another matter, so FLOPs are given.
    meter = Meter(model, log_dir="", sinks=[], peak=1e12, flops={"fp32": 1.0}) if watched else None
    for _ in range(4):
        with meter.step() if meter else contextlib.nullcontext():
            x = torch.ones(2, 4)
            if kind == "optimizer":
                model(x).sum().backward()
            compiled(x)
    if meter:
        meter.close()
    counters = torch._dynamo.utils.counters
    did = {
        "graphs": counters["stats"]["unique_graphs"],
        "ops": counters["stats"]["calls_captured"],
        "breaks": sum(counters["graph_break"].values()),
    }
    return did, list(meter.run.steps) if meter else []


@pytest.mark.usefixtures("dynamo")
@pytest.mark.parametrize("kind", ["optimizer", "backward"])
def test_what_is_compiled_as_a_whole_has_the_same_graphs_and_breaks(kind: str) -> None:
    did, steps = compiled_run(kind, watched=True)
    assert did == compiled_run(kind, watched=False)[0]
    parts = last_parts([step for step in steps if step.parts])
    # Dynamo breaks off at backward(), which Python then calls, and which is seen.
    assert parts.backward_s > 0
    assert (parts.forward_s is None) is (kind == "backward")
    assert parts.optimizer_s == 0.0  # it is in the graph


@pytest.mark.usefixtures("dynamo")
def test_a_model_that_is_compiled_in_place_while_the_run_goes_on_is_seen_in_the_next_step() -> None:
    loop = Loop(flops={"fp32": 1e9}, log_every=100)
    with loop.meter:
        for index in range(4):
            if index == 2:
                loop.model.compile(backend="eager", dynamic=False)
            with loop.meter.step():
                loop.model(torch.ones(2, 4))
    assert [step.parts.forward_s is None for step in loop.meter.run.steps if step.parts] == [
        False
    ] * 4


def test_steps_on_another_thread_than_made_the_meter_are_split() -> None:
    loop = Loop(flops={"fp32": 1e9})
    loop.meter.start()
    thread = threading.Thread(target=loop.run, args=(loop.train,))
    thread.start()
    thread.join()
    assert seconds(last_parts(list(loop.meter.run.steps))) == (1.0, 0.25, 2.5, 4.0, 0.0)


def test_an_interrupt_inside_of_a_mark_leaves_that_step_whole_and_goes_on() -> None:
    loop = Loop(flops={"fp32": 1e9})
    mark = loop.clock.mark
    now = SimpleNamespace(index=0, left=3)

    def interrupted() -> float:
        if now.index == 2:
            now.left -= 1
            if now.left == 0:  # as the forward is left: its end would never be marked
                raise KeyboardInterrupt
        return mark()

    loop.clock.mark = interrupted  # type: ignore[method-assign]
    meter = Meter(loop.model, log_dir="", sinks=[], peak=1e12, clock=loop.clock, flops={"fp32": 1})
    with meter:
        for index in range(4):
            with meter.step():
                now.index = index
                with contextlib.suppress(KeyboardInterrupt):
                    loop.model(torch.ones(2, 4))
                    now.left -= 1
                loop.lasts(32.0)
                loop.train()
    assert [step.parts is not None for step in meter.run.steps] == [True, True, False, True]
