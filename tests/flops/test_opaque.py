"""Kernels that no dispatch mode sees are told from the Python code that calls torch around them."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.opaque import (
    OPAQUE,
    opaque_caller,
    opaque_module,
    opaque_note,
    opaque_packages,
)

WRAPPER = """
import torch

class Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return torch.empty_like(x)  # what a kernel then fills

    @staticmethod
    def backward(ctx, grad):
        return torch.zeros_like(grad)
"""


@pytest.fixture
def package(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = types.ModuleType(request.param)
    exec(WRAPPER, module.__dict__)
    monkeypatch.setitem(sys.modules, request.param, module)
    return module


class Callers(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str | None] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(opaque_caller(sys._getframe()))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("package", ["fla.ops.scan"], indirect=True)
def test_the_package_that_called_is_found_forward_and_backward(package: types.ModuleType) -> None:
    x = torch.ones(3, requires_grad=True)
    with Callers() as callers:
        y = package.Scan.apply(x)
        after_forward = len(callers.seen)
        y.sum().backward()
    assert callers.seen[:after_forward] == ["fla.ops"]
    assert callers.seen.count("fla.ops") == 2


@pytest.mark.parametrize("package", ["flash_linear"], indirect=True)
def test_another_package_is_not_suspected(package: types.ModuleType) -> None:
    with Callers() as callers:
        package.Scan.apply(torch.ones(3))
    assert set(callers.seen) == {None}


def test_a_package_that_is_imported_and_not_used_is_only_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mamba_ssm.ops", types.ModuleType("mamba_ssm.ops"))
    assert "mamba_ssm.ops" in opaque_packages()
    with Callers() as callers:
        torch.ones(3)
    assert set(callers.seen) == {None}


@pytest.mark.parametrize(
    ("module", "entry"),
    [
        ("fla.ops", "fla.ops"),
        ("fla.ops.gla.chunk", "fla.ops"),
        ("fla.layers.gla", None),
        ("flax", None),
        ("grouped_gemm.backend", "grouped_gemm"),
        ("liger_kernel.ops.rms_norm", None),
        ("", None),
    ],
)
def test_a_module_belongs_to_the_entry_that_it_is_below(module: str, entry: str | None) -> None:
    assert opaque_module(module) == entry


def test_a_note_says_what_is_missing_and_what_to_do() -> None:
    for package, invisible in OPAQUE.items():
        note = opaque_note(package)
        assert package in note and invisible in note and "custom_op" in note


def test_an_extension_that_leaves_no_trace_is_listed_with_a_note_that_does_not_claim_its_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "fused_weight_gradient_mlp_cuda"
    assert name not in opaque_packages()
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    assert name in opaque_packages()
    assert "where it is used" in opaque_note(name)


# --- in a count --------------------------------------------------------------------------------

FILLS_BY_NUMPY = """
import numpy
import torch

class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.empty_like(x)
        numpy.matmul(x.detach().numpy(), x.detach().numpy(), out=y.numpy())
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad
"""

X = torch.randn(8, 8)
PRODUCT = 2 * 8**3


def product_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType(name)
    exec(FILLS_BY_NUMPY, module.__dict__)
    monkeypatch.setitem(sys.modules, "fla.ops", types.ModuleType("fla.ops"))
    monkeypatch.setitem(sys.modules, name, module)
    return module.Product


def test_a_count_says_that_a_package_filled_a_tensor_out_of_sight(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = product_of("fla.ops.dummy", monkeypatch)
    x = X.clone().requires_grad_()
    count = count_flops(lambda: (product.apply(x) @ X).sum().backward())
    assert count.forward == PRODUCT
    assert count.notes == (opaque_note("fla.ops"),)


def test_a_count_says_nothing_of_a_package_that_is_only_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    product = product_of("another.package", monkeypatch)
    assert count_flops(lambda: product.apply(X) @ X).notes == ()


def test_an_extension_that_adds_to_gradients_is_named_where_there_is_a_backward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "fused_weight_gradient_mlp_cuda"
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    x = X.clone().requires_grad_()
    assert count_flops(lambda: X @ X).notes == ()
    assert count_flops(lambda: (x @ X).sum().backward()).notes == (opaque_note(name),)
