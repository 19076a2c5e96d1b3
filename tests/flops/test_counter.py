"""The counter agrees with closed forms, for all kinds of tensors and wherever it is entered."""

from __future__ import annotations

import threading
from typing import Any

import models
import pytest
import torch
import transformer_models
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from mfu_torch.flops.counter import NO_CONTRACTION, FlopCounter, count_flops
from mfu_torch.records import FlopCount


def terms(count: FlopCount) -> set[Any]:
    return set(count.terms)


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
    assert (step.uncounted, step.notes) == ({}, ())


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

    assert count_flops(elsewhere).notes == (NO_CONTRACTION,)


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


def test_only_the_innermost_of_two_counters_sees_an_op_once() -> None:
    x = torch.randn(8, 8)
    with FlopCounter() as outer, FlopCounter() as inner:
        x @ x
    assert outer.take().model == inner.take().model == 2 * 8**3


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
