"""Gradients of gradients, torch.func and forward-mode gradients, in units of one layer's forward.

The closed forms: a product ``y = x W`` has one product for the gradient of each operand that needs
one. With ``create_graph`` those are products of the graph, too, with gradients of their own.
"""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from blocks import B, D, Net, inputs, phases
from torch import nn
from torch.autograd import functional, grad
from torch.func import functional_call

X = torch.randn(B, D)


class Two(nn.Module):
    """Two products with a curve between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(D, D, bias=False) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


@pytest.fixture
def net() -> Two:
    return Two()


def weights(net: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.detach() for name, p in net.named_parameters()}


# --- create_graph ------------------------------------------------------------------------------


def test_a_gradient_penalty() -> None:
    judge = Net()

    def step() -> None:
        x = inputs()
        (gradient,) = grad(judge(x).sum(), x, create_graph=True)
        (gradient.norm(2, dim=1) - 1).square().mean().backward()

    # dX of six layers; of these products 6 dW and 5 dG (the first gradient is ones); and five
    # layers of the forward, whose slopes they used, dX and dW of each. The last layer is not
    # among them: its output is only summed.
    assert phases(step) == {"forward": 6, "backward": 6 + (6 + 5) + 2 * 5}


def test_an_inner_loop_whose_update_is_differentiated(net: Two) -> None:
    def step() -> None:
        p = dict(net.named_parameters())
        inner = functional_call(net, p, (X,)).square().sum()
        gradients = grad(inner, list(p.values()), create_graph=True)
        updated = {k: v - 0.1 * g for (k, v), g in zip(p.items(), gradients, strict=True)}
        functional_call(net, updated, (X,)).square().sum().backward()

    # Inner: dW, dW, dX. Outer: the same; then the inner gradients' own (dG of dW1; both of dX2;
    # both of dW2), and those of the inner forward.
    assert phases(step) == {"forward": 4, "backward": 3 + 3 + (1 + 2 + 2) + 3}


def test_a_product_of_the_hessian_with_a_vector(net: Two) -> None:
    def step() -> None:
        p = list(net.parameters())
        gradients = grad(net(X).square().sum(), p, create_graph=True)
        grad(gradients, p, [torch.randn_like(g) for g in gradients])

    assert phases(step) == {"forward": 2, "backward": 3 + (1 + 2 + 2) + 3}


@pytest.mark.parametrize("inside", [False, True])
def test_forces_that_are_gradients_of_an_energy(net: Two, inside: bool) -> None:
    class Forces(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            energy = net(x).sum()
            return energy, -grad(energy, x, create_graph=True)[0]

    def step() -> None:
        model = Forces() if inside else Forces().forward
        energy, forces = model(inputs())
        (energy + forces.square().sum()).backward()

    # dX of both; of those dW of the last (its gradient is ones), dW and dG of the first; then the
    # forward: both layers have dX and dW.
    assert phases(step) == {"forward": 2, "backward": 2 + (1 + 2) + 4}


def test_a_jacobian_row_by_row_or_at_once(net: Two) -> None:
    rows = D
    one = 1 / B  # a layer on one row
    expected = {"forward": 2 * one, "backward": rows * 2 * one}
    for at_once in (False, True):
        counted = phases(lambda v=at_once: functional.jacobian(net, X[0], vectorize=v))
        assert counted == expected
    assert phases(lambda: torch.func.jacrev(net)(X[0])) == expected


def test_many_gradients_at_once(net: Two) -> None:
    def step() -> None:
        x = inputs()
        grad(net(x), x, torch.randn(5, B, D), is_grads_batched=True)

    assert phases(step) == {"forward": 2, "backward": 5 * 2}


def test_the_products_of_autograd_functional(net: Two) -> None:
    v = torch.randn_like(X)
    # The double backward trick: a backward with its graph, and the backward of that.
    assert phases(lambda: functional.jvp(net, X, v)) == {"forward": 2, "backward": 2 + 2}
    hvp = phases(lambda: functional.hvp(lambda x: net(x).square().sum(), X, v))
    assert hvp == {"forward": 2, "backward": 2 + 2 * 4}


# --- torch.func --------------------------------------------------------------------------------


def test_gradients_of_functions_are_backward(net: Two) -> None:
    p = weights(net)

    def loss(p: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional_call(net, p, (X,)).square().sum()

    def pull_back() -> None:
        value, pull = torch.func.vjp(loss, p)
        pull(torch.ones_like(value))

    expected = {"forward": 2, "backward": 3}  # no gradient of the first layer's input
    assert phases(lambda: torch.func.grad(loss)(p)) == expected
    assert phases(lambda: torch.func.grad_and_value(loss)(p)) == expected
    assert phases(pull_back) == expected


def test_the_gradient_of_a_gradient_by_functions(net: Two) -> None:
    p = weights(net)

    def inner(x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, p, (x,)).square().sum()

    def outer(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(inner)(x).square().sum()

    # dX twice; of those dG twice; of the forward dX twice.
    assert phases(lambda: torch.func.grad(outer)(X)) == {"forward": 2, "backward": 6}


def test_a_batch_of_models_and_a_batch_of_gradients(net: Two) -> None:
    p = weights(net)
    models = {name: torch.stack([w] * 5) for name, w in p.items()}

    def call(p: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, p, (x,))

    assert phases(lambda: torch.func.vmap(call, (0, None))(models, X)) == {"forward": 5 * 2}
    per_sample = torch.func.vmap(torch.func.grad(lambda p, x: call(p, x).sum()), (None, 0))
    assert phases(lambda: per_sample(p, X)) == {"forward": 2, "backward": 3}


# --- forward-mode gradients --------------------------------------------------------------------


def test_a_tangent_costs_two_products_a_layer_as_torch_multiplies_the_zeros_of_the_other(
    net: Two,
) -> None:
    p, v = weights(net), torch.randn_like(X)

    def call(x: torch.Tensor) -> torch.Tensor:
        return functional_call(net, p, (x,))

    def dual() -> None:
        with forward_ad.dual_level():
            forward_ad.unpack_dual(call(forward_ad.make_dual(X, v)))

    # Per layer: x W, v W, and x times the weight's tangent, which it has none of: torch
    # multiplies with zeros there (mkl's log shows three matrix products per layer).
    assert phases(lambda: torch.func.jvp(call, (X,), (v,))) == {"forward": 3 * 2}
    assert phases(dual) == {"forward": 3 * 2}
    with torch.no_grad():
        assert phases(dual) == {"forward_no_grad": 3 * 2}


def test_the_zeros_are_really_multiplied(net: Two) -> None:
    # The same, as the profiler sees it.
    p = weights(net)
    with torch.profiler.profile() as profiler:
        torch.func.jvp(lambda x: functional_call(net, p, (x,)), (X,), (torch.randn_like(X),))
    products = [event for event in profiler.events() if event.name == "aten::mm"]
    # A product with zeros calls another one, with the zeros written out.
    calls = [p for p in products if all(child.name != "aten::mm" for child in p.cpu_children)]
    assert len(calls) == 3 * 2


def test_a_jacobian_by_tangents(net: Two) -> None:
    p, one, rows = weights(net), 1 / B, D
    counted = phases(lambda: torch.func.jacfwd(lambda x: functional_call(net, p, (x,)))(X[0]))
    # The zeros are not batched.
    assert counted == {"forward": 2 * one + rows * 2 * one + 2 * one}


def test_a_backward_through_tangents(net: Two) -> None:
    def step() -> None:
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(inputs(), torch.randn_like(X))
            tangent = forward_ad.unpack_dual(net(dual)).tangent
        tangent.sum().backward()

    # v2 W2: dV2, dW2. x2 0, the product with zeros: dX2. v1 W1: dW1. x1 0: dX1. And x1 W1, whose
    # slope v2 used: dX1, dW1.
    assert phases(step) == {"forward": 6, "backward": 2 + 1 + 1 + 1 + 2}
