"""Kernel packages by their ops' names, without their kernels; numbers by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_calls import shape
from library_ops import defined

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops.packages import ROWS_NOT_READ

BF16, FP8, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.int8

GEMM = "(Tensor XQ, Tensor WQ, Tensor x_scale, Tensor w_scale) -> Tensor"


def with_columns(columns: int) -> Any:
    def result(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], columns), dtype=BF16)

    return result


@pytest.mark.parametrize("library", ["fbgemm", "mslk"])
def test_fbgemm_multiplies_with_the_rows_of_the_weight(library: str) -> None:
    x, w, s = shape(8, 32, dtype=FP8), shape(16, 32, dtype=FP8), shape(1)
    product = 2 * 8 * 32 * 16
    with defined(library, f"f8f8bf16_rowwise{GEMM}", result=with_columns(16)) as ops:
        assert count_flops(ops.f8f8bf16_rowwise, x, w, s, s).by_dtype == {"fp8": product}
        batch = shape(2, 4, 32, dtype=FP8)
        assert count_flops(ops.f8f8bf16_rowwise, batch, w, s, s).model == product
    schema = "i8i8bf16(Tensor XQ, Tensor WQ, float scale, int split_k=1) -> Tensor"
    with defined(library, schema, result=with_columns(16)) as ops:
        count = count_flops(ops.i8i8bf16, shape(8, 32, dtype=INT8), shape(16, 32, dtype=INT8), 1.0)
    assert count.by_dtype == {"int8": product}


def test_fbgemm_with_four_bit_weights_keeps_the_width_and_not_the_depth() -> None:
    x, packed, s = shape(8, 32, dtype=BF16), shape(16, 16, dtype=INT8), shape(1)
    with defined("fbgemm", f"bf16i4bf16_rowwise{GEMM}", result=with_columns(16)) as ops:
        count = count_flops(ops.bf16i4bf16_rowwise, x, packed, s, s)
    assert count.by_dtype == {"bf16": 2 * 8 * 32 * 16}
    x4, w4 = shape(8, 16, dtype=torch.uint8), shape(16, 16, dtype=torch.uint8)  # 32 of k in bytes
    with defined("fbgemm", f"f4f4bf16{GEMM}", result=with_columns(16)) as ops:
        assert count_flops(ops.f4f4bf16, x4, w4, s, s).by_dtype == {"fp4": 2 * 8 * 32 * 16}


def test_fbgemm_over_groups_and_batches() -> None:
    s, sizes = shape(1), shape(2)
    x, w = shape(12, 32, dtype=BF16), shape(2, 16, 32, dtype=BF16)
    schema = "bf16bf16bf16_grouped_stacked(Tensor X, Tensor W, Tensor M_sizes) -> Tensor"
    with defined("fbgemm", schema, result=with_columns(16)) as ops:
        count = count_flops(ops.bf16bf16bf16_grouped_stacked, x, w, sizes)
    assert count.by_dtype == {"bf16": 2 * 12 * 32 * 16}
    schema = "bf16bf16bf16_grouped_wgrad(Tensor X, Tensor W, Tensor M_sizes) -> Tensor"
    with defined("fbgemm", schema, result=with_columns(16)) as ops:
        grad = shape(12, 16, dtype=BF16)
        count = count_flops(ops.bf16bf16bf16_grouped_wgrad, grad, x, sizes)
    assert count.model == 2 * 12 * 16 * 32
    schema = f"f8f8bf16_rowwise_batched{GEMM}"
    with defined("fbgemm", schema, result=with_columns(16)) as ops:
        a, b = shape(2, 6, 32, dtype=FP8), shape(2, 16, 32, dtype=FP8)
        assert count_flops(ops.f8f8bf16_rowwise_batched, a, b, s, s).model == 2 * 12 * 32 * 16
    schema = "bf16bf16bf16_grouped_dynamic(Tensor X, Tensor W, Tensor zero_start_index_M) -> Tensor"
    with defined("fbgemm", schema, result=with_columns(16)) as ops:
        count = count_flops(ops.bf16bf16bf16_grouped_dynamic, a.to(BF16), b.to(BF16), sizes)
    assert (count.model, count.notes) == (2 * 12 * 32 * 16, (ROWS_NOT_READ,))
    schema = "bf16bf16bf16_grouped_cat(Tensor[] X, Tensor[] W) -> Tensor"

    def result(xs: list[torch.Tensor], ws: list[torch.Tensor]) -> torch.Tensor:
        return torch.empty(9, 16, device="meta")

    with defined("fbgemm", schema, result=result) as ops:
        xs, ws = [shape(4, 32), shape(5, 32)], [shape(16, 32)] * 2
        count = count_flops(ops.bf16bf16bf16_grouped_cat, xs, ws)
    assert count.by_dtype == {"fp32": 2 * 9 * 32 * 16}


def test_a_convolution_of_fbgemm_has_its_channels_last() -> None:
    schema = (
        "f8f8bf16_conv(Tensor activation, Tensor filter, Tensor scale, int[] padding, "
        "int[] stride, int[] dilation) -> Tensor"
    )

    def result(*_: Any) -> torch.Tensor:
        return torch.empty(2, 1, 7, 7, 8, device="meta")

    x, w = shape(2, 1, 9, 9, 4, dtype=FP8), shape(8, 1, 3, 3, 4, dtype=FP8)
    with defined("fbgemm", schema, result=result) as ops:
        count = count_flops(ops.f8f8bf16_conv, x, w, shape(1), [0] * 3, [1] * 3, [1] * 3)
    assert count.by_dtype == {"fp8": 2 * 2 * 49 * 8 * 9 * 4}


def test_bitsandbytes_names_its_weights_shape_or_shows_it() -> None:
    x, packed = shape(2, 4, 32, dtype=BF16), shape(256, 1, dtype=torch.uint8)
    schema = (
        "gemv_4bit(Tensor A, Tensor B, int[] shapeB, Tensor absmax, Tensor code, int blocksize)"
        " -> Tensor"
    )
    with defined("bitsandbytes", schema, result=with_columns(16)) as ops:
        count = count_flops(ops.gemv_4bit, x, packed, [16, 32], shape(8), shape(16), 64)
    assert count.by_dtype == {"bf16": 2 * 8 * 32 * 16}
    schema = "int8_linear_matmul(Tensor A, Tensor B) -> Tensor"
    a, b = shape(8, 32, dtype=INT8), shape(16, 32, dtype=INT8)
    with defined("bitsandbytes", schema, result=with_columns(16)) as ops:
        assert count_flops(ops.int8_linear_matmul, a, b).by_dtype == {"int8": 2 * 8 * 32 * 16}
    schema = (
        "int8_mixed_scaled_mm(Tensor A, Tensor CA, Tensor CB, Tensor SCA, Tensor SCB, "
        "Tensor? outlier_cols=None, Tensor? bias=None) -> Tensor"
    )
    with defined("bitsandbytes", schema, result=with_columns(16)) as ops:
        outliers = shape(3, dtype=torch.int64)
        count = count_flops(ops.int8_mixed_scaled_mm, x, a, b, shape(8), shape(16), outliers)
        assert count.by_dtype == {"int8": 2 * 8 * (32 + 3) * 16}
        count = count_flops(ops.int8_mixed_scaled_mm, x, a, b, shape(8), shape(16))
        assert count.by_dtype == {"int8": 2 * 8 * 32 * 16}


def test_quanto_reads_its_sizes_from_its_arguments() -> None:
    x, s, packed = shape(8, 32, dtype=torch.float16), shape(1, 16), shape(4, 16, dtype=torch.int32)
    awq = (
        "gemm_f16i4_awq(Tensor input, Tensor other, Tensor other_scale, Tensor other_shift, "
        "int rows, int out_cols, int in_cols, int bits, int group_size) -> Tensor"
    )
    fp8 = (
        "gemm_f16f8_marlin(Tensor a, Tensor b_q_weight, Tensor b_scales, Tensor workspace, "
        "int num_bits, int size_m, int size_n, int size_k) -> Tensor"
    )
    int4 = (
        "gemm_f16i4_marlin(Tensor input, Tensor other, Tensor other_scale, Tensor other_shift, "
        "Tensor workspace) -> Tensor"
    )
    plain = "qbytes_mm(Tensor A, Tensor B, Tensor scales) -> Tensor"
    product = {"fp16": 2 * 8 * 32 * 16}
    with defined("quanto", awq, fp8, int4, plain, result=with_columns(16)) as ops:
        sizes = (8, 16, 32, 4, 128)
        assert count_flops(ops.gemm_f16i4_awq, x, packed, s, s, *sizes).by_dtype == product
        assert count_flops(ops.gemm_f16f8_marlin, x, packed, s, s, 8, 8, 16, 32).by_dtype == product
        assert count_flops(ops.gemm_f16i4_marlin, x, packed, s, s, s).by_dtype == product
        weight = shape(16, 32, dtype=INT8)
        assert count_flops(ops.qbytes_mm, x, weight, s).by_dtype == product


def test_torchao_has_products_in_both_orders() -> None:
    a, b, s = shape(8, 32, dtype=FP8), shape(32, 16, dtype=FP8), shape(1)
    product = {"fp8": 2 * 8 * 32 * 16}
    schema = "mx_fp8_bf16(Tensor a, Tensor b, Tensor a_scale, Tensor b_scale) -> Tensor"
    with defined("torchao", schema, result=with_columns(16)) as ops:
        assert count_flops(ops.mx_fp8_bf16, a, b, s, s).by_dtype == product
    schema = (
        "blockwise_fp8_gemm(Tensor a, Tensor a_s, Tensor b, Tensor b_s, int block_size=128)"
        " -> Tensor"
    )
    weight = shape(16, 32, dtype=FP8)
    with defined("ao", schema, result=with_columns(16)) as ops:
        assert count_flops(ops.blockwise_fp8_gemm, a, s, weight, s).by_dtype == product
    schema = (
        "rowwise_scaled_linear_sparse_cutlass_f8f8(Tensor input, Tensor input_scale, "
        "Tensor weight, Tensor weight_meta, Tensor weight_scale) -> Tensor"
    )
    half = shape(16, 16, dtype=FP8)
    with defined("torchao", schema, result=with_columns(16)) as ops:
        count = count_flops(ops.rowwise_scaled_linear_sparse_cutlass_f8f8, a, s, half, s, s)
    assert count.by_dtype == {"fp8": 2 * 8 * 16 * 16}
    schema = (
        "da8w4_linear_cpu(Tensor input, Tensor input_scales, Tensor input_qzeros, Tensor weight)"
        " -> Tensor"
    )
    with defined("torchao", schema, result=with_columns(16)) as ops:
        count = count_flops(ops.da8w4_linear_cpu, a.to(torch.uint8), s, s, shape(1, 1, 32, 8))
    assert count.by_dtype == {"int8": 2 * 8 * 32 * 16}


CAUSAL_CONV = (
    "_causal_conv1d_fwd_cpp(Tensor x, Tensor weight, Tensor? bias, Tensor? seq_idx, "
    "Tensor? initial_states, Tensor(a!) out, Tensor(b!)? final_states_out, "
    "bool silu_activation) -> ()",
    "_causal_conv1d_bwd_cpp(Tensor x, Tensor weight, Tensor? bias, Tensor dout, "
    "Tensor? seq_idx, Tensor? initial_states, Tensor? dfinal_states, Tensor(a!) dx, "
    "Tensor(b!) dweight, Tensor(c!)? dbias, Tensor(d!)? dinitial_states, "
    "bool silu_activation) -> ()",
    "_causal_conv1d_update_cpp(Tensor x, Tensor(a!) conv_state, Tensor weight, Tensor? bias, "
    "Tensor(b!) out, bool silu_activation, Tensor? cache_seqlens, "
    "Tensor? conv_state_indices) -> ()",
)


@pytest.mark.parametrize("silu", [False, True])
def test_a_causal_convolution_recomputes_its_activation_backward(silu: bool) -> None:
    x, w, state, n = shape(2, 16, 100), shape(16, 4), shape(2, 16, 4), None
    forward = 2 * 2 * 16 * 100 * 4
    with defined("DaoAILab", *CAUSAL_CONV, result=lambda *_: None) as ops:
        assert count_flops(ops._causal_conv1d_fwd_cpp, x, w, n, n, n, x, n, silu).model == forward
        args = (x, w, n, x, n, n, n, x, w, n, n, silu)
        count = count_flops(ops._causal_conv1d_bwd_cpp, *args)
        assert (count.model, count.kernel_recompute) == (2 * forward, forward if silu else 0)
        one = shape(2, 16)
        args = (one, state, w, n, one, silu, n, n)
        assert count_flops(ops._causal_conv1d_update_cpp, *args).model == 2 * 2 * 16 * 4


def test_a_deformable_convolution_is_a_convolution_forward_and_two_backward() -> None:
    tail = "int[] sizes, bool use_mask) -> Tensor"
    schemas = (
        f"deform_conv2d(Tensor input, Tensor weight, Tensor offset, Tensor mask, {tail}",
        "_deform_conv2d_backward(Tensor grad, Tensor input, Tensor weight, Tensor offset, "
        f"Tensor mask, {tail}",
    )
    x, w, grad = shape(2, 4, 9, 9), shape(8, 2, 3, 3), shape(2, 8, 7, 7)
    forward = 2 * 2 * 49 * 8 * 2 * 9
    with defined("torchvision", *schemas, result=lambda *_: torch.empty_like(grad)) as ops:
        assert count_flops(ops.deform_conv2d, x, w, x, x, [], False).model == forward
        args = (grad, x, w, x, x, [], False)
        assert count_flops(ops._deform_conv2d_backward, *args).model == 2 * forward


def test_ops_that_only_quantise_are_not_suspected() -> None:
    schema = "quantize_blockwise(Tensor A, Tensor code, int blocksize) -> Tensor"
    with defined("bitsandbytes", schema) as ops:
        count = count_flops(ops.quantize_blockwise, shape(8, 32), shape(256), 64)
    assert (count.hardware, count.uncounted) == (0, {})


def test_an_op_of_a_package_whose_source_was_not_read_is_named() -> None:
    with defined("some_kernels", "gemm(Tensor a, Tensor b) -> Tensor") as ops:
        count = count_flops(ops.gemm, shape(8, 32), shape(32, 16))
    assert (count.hardware, count.uncounted) == (0, {"some_kernels.gemm": 1})
