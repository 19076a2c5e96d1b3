"""Triton kernels under the counter: launched, and counted by a formula that the user gives.

Triton itself is not needed: a kernel is anything with a function inside that can be launched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops import register_flops
from mfu_torch.flops.ops.registry import _given, _kernels

wrap = pytest.importorskip("torch._higher_order_ops.triton_kernel_wrap")


class Kernel:
    """What ``triton.jit`` and ``triton.autotune`` return, as far as torch launches it."""

    def __init__(self, fn: Any) -> None:
        self.fn = fn
        self.configs: list[Any] = []
        self.arg_names = ["a", "b", "out", "M", "N", "K"]

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        return self.fn if callable(self.fn) else self.fn[grid]


Kernel.__module__ = "triton.runtime.jit"


def matmul_kernel(a: Any, b: Any, out: Any, M: int, N: int, K: int) -> None:
    out.copy_(a @ b)


def matmul_flops(*, M: int, N: int, K: int, result: None, **_: Any) -> int:
    return 2 * M * N * K


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    given, kernels = dict(_given), dict(_kernels)
    yield
    for table, before in ((_given, given), (_kernels, kernels)):
        table.clear()
        table.update(before)


@pytest.fixture
def kernel() -> Kernel:
    def kernel(a: Any, b: Any, out: Any, M: int, N: int, K: int) -> None:
        matmul_kernel(a, b, out, M, N, K)

    kernel.__name__ = "matmul_kernel"
    return Kernel(kernel)


A, B = torch.randn(4, 8), torch.randn(8, 5)


def launch(kernel: Any, functional: bool = False) -> torch.Tensor:
    table, out = wrap.kernel_side_table, torch.zeros(4, 5)
    arguments = {
        "kernel_idx": table.add_kernel(kernel),
        "constant_args_idx": table.add_constant_args({"M": 4, "N": 5, "K": 8}),
        "grid": [(1, 1, 1)],
        "tma_descriptor_metadata": {},
        "kwargs": {"a": A, "b": B, "out": out},
    }
    if functional:
        return wrap.triton_kernel_wrapper_functional(**arguments, tensors_to_clone=["out"])["out"]
    wrap.triton_kernel_wrapper_mutation(**arguments)
    return out


def test_a_kernel_without_a_formula_runs_and_is_named(kernel: Kernel) -> None:
    results: list[torch.Tensor] = []
    count = count_flops(lambda: results.append(launch(kernel)))
    assert torch.allclose(results[0], A @ B, atol=1e-4)
    assert (count.hardware, count.uncounted) == (0, {"triton.matmul_kernel": 1})


@pytest.mark.parametrize("functional", [False, True])
@pytest.mark.parametrize("tuned", [False, True])
def test_a_formula_given_for_a_kernel_sees_its_arguments_by_name(
    kernel: Kernel, functional: bool, tuned: bool
) -> None:
    whole = Kernel(kernel) if tuned else kernel
    register_flops(whole, matmul_flops)
    results: list[torch.Tensor] = []
    count = count_flops(lambda: results.append(launch(whole, functional)))
    assert torch.allclose(results[0], A @ B, atol=1e-4)
    assert count.by_op == {"triton.matmul_kernel": 2 * 4 * 5 * 8}
    assert (count.by_dtype, count.uncounted) == ({"fp32": 320}, {})


def test_a_kernel_may_be_given_by_its_name(kernel: Kernel) -> None:
    register_flops("triton::matmul_kernel", matmul_flops)
    assert count_flops(launch, kernel).by_op == {"triton.matmul_kernel": 320}


def test_kernels_of_one_name_keep_their_own_formulas(kernel: Kernel) -> None:
    def other(a: Any, b: Any, out: Any, M: int, N: int, K: int) -> None:
        out.zero_()

    other.__name__ = "matmul_kernel"
    register_flops(kernel, matmul_flops)
    register_flops(Kernel(other), lambda **_: 7)
    assert count_flops(launch, kernel).model == 320
    assert count_flops(launch, Kernel(other)).model == 7


def test_a_formula_given_to_torch_is_used(kernel: Kernel) -> None:
    from torch.utils.flop_counter import flop_registry

    # As register_flop_formula keeps it: called with the launch's arguments.
    flop_registry[kernel] = lambda *args, kwargs, out_val, **_: 2 * kwargs["a"].numel() * 5
    try:
        assert count_flops(launch, kernel).by_op == {"triton.matmul_kernel": 320}
    finally:
        del flop_registry[kernel]


def test_an_op_around_kernels_is_counted_by_the_ops_formula() -> None:
    # It launches them itself, so that they are not seen apart from it.
    @torch.library.triton_op("mfu_test_triton::matmul", mutates_args=())
    def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a @ b

    assert count_flops(matmul, A, B).uncounted == {"mfu_test_triton.matmul": 1}
    register_flops(matmul, lambda a, b, *, result: 2 * a.numel() * b.shape[1])
    assert count_flops(matmul, A, B).by_op == {"mfu_test_triton.matmul": 320}


def test_a_plain_function_is_no_kernel() -> None:
    with pytest.raises(TypeError, match="or a Triton kernel"):
        register_flops(matmul_kernel, matmul_flops)
