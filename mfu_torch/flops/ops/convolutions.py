"""FLOPs of convolutions: each position meets the whole filter bank, forward and twice backward."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.registry import formula

Tensor = torch.Tensor


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


@formula("aten::mps_convolution_transpose_backward", kind="conv")
def _mps_convolution_transpose_backward(
    x: Tensor, grad: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any
) -> int:
    # args: padding, output_padding, stride, dilation, groups, output_mask
    return _conv_backward(grad, x, weight, transposed=True, mask=args[5])


@formula("aten::conv_tbc", kind="conv")
def _conv_tbc(x: Tensor, weight: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (time, b, c_in) with (kernel, c_in, c_out) -> (time, b, c_out)
    return 2 * prod(result.shape[:2]) * prod(weight.shape)


@formula("aten::affine_grid_generator", "aten::cudnn_affine_grid_generator", kind="other")
@formula("aten::cudnn_affine_grid_generator_backward", kind="other")
def _affine_grid(theta: Tensor, *args: Any, result: Tensor, **_: Any) -> int:
    # (b, positions, d + 1) @ (b, d + 1, d), d = 2 or 3 dimensions; the backward swaps the grid
    # (b, *positions, d) and theta's gradient (b, d, d + 1).
    grid = theta if theta.shape[-1] == result.shape[-2] else result
    return 2 * prod(grid.shape) * (grid.shape[-1] + 1)
