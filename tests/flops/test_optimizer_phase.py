"""What optimizers multiply is their own, wherever they run; what their closures run is not."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from blocks import PLAIN, UNIT, D, Net, Product, in_units, inputs, matrices, phases, step_of
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from mfu_torch.flops.counter import FlopCounter, count_flops

Muon = getattr(torch.optim, "Muon", None)
needs_muon = pytest.mark.skipif(Muon is None, reason="this torch has no Muon")
# 6 matrices of 16 x 16, 5 Newton-Schulz steps of 3 products: 6 * 5 * 3 * 2 * 16^3 FLOPs.
MUON = {"optimizer": 6 * 5 * 3 * 2 * D**3 / UNIT}
# One product of two such matrices for each of 6.
SIX_PRODUCTS = 6 * 2 * D**3 / UNIT


class Preconditioned(torch.optim.Optimizer):
    """As Shampoo: two products make its statistics, two apply them."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in self.param_groups[0]["params"]:
            left, right = p.grad @ p.grad.T, p.grad.T @ p.grad
            p.sub_(1e-9 * (left @ p.grad @ right))
        return loss


class WithGradients(Preconditioned):
    """Does not turn gradients off."""

    def step(self, closure: Any = None) -> Any:
        loss = closure() if closure is not None else None
        for p in self.param_groups[0]["params"]:
            left = p.grad @ p.grad.T
            p.data.sub_(1e-9 * (left @ p.grad).detach())
        return loss


class OfNoBase:
    """An optimizer that torch knows nothing of."""

    def __init__(self, params: Any) -> None:
        self.param_groups = [{"params": list(params)}]

    @torch.no_grad()
    def step(self) -> None:
        for p in self.param_groups[0]["params"]:
            p.sub_(1e-9 * (p.grad @ p.grad.T))


def loss_of(net: nn.Module, x: torch.Tensor | None = None) -> torch.Tensor:
    loss = net(inputs() if x is None else x).square().sum()
    loss.backward()
    return loss


# --- closures ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_a_closure_is_not_the_optimizer(kind: Callable[..., Any]) -> None:
    net = Net()
    optimizer = kind(net.parameters(), lr=0.1)
    assert phases(lambda: optimizer.step(lambda: loss_of(net))) == PLAIN


def test_each_call_of_a_closure_counts() -> None:
    net, x = Net(), inputs().detach()
    calls = []
    optimizer = torch.optim.LBFGS(net.parameters(), lr=1e-3, max_iter=4)

    def closure() -> torch.Tensor:
        calls.append(1)
        optimizer.zero_grad()
        return loss_of(net, x)

    counted = phases(lambda: optimizer.step(closure))
    assert len(calls) == 4
    assert (counted["forward"], counted["backward"]) == (4 * 6, 4 * 11)
    assert set(counted) == {"forward", "backward", "optimizer"}  # its products of two vectors


class Closure:
    """As Lightning's: an object, behind a partial."""

    def __init__(self, net: nn.Module, teacher: nn.Module) -> None:
        self.net, self.teacher = net, teacher

    def __call__(self) -> torch.Tensor:
        x = inputs()
        with torch.no_grad():
            target = self.teacher(x)
        loss = F.mse_loss(self.net(x), target)
        loss.backward()
        return loss


@pytest.mark.parametrize("kind", [Preconditioned, WithGradients])
def test_a_teacher_in_a_closure_is_not_the_optimizer(kind: Callable[..., Any]) -> None:
    net, teacher = Net(), Net()
    closure = functools.partial(Closure(net, teacher))
    counted = phases(lambda: kind(matrices(net)).step(closure))
    products = 4 if kind is Preconditioned else 2
    own = {"optimizer": products * SIX_PRODUCTS}
    assert counted == PLAIN | {"forward_no_grad": 6} | own


def test_a_closure_of_functions_is_not_the_optimizer_either() -> None:
    w = torch.randn(D, D, requires_grad=True)

    def closure() -> torch.Tensor:
        loss = Product.apply(inputs() @ w, w).sum()
        loss.backward()
        return loss

    counted = phases(lambda: WithGradients([w]).step(closure))
    assert counted == {"forward": 2, "backward": 4, "optimizer": SIX_PRODUCTS / 3}


# --- products of the optimizer -----------------------------------------------------------------


@needs_muon
def test_products_of_the_optimizer_are_its_own() -> None:
    net = Net()
    optimizer = Muon(matrices(net))
    assert phases(lambda: optimizer.step(lambda: loss_of(net))) == PLAIN | MUON
    assert phases(lambda: (loss_of(net), optimizer.step())) == PLAIN | MUON


@pytest.mark.parametrize(("kind", "products"), [(Preconditioned, 4), (WithGradients, 2)])
def test_they_are_with_gradients_on_or_off(kind: Callable[..., Any], products: int) -> None:
    net = Net()
    counted = phases(lambda: (loss_of(net), kind(matrices(net)).step()))
    assert counted == PLAIN | {"optimizer": products * SIX_PRODUCTS}


def test_an_optimizer_that_is_none_of_torchs_is_told_by_its_parameter_groups() -> None:
    net = Net()
    counted = phases(lambda: (loss_of(net), OfNoBase(matrices(net)).step()))
    assert counted == PLAIN | {"optimizer": SIX_PRODUCTS}


def test_an_update_that_nothing_tells_from_a_forward_is_said() -> None:
    net = Net()

    def step() -> None:
        loss_of(net)
        with torch.no_grad():
            for p in matrices(net):
                p.sub_(1e-9 * (p.grad @ p.grad.T))

    counted = phases(step, "if an optimizer that is no torch.optim.Optimizer ran them")
    assert counted == PLAIN | {"forward_no_grad": SIX_PRODUCTS}


@needs_muon
def test_a_scaler_or_a_wrapper_around_the_optimizer_changes_nothing() -> None:
    net = Net()
    optimizer = Muon(matrices(net), lr=1e-9)
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        optimizer.zero_grad()
        scaler.scale(net(inputs()).sum()).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    assert phases(step) == PLAIN | MUON


@needs_muon
def test_accelerate_changes_nothing() -> None:
    accelerate = pytest.importorskip("accelerate")
    net = Net()
    accelerator = accelerate.Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(net, Muon(matrices(net), lr=1e-9))

    def step() -> None:
        with accelerator.accumulate(model):
            accelerator.backward(model(inputs()).sum())
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    assert phases(step) == PLAIN | MUON


def test_averaged_weights_cost_nothing_and_their_model_is_a_teacher() -> None:
    net = Net()
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = torch.optim.AdamW(net.parameters())

    def step() -> None:
        x = inputs()
        with torch.no_grad():
            target = average(x)
        F.mse_loss(net(x), target).backward()
        optimizer.step()
        average.update_parameters(net)

    assert phases(step) == PLAIN | {"forward_no_grad": 6}


def test_two_steps_on_one_batch_are_two_forwards_and_backwards() -> None:
    net, x = Net(), inputs()  # sharpness-aware minimisation

    def step() -> None:
        loss_of(net, x)
        with torch.no_grad():
            for p in net.parameters():
                p.add_(p.grad, alpha=1e-3)
        net.zero_grad()
        loss_of(net, x)

    assert phases(step) == {"forward": 12, "backward": 24}


# --- inside the backward -----------------------------------------------------------------------


@needs_muon
@pytest.mark.parametrize(
    ("use_reentrant", "recomputed"), [(None, 0), (True, 6), (False, 3)], ids=str
)
def test_an_optimizer_inside_the_backward_is_no_backward(
    use_reentrant: bool | None, recomputed: int
) -> None:
    run = functools.partial(checkpoint, use_reentrant=use_reentrant)
    net = Net(None if use_reentrant is None else run)
    optimizers = {p: Muon([p]) for p in matrices(net)}
    for p in optimizers:
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    expected = PLAIN | MUON | ({"recompute": recomputed} if recomputed else {})
    assert phases(step_of(net)) == expected


# --- where it begins and ends ------------------------------------------------------------------


def entered_at_the_forward(net: nn.Module) -> tuple[FlopCounter, Any]:
    counter = FlopCounter()
    hook = net.register_forward_pre_hook(lambda *_: counter.__enter__() and None)
    return counter, hook


@pytest.mark.parametrize("kind", [Preconditioned, WithGradients])
def test_an_optimizer_that_began_before_the_counter_is_recognised(
    kind: Callable[..., Any],
) -> None:
    net, teacher = Net(), Net()
    counter, hook = entered_at_the_forward(net)
    closure = Closure(net, teacher)
    kind(matrices(net)).step(closure)
    hook.remove()
    with torch.no_grad():
        copy.deepcopy(net)(inputs())  # after the step: the optimizer's frame is gone
    counter.__exit__(None, None, None)
    products = 4 if kind is Preconditioned else 2
    # The teacher of the closure ran before the counter was there.
    own = {"optimizer": products * SIX_PRODUCTS}
    assert in_units(counter.take()) == PLAIN | own | {"forward_no_grad": 6}


def test_an_optimizer_that_raised_is_over() -> None:
    net = Net()
    optimizer = Preconditioned(matrices(net))

    def fail() -> torch.Tensor:
        raise ArithmeticError

    def step() -> None:
        loss_of(net)
        for _ in range(2):
            with pytest.raises(ArithmeticError):
                optimizer.step(fail)
        with torch.no_grad():
            net(inputs())
        optimizer.step()

    counted = phases(step)
    assert counted == PLAIN | {"forward_no_grad": 6, "optimizer": 4 * SIX_PRODUCTS}


def test_a_forward_without_gradients_is_no_optimizer() -> None:
    net = Net()
    with torch.no_grad():
        assert phases(lambda: net(inputs())) == {"forward_no_grad": 6}
    assert count_flops(lambda: net(inputs())).forward == 6 * UNIT
