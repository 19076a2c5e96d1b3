"""No op of torch that contracts slips through: it has a formula, or a reason stands here."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops import formula_for
from mfu_torch.flops.ops.registry import _formulas
from mfu_torch.flops.uncounted import is_composite, may_contract

NAMESPACES = {
    "aten", "quantized", "_quantized", "mkldnn", "mkl", "mkldnn_prepacked", "onednn", "sparse",
    "torch_attn", "symm_mem", "static_runtime", "quantization", "flex_lib", "inductor", "_native",
    "export", "fbgemm",
}  # fmt: skip

WITHOUT_FORMULA = {
    # A sparse direct solver: its fill-in depends on the values.
    "aten::_spsolve",
    # Weights of 1 x 4 blocks in an object that does not tell how many are kept.
    "sparse::qlinear",
    "sparse::qlinear_dynamic",
    "sparse::qlinear_relu",
    "sparse::qlinear_relu_dynamic",
    # Weights in an object that does not show them; only TorchScript's freezing makes it.
    "mkldnn_prepacked::conv2d_run",
}
"""Ops that contract and that no formula can count: they are reported as uncounted."""

KERNEL_OF_ATEN = re.compile(r"_native::(\w+)_[a-z]+_\d+")
"""A kernel that torch registers for an op of aten, numbered anew at each registration: what a
dispatch mode sees is the op."""

CONTRACTS = re.compile(
    r".*(mm|matmul|conv|linear|attention|attn|rnn|lstm|gru|einsum|dot|fft_|solve|svd|eig|_qr"
    r"|cholesky|inv_|_det|_lu|ldl|lstsq|cdist|pdist|matrix|pinv|bilinear|embedding_bag).*"
)
"""Words in the names of ops that contract."""

NAMED_LIKE_ONE = re.compile(
    r".*(gamma|cumm(ax|in)|hamming|erfinv|fftfreq).*|_?erfinv_|_?convert_(indices|weight).*"
    r"|\w*(pre)?pack\w*|\w*(unpack|reorder)_?\w*|_cudnn_rnn_flatten_weight|_?upsample_.*"
    r"|embedding_bag\w*|_thnn_fused_(lstm|gru)_cell\w*|lu_unpack|\w*jagged_dummy|_weight_norm_interface\w*"
)
"""Names with such a word of what interpolates, packs, converts, looks up or is elementwise."""


def registered() -> Iterator[tuple[str, Any]]:
    pytest.importorskip("torch.nn.attention.varlen")
    for full in torch._C._dispatch_get_all_op_names():
        name, _, overload = full.partition(".")
        namespace, op = name.split("::")
        if namespace not in NAMESPACES:
            continue
        packet = getattr(getattr(torch.ops, namespace), op)
        yield name, getattr(packet, overload or "default")


def test_every_op_that_may_contract_has_a_formula_or_a_reason() -> None:
    missing = {name for name, op in registered() if may_contract(op) and formula_for(op) is None}
    kernels = {name: found for name in missing if (found := KERNEL_OF_ATEN.fullmatch(name))}
    for found in kernels.values():
        packet = getattr(torch.ops.aten, found[1])
        assert formula_for(getattr(packet, packet.overloads()[0])) is not None
    missing -= kernels.keys()
    assert missing - WITHOUT_FORMULA == set()
    if torch.__version__.startswith("2.13"):
        assert missing == WITHOUT_FORMULA


def test_no_op_is_trusted_whose_name_says_that_it_contracts() -> None:
    trusted = {
        name.split("::")[1]
        for name, op in registered()
        if not may_contract(op) and formula_for(op) is None and not is_composite(op)
    }
    named = {name for name in trusted if CONTRACTS.fullmatch(name)}
    assert {name for name in named if not NAMED_LIKE_ONE.fullmatch(name)} == set()
    assert len(named) > 20  # or the pattern finds nothing


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.kron(torch.ones(2, 3), torch.ones(3, 2)),
        lambda: torch.linalg.vecdot(torch.ones(4, 6), torch.ones(4, 6)),
    ],
)
def test_what_torch_makes_of_products_and_sums_is_elementwise(call: Any) -> None:
    count = count_flops(call)
    assert (count.hardware, count.uncounted) == (0, {})
    assert count.elementwise > 0


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda a: torch.cov(a), 2 * 4 * 4 * 6),
        (lambda a: torch.corrcoef(a), 2 * 4 * 4 * 6),
        (lambda a: torch.inner(a, a), 2 * 4 * 4 * 6),
        (lambda a: torch.einsum("ij,kj->ik", a, a), 2 * 4 * 4 * 6),
        (lambda a: torch.tensordot(a, a.T, 1), 2 * 4 * 4 * 6),
        (lambda a: torch.linalg.matrix_power(a[:, :4], 4), 2 * 2 * 4**3),  # squared twice
        (lambda a: torch.linalg.multi_dot([a, a.T, a]), 2 * 2 * 4 * 4 * 6),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_what_torch_makes_of_other_ops_is_seen_as_those(
    call: Any, expected: int, inference: bool
) -> None:
    with torch.inference_mode(inference):
        count = count_flops(call, torch.randn(4, 6))
    assert (count.model, count.uncounted) == (expected, {})


def test_no_formula_of_torch_is_relied_on() -> None:
    from torch.utils.flop_counter import flop_registry

    theirs = {
        f"higher_order::{op._name}"
        if isinstance(op, torch._ops.HigherOrderOperator)
        else str(op._qualified_op_name)
        for op in flop_registry
        if isinstance(op, torch._ops.HigherOrderOperator | torch._ops.OpOverloadPacket)
    }
    theirs = {
        name for name in theirs if name.startswith(("aten::", "higher_order::", "torch_attn"))
    }
    assert theirs - set(_formulas) == set()
    assert len(theirs) > 20
