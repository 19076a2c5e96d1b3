"""FLOPs of one matrix product, by the shapes and the layouts of its factors.

A multiply-add is 2. Of a sparse factor only the stored elements are multiplied: a product of two
dense matrices (m, k) @ (k, n) is ``2 m k n``, of a sparse and a dense one ``2 nnz n``, and of two
sparse ones 2 for every pair of stored elements that meet.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch

from mfu_torch.flops.ops.registry import OpFlops

Tensor = torch.Tensor

SPARSE_NOT_READ = (
    "indices of a sparse matrix on the device were not read: a product of two sparse matrices "
    "counts as if one of them were dense, so it is an upper bound"
)

ROWS_NOT_READ = (
    "how many rows the groups of a grouped product hold was not read from the device: all rows "
    "count, so it is an upper bound"
)


def matmul_flops(a: Sequence[int], b: Sequence[int]) -> int:
    """FLOPs of ``torch.matmul`` over these shapes."""
    if len(a) == 1 and len(b) == 1:
        return 2 * a[0]  # (k) . (k)
    if len(b) == 1:
        return 2 * prod(a)  # (*, m, k) @ (k)
    if len(a) == 1:
        return 2 * prod(b)  # (k) @ (*, k, n)
    batch = prod(broadcast(a[:-2], b[:-2]))
    return 2 * batch * a[-2] * a[-1] * b[-1]  # (*, m, k) @ (*, k, n)


def product_flops(a: Tensor, b: Tensor) -> int | OpFlops:
    """FLOPs of ``a @ b`` for dense, sparse and nested tensors.

    Example:
        A sparse 8 x 8 identity times a dense 8 x 5 matrix: 2 * 8 * 5 = 80.
    """
    if a.is_nested or b.is_nested:
        pairs = zip(_parts(a, b), _parts(b, a), strict=True)
        return sum(matmul_flops(x, y) for x, y in pairs)
    if is_dense(a) and is_dense(b):
        return matmul_flops(a.shape, b.shape)
    if is_dense(b):
        return 2 * stored(a) * (b.shape[-1] if b.dim() > 1 else 1)  # each meets a row of b
    if is_dense(a):
        return 2 * stored(b) * (a.shape[-2] if a.dim() > 1 else 1)  # each meets a column of a
    return _sparse_product(a, b)


def _parts(tensor: Tensor, other: Tensor) -> list[Sequence[int]]:
    # The shapes in a nested tensor, whose sizes are kept on the host; a tensor beside one is a
    # batch of as many, or the same matrix for all.
    if tensor.is_nested:
        return list(tensor._nested_tensor_size().tolist())
    count, batched = other.size(0), tensor.dim() >= other.dim()
    return [tensor.shape[1:] if batched else tensor.shape] * count


def is_dense(tensor: Tensor) -> bool:
    """Whether every element is stored; a blocked layout of oneDNN is dense too."""
    return tensor.layout in (torch.strided, torch._mkldnn)  # type: ignore[attr-defined]


def stored(tensor: Tensor) -> int:
    """How many elements a sparse tensor stores; explicit zeros count, as they are multiplied."""
    if tensor.layout == torch.sparse_coo:
        return prod(tensor._values().shape)
    return prod(tensor.values().shape)  # blocks and batches included


def broadcast(*shapes: Sequence[int]) -> list[int]:
    """The shape that these broadcast to; sizes are equal or 1."""
    rank = max(len(shape) for shape in shapes)
    full = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*full, strict=True)]


def readable(tensor: Tensor) -> bool:
    """Whether a tensor's values can be read without waiting for a device.

    A subclass such as a FakeTensor has none.
    """
    return tensor.device.type == "cpu" and type(tensor) in (Tensor, torch.nn.Parameter)


def _sparse_product(a: Tensor, b: Tensor) -> OpFlops:
    # (m, k) @ (k, n): for each k, every stored element of a's column meets every one of b's row.
    if not (readable(a) and readable(b)):
        bound = 2 * min(stored(a) * b.shape[-1], stored(b) * a.shape[-2])
        return OpFlops(bound, bound, note=SPARSE_NOT_READ)
    if a.dim() != 2 or b.dim() != 2:
        raise ValueError(f"sparse tensors of {a.dim()} and {b.dim()} dimensions; expected matrices")
    with torch.no_grad():
        pairs = int(_per_line(a, dim=1) @ _per_line(b, dim=0))
    return OpFlops(2 * pairs, 2 * pairs)


def _per_line(matrix: Tensor, dim: int) -> Tensor:
    # How many elements each row (dim 0) or column (dim 1) stores.
    if matrix.layout != torch.sparse_coo:
        matrix = matrix.detach().to_sparse(layout=torch.sparse_coo)
    return torch.bincount(matrix._indices()[dim], minlength=matrix.shape[dim])
