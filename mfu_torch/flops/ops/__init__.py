"""FLOPs of each op that contracts: here the matrix products, and all other formulas by import.

A multiply-add is 2 FLOPs. Adding a bias, scaling and applying an activation are elementwise work
and count 0, also when a kernel fuses them. One short function per family of ops, with the shapes
in a comment, and one file per kind of op. The names are those of torch 2.6 to 2.15; a name that a
torch does not have is never looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

# Imported for its registrations: a formula can only be looked up after all are registered.
from mfu_torch.flops.ops import attention as attention
from mfu_torch.flops.ops import attention_kernels as attention_kernels
from mfu_torch.flops.ops import attention_layers as attention_layers
from mfu_torch.flops.ops import attention_packages as attention_packages
from mfu_torch.flops.ops import convolutions as convolutions
from mfu_torch.flops.ops import linalg as linalg
from mfu_torch.flops.ops import packages as packages
from mfu_torch.flops.ops import quantized as quantized
from mfu_torch.flops.ops import recurrent as recurrent
from mfu_torch.flops.ops import sparse as sparse
from mfu_torch.flops.ops import triton_kernels as triton_kernels
from mfu_torch.flops.ops.products import (
    ROWS_NOT_READ,
    broadcast,
    matmul_flops,
    product_flops,
    readable,
)
from mfu_torch.flops.ops.registry import Counted as Counted
from mfu_torch.flops.ops.registry import Formula as Formula
from mfu_torch.flops.ops.registry import NoFormula as NoFormula
from mfu_torch.flops.ops.registry import OpFlops as OpFlops
from mfu_torch.flops.ops.registry import count_call as count_call
from mfu_torch.flops.ops.registry import formula
from mfu_torch.flops.ops.registry import formula_for as formula_for
from mfu_torch.flops.ops.registry import register_flops as register_flops

Tensor = torch.Tensor

# Packed in pairs along the contracted dimension: its size is half the number of elements.
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)


# --- matrix products -------------------------------------------------------------------------


@formula("aten::mm", "aten::bmm", "aten::matmul", "aten::mv", "aten::dot", "aten::vdot")
@formula("aten::_int_mm")
def _mm(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int | OpFlops:
    return product_flops(a, b)


@formula("aten::addmm", "aten::addmm_", "aten::_addmm_activation", operand=1)
@formula("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_", operand=1)
@formula("aten::addmv", "aten::addmv_", operand=1)
def _added_matmul(
    _added: Tensor, a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any
) -> int | OpFlops:
    return product_flops(a, b)


@formula("aten::ger", "aten::outer", "aten::addr", "aten::addr_")
def _outer(*_: Any, result: Any, **__: Any) -> int:
    # Each element is one product and nothing is summed: elementwise work.
    return 0


@formula("aten::_scaled_mm", "aten::_scaled_mm_v2")
def _scaled_mm(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (m, k) @ (k, n), two elements of k in one of a packed FP4 tensor
    return matmul_flops(a.shape, b.shape) * (2 if a.dtype == _FP4 else 1)


def _grouped(a: Tensor, b: Tensor, offsets: Tensor | None) -> OpFlops:
    # offsets: where each group ends. What lies behind the last of them is in no group.
    packed = 2 if a.dtype == _FP4 else 1
    if offsets is None or a.dim() == b.dim() == 3:
        flops = packed * matmul_flops(a.shape, b.shape)  # (g, m, k) @ (g, k, n)
        return OpFlops(flops, flops)
    if a.dim() == b.dim() == 2:
        # (m, k_1 + .. + k_g) @ (k_1 + .. + k_g, n): every element of k is in one group.
        sides, size = a.shape[0] * b.shape[1], a.shape[1]
    elif a.dim() == 2:
        # (m_1 + .. + m_g, k) @ (g, k, n): every row meets the matrix of one group.
        sides, size = a.shape[1] * b.shape[2], a.shape[0]
    else:
        # (g, m, k) @ (k, n_1 + .. + n_g)
        sides, size = a.shape[1] * a.shape[2], b.shape[1]
    note = ""
    if not readable(offsets):
        note = ROWS_NOT_READ
    elif offsets.numel():
        size = min(size, int(offsets[-1]))
    flops = 2 * packed * sides * size
    return OpFlops(flops, flops, note=note)


@formula("aten::_grouped_mm")
def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, *_: Any, result: Any, **__: Any
) -> OpFlops:
    return _grouped(a, b, offs)


@formula("aten::_scaled_grouped_mm")
def _scaled_grouped_mm(
    a: Tensor,
    b: Tensor,
    scale_a: Any,
    scale_b: Any,
    offs: Tensor | None = None,
    *_: Any,
    result: Any,
    **__: Any,
) -> OpFlops:
    return _grouped(a, b, offs)


@formula("aten::_scaled_grouped_mm_v2")
def _scaled_grouped_mm_v2(
    a: Tensor, b: Tensor, *args: Any, offs: Tensor | None = None, result: Any, **_: Any
) -> OpFlops:
    # args: scales, recipes and swizzles of a, those of b, offs, ..
    return _grouped(a, b, args[6] if len(args) > 6 else offs)


@formula("aten::linear", "aten::mkldnn_linear", "aten::_weight_int8pack_mm")
def _linear(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (*, k) @ (n, k)^T; x may be nested, which has no shape
    return 2 * x.numel() * prod(weight.shape[:-1])


@formula("aten::linear_backward")
def _linear_backward(
    x: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool], *_: Any, result: Any, **__: Any
) -> int:
    # dX = (*, n) @ (n, k); dW = (*, n)^T @ (*, k)
    return 2 * x.numel() * prod(weight.shape[:-1]) * sum(mask[:2])


@formula("aten::matmul_backward")
def _matmul_backward(
    grad: Tensor, a: Tensor, b: Tensor, mask: Sequence[bool], *_: Any, result: Any, **__: Any
) -> int:
    # dA = dC @ B^T; dB = A^T @ dC: each as many multiply-adds as A @ B
    flops = product_flops(a, b)
    assert isinstance(flops, int)  # a sparse product has its own backward
    return flops * sum(mask[:2])


@formula("aten::_trilinear")
def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    unroll_dim: int = 1,
    *_: Any,
    result: Any,
    **__: Any,
) -> int:
    # Two products in a row: i1 with i2, summing what i3 lacks, then with i3, summing the rest.
    # nn.Bilinear: (b, i) @ (o, i, j) -> (b, o, j), then (b, o, j) . (b, j) -> (b, o).
    # ATen loops over unroll_dim: a sum over it adds whole results up, which is elementwise.
    s1, s2, s3 = (
        _expanded(t.shape, expand) for t, expand in ((i1, expand1), (i2, expand2), (i3, expand3))
    )
    inner = [dim for dim in sumdim if dim != unroll_dim]
    first = [dim for dim in inner if dim in expand3]
    last = [dim for dim in inner if dim not in expand3]
    left = [1 if dim in first else size for dim, size in enumerate(broadcast(s1, s2))]
    return _summed_product(s1, s2, first) + _summed_product(left, s3, last)


def _summed_product(a: Sequence[int], b: Sequence[int], dims: Sequence[int]) -> int:
    # Without a sum it is elementwise. What one factor alone has of the dims is summed before.
    if not dims:
        return 0
    pairs = enumerate(zip(a, b, strict=True))
    return 2 * prod(min(pair) if dim in dims else max(pair) for dim, pair in pairs)


def _expanded(shape: Sequence[int], expand: Sequence[int]) -> list[int]:
    sizes = list(shape)
    for dim in sorted(expand):
        sizes.insert(dim, 1)
    return sizes


@formula("aten::mkldnn_linear_backward")
def _mkldnn_linear_backward(
    x: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool], *_: Any, result: Any, **__: Any
) -> int:
    return 2 * prod(x.shape) * prod(weight.shape[:-1]) * sum(mask[:2])


@formula("aten::mkldnn_linear_backward_input", operand=1)
def _mkldnn_linear_backward_input(
    size: Sequence[int], grad: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return 2 * prod(grad.shape) * weight.shape[-1]  # (*, n) @ (n, k)


@formula("aten::mkldnn_linear_backward_weights")
def _mkldnn_linear_backward_weights(
    grad: Tensor, x: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return 2 * prod(grad.shape) * x.shape[-1]  # (*, n)^T @ (*, k)


@formula("aten::_foreach_mm")
def _foreach_mm(a: Sequence[Tensor], b: Sequence[Tensor], *_: Any, result: Any, **__: Any) -> int:
    return sum(matmul_flops(x.shape, y.shape) for x, y in zip(a, b, strict=True))


@formula("higher_order::out_dtype", operand=2)
def _out_dtype(op: Any, dtype: torch.dtype, *args: Any, result: Any, **kwargs: Any) -> Any:
    # A product of int8 that is summed in int32, say.
    inner = formula_for(op)
    if inner is None:
        raise NoFormula(str(op.overloadpacket))
    return inner.fn(*args, result=result, **kwargs)


# --- products fused by the compiler or with communication ------------------------------------


@formula("inductor::_mm_plus_mm")
def _mm_plus_mm(a: Tensor, b: Tensor, c: Tensor, d: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return matmul_flops(a.shape, b.shape) + matmul_flops(c.shape, d.shape)


@formula("symm_mem::_async_input_mm", "symm_mem::fused_matmul_reduce_scatter")
@formula("symm_mem::fused_scaled_matmul_reduce_scatter")
def _matmul_reduce_scatter(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return matmul_flops(a.shape, b.shape)  # this rank's part of the sum, before it is scattered


@formula("symm_mem::fused_all_gather_matmul", "symm_mem::fused_all_gather_scaled_matmul")
def _all_gather_matmul(a: Tensor, bs: Sequence[Tensor], *_: Any, result: Any, **__: Any) -> int:
    # a is one rank's share of (m, k), split along either; m is seen in the results (m, n).
    return sum(2 * prod(out.shape) * b.shape[-2] for b, out in zip(bs, result[1], strict=True))
