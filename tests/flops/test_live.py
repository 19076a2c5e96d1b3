"""Counting inside a real loop: nothing of the training may change, compiled or not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import ListSink
from torch import nn

from mfu_torch import Meter
from mfu_torch.records import CountEntry, Window

UNIT = 2 * 8 * 16 * 16  # one Linear(16, 16) on 8 rows


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.mask: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mask is None:
            self.mask = torch.ones(16)
        return self.second(nn.functional.dropout(torch.relu(self.first(x * self.mask)), 0.1))


class Backend:
    """A compiler that counts what it compiled and how often that ran."""

    def __init__(self) -> None:
        self.graphs = self.runs = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return graph.forward(*args)

        return run


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def train(
    model: nn.Module, called: Callable[..., Any], meter: Meter | None, steps: int = 4, rows: int = 8
) -> tuple[list[float], list[torch.Tensor], torch.Tensor]:
    """Losses, gradients of the last step, and the state of the generator."""
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []

    def one() -> None:
        optimizer.zero_grad()
        loss = called(torch.randn(rows, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

    for _ in range(steps):
        if meter is None:
            one()
        else:
            with meter.step(tokens=rows):
                one()
    grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    return losses, grads, torch.get_rng_state()


def fresh() -> Net:
    torch.manual_seed(0)
    return Net()


def run_of(sink: ListSink) -> tuple[list[CountEntry], list[str]]:
    counts = [r for r in sink.records if type(r) is CountEntry]
    steps = [s for r in sink.records if type(r) is Window for s in r.steps]
    return counts, [s.excluded for s in steps]


def assert_bit_equal(left: Any, right: Any) -> None:
    assert left[0] == right[0]
    assert all(torch.equal(a, b) for a, b in zip(left[1], right[1], strict=True))
    assert torch.equal(left[2], right[2])


def test_training_with_and_without_the_meter_is_bit_equal(tmp_path: Path) -> None:
    plain, metered, sink = fresh(), fresh(), ListSink()
    with Meter(metered, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        assert_bit_equal(train(plain, plain, None), train(metered, metered, meter))
    counts, excluded = run_of(sink)
    assert [entry.count.model for entry in counts] == [5 * UNIT]
    assert "as it trained" in counts[0].count.method
    assert [bool(reason) for reason in excluded] == [True, False, False, False]


@pytest.mark.parametrize("mode", ["whole", "fullgraph", "regional", "in_place"])
def test_a_compiled_model_is_counted_right_and_stays_compiled(mode: str, tmp_path: Path) -> None:
    def build() -> tuple[Net, Any, Backend]:
        torch._dynamo.reset()
        model, backend = fresh(), Backend()
        if mode == "regional":
            model.first = torch.compile(model.first, backend=backend)
            return model, model, backend
        if mode == "in_place":
            model.compile(backend=backend)
            return model, model, backend
        return model, torch.compile(model, backend=backend, fullgraph=mode == "fullgraph"), backend

    model, called, bare_backend = build()
    bare = train(model, called, None)
    model, called, backend = build()
    sink = ListSink()
    with Meter(called, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        metered = train(model, called, meter)
    counts, _ = run_of(sink)
    assert counts[0].count is not None and counts[0].count.model == 5 * UNIT
    beside = counts[-1].count
    assert beside is not None and beside.terms == () and beside.uncounted == {}
    assert backend.graphs == bare_backend.graphs
    assert_bit_equal(bare, metered)
    assert backend.runs == bare_backend.runs
    assert "shadow" in counts[0].count.method
    # After the run it is still compiled.
    runs = backend.runs
    called(torch.randn(8, 16))
    assert backend.runs > runs


def test_a_model_compiled_after_the_meter_was_made_is_neither_broken_nor_guessed(
    tmp_path: Path,
) -> None:
    model, backend, sink = fresh(), Backend(), ListSink()
    with Meter(model, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        called = torch.compile(model, backend=backend, fullgraph=True)
        train(model, called, meter)
    counts, _ = run_of(sink)
    # The first step's count is not known when it ends; the second one, run eagerly, settles it.
    assert counts[0].count is None and counts[-1].id == counts[0].id
    assert counts[-1].count.model == 5 * UNIT
    assert "step 1, which ran eagerly" in counts[-1].count.method
    assert backend.graphs == 2  # the lazy mask makes a second one, as it does without the meter


def test_a_lazily_built_mask_is_a_real_tensor_afterwards(tmp_path: Path) -> None:
    for compiled in (False, True):
        model = fresh()
        called = torch.compile(model, backend="eager") if compiled else model
        with Meter(called, peak=1e12, sinks=[], log_dir=tmp_path) as meter:
            train(model, called, meter, steps=2)
        assert type(model.mask) is torch.Tensor


def test_a_compiled_model_without_a_shadow_runs_one_step_eagerly_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, backend, sink = fresh(), Backend(), ListSink()
    model.register_forward_hook(lambda *_: None)
    called = torch.compile(model, backend=backend)
    with (
        caplog.at_level(logging.WARNING),
        Meter(called, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter,
    ):
        train(model, called, meter)
    counts, _ = run_of(sink)
    assert counts[-1].count.model == 5 * UNIT
    # Not the first: code that runs eagerly first is compiled otherwise afterwards, or not at all.
    assert "step 1, which ran eagerly" in counts[-1].count.method
    assert "has a hook" in caplog.text


def test_with_no_model_and_something_compiled_one_step_runs_eagerly(tmp_path: Path) -> None:
    model, backend, sink = fresh(), Backend(), ListSink()
    called = torch.compile(model, backend=backend)
    with Meter(peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        train(model, called, meter)
    counts, _ = run_of(sink)
    # What the first step had is known after the second.
    models = [(entry.id, entry.count.model if entry.count else None) for entry in counts]
    assert models == [(0, None), (1, 5 * UNIT), (0, 5 * UNIT)]
    assert "step 1, which ran eagerly" in counts[-1].count.method
    assert backend.runs == 3


def test_steps_in_which_something_is_compiled_are_not_steady(tmp_path: Path) -> None:
    model, sink = fresh(), ListSink()
    model.mask = torch.ones(16)  # building it in the first step would make the second recompile
    called = torch.compile(model, backend="eager", dynamic=False)
    with Meter(called, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        train(model, called, meter, steps=3, rows=8)
        train(model, called, meter, steps=2, rows=4)
    _, excluded = run_of(sink)
    # The shadow is made on the first step; on the second, what runs beside the model is looked at.
    assert [bool(reason) for reason in excluded] == [True, True, False, True, False]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    model = fresh()
    engine = torch.autograd.graph._engine_run_backward
    with Meter(model, peak=1e12, sinks=[], log_dir=tmp_path) as meter:
        train(model, model, meter)
    assert not model._forward_pre_hooks and not model._forward_hooks
    assert torch._C._len_torch_dispatch_stack() == 0
    assert torch.autograd.graph._engine_run_backward is engine
    assert set(vars(model)) == set(vars(fresh()))


def test_a_dispatch_mode_of_the_user_around_a_new_shape_is_not_disturbed(tmp_path: Path) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Passing(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return func(*args, **(kwargs or {}))

    model, sink = fresh(), ListSink()
    with Meter(model, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        for rows in (8, 4, 4):
            with meter.step():
                with Passing():
                    out = model(torch.ones(rows, 16))
                out.sum().backward()
    counts, _ = run_of(sink)
    assert torch._C._len_torch_dispatch_stack() == 0
    # The new shape could not be counted where it came up; the next step settles it.
    models = [(entry.id, entry.count.model if entry.count else None) for entry in counts]
    assert models == [(0, 5 * UNIT), (1, None), (2, 5 * UNIT // 2), (1, 5 * UNIT // 2)]


def test_work_in_another_thread_is_reported_as_unknown_not_as_zero(tmp_path: Path) -> None:
    import threading

    model, sink = fresh(), ListSink()
    with Meter(peak=1e12, sinks=[sink], log_dir=tmp_path) as meter, meter.step():
        thread = threading.Thread(target=lambda: model(torch.ones(8, 16)))
        thread.start()
        thread.join()
    counts, _ = run_of(sink)
    assert counts[0].count is None and "thread" in counts[0].unknown


@pytest.mark.parametrize("in_place", [False, True])
def test_work_beside_a_compiled_model_is_looked_at_once(in_place: bool, tmp_path: Path) -> None:
    model, teacher, sink = fresh(), nn.Linear(16, 16), ListSink()
    optimizer = torch.optim.Muon([model.first.weight, model.second.weight])
    called: Any = model
    if in_place:
        model.compile(backend="eager")
    else:
        called = torch.compile(model, backend="eager")
    with Meter(called, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        for _ in range(3):
            with meter.step():
                with torch.no_grad():
                    teacher(torch.ones(8, 16))
                features = called(torch.ones(8, 16))
                (features @ features.T).sum().backward()  # a contrastive loss: 8 x 16 x 8
                optimizer.step()
                optimizer.zero_grad()
    counts, excluded = run_of(sink)
    # The model by its shadow; beside it: not known yet, then known. Every step has both.
    assert [(entry.id, entry.count is not None) for entry in counts] == [
        (0, True), (1, False), (1, True)
    ]  # fmt: skip
    assert [s.count_ids for r in sink.records if type(r) is Window for s in r.steps] == [(0, 1)] * 3
    shadow, beside = counts[0].count, counts[2].count
    assert (shadow.forward, shadow.backward, shadow.forward_no_grad) == (2 * UNIT, 3 * UNIT, 0)
    assert (beside.forward, beside.backward) == (2 * 8 * 16 * 8, 0)
    assert beside.forward_no_grad == UNIT
    assert beside.optimizer > 0  # Newton-Schulz iterations
    assert any("their backward (about twice as much) is not" in note for note in beside.notes)
    assert [bool(reason) for reason in excluded] == [True, True, False]


def test_with_the_real_compiler_training_is_bit_equal_and_nothing_recompiles(
    tmp_path: Path,
) -> None:
    from torch._dynamo.utils import counters

    results, graphs = [], []
    for metered in (False, True):
        torch._dynamo.reset()
        counters.clear()
        model = fresh()
        called = torch.compile(model)
        if metered:
            with Meter(called, peak=1e12, sinks=[], log_dir=tmp_path) as meter:
                results.append(train(model, called, meter))
        else:
            results.append(train(model, called, None))
        graphs.append(counters["stats"]["unique_graphs"])
    assert_bit_equal(*results)
    assert graphs[0] == graphs[1] > 0


def test_something_compiled_elsewhere_does_not_keep_an_eager_model_from_being_counted_as_it_trains(
    tmp_path: Path,
) -> None:
    torch.compile(nn.Linear(4, 4), backend="eager")(torch.ones(1, 4))
    model, sink = fresh(), ListSink()
    with Meter(model, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
        train(model, model, meter)
    counts, _ = run_of(sink)
    assert [entry.count.model for entry in counts] == [5 * UNIT]
    assert "as it trained" in counts[0].count.method


def test_an_eager_model_with_a_compiled_function_is_bit_equal_and_counted_by_its_shadow(
    tmp_path: Path,
) -> None:
    class Calling(nn.Module):
        def __init__(self, inner: Net, fn: Any) -> None:
            super().__init__()
            self.inner, self.fn = inner, fn

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fn(self.inner(x))

    results, runs, sink = [], [], ListSink()
    for metered in (False, True):
        torch._dynamo.reset()
        backend = Backend()
        model = Calling(fresh(), torch.compile(torch.tanh, backend=backend))
        if metered:
            with Meter(model, peak=1e12, sinks=[sink], log_dir=tmp_path) as meter:
                results.append(train(model, model, meter))
        else:
            results.append(train(model, model, None))
        runs.append((backend.graphs, backend.runs))
    assert_bit_equal(*results)
    assert runs[0] == runs[1]
    counts, _ = run_of(sink)
    # Unknown at first; the shadow; what runs beside it; and with these, what the first one had.
    final = {entry.id: entry.count for entry in counts}
    assert counts[0].count is None
    assert final[0].model == 5 * UNIT and "shadow" in final[0].method
