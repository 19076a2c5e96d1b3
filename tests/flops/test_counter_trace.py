"""Counting changes no bit of a run, keeps compiled code compiled, and leaves nothing behind."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import models
import other_models  # noqa: F401 - its cases join the zoo
import pytest
import torch
import torch.nn.functional as F
import transformer_models
from models import Case
from surroundings import surroundings
from torch import nn

from mfu_torch.flops.counter import NO_CONTRACTION, FlopCounter, count_flops
from mfu_torch.flops.ops import register_flops
from mfu_torch.flops.ops.registry import _given

# --- what the counter must not change --------------------------------------------------------


@pytest.fixture
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("build", [transformer_models.llama, transformer_models.gpt2])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
def test_a_counted_training_run_is_bit_equal(
    one_thread: None, build: Callable[[str], Case], attn: str
) -> None:
    torch.manual_seed(0)
    case = build(attn)
    (ids,) = case.batch

    def run(counted_step: int | None) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
        model = copy.deepcopy(case.model)
        optimizer = torch.optim.AdamW(model.parameters())
        torch.manual_seed(1)
        losses: list[torch.Tensor] = []

        def step() -> None:
            optimizer.zero_grad()
            hidden = model(ids, labels=ids)
            loss = hidden.loss + F.dropout(hidden.logits).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())

        for i in range(3):
            if i == counted_step:
                assert count_flops(step).model > 0
            else:
                step()
        state = [t for p in model.parameters() for t in (p.detach(), p.grad)]
        return losses, state, torch.get_rng_state()

    plain, counted = run(None), run(0)
    assert all(torch.equal(a, b) for a, b in zip(plain[0], counted[0], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(plain[1], counted[1], strict=True))
    assert torch.equal(plain[2], counted[2])


@pytest.mark.parametrize("name", models.ZOO)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_counted_step_of_any_model_is_bit_equal(one_thread: None, name: str) -> None:
    torch.manual_seed(0)
    case = models.ZOO[name]()

    def step(counted: bool) -> list[torch.Tensor | None]:
        model = copy.deepcopy(case.model)
        torch.manual_seed(1)
        if counted:
            count_flops(models.train, model, *case.batch)
        else:
            models.train(model, *case.batch)
        buffers = [buffer.to_dense() for buffer in model.buffers()]  # some are sparse
        state = [t.detach() for t in (*model.parameters(), *buffers)]
        return [*state, *(p.grad for p in model.parameters()), torch.get_rng_state()]

    for plain, counted in zip(step(False), step(True), strict=True):
        assert (plain is None) == (counted is None)
        assert plain is None or torch.equal(plain, counted)


@pytest.mark.parametrize(
    "layer", [nn.LSTM(8, 16, 2), nn.GRU(8, 16), nn.TransformerEncoderLayer(8, 2).eval()]
)
def test_inference_mode_is_counted_and_bit_equal(one_thread: None, layer: nn.Module) -> None:
    x = torch.randn(5, 3, 8)

    def forward() -> torch.Tensor:
        out = layer(x)
        return out if isinstance(out, torch.Tensor) else out[0]

    with torch.inference_mode():
        plain, counted = forward(), []
        count = count_flops(lambda: counted.append(forward()))
    assert torch.equal(plain, counted[0])
    with torch.no_grad():
        assert count.forward_no_grad == count_flops(forward).forward_no_grad > 0
    assert count.uncounted == {}


class CountingBackend:
    """A compiler that counts what it compiled, and the compiled calls."""

    def __init__(self) -> None:
        self.graphs = self.runs = 0

    def __call__(self, module: Any, example_inputs: Any) -> Callable[..., Any]:
        self.graphs += 1

        def run(*args: Any) -> Any:
            self.runs += 1
            return module.forward(*args)

        return run


class TwoLayers(nn.Module):
    """Not an nn.Sequential: Dynamo skips torch's own forwards when compiling in place."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_model_is_counted_and_stays_compiled(
    warm: bool, fullgraph: bool, in_place: bool
) -> None:
    torch._dynamo.reset()
    backend, x = CountingBackend(), torch.randn(8, 16)
    model = TwoLayers()
    if in_place:
        model.compile(backend=backend, fullgraph=fullgraph)
        compiled = model
    else:
        compiled = torch.compile(model, backend=backend, fullgraph=fullgraph)
    if warm:
        compiled(x).sum().backward()
    before = (backend.graphs, backend.runs)
    count = count_flops(lambda: compiled(x).sum().backward())
    first, second = 2 * 8 * 16 * 32, 2 * 8 * 32 * 16
    assert count.model == 2 * first + 3 * second
    assert (backend.graphs, backend.runs) == before  # it ran eagerly
    for _ in range(3):
        compiled(x).sum().backward()
    assert (backend.graphs, backend.runs) == (1, before[1] + 3)


def test_a_compiled_optimizer_stays_compiled() -> None:
    torch._dynamo.reset()
    backend, net = CountingBackend(), nn.Linear(4, 4)
    net(torch.randn(2, 4)).sum().backward()
    optimizer = torch.optim.SGD(net.parameters(), lr=torch.tensor(0.1))
    step = torch.compile(optimizer.step, backend=backend)
    step()
    graphs = backend.graphs
    count_flops(step)
    step()
    assert backend.graphs == graphs


# --- what the counter must not leave behind --------------------------------------------------


class Stop(Exception):
    pass


def raise_in_forward(x: torch.Tensor) -> None:
    raise Stop


def raise_in_backward(x: torch.Tensor) -> None:
    def hook(gradient: torch.Tensor) -> None:
        raise Stop

    y = x.clone().requires_grad_()
    y.register_hook(hook)
    (y @ y).sum().backward()


def raise_in_optimizer(x: torch.Tensor) -> None:
    def closure() -> float:
        raise Stop

    torch.optim.SGD([x.clone().requires_grad_()], lr=0.1).step(closure)


@pytest.mark.parametrize("fn", [raise_in_forward, raise_in_backward, raise_in_optimizer])
def test_an_exception_passes_through_and_leaves_nothing_behind(fn: Callable[..., None]) -> None:
    before = surroundings()
    with pytest.raises(Stop):
        count_flops(fn, torch.randn(4, 4))
    assert surroundings() == before


def test_nothing_is_left_behind_whatever_the_stance_was() -> None:
    before = surroundings()
    with torch.compiler.set_stance("eager_on_recompile"):
        inside = surroundings()
        with FlopCounter():
            assert surroundings() != inside
        assert surroundings() == inside
    assert surroundings() == before


def test_an_op_that_raises_raises_what_it_would() -> None:
    x = torch.randn(4, 5)
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        count_flops(lambda: x @ x)


def test_a_formula_that_fails_costs_a_note_and_not_the_step() -> None:
    def broken(*_: Any, result: Any) -> int:
        raise KeyError("no such size")

    before = dict(_given)
    register_flops("aten::mm", broken)
    try:
        x, results = torch.randn(4, 4), []
        count = count_flops(lambda: results.extend([x @ x, x @ x]))
    finally:
        _given.clear()
        _given.update(before)
    assert torch.equal(results[0], x @ x)
    assert count.uncounted == {"aten.mm": 2}
    assert count.notes == (
        "formula for aten.mm failed: KeyError: 'no such size'",
        NO_CONTRACTION,
    )


def test_an_op_that_cannot_be_examined_costs_a_note_and_not_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(op: Any) -> None:
        raise RuntimeError("unknown op")

    monkeypatch.setattr("mfu_torch.flops.op_info.formula_for", broken)
    x, results = torch.randn(4, 4), []
    count = count_flops(lambda: results.append(x @ x))
    assert torch.equal(results[0], x @ x)
    assert count.notes[0] == "aten.mm.default was not examined: RuntimeError: unknown op"


@pytest.mark.parametrize("value", ["many", 2.5, None, -1])
def test_a_formula_that_returns_no_count_is_a_note(value: Any) -> None:
    before = dict(_given)
    register_flops("aten::mm", lambda *_, result: value)
    try:
        x = torch.randn(4, 4)
        count = count_flops(lambda: x @ x)
    finally:
        _given.clear()
        _given.update(before)
    assert count.uncounted == {"aten.mm": 1}
    assert f"it returned {value!r}; expected" in count.notes[0]
