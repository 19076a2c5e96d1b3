"""The counter agrees with closed forms, for all kinds of tensors and wherever it is entered."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import models
import other_models  # noqa: F401 - its cases join the zoo
import pytest
import torch
import transformer_models
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mfu_torch.flops.counter import NO_CONTRACTION, FlopCounter, count_flops
from mfu_torch.flops.ops.attention import PLAIN_SCORES
from mfu_torch.records import FlopCount

# --- closed forms ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", models.ZOO)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_a_model_counts_what_its_closed_form_says(name: str) -> None:
    torch.manual_seed(0)
    case = models.ZOO[name]()
    assert count_flops(models.forward, case.model, *case.batch).forward == case.forward
    step = count_flops(models.train, case.model, *case.batch)
    assert step.model == case.step
    assert step.hardware == (case.step if case.hardware is None else case.hardware)
    # Of attention in plain products no mask can be told, which is no limit of these figures.
    assert (step.uncounted, set(step.notes) - {PLAIN_SCORES}) == ({}, set())


def test_gpt2_counts_its_matmuls_scores_and_head() -> None:
    case = transformer_models.gpt2("sdpa")
    b, s, d, layers, vocab = 2, 32, 64, 2, 1000
    forward = layers * (24 * b * s * d * d + 4 * b * s * s * d) + 2 * b * s * d * vocab
    count = count_flops(models.train, case.model, *case.batch)
    assert (count.forward, count.backward) == (forward, 2 * forward)
    assert count.hardware - count.model == layers * 2 * b * s * s * d
    # Causal: s (s + 1) / 2 of s^2 scores, in the forward and twice in the backward.
    dropped = b * d * s * (s - 1) // 2
    assert count.model - count.model_causal == 3 * layers * 4 * dropped
    assert count.by_dtype == {"fp32": count.hardware}


def test_the_loss_of_a_language_model_adds_no_flops() -> None:
    case = transformer_models.gpt2("eager")
    (ids,) = case.batch
    count = count_flops(lambda: case.model(ids, labels=ids).loss.backward())
    assert count.model == case.step


def test_accumulated_micro_batches_are_taken_apart_and_add_up() -> None:
    net, x = nn.Linear(16, 32), torch.randn(8, 16)
    optimizer = torch.optim.AdamW(net.parameters())
    pieces = []
    with FlopCounter() as counter:
        for _ in range(3):
            net(x).sum().backward()
            pieces.append(counter.take("a micro-batch"))
        optimizer.step()
    pieces.append(counter.take())
    assert [piece.model for piece in pieces] == [2 * 2 * 8 * 16 * 32] * 3 + [0]
    assert pieces[0].method == "a micro-batch"
    assert sum(pieces, FlopCount()).model == 3 * 2 * 2 * 8 * 16 * 32
    assert counter.take() == FlopCount()


def test_elementwise_work_is_the_larger_of_inputs_and_outputs() -> None:
    x = torch.randn(8, 16)
    assert count_flops(lambda: x + x).elementwise == 2 * 8 * 16
    assert count_flops(lambda: x.sum()).elementwise == 8 * 16
    assert count_flops(lambda: x @ x.T).elementwise == 0


def test_a_call_without_contractions_says_so() -> None:
    x = torch.randn(8, 16)
    assert count_flops(torch.relu, x).notes == (NO_CONTRACTION,)
    assert count_flops(lambda: x @ x.T).notes == ()

    def elsewhere() -> None:
        thread = threading.Thread(target=lambda: x @ x.T)
        thread.start()
        thread.join()

    handed_over, nothing = count_flops(elsewhere).notes
    assert "another thread" in handed_over
    assert nothing == NO_CONTRACTION


def test_the_counter_can_be_entered_by_a_hook_in_the_middle_of_a_step() -> None:
    net, x, counter = nn.Linear(16, 32), torch.randn(8, 16), FlopCounter()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    hook = net.register_forward_pre_hook(lambda *_: counter.__enter__() and None)
    with torch.autocast("cpu", torch.bfloat16), torch.enable_grad():
        loss = net(x).sum()
    hook.remove()
    loss.backward()
    optimizer.step()
    counter.__exit__(None, None, None)
    assert counter.take().by_dtype == {"bf16": 2 * 2 * 8 * 16 * 32}
    assert _get_current_dispatch_mode_stack() == []


def test_a_counter_that_is_active_cannot_be_entered_again() -> None:
    with FlopCounter() as counter, pytest.raises(RuntimeError, match="active already"):
        counter.__enter__()
    with counter:
        pass  # but after it was left it can


def test_two_counters_inside_each_other_both_count() -> None:
    x = torch.randn(8, 8)
    with FlopCounter() as outer, FlopCounter() as inner:
        x @ x
    assert outer.take().model == inner.take().model == 2 * 8**3


@contextlib.contextmanager
def packing_saved_tensors() -> Iterator[None]:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (t,), lambda packed: packed[0]):
        yield


@pytest.mark.parametrize(
    "context",
    [
        packing_saved_tensors,
        torch.autograd.graph.save_on_cpu,
        functools.partial(torch.autograd.profiler.profile, use_cpu=True),
        torch.autograd.detect_anomaly,
    ],
)
@pytest.mark.filterwarnings("ignore:Anomaly")
def test_contexts_around_a_step_do_not_change_its_count(context: Callable[[], Any]) -> None:
    case = models.mlp()
    with context():
        count = count_flops(models.train, case.model, *case.batch)
    assert (count.model, count.hardware) == (case.step, case.step)
    with FlopCounter() as counter, context():
        models.train(case.model, *case.batch)
    assert counter.take().model == case.step


def test_a_gradient_scaler_adds_no_flops_and_no_false_alarm() -> None:
    case = models.mlp()
    optimizer = torch.optim.SGD(case.model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        scaler.scale(case.model(*case.batch).sum()).backward()
        scaler.step(optimizer)
        scaler.update()

    count = count_flops(step)
    assert (count.hardware, count.uncounted) == (case.step, {})


def test_per_sample_gradients_count_each_sample() -> None:
    net, x = nn.Linear(16, 32, bias=False), torch.randn(8, 16)

    def loss(weight: torch.Tensor, sample: torch.Tensor) -> torch.Tensor:
        return (weight @ sample).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))
    count = count_flops(gradients, net.weight.detach(), x)
    # Forward (32, 16) @ (16) for each; the gradient, an outer product, sums nothing.
    assert count.forward == 2 * 8 * 16 * 32


def test_cells_without_a_gradient_of_the_first_state_count_what_runs() -> None:
    cell, x = nn.LSTMCell(16, 32), torch.randn(8, 16)
    count = count_flops(lambda: cell(x)[0].sum().backward())
    from_input, from_hidden = 2 * 8 * 4 * 32 * 16, 2 * 8 * 4 * 32 * 32
    assert count.forward == from_input + from_hidden
    assert count.backward == from_input + from_hidden  # dW of both, no dX, no dH
    assert count.uncounted == {}


# --- tensors of other kinds ------------------------------------------------------------------


def test_fake_tensors_are_counted_only_in_their_own_mode() -> None:
    mode, other = FakeTensorMode(), FakeTensorMode()
    with mode:
        x = torch.empty(8, 16)
    with other:
        y = torch.empty(32, 32)
    with FlopCounter(fake_mode=mode) as counter:
        x @ x.T
        y @ y
        torch.stack([y, y])
    assert counter.take().model == 2 * 8 * 16 * 8
    assert count_flops(lambda: y @ y).hardware == 0


class Wrapped(torch.Tensor):
    """A tensor that keeps another inside and works in its dtype, as quantised weights do."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Wrapped:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)

    def __init__(self, inner: torch.Tensor) -> None:
        self.inner = inner

    def __tensor_flatten__(self) -> Any:
        return ["inner"], None

    @classmethod
    def __tensor_unflatten__(cls, inner: Any, *_: Any) -> Wrapped:
        return cls(inner["inner"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = [a.inner if isinstance(a, cls) else a.bfloat16() for a in args]
        return func(*args, **(kwargs or {}))


def test_a_wrapper_counts_the_op_that_it_runs_inside() -> None:
    w = Wrapped(torch.randn(16, 8, dtype=torch.bfloat16))
    count = count_flops(lambda: torch.randn(4, 16) @ w)
    assert count.by_dtype == {"bf16": 2 * 4 * 16 * 8}


def test_a_jagged_batch_counts_its_real_lengths() -> None:
    rows = [torch.randn(n, 16) for n in (5, 9, 30)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
    linear = nn.Linear(16, 32, bias=False)
    count = count_flops(lambda: linear(jagged).values().sum().backward())
    assert (count.forward, count.backward) == (2 * 44 * 16 * 32, 2 * 2 * 44 * 16 * 32)


# --- higher-order ops ------------------------------------------------------------------------


def test_cond_counts_the_branch_that_runs() -> None:
    x = torch.randn(8, 8)

    def choose(flag: bool) -> torch.Tensor:
        return torch.cond(torch.tensor(flag), lambda x: x @ x @ x, lambda x: x @ x, (x,))

    assert count_flops(choose, True).model == 2 * 2 * 8**3
    assert count_flops(choose, False).model == 2 * 8**3
