"""The log of a BLAS is read as it was written; lines recorded on an x86 CPU, torch 2.13."""

from __future__ import annotations

import blas_log
import pytest

ADDRESSES = "0x7fff3b628920,0x55b58acb74c0,43,0x55b58acb5cc0,41,0x7fff3b628940,0x55b58ffb79c0,43"
MKL_END = "63.31us CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:1"
ONEDNN = "onednn_verbose,v1,primitive,exec,cpu,"


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (f"SGEMM(N,N,43,37,41,{ADDRESSES})", 2 * 43 * 37 * 41),
        (f"GEMM_BF16BF16F32(T,N,32,32,16,{ADDRESSES})", 2 * 32 * 32 * 16),
        (f"CGEMM(N,N,20,30,40,{ADDRESSES})", 8 * 20 * 30 * 40),
        ("SGEMV(t,41,37,0x7fff3b628998,0x55b58acb5cc0,41,0x55b58ffb8640,1)", 2 * 41 * 37),
        ("SDOT(41,0x55b58ffb8840,1,0x55b58ffb8980,1)", 2 * 41),
    ],
)
def test_a_routine_of_mkl_is_a_product_of_its_sizes(call: str, flops: int) -> None:
    log = blas_log.read([f"MKL_VERBOSE {call} {MKL_END}"])
    assert log == blas_log.Log({"blas": flops}, 0, [])


@pytest.mark.parametrize(
    ("call", "flops"),
    [("STRSM(L,L,T,N,8,3,0x55,0x56,8,0x57,8)", 8 * 8 * 3),
     ("STRSM(L,U,T,U,64,16,0x55,0x56,64,0x57,64)", 63 * 64 * 16),
     ("DTRSM(R,U,T,N,5,7,0x55,0x56,5,0x57,5)", 7 * 5 * 7)],
)  # fmt: skip
def test_a_triangle_is_solved_for_each_unknown(call: str, flops: int) -> None:
    assert blas_log.read([f"MKL_VERBOSE {call} {MKL_END}"]) == blas_log.Log({"solve": flops}, 0, [])


@pytest.mark.parametrize(
    ("line", "kind", "flops"),
    [
        (
            "matmul,brg_matmul:avx512_core_bf16,undef,src:bf16::blocked:abc::f0 "
            "wei:bf16::blocked:abc::f0 dst:bf16::blocked:abc::f0,attr-scratchpad:user,,"
            "3x37x41:3x41x43,0.0109863",
            "matmul", 2 * 3 * 37 * 41 * 43,
        ),
        (
            "convolution,jit:avx512_core,forward_training,src:f32:a:blocked:abcd::f0,"
            "attr-scratchpad:user,alg:convolution_direct,"
            "mb2_ic8oc16_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,0.0461426",
            "convolution", 2 * 2 * 14 * 14 * (8 * 16 * 9),
        ),
        (
            "convolution,jit_dw:avx512_core,backward_weights,src:f32:ap:blocked:aBcd16b::f0,"
            "attr-scratchpad:user,alg:convolution_direct,"
            "g8mb2_ic8oc8_ih16oh14kh3sh1dh0ph0_iw16ow14kw3sw1dw0pw0,0.00415039",
            "convolution", 2 * 2 * 14 * 14 * (8 * 1 * 9),
        ),
        (
            "deconvolution,conv:any+jit:avx512_core,backward_data,src:f32:a:blocked:aBcd4b::f0,"
            "attr-scratchpad:user,alg:deconvolution_direct,"
            "g2mb2_ic8oc8_ih16oh34kh3sh2dh0ph0_iw16ow34kw3sw2dw0pw0,0.019043",
            "deconvolution", 2 * 2 * 16 * 16 * (8 * 4 * 9),
        ),
        (
            "rnn,ref,forward_training,src_layer:f32::blocked:abc::f0,attr-scratchpad:user,"
            "alg:vanilla_lstm direction:unidirectional_left2right activation:undef flags:,"
            "l1t5mb4sic13slc11dhc13dic13,31.928",
            "rnn", 2 * 5 * 4 * (4 * 13) * (13 + 11),
        ),
        (
            "rnn,ref,backward,src_layer:f32::blocked:abc::f0,attr-scratchpad:user,"
            "alg:vanilla_lstm direction:unidirectional_left2right activation:undef flags:,"
            "l1t5mb4sic13slc11dhc13dic13,0.0620117",
            "rnn", 2 * 2 * 5 * 4 * (4 * 13) * (13 + 11),
        ),
        (
            "gemm_api,,undef,src_s8::blocked:ab:f0 wei_s8::blocked:ab:f0 dst_s32::blocked:ab:f0,"
            ",,32x32:32x32,0.01",
            "matmul", 2 * 32**3,
        ),
    ],
)  # fmt: skip
def test_a_primitive_of_onednn_is_read_by_its_sizes(line: str, kind: str, flops: int) -> None:
    assert blas_log.read([ONEDNN + line]) == blas_log.Log({kind: flops}, 0, [])


def test_batched_products_of_mkl_have_no_sizes_and_are_counted_as_calls() -> None:
    line = f"MKL_VERBOSE SGEMM_BATCH(N,N,0x7ffdd171e4e8,0x7ffdd171e4e4) {MKL_END}"
    assert blas_log.read([line, line]) == blas_log.Log({}, 2, [])


def test_what_moves_or_scales_data_is_no_work() -> None:
    lines = [
        f"MKL_VERBOSE MKL_SOMATCOPY(R, N, 5, 5, 1.000000, 0x55, 7, 0x55, 5) {MKL_END}",
        f"{ONEDNN}reorder,jit:uni,undef,src:f32::blocked:abcd::f0,attr-scratchpad:user,,16x8x3x3,0",
        "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture "
        "Intel(R) Architecture processors, Lnx 2.60GHz lp64 gnu_thread",
        "onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support",
        "something that a model prints",
    ]
    assert blas_log.read(lines) == blas_log.Log({}, 0, [])


@pytest.mark.parametrize(
    "line",
    [
        f"MKL_VERBOSE SGESDD(A,20,20,0x55,20,0x55,0x55,20,0x55,20,0x55,-1,0x55,0) {MKL_END}",
        f"MKL_VERBOSE SGETRF(8,8,0x55bccc284700,8,0x55bccc1939c0,0) {MKL_END}",
        f"{ONEDNN}sdpa,ref,undef,src:f32::blocked:abcd::f0,attr-scratchpad:user,,2x4x32x16,0.1",
    ],
)
def test_a_line_that_may_hide_a_contraction_is_not_passed_over(line: str) -> None:
    assert blas_log.read([line]).unknown == [line]
