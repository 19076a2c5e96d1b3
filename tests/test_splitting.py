"""Where real loops go from part to part of a step: on a fake clock, and on a fake GPU.

The model takes 1 s for its forward and 2 s for its backward, the loss 0.25 s and 0.5 s, the
optimizer 4 s: the code itself moves the clock, so that every time below is exact.
"""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from fake_cuda import FakeGpu
from fakes import ListSink
from torch import nn
from torch.optim import optimizer as optim

from mfu_torch import Meter
from mfu_torch.clock.clocks import CudaClock, HostClock, SyncClock
from mfu_torch.records import Device, Step, StepParts
from mfu_torch.splitting import StepSplitter, splitter_for

Pass = Callable[[float], None]


class Takes(torch.autograd.Function):
    """The identity, which takes time forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, lasts: Pass, there_s: float, back_s: float) -> Any:
        ctx.lasts, ctx.back_s = lasts, back_s
        lasts(there_s)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        ctx.lasts(ctx.back_s)
        return (*gradients, None, None, None)


class Slow(nn.Module):
    """A linear layer that takes 1 s forward and 2 s backward."""

    def __init__(self, lasts: Pass) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.lasts = lasts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Takes.apply(self.linear(x), self.lasts, 1.0, 2.0)


class SlowSGD(torch.optim.SGD):
    """A step takes 4 s, its closure apart."""

    lasts: Pass

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.lasts(4.0)
        super().step()
        return loss


class Loop:
    """A training loop whose parts move the clock."""

    def __init__(self, folder: Path | str = "", **arguments: Any) -> None:
        self.clock = FakeClock()
        self.lasts: Pass = arguments.pop("lasts", self.clock.advance)
        self.model = Slow(self.lasts)
        self.optimizer = SlowSGD(self.model.parameters(), lr=0.0)
        self.optimizer.lasts = self.lasts
        arguments = {"clock": self.clock, "peak": 1e12, "sinks": [ListSink()]} | arguments
        self.meter = Meter(self.model, log_dir=folder, **arguments)

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return Takes.apply(self.model(x).sum(), self.lasts, 0.25, 0.5)

    def train(self, x: torch.Tensor | None = None) -> None:
        self.loss(torch.ones(2, 4) if x is None else x).backward()
        self.optimizer.step()

    def run(self, step: Callable[[], object], times: int = 3) -> list[Step]:
        with self.meter:
            for _ in range(times):
                with self.meter.step():
                    step()
        return list(self.meter.run.steps)


def last_parts(steps: list[Step]) -> StepParts:
    parts = steps[-1].parts
    assert parts is not None
    return parts


def seconds(parts: StepParts) -> tuple[float | None, ...]:
    return (parts.forward_s, parts.loss_s, parts.backward_s, parts.optimizer_s, parts.tail_s)


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


@pytest.mark.parametrize("kind", ["optimizer", "backward"])
def test_what_is_compiled_as_a_whole_has_the_same_graphs(kind: str) -> None:
    def graphs(watched: bool) -> tuple[int, int]:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        model = nn.Linear(4, 4)
        optimizer = torch.optim.AdamW(model.parameters())

        def part(x: torch.Tensor) -> None:
            if kind == "backward":
                model(x).sum().backward()
            optimizer.step()

        compiled = torch.compile(part, backend="aot_eager")
        given = {"fp32": 1.0}  # counting is another matter
        meter = Meter(model, log_dir="", sinks=[], peak=1e12, flops=given) if watched else None
        for _ in range(4):
            with meter.step() if meter else contextlib.nullcontext():
                x = torch.ones(2, 4)
                if kind == "optimizer":
                    model(x).sum().backward()
                compiled(x)
        if meter:
            meter.close()
        counters = torch._dynamo.utils.counters["stats"]
        return counters["unique_graphs"], counters["calls_captured"]

    assert graphs(watched=True) == graphs(watched=False)


# --- clocks -------------------------------------------------------------------------------------


def test_no_step_is_split_where_that_would_not_be_the_truth(
    gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda, mps, cpu = (torch.device(kind) for kind in ("cuda", "mps", "cpu"))

    def fails(error: Exception) -> None:
        raise AssertionError from error

    assert splitter_for([], SyncClock(cuda), cuda, fails) is None
    assert splitter_for([], HostClock(), mps, fails) is None
    assert isinstance(splitter_for([], HostClock(), cpu, fails), StepSplitter)
    assert isinstance(splitter_for([], CudaClock(cuda), cuda, fails), StepSplitter)


H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", index=0)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 0)
    yield FakeGpu(monkeypatch)


def on(gpu: FakeGpu, host_s: float) -> Loop:
    """A loop whose parts are queued on the GPU, each in ``host_s`` of the host's time."""

    def lasts(seconds: float) -> None:
        gpu.launch(seconds)
        gpu.now_s += host_s

    clock = CudaClock(torch.device("cuda:0"))
    clock.host_s = lambda: gpu.now_s  # type: ignore[method-assign]
    return Loop(lasts=lasts, clock=clock, device=H100, telemetry=False)


def test_on_a_gpu_the_parts_are_those_of_its_own_timeline(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)
    steps = loop.run(loop.train, times=6)
    assert set(gpu.calls) == {"record", "query", "synchronize"}  # the last: when it is closed
    for step in steps[1:]:
        assert step.parts is not None
        assert seconds(step.parts) == pytest.approx((1.0, 0.25, 2.5, 4.0, 0.0))


def test_the_lead_of_the_host_grows_as_it_runs_ahead(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)
    steps = loop.run(loop.train, times=4)
    # Of 7.75 s a step on the GPU the host takes 5 * 0.125 s. The first mark is reached at once.
    leads = [step.parts.lead_s for step in steps if step.parts]
    assert leads == pytest.approx([7.125 * number for number in (1, 2, 3, 4)])


def test_a_lead_that_does_not_change_is_still_known_much_later(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)

    def step() -> None:
        loop.train()
        if gpu.busy_until_s and max(gpu.busy_until_s.values()) - gpu.now_s > 16.0:
            gpu.now_s += 7.125  # the queue is full: the host is held up for a step's time

    with loop.meter:
        for _ in range(600):
            with loop.meter.step():
                step()
    last = list(loop.meter.run.steps)[-1]
    assert last.parts is not None
    # In truth 14.25 s when a step is left; a mark that is not reached tells all but a part of it.
    assert last.parts.lead_s is not None
    assert 14.25 - 7.75 <= last.parts.lead_s <= 14.25


def test_a_host_that_is_always_late_has_no_lead(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=8.0)
    for step in loop.run(loop.train, times=4)[1:]:
        assert step.parts is not None
        assert (step.parts.lead_s, step.parts.lead_most_s) == pytest.approx((0.0, 0.0))
        assert seconds(step.parts) == pytest.approx((8.0, 8.0, 16.0, 8.0, 0.0))


def test_a_step_that_ends_by_waiting_for_the_gpu_had_a_lead_before(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)

    def step() -> None:
        loop.train()
        gpu.now_s = max([gpu.now_s, *gpu.busy_until_s.values()])  # loss.item()

    for one in loop.run(step, times=4)[1:]:
        assert one.parts is not None
        assert one.parts.lead_s == pytest.approx(0.0)
        assert one.parts.lead_most_s == pytest.approx(7.75 - 5 * 0.125)


def test_while_a_graph_is_captured_no_event_is_recorded(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)
    recorded = []

    def step() -> None:
        before = gpu.calls.count("record")
        gpu.capturing = True
        loop.train()
        gpu.capturing = False
        recorded.append(gpu.calls.count("record") - before)

    steps = loop.run(step)
    assert recorded == [0, 0, 0]
    assert [step.parts for step in steps] == [None] * 3


def test_parts_on_a_stream_of_their_own_that_lags_leave_the_step_whole(gpu: FakeGpu) -> None:
    loop = on(gpu, host_s=0.125)

    def step() -> None:
        default, gpu.stream = gpu.stream, "side stream of {}"
        loop.train()
        gpu.stream = default

    assert [step.parts for step in loop.run(step)][-1] is None
