"""FLOPs of kernel packages that register torch ops, by op name: no package is imported.

Each argument list was read in the package's own source, named beside it with its revision; where
no source could be read there is no formula, and the op is listed as uncounted. Attention packages
have a file of their own, :mod:`mfu_torch.flops.ops.attention_packages`. Packages that launch
kernels past torch's dispatcher have no ops to count: :mod:`mfu_torch.flops.opaque`.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.products import ROWS_NOT_READ, matmul_flops
from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor


def _linear(x: Tensor, columns: int) -> int:
    return 2 * prod(x.shape) * columns  # (*, k) @ (k, n)


# --- FBGEMM (fbgemm_gpu.experimental.gen_ai) and its successor MSLK --------------------------
# pytorch/FBGEMM 71d6f8b, fbgemm_gpu/experimental/gen_ai/src/quantize/quantize_defs.cpp, shapes in
# quantize.cpp; pytorch/MSLK registers the same list under "mslk" (csrc/gemm/gemm_ops.cpp).


def _fbgemm(*names: str) -> list[str]:
    return [f"{library}::{name}" for library in ("fbgemm", "mslk") for name in names]


@formula(*_fbgemm("f8f8bf16", "f8f8bf16_groupwise", "f8f8bf16_cublas", "f8f8bf16_lite"))
@formula(*_fbgemm("f8f8bf16_blockwise", "f8f8bf16_rowwise", "f8f8bf16_rowwise_out"))
@formula(*_fbgemm("f8f8bf16_tensorwise", "f8f8bf16_rowwise_preshuffle", "f8f8f16_rowwise"))
@formula(*_fbgemm("f8f8f16_rowwise_preshuffle", "f8i4bf16_rowwise", "f8i4bf16_shuffled"))
@formula(*_fbgemm("bf16i4bf16_rowwise", "bf16i4bf16_shuffled", "bf16_fast_gemv"))
@formula(*_fbgemm("bf16fp8bf16_fast_gemv", "i8i8bf16", "i8i8bf16_dynamic", "bf16x9_gemm"))
@formula("bitsandbytes::int8_linear_matmul", "bitsandbytes::int8_scaled_mm")
@formula("quanto::qbytes_mm")
def _rows_of_weight(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (*, k) @ (n, k)^T; a weight of 4-bit numbers keeps n, and two of k in a byte.
    # bitsandbytes 95f9af3 (0.50), bitsandbytes/_ops.py; optimum-quanto e33f820, qbytes_mm.py
    return _linear(x, weight.shape[0])


@formula(*_fbgemm("f4f4bf16"), runs_in="fp4")
def _fp4(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # Two elements of k in a byte of both.
    return 2 * _linear(x, weight.shape[0])


@formula(*_fbgemm("f8f8bf16_rowwise_batched", "bf16i4bf16_rowwise_batched"))
@formula(*_fbgemm("bf16i4bf16_shuffled_batched"))
def _batched(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _linear(x, weight.shape[1])  # (b, m, k) @ (b, n, k)^T


@formula(*_fbgemm("bf16bf16bf16_grouped", "bf16bf16bf16_grouped_cat"))
@formula(*_fbgemm("f8f8bf16_rowwise_grouped", "f8f8bf16_rowwise_grouped_cat"))
def _lists(xs: Sequence[Tensor], weights: Sequence[Tensor], *_: Any, result: Any, **__: Any) -> int:
    return sum(_linear(x, w.shape[0]) for x, w in zip(xs, weights, strict=True))


@formula(*_fbgemm("bf16bf16bf16_grouped_stacked", "f8f8bf16_rowwise_grouped_stacked"))
@formula(*_fbgemm("bf16bf16bf16_grouped_grad"))
def _stacked(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _linear(x, weight.shape[1])  # (m_1 + .. + m_g, k), each group with its (n, k)^T


@formula(*_fbgemm("bf16bf16bf16_grouped_wgrad"))
def _stacked_weight_gradient(grad: Tensor, x: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _linear(grad, x.shape[1])  # (m_i, n)^T @ (m_i, k) for each group


@formula(*_fbgemm("bf16bf16bf16_grouped_dynamic", "f8f8bf16_rowwise_grouped_dynamic"))
def _dynamic(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> OpFlops:
    flops = _linear(x, weight.shape[1])  # (g, m, k) @ (g, n, k)^T, of which some rows are used
    return OpFlops(flops, flops, note=ROWS_NOT_READ)


@formula(*_fbgemm("f8f8bf16_conv"), kind="conv")
def _channels_last_conv(x: Tensor, weight: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (n, d, h, w, c) and (k, t, r, s, c) -> (n, z, p, q, k)
    return 2 * prod(result.shape[:-1]) * prod(weight.shape)


# --- torchao ---------------------------------------------------------------------------------
# pytorch/ao 36027d8 (0.19): torchao/ops.py, prototype/blockwise_fp8_training/kernels.py,
# quantization/quantize_/workflows/float8. Most of torchao runs on ops of torch.


@formula("torchao::mx_fp8_bf16", "torchao::blockwise_scaled_mm")
@formula("torchao::triton_fp8_gemm_1x128_128x128", "torchao::triton_fp8_gemm_1x128_128x1")
def _product(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return matmul_flops(a.shape, b.shape)  # (m, k) @ (k, n)


@formula("ao::blockwise_fp8_gemm")
def _blockwise(a: Tensor, a_scale: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _linear(a, b.shape[0])  # (*, k) @ (n, k)^T


@formula("torchao::rowwise_scaled_linear_sparse_cutlass_f8f8")
def _sparse_linear(
    x: Tensor, x_scale: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return 2 * prod(x.shape[:-1]) * prod(weight.shape)  # (n, k / 2) is stored


@formula("float8_sparse::fp8_sparse_mm")
def _sparse_mm(x: Tensor, packed: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    return prod(result.shape) * x.shape[-1]  # half of (k, n) is stored


@formula("torchao::da8w4_linear_cpu", runs_in="int8")
@formula("torchao::float8_linear_cpu")
def _linear_of_result(x: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    return _linear(x, result.shape[-1])


# --- bitsandbytes and optimum-quanto ---------------------------------------------------------


@formula("bitsandbytes::gemv_4bit", "bitsandbytes::gemm_4bit")
def _four_bit(
    x: Tensor, packed: Tensor, shape: Sequence[int], *_: Any, result: Any, **__: Any
) -> int:
    return _linear(x, shape[0])  # (*, k) @ (n, k)^T; the shape stands beside the packed bytes


@formula("bitsandbytes::int8_mixed_scaled_mm", operand=1)
def _mixed(x: Tensor, x8: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any) -> int:
    # args: SCA, SCB, outlier_cols, ..; columns with outliers are multiplied apart, in 16 bits
    outliers = args[2].shape[0] if len(args) > 2 and args[2] is not None else 0
    rows = prod(x8.shape[:-1])
    return 2 * rows * weight.shape[0] * (x8.shape[-1] + int(outliers))


@formula("quanto::gemm_f16i4_awq")
def _awq(x: Tensor, *args: Any, result: Tensor, **_: Any) -> int:
    # args: other, scale, shift, rows, out_cols, in_cols, bits, group_size
    rows, columns, inner = args[3:6]
    return 2 * int(rows) * int(columns) * int(inner)


@formula("quanto::gemm_f16f8_marlin")
def _marlin_fp8(x: Tensor, *args: Any, result: Any, **_: Any) -> int:
    # args: weight, scales, workspace, num_bits, size_m, size_n, size_k
    m, n, k = args[4:7]
    return 2 * int(m) * int(n) * int(k)


@formula("quanto::gemm_f16i4_marlin")
def _marlin_int4(x: Tensor, packed: Tensor, scales: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _linear(x, scales.shape[1])


# --- convolutions ----------------------------------------------------------------------------
# Dao-AILab/causal-conv1d 0d2252d (1.6.1): causal_conv1d/cpp_functions.py, csrc/causal_conv1d_bwd.cu


@formula("DaoAILab::_causal_conv1d_fwd_cpp", kind="conv")
def _causal_conv(x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (b, channels, l) with (channels, width), each channel apart
    return 2 * prod(x.shape) * weight.shape[-1]


@formula("DaoAILab::_causal_conv1d_update_cpp", kind="conv")
def _causal_conv_step(
    x: Tensor, state: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return 2 * prod(x.shape) * weight.shape[-1]  # (b, channels[, l])


@formula("DaoAILab::_causal_conv1d_bwd_cpp", kind="conv")
def _causal_conv_backward(x: Tensor, weight: Tensor, *args: Any, result: Any, **_: Any) -> OpFlops:
    # args end with .., silu_activation: with it the kernel computes the forward once more
    forward = 2 * prod(x.shape) * weight.shape[-1]
    again = forward if args[-1] else 0
    return OpFlops(2 * forward, 2 * forward, again, again)


# pytorch/vision 0efef99: torchvision/csrc/ops/deform_conv2d.cpp


@formula("torchvision::deform_conv2d", kind="conv")
def _deformable(x: Tensor, weight: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # Each output position meets (c_out, c_in / groups, *kernel); sampling is elementwise.
    return 2 * prod(result.shape) // result.shape[1] * prod(weight.shape)


@formula("torchvision::_deform_conv2d_backward", kind="conv")
def _deformable_backward(
    grad: Tensor, x: Tensor, weight: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    # The gradient of the sampled columns, W^T @ grad, and that of the weight.
    return 2 * (2 * prod(grad.shape) // grad.shape[1] * prod(weight.shape))


# --- ops of these packages that only scale, round, move or update -----------------------------
# the same sources; Dao-AILab/flash-attention 0251105, flash_attn/ops/triton/layer_norm.py;
# NVIDIA/TransformerEngine d0067d0, transformer_engine/pytorch/permutation.py and softmax.py

_NO_CONTRACTION = {
    "bitsandbytes": """int8_vectorwise_quant int8_vectorwise_dequant int8_mm_dequant
        int8_double_quant dequantize_4bit quantize_4bit dequantize_blockwise quantize_blockwise
        optimizer_update_32bit optimizer_update_8bit_blockwise""",
    "quanto": "quantize_symmetric quantize_affine unpack pack_fp8_marlin",
    "fbgemm": """preshuffle_i4 per_tensor_quantize_i8 per_tensor_dynamic_quantize_i8
        silu_mul_quantize_i8 quantize_fp8_per_tensor quantize_fp8_per_row quantize_fp8_per_col
        get_fp8_per_tensor_scale quantize_fp8_per_tensor_fixed_scale scaled_fp4_quant""",
    "torchao": """to_sparse_semi_structured_cutlass_sm9x_f8 da8w4_linear_prepack_cpu
        float8_linear_prepack_cpu triton_fp8_blockwise_act_quant_lhs
        triton_fp8_blockwise_act_quant_rhs triton_fp8_blockwise_act_quant_transposed_lhs
        triton_fp8_blockwise_weight_quant_rhs triton_fp8_blockwise_weight_quant_transposed_rhs
        triton_to_mxfp8_dim0 triton_to_mxfp8_dim1 triton_mxfp8_dequant_dim0
        triton_mx_block_rearrange""",
    "flash_attn": "layer_norm_fwd_impl layer_norm_bwd_impl",
    "te_moe": """permute_index_map permute_index_map_bwd unpermute_index_map_fwd
        unpermute_index_map_bwd permute_mask_map_fwd permute_mask_map_bwd
        unpermute_mask_map_fwd unpermute_mask_map_bwd_with_probs unpermute_mask_map_bwd_no_probs
        chunk_sort_fwd chunk_sort_bwd""",
    "te_softmax": """scaled_softmax_fwd scaled_softmax_bwd scaled_masked_softmax_fwd
        scaled_masked_softmax_bwd scaled_upper_triang_masked_softmax_fwd
        scaled_upper_triang_masked_softmax_bwd scaled_aligned_causal_masked_softmax_fwd
        scaled_aligned_causal_masked_softmax_bwd""",
}


@formula(*(f"{library}::{op}" for library, ops in _NO_CONTRACTION.items() for op in ops.split()))
def _elementwise(*_: Any, result: Any, **__: Any) -> int:
    return 0
