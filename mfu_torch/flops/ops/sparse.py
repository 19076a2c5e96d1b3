"""FLOPs of ops that name a sparse factor: stored elements only, each a multiply-add per column.

This holds for semi-structured (2:4) sparsity as well: half of the elements are stored, so half
of the dense product's FLOPs are done. An embedding bag with weights per sample is the product of
a sparse matrix and the table; without weights it only adds, which counts nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.products import product_flops, stored
from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor


@formula("aten::_sparse_sparse_matmul", "aten::hspmm", "aten::_sparse_mm", "aten::smm")
def _sparse_mm(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int | OpFlops:
    return product_flops(a, b)


@formula("aten::_sparse_addmm", "aten::sspaddmm", operand=1)
def _sparse_addmm(_added: Tensor, a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> Any:
    return product_flops(a, b)


@formula("aten::sparse_sampled_addmm")
def _sampled(pattern: Tensor, a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # One (k) . (k) for each element that the pattern stores.
    return 2 * stored(pattern) * a.shape[-1]


@formula("aten::_sparse_mm_reduce_impl")
def _reduced(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int | OpFlops:
    return product_flops(a, b)


@formula("aten::_sparse_mm_reduce_impl_backward")
def _reduced_backward(
    a: Tensor, grad: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # args: reduce, arg_out, output_mask; (m, k, sparse) @ (k, n) = (m, n). dA is sampled at what
    # a stores, dB = A^T @ grad
    mask: Sequence[bool] = args[2]
    return 2 * stored(a) * grad.shape[-1] * sum(mask)


# --- semi-structured: two of four ------------------------------------------------------------


@formula("aten::_sparse_semi_structured_linear")
def _half_linear(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (*, k) @ (n, k)^T, of which (n, k / 2) is stored
    return 2 * prod(x.shape[:-1]) * prod(weight.shape)


@formula("aten::_sparse_semi_structured_mm")
def _half_mm(a: Tensor, meta: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (m, k) @ (k, n), of which (m, k / 2) is stored
    return 2 * prod(a.shape) * b.shape[-1]


@formula("aten::_sparse_semi_structured_addmm", operand=1)
def _half_addmm(
    added: Tensor, a: Tensor, meta: Tensor, b: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return 2 * prod(a.shape) * b.shape[-1]


@formula("aten::_cslt_sparse_mm", operand=1)
def _cslt_mm(packed: Tensor, b: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (m, k) packed with its metadata, @ (k, n); half of k is stored
    return prod(result.shape) * b.shape[-2]


# --- embedding bags with a weight for each sample --------------------------------------------


def _samples(indices: Tensor, weights: Tensor | None, dim: int) -> int:
    # (bags, rows, sparse) @ (rows, dim), one stored element for each index
    return 0 if weights is None else 2 * prod(indices.shape) * dim


@formula("aten::_embedding_bag", "aten::_embedding_bag_forward_only")
def _embedding_bag(
    table: Tensor,
    indices: Tensor,
    offsets: Tensor,
    *args: Any,
    per_sample_weights: Tensor | None = None,
    result: Any,
    **_: Any,
) -> int:
    # args: scale_grad_by_freq, mode, sparse, per_sample_weights, ..
    weights = args[3] if len(args) > 3 else per_sample_weights
    return _samples(indices, weights, table.shape[-1])


@formula("aten::_embedding_bag_backward", "aten::_embedding_bag_dense_backward")
def _embedding_bag_backward(
    grad: Tensor, indices: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # The last but one argument is per_sample_weights where padding_idx is given, else the last.
    weights = next((value for value in args[-2:] if isinstance(value, Tensor)), None)
    return _samples(indices, weights, grad.shape[-1])


@formula("aten::_embedding_bag_per_sample_weights_backward")
def _sample_weights_backward(
    grad: Tensor, table: Tensor, indices: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    # One (dim) . (dim) for each index.
    return 2 * prod(indices.shape) * table.shape[-1]


@formula("aten::_cslt_sparse_mm_search", operand=1)
def _search(packed: Tensor, b: Tensor, *_: Sequence[Any], result: Any, **__: Any) -> int:
    # Tries kernels and returns the best one's number: no part of the model.
    return 0
