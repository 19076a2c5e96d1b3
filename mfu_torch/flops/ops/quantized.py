"""FLOPs of linear, convolutional and recurrent layers over packed or quantised weights.

A packed weight does not show its shape. A linear layer's width is read from its result, a
convolution's filters from the packed object itself. The dtype is the one that the kernel
multiplies in: 8-bit weights with activations that are quantised on the fly run in int8; weights
that are only stored small and widened first (fp16 and int4 "weight-only") run in the
activations' dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.products import matmul_flops
from mfu_torch.flops.ops.registry import formula

Tensor = torch.Tensor


# --- linear layers ---------------------------------------------------------------------------


@formula("quantized::linear", "quantized::linear_relu", "_quantized::linear", runs_in="int8")
@formula("quantized::linear_leaky_relu", "quantized::linear_tanh", runs_in="int8")
@formula("quantized::linear_dynamic", "quantized::linear_relu_dynamic", runs_in="int8")
@formula("_quantized::linear_dynamic", runs_in="int8")
@formula("quantized::linear_with_input_q_dq_qweight_dq_output_fp32", runs_in="int8")
@formula("quantized::linear_with_input_q_dq_qweight_dq_relu_output_fp32", runs_in="int8")
@formula("_quantized::wrapped_quantized_linear", runs_in="int8")
@formula("_quantized::_wrapped_quantized_linear_prepacked", runs_in="int8")
@formula("aten::_wrapped_quantized_linear_prepacked", runs_in="int8")
@formula("aten::_dyn_quant_matmul_4bit", "aten::fbgemm_linear_int8_weight", runs_in="int8")
@formula("aten::fbgemm_linear_int8_weight_fp32_activation", runs_in="int8")
@formula("quantized::linear_dynamic_fp16", "quantized::linear_relu_dynamic_fp16")
@formula("quantized::linear_dynamic_fp16_unpacked_weight")
@formula("_quantized::wrapped_fbgemm_linear_fp16_weight")
@formula("aten::fbgemm_linear_fp16_weight", "aten::fbgemm_linear_fp16_weight_fp32_activation")
@formula("onednn::linear_dynamic_fp16", "onednn::linear_relu_dynamic_fp16")
@formula("onednn::qlinear_pointwise", "mkldnn::_linear_pointwise", "mkl::_mkl_linear")
@formula("quantized::int4mm_packed_weight_cpu")
@formula("aten::_weight_int4pack_mm", "aten::_weight_int4pack_mm_for_cpu")
@formula("aten::_weight_int4pack_mm_with_scales_and_zeros", "aten::_mixed_dtypes_linear")
def _packed_linear(x: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (*, k) @ packed (k, n); n can only be told from the result
    return 2 * prod(x.shape) * result.shape[-1]


@formula("quantized::matmul")
def _matmul(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return matmul_flops(a.shape, b.shape)


# --- convolutions ----------------------------------------------------------------------------


@formula("mkldnn::_convolution_pointwise.default", kind="conv")
def _fused_conv(x: Tensor, weight: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # Each output position meets the whole filter bank, (c_out, c_in / groups, *kernel).
    return 2 * prod(result.shape) // result.shape[1] * prod(weight.shape)


@formula("mkldnn::_convolution_pointwise.binary", kind="conv")
def _fused_conv_binary(x: Tensor, other: Tensor, *args: Any, result: Tensor, **_: Any) -> int:
    return _fused_conv(x, *args, result=result)


@formula("mkldnn::_convolution_pointwise_", operand=1, kind="conv")
def _fused_conv_into(other: Tensor, *args: Any, result: Tensor, **_: Any) -> int:
    return _fused_conv(*args, result=result)


@formula("mkldnn::_convolution_transpose_pointwise", kind="conv")
def _fused_conv_transpose(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # oneDNN's packed weight is (c_out, c_in / groups, *kernel) or its transpose: the number of
    # elements is the same, and each input position meets all of them.
    return 2 * prod(x.shape) // x.shape[1] * prod(weight.shape)


@formula("onednn::qconv1d_pointwise", "onednn::qconv2d_pointwise", kind="conv")
@formula("onednn::qconv3d_pointwise", "onednn::qconv_pointwise", kind="conv")
def _onednn_conv(
    x: Tensor, scale: Any, zero_point: Any, weight: Tensor, *_: Any, result: Tensor, **__: Any
) -> int:
    return _fused_conv(x, weight, result=result)


_INT8_CONVS = [
    f"{library}::conv{dims}{form}"
    for library in ("quantized", "_quantized")
    for dims in ("1d", "2d", "3d")
    for form in ("", "_relu", "_add", "_add_relu", "_dynamic")
]

_INT8_TRANSPOSED = [
    f"{library}::conv_transpose{dims}{form}"
    for library in ("quantized", "_quantized")
    for dims in ("1d", "2d", "3d")
    for form in ("", "_dynamic")
]


@formula(*_INT8_CONVS, kind="conv", runs_in="int8")
def _packed_conv(x: Tensor, *args: Any, result: Tensor, **_: Any) -> int:
    # x (b, c_in, *spatial) and the packed (c_out, c_in / groups, *kernel), behind what is added
    return 2 * prod(result.shape) // result.shape[1] * _filters(args)


@formula(*_INT8_TRANSPOSED, kind="conv", runs_in="int8")
def _packed_conv_transpose(x: Tensor, *args: Any, result: Any, **_: Any) -> int:
    # Each input position meets (c_in, c_out / groups, *kernel).
    return 2 * prod(x.shape) // x.shape[1] * _filters(args)


def _filters(args: Sequence[Any]) -> int:
    packed = next(value for value in args if hasattr(value, "unpack"))
    return prod(packed.unpack()[0].shape)


# --- recurrent layers ------------------------------------------------------------------------


@formula("quantized::quantized_lstm_cell_dynamic", runs_in="int8")
@formula("quantized::quantized_gru_cell_dynamic", runs_in="int8")
@formula("quantized::quantized_rnn_relu_cell_dynamic", runs_in="int8")
@formula("quantized::quantized_rnn_tanh_cell_dynamic", runs_in="int8")
def _cell(
    x: Tensor,
    state: Any,
    w_in: Any,
    w_hidden: Any,
    bias: Tensor,
    *_: Any,
    result: Any,
    **__: Any,
) -> int:
    # (b, in) @ (in, g h) and (b, h) @ (h, g h); the bias has all g gates, 4, 3 or 1 of them
    hidden: Tensor = state[0] if isinstance(state, list | tuple) else state
    return 2 * prod(bias.shape) * (prod(x.shape) + prod(hidden.shape))


def _layers(x: Tensor, hidden: Tensor, gates: int, layers: int, ways: int) -> int:
    # The first layer reads x, the later ones the hidden states of both ways.
    positions, h = prod(x.shape[:-1]), hidden.shape[-1]
    widths = x.shape[-1] + (layers - 1) * ways * h + layers * h
    return 2 * positions * ways * gates * h * widths


@formula("aten::quantized_lstm.input", "aten::quantized_lstm.input_legacy", runs_in="int8")
def _lstm(
    x: Tensor, hx: Sequence[Tensor], params: Any, biases: bool, layers: int, *args: Any, **_: Any
) -> int:
    # args: dropout, train, bidirectional, batch_first
    return _layers(x, hx[0], 4, layers, 1 + args[2])


@formula("aten::quantized_lstm.data", "aten::quantized_lstm.data_legacy", runs_in="int8")
def _packed_lstm(x: Tensor, batch_sizes: Tensor, *args: Any, **kwargs: Any) -> int:
    return _lstm(x, *args, **kwargs)


@formula("aten::quantized_gru.input", "aten::quantized_gru.input_legacy", runs_in="int8")
def _gru(
    x: Tensor, hidden: Tensor, params: Any, biases: bool, layers: int, *args: Any, **_: Any
) -> int:
    return _layers(x, hidden, 3, layers, 1 + args[2])


@formula("aten::quantized_gru.data", "aten::quantized_gru.data_legacy", runs_in="int8")
def _packed_gru(x: Tensor, batch_sizes: Tensor, *args: Any, **kwargs: Any) -> int:
    return _gru(x, *args, **kwargs)
