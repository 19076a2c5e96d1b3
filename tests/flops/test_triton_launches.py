"""Kernels launched as ``kernel[grid](...)``, with classes shaped like those of Triton 3."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mfu_torch.flops.counter import FlopCounter, count_flops
from mfu_torch.flops.ops import register_flops
from mfu_torch.flops.ops.registry import _given, _kernels

JIT = """
import inspect

class KernelInterface:
    def __getitem__(self, grid):
        return lambda *args, **kwargs: self.run(grid=grid, warmup=False, *args, **kwargs)

class JITFunction(KernelInterface):
    def __init__(self, fn):
        self.fn, self.__name__, self.__module__ = fn, fn.__name__, fn.__module__
        self.arg_names = list(inspect.signature(fn).parameters)

    def run(self, *args, grid, warmup, **kwargs):
        if not warmup:
            self.fn(*args, **kwargs)

    def warmup(self, *args, grid, **kwargs):
        return self.run(*args, grid=grid, warmup=True, **kwargs)
"""
AUTOTUNER = """
from triton.runtime.jit import KernelInterface

class Autotuner(KernelInterface):
    def __init__(self, fn):
        self.fn, self.tuned = fn, False

    def run(self, *args, **kwargs):
        if not self.tuned:
            self._bench(*args, **kwargs)
        return self.fn.run(*args, **kwargs)

    def _bench(self, *args, **kwargs):
        def kernel_call():
            self.fn.run(*args, **kwargs)
        for _ in range(3):
            kernel_call()
        self.tuned = True
"""

X = torch.arange(64.0).reshape(8, 8) % 7  # whole numbers: products are exact
PRODUCT = 2 * 8**3


def product(a: Any, b: Any, out: Any, N: int) -> None:
    out.numpy()[...] = a.numpy() @ b.numpy()


@pytest.fixture(autouse=True)
def triton(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.SimpleNamespace]:
    for name, source in (("triton.runtime.jit", JIT), ("triton.runtime.autotuner", AUTOTUNER)):
        module = types.ModuleType(name)
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, module.__dict__)
    given, kernels = dict(_given), dict(_kernels)
    yield types.SimpleNamespace(
        jit=sys.modules["triton.runtime.jit"].JITFunction,
        autotune=sys.modules["triton.runtime.autotuner"].Autotuner,
    )
    for table, before in ((_given, given), (_kernels, kernels)):
        table.clear()
        table.update(before)


def launch(kernel: Any) -> torch.Tensor:
    out = torch.empty(8, 8)
    kernel[(1,)](X, X, out, N=8)
    return out


def flops(*, N: int, **_: Any) -> int:
    return 2 * N**3


def test_a_kernel_launched_past_torch_is_named(triton: Any) -> None:
    kernel, results = triton.jit(product), []
    count = count_flops(lambda: results.append(launch(kernel)))
    assert (count.hardware, count.uncounted) == (0, {"triton.product": 1})
    assert torch.equal(results[0], X @ X)


@pytest.mark.parametrize("tuned", [False, True])
def test_it_is_counted_by_a_formula_and_its_trials_are_not(triton: Any, tuned: bool) -> None:
    kernel = triton.jit(product)
    register_flops("triton::product", flops)
    count = count_flops(launch, triton.autotune(kernel) if tuned else kernel)
    assert count.by_op == {"triton.product": PRODUCT}
    assert (count.forward, count.by_dtype, count.uncounted) == (PRODUCT, {"fp32": PRODUCT}, {})


def test_it_is_counted_in_the_phase_that_it_is_launched_in(triton: Any) -> None:
    kernel = triton.jit(product)
    register_flops("triton::product", flops)

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return launch(kernel)

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return launch(kernel) + launch(kernel)

    x = X.clone().requires_grad_()
    count = count_flops(lambda: Product.apply(x).sum().backward())
    assert (count.forward, count.backward, count.notes) == (PRODUCT, 2 * PRODUCT, ())


def test_a_kernel_inside_of_an_op_is_left_to_the_op(triton: Any) -> None:
    kernel = triton.jit(product)

    @torch.library.custom_op("mfu_test_launches::product", mutates_args=())
    def op(x: torch.Tensor) -> torch.Tensor:
        return launch(kernel)

    assert count_flops(op, X).uncounted == {"mfu_test_launches.product": 1}


def test_a_kernel_that_is_only_compiled_did_not_run(triton: Any) -> None:
    kernel = triton.jit(product)
    assert count_flops(lambda: kernel.warmup(X, X, X, 8, grid=(1,)) or X @ X).uncounted == {}


@pytest.mark.parametrize(
    ("module", "named"),
    [("liger_kernel.ops.rms_norm", False), ("liger_kernel.ops.fused_moe", True), ("mine", True)],
)
def test_kernels_that_are_known_to_be_elementwise_are_not(
    triton: Any, module: str, named: bool
) -> None:
    def norm(a: Any, b: Any, out: Any, N: int) -> None:
        out.copy_(a)

    norm.__module__ = module
    assert count_flops(launch, triton.jit(norm)).uncounted == ({"triton.norm": 1} if named else {})


def test_a_formula_that_fails_does_not_end_the_step(triton: Any) -> None:
    def wrong(**_: Any) -> int:
        raise KeyError("M")

    register_flops("triton::product", wrong)
    count = count_flops(launch, triton.jit(product))
    assert count.uncounted == {"triton.product": 1}
    assert any("formula for triton.product failed" in note for note in count.notes)


def test_the_launcher_is_put_back(triton: Any) -> None:
    before = triton.jit.run
    inside: list[Callable[..., Any]] = []
    with FlopCounter():
        inside.append(triton.jit.run)
    assert inside[0] is not before
    assert triton.jit.run is before
