"""FLOPs of each op that contracts: matmuls, convolutions and recurrent layers.

A multiply-add is 2 FLOPs. Adding a bias, scaling and applying an activation are elementwise work
and count 0, also when a kernel fuses them. One short function per family of ops, with the shapes
in a comment; attention has its own file. The names are those of torch 2.6 to 2.15; a name that a
torch does not have is never looked up.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

# Imported for its registrations: a formula can only be looked up after all are registered.
from mfu_torch.flops import attention as attention
from mfu_torch.flops import attention_kernels as attention_kernels
from mfu_torch.flops.registry import Counted as Counted
from mfu_torch.flops.registry import Formula as Formula
from mfu_torch.flops.registry import OpFlops as OpFlops
from mfu_torch.flops.registry import count_call as count_call
from mfu_torch.flops.registry import formula
from mfu_torch.flops.registry import formula_for as formula_for
from mfu_torch.flops.registry import register_flops as register_flops

Tensor = torch.Tensor

# Packed in pairs along the contracted dimension: its size is half the number of elements.
_FP4 = getattr(torch, "float4_e2m1fn_x2", None)

_SPARSE = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


# --- matrix products -------------------------------------------------------------------------


def _matmul(a: Sequence[int], b: Sequence[int]) -> int:
    """FLOPs of ``torch.matmul`` over these shapes."""
    if len(a) == 1 and len(b) == 1:
        return 2 * a[0]  # (k) . (k)
    if len(b) == 1:
        return 2 * prod(a)  # (*, m, k) @ (k)
    if len(a) == 1:
        return 2 * prod(b)  # (k) @ (*, k, n)
    batch = prod(_broadcast(a[:-2], b[:-2]))
    return 2 * batch * a[-2] * a[-1] * b[-1]  # (*, m, k) @ (*, k, n)


def _product(a: Tensor, b: Tensor) -> int:
    if a.layout == b.layout == torch.strided:
        return _matmul(a.shape, b.shape)
    if a.layout in _SPARSE and b.layout == torch.strided:
        return 2 * a._nnz() * prod(b.shape[1:])  # every stored element meets a row of b
    if b.layout in _SPARSE and a.layout == torch.strided:
        return 2 * b._nnz() * prod(a.shape[:-1])
    raise ValueError(f"layouts {a.layout} and {b.layout}; expected one of them to be dense")


@formula("aten::mm", "aten::bmm", "aten::matmul", "aten::mv", "aten::dot", "aten::vdot")
@formula("aten::_int_mm")
def _mm(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _product(a, b)


@formula("aten::addmm", "aten::addmm_", "aten::_addmm_activation", operand=1)
@formula("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_", operand=1)
@formula("aten::addmv", "aten::addmv_", "aten::_sparse_addmm", operand=1)
def _added_matmul(_added: Tensor, a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _product(a, b)


@formula("aten::ger", "aten::outer", "aten::addr", "aten::addr_")
def _outer(*_: Any, result: Any, **__: Any) -> int:
    # Each element is one product and nothing is summed: elementwise work.
    return 0


@formula("aten::_scaled_mm", "aten::_scaled_mm_v2")
def _scaled_mm(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (m, k) @ (k, n), two elements of k in one of a packed FP4 tensor
    return _matmul(a.shape, b.shape) * (2 if a.dtype == _FP4 else 1)


@formula("aten::_grouped_mm", "aten::_scaled_grouped_mm", "aten::_scaled_grouped_mm_v2")
def _grouped_mm(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    packed = 2 if a.dtype == _FP4 else 1
    if a.dim() == 2 and b.dim() == 2:
        # (m, k_1 + .. + k_g) @ (k_1 + .. + k_g, n): every element of k is in one group.
        return 2 * packed * a.shape[0] * a.shape[1] * b.shape[1]
    if a.dim() == 2:
        # (m_1 + .. + m_g, k) @ (g, k, n): every row meets the matrix of one group.
        return 2 * packed * a.shape[0] * a.shape[1] * b.shape[2]
    if b.dim() == 2:
        # (g, m, k) @ (k, n_1 + .. + n_g)
        return 2 * packed * a.shape[1] * a.shape[2] * b.shape[1]
    return packed * _matmul(a.shape, b.shape)  # (g, m, k) @ (g, k, n)


@formula("aten::linear", "aten::mkldnn_linear", "aten::_weight_int8pack_mm")
def _linear(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (*, k) @ (n, k)^T
    return 2 * prod(x.shape) * prod(weight.shape[:-1])


@formula("aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu")
@formula("aten::_weight_int4pack_mm_with_scales_and_zeros", "aten::_mixed_dtypes_linear")
def _packed_linear(x: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (*, k) @ packed (k, n); n can only be told from the result
    return 2 * prod(x.shape) * result.shape[-1]


@formula("aten::linalg_solve_triangular")
def _solve_triangular(a: Tensor, b: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (*, n, n) \ (*, n, k): n (n - 1) / 2 multiply-adds and n divisions for each of k columns
    return a.shape[-1] * prod(result.shape)


@formula("aten::linear_backward")
def _linear_backward(
    x: Tensor, grad: Tensor, weight: Tensor, mask: Sequence[bool], *_: Any, result: Any, **__: Any
) -> int:
    # dX = (*, n) @ (n, k); dW = (*, n)^T @ (*, k)
    return 2 * prod(x.shape) * prod(weight.shape[:-1]) * sum(mask[:2])


@formula("aten::matmul_backward")
def _matmul_backward(
    grad: Tensor, a: Tensor, b: Tensor, mask: Sequence[bool], *_: Any, result: Any, **__: Any
) -> int:
    # dA = dC @ B^T; dB = A^T @ dC: each as many multiply-adds as A @ B
    return _matmul(a.shape, b.shape) * sum(mask[:2])


@formula("aten::_trilinear")
def _trilinear(
    i1: Tensor,
    i2: Tensor,
    i3: Tensor,
    expand1: Sequence[int],
    expand2: Sequence[int],
    expand3: Sequence[int],
    sumdim: Sequence[int],
    *_: Any,
    result: Any,
    **__: Any,
) -> int:
    # Two products in a row: i1 with i2, summing what i3 lacks, then with i3, summing the rest.
    # nn.Bilinear: (b, i) @ (o, i, j) -> (b, o, j), then (b, o, j) . (b, j) -> (b, o).
    s1, s2, s3 = (
        _expanded(t.shape, expand) for t, expand in ((i1, expand1), (i2, expand2), (i3, expand3))
    )
    summed = [dim for dim in sumdim if dim in expand3]
    pair = _broadcast(s1, s2)
    first = 2 * prod(pair) if summed else 0  # without a sum it is elementwise
    left = [1 if dim in summed else size for dim, size in enumerate(pair)]
    second = 2 * prod(_broadcast(left, s3)) if len(summed) < len(sumdim) else 0
    return first + second


def _broadcast(*shapes: Sequence[int]) -> list[int]:
    # Sizes are equal or 1; a missing leading dimension is 1.
    rank = max(len(shape) for shape in shapes)
    full = [[1] * (rank - len(shape)) + list(shape) for shape in shapes]
    return [next((size for size in sizes if size != 1), 1) for sizes in zip(*full, strict=True)]


def _expanded(shape: Sequence[int], expand: Sequence[int]) -> list[int]:
    sizes = list(shape)
    for dim in sorted(expand):
        sizes.insert(dim, 1)
    return sizes


# --- convolutions ----------------------------------------------------------------------------


def _conv(batch: int, spatial: Sequence[int], weight: Tensor) -> int:
    # Each position meets the whole filter bank: (c_out, c_in / groups, *kernel), or
    # (c_in, c_out / groups, *kernel) if transposed. So groups need no treatment of their own.
    return 2 * batch * prod(spatial) * prod(weight.shape)


@formula("aten::cudnn_convolution", "aten::cudnn_convolution_relu", kind="conv")
@formula("aten::cudnn_convolution_add_relu", "aten::mkldnn_convolution", kind="conv")
@formula("aten::miopen_convolution", "aten::miopen_depthwise_convolution", kind="conv")
@formula("aten::miopen_convolution_relu", "aten::miopen_convolution_add_relu", kind="conv")
@formula("aten::_mps_convolution", "aten::_nnpack_spatial_convolution", kind="conv")
@formula("aten::conv_depthwise3d", "aten::_conv_depthwise2d", kind="conv")
@formula("aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", kind="conv")
@formula("aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d", kind="conv")
def _conv_forward(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # The spatial dimensions are the last ones, with or without a batch before them.
    batch = x.shape[0] if x.dim() == weight.dim() else 1
    return _conv(batch, result.shape[2 - weight.dim() :], weight)


@formula("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose", kind="conv")
@formula("aten::_mps_convolution_transpose", kind="conv")
@formula("aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d", kind="conv")
def _conv_transpose(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    batch = x.shape[0] if x.dim() == weight.dim() else 1
    return _conv(batch, x.shape[2 - weight.dim() :], weight)


@formula("aten::convolution", "aten::_convolution", "aten::convolution_overrideable", kind="conv")
def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: bool,
    *_: Any,
    result: Any,
    **__: Any,
) -> int:
    return (_conv_transpose if transposed else _conv_forward)(x, weight, result=result)


def _conv_backward(
    grad: Tensor, x: Tensor, weight: Tensor, transposed: bool, mask: Sequence[bool]
) -> int:
    # dX and dW: each output position (input position if transposed) meets the filters once more.
    # The third entry of the mask is the bias, whose gradient is a sum.
    spatial = (x if transposed else grad).shape[2:]
    return _conv(x.shape[0], spatial, weight) * sum(mask[:2])


@formula("aten::convolution_backward", kind="conv")
def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # args: bias_sizes, stride, padding, dilation, transposed, output_padding, groups, output_mask
    return _conv_backward(grad, x, weight, transposed=args[4], mask=args[7])


@formula("aten::convolution_backward_overrideable", kind="conv")
def _convolution_backward_overrideable(
    grad: Tensor, x: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # args: stride, padding, dilation, transposed, output_padding, groups, output_mask
    return _conv_backward(grad, x, weight, transposed=args[3], mask=args[6])


@formula("aten::_slow_conv2d_backward", kind="conv")
def _slow_conv2d_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # args: kernel_size, stride, padding, output_mask; the overload without a mask computes all
    mask = args[3] if len(args) > 3 else (True, True)
    return _conv_backward(grad, x, weight, transposed=False, mask=mask)


@formula("aten::mps_convolution_backward", kind="conv")
def _mps_convolution_backward(
    x: Tensor, grad: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # args: padding, stride, dilation, groups, output_mask
    return _conv_backward(grad, x, weight, transposed=False, mask=args[4])


# --- recurrent layers ------------------------------------------------------------------------


def _rnn(positions: int, weights: Sequence[Tensor]) -> int:
    # Every position of every sequence meets every weight matrix once: the gates' input and
    # hidden weights, (g*h, in) and (g*h, h), with g = 4 for LSTM, 3 for GRU, 1 for a plain RNN.
    return 2 * positions * sum(prod(w.shape) for w in weights if w.dim() == 2)


def _positions(x: Tensor, batch_sizes: Sequence[int]) -> int:
    # (time, batch, in), or packed: (sum of batch_sizes, in)
    return sum(batch_sizes) if batch_sizes else prod(x.shape[:-1])


@formula("aten::mkldnn_rnn_layer", kind="rnn")
def _mkldnn_rnn_layer(
    x: Tensor, w_in: Tensor, w_hidden: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return _rnn(_positions(x, ()), (w_in, w_hidden))


@formula("aten::mkldnn_rnn_layer_backward", kind="rnn")
def _mkldnn_rnn_layer_backward(
    x: Tensor, w_in: Tensor, w_hidden: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    # dW of both, dH through w_hidden, and dX through w_in where something wants it: the op has
    # no mask to tell, its saved input does.
    positions = _positions(x, ())
    return _rnn(positions, (w_in, w_hidden, w_hidden)) + (
        _rnn(positions, (w_in,)) if x.requires_grad else 0
    )


@formula("aten::_cudnn_rnn", "aten::miopen_rnn", kind="rnn")
def _cudnn_rnn(x: Tensor, weights: Sequence[Tensor], *args: Any, result: Any, **_: Any) -> int:
    # args end with .., batch_sizes, dropout_state
    return _rnn(_positions(x, args[-2]), weights)


@formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward", kind="rnn")
def _cudnn_rnn_backward(
    x: Tensor, weights: Sequence[Tensor], *args: Any, result: Any, **_: Any
) -> int:
    # args start with the number of weights per layer and direction, and end with
    # .., bidirectional, batch_sizes, dropout_state, reserve, output_mask (x, hx, cx, weights)
    bidirectional, batch_sizes, _, _, mask = args[-5:]
    positions = _positions(x, batch_sizes)
    forward = _rnn(positions, weights)
    # A gradient of x goes through the first layer's input weights, in each direction.
    first = [weights[0], weights[args[0]]] if bidirectional else [weights[0]]
    data = forward if mask[0] else forward - _rnn(positions, first)
    return data + (forward if mask[3] else 0)
