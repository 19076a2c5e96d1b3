"""Matrix products of every kind: dense, in place, sparse, quantized, complex, and in transforms."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from cases import Work, meta, op, weight, work
from torch import nn

M, K, N = 20, 30, 40
ONE = 2 * M * K * N  # (m, k) @ (k, n)
BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn


# --- dense -----------------------------------------------------------------------------------


@work
def dot_product() -> Work:
    # Its gradients are products with a scalar: elementwise.
    return op(torch.dot, weight(K), weight(K), forward=2 * K, backward=0)


@work
def inner_product_of_matrices() -> Work:
    return op(torch.inner, weight(M, K), weight(N, K), forward=ONE, backward=2 * ONE)


@work
def outer_product() -> Work:
    # Nothing is summed: elementwise. torch multiplies and sums its gradients elementwise, too.
    return op(torch.outer, weight(M), weight(N), forward=0, backward=0)


@work
def vector_times_matrix() -> Work:
    # d(vector) is a product, d(matrix) an outer product.
    forward = 2 * K * N
    return op(torch.matmul, weight(K), weight(K, N), forward=forward, backward=2 * forward)


@work
def matmul_with_two_batch_dimensions() -> Work:
    a, b = weight(2, 1, M, K), weight(3, K, N)
    return op(torch.matmul, a, b, forward=6 * ONE, backward=2 * 6 * ONE)


@work
def addmm_in_place() -> Work:
    out = torch.zeros(M, N)
    return op(lambda a, b: out.addmm_(a, b), torch.ones(M, K), torch.ones(K, N), forward=ONE)


@work
def addbmm_in_place() -> Work:
    out = torch.zeros(M, N)
    a, b = torch.ones(3, M, K), torch.ones(3, K, N)
    return op(lambda a, b: out.addbmm_(a, b), a, b, forward=3 * ONE)


@work
def addmv_in_place() -> Work:
    out = torch.zeros(M)
    return op(lambda a, b: out.addmv_(a, b), torch.ones(M, K), torch.ones(K), forward=2 * M * K)


@work
def mm_into_a_given_tensor() -> Work:
    out = torch.zeros(M, N)
    return op(lambda a, b: torch.mm(a, b, out=out), torch.ones(M, K), torch.ones(K, N), forward=ONE)


@work
def addmm_with_fused_activation() -> Work:
    a, b = torch.ones(M, K), torch.ones(K, N)
    return op(lambda a, b: torch._addmm_activation(b[0], a, b), a, b, forward=ONE)


@work
def chain_of_three_matrices() -> Work:
    # (20, 30) @ ((30, 40) @ (40, 5)): this order is the cheaper one.
    second = 2 * K * N * 5
    first = 2 * M * K * 5
    a, b, c = torch.ones(M, K), torch.ones(K, N), torch.ones(N, 5)
    return op(lambda *m: torch.linalg.multi_dot(m), a, b, c, forward=first + second)


@work
def third_power_of_a_matrix() -> Work:
    return op(lambda a: torch.linalg.matrix_power(a, 3), torch.eye(M), forward=2 * (2 * M**3))


@work
def einsum_of_three_operands() -> Work:
    # From left to right: (m, k) @ (k, n), then (m, n) @ (n, 5).
    a, b, c = torch.ones(M, K), torch.ones(K, N), torch.ones(N, 5)
    forward = ONE + 2 * M * N * 5

    def fn(*matrices: torch.Tensor) -> torch.Tensor:
        with torch.backends.opt_einsum.flags(enabled=False):  # another package may find an order
            return torch.einsum("mk,kn,np->mp", *matrices)

    return op(fn, a, b, c, forward=forward)


@work
def einsum_without_a_sum() -> Work:
    return op(lambda a, b: torch.einsum("bm,bn->bmn", a, b), meta(3, M), meta(3, N), forward=0)


@work
def bilinear_layer() -> Work:
    # Per output: (b, i) @ (i, j), then its rows times those of the second input. The weight's
    # gradient is (i, b) @ (b, j), for each output.
    b, i, j, o = 5, 20, 30, 40
    layer = nn.Bilinear(i, j, o)
    forward = 2 * b * o * (i * j + j)
    d_weight = 2 * b * o * i * j
    return op(layer, torch.ones(b, i), torch.ones(b, j), forward=forward, backward=d_weight)


@work
def bilinear_layer_between_layers() -> Work:
    # Per output, dx1 is (b, i, j) . (b, j), and dx2 is (b, i) @ (i, j); what the outputs give is
    # added up. dW is (i, b) @ (b, j) of each.
    b, i, j, o = 5, 20, 30, 40
    layer = nn.Bilinear(i, j, o)
    x1, x2 = torch.ones(b, i, requires_grad=True), torch.ones(b, j, requires_grad=True)
    one = 2 * b * o * i * j
    return op(layer, x1, x2, forward=one + 2 * b * o * j, backward=3 * one)


@work
def matmul_in_inference_mode() -> Work:
    def fn(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return F.linear(a, b)

    return op(fn, torch.ones(M, K), torch.ones(N, K), forward=0, forward_no_grad=ONE)


@work
def vectorized_over_a_batch() -> Work:
    a, b = torch.ones(3, M, K), torch.ones(3, K)
    return op(torch.vmap(torch.mv), a, b, forward=3 * 2 * M * K)


# --- complex, integer, low precision ---------------------------------------------------------


@work
def complex_product() -> Work:
    # (a + bi)(c + di) is four real products.
    a, b = weight(M, K, dtype=torch.complex64), weight(K, N, dtype=torch.complex64)
    return op(torch.mm, a, b, forward=4 * ONE, backward=2 * 4 * ONE)


@work
def complex_dot_product() -> Work:
    a, b = (torch.ones(K, dtype=torch.complex64) for _ in range(2))
    return op(torch.vdot, a, b, forward=4 * 2 * K)


@work
def integer_product() -> Work:
    # No floating point, no FLOP.
    a, b = torch.ones(M, K, dtype=torch.int64), torch.ones(K, N, dtype=torch.int64)
    return op(torch.mm, a, b, forward=0)


@work
def int8_product() -> Work:
    # Matmul units run it: counted under int8, whose peak is its own.
    a, b = (torch.ones(32, 32, dtype=torch.int8) for _ in range(2))
    return op(torch._int_mm, a, b, forward=2 * 32**3)


@work
def fp8_product() -> Work:
    a, scale = torch.ones(32, 32).to(FP8), torch.ones(())
    return op(
        lambda a, b: torch._scaled_mm(a, b.t(), scale, scale, out_dtype=BF16), a, a,
        forward=2 * 32**3,
    )  # fmt: skip


@work
def fp8_product_by_its_public_name() -> Work:
    a, scale, per = torch.ones(32, 32).to(FP8), torch.ones(1), F.ScalingType.TensorWise
    return op(
        lambda a, b: F.scaled_mm(a, b.t(), scale, per, scale, per, output_dtype=BF16), a, a,
        forward=2 * 32**3,
    )  # fmt: skip


@work
def int8_weights() -> Work:
    x, w = torch.ones(M, 64, dtype=BF16), torch.ones(16, 64, dtype=torch.int8)
    scale = torch.ones(16, dtype=BF16)
    return op(torch._weight_int8pack_mm, x, w, scale, forward=2 * M * 64 * 16)


@work
def int4_weights() -> Work:
    x, groups = torch.ones(8, 64, dtype=BF16), torch.ones(2, 32, 2, dtype=BF16)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(
        torch.ones(32, 64, dtype=torch.int32), 2
    )
    multiply = torch.ops.aten._weight_int4pack_mm_for_cpu
    return op(lambda x: multiply(x, packed, 32, groups), x, forward=2 * 8 * 64 * 32)


# --- grouped ---------------------------------------------------------------------------------

GROUPS, ROWS = 4, 32
ENDS = torch.arange(1, GROUPS + 1, dtype=torch.int32) * (ROWS // GROUPS)


@work
def grouped_rows() -> Work:
    # Experts: every row meets the matrix of its group.
    a, b = torch.ones(ROWS, 64, dtype=BF16), torch.ones(GROUPS, 64, 16, dtype=BF16)
    return op(lambda a, b: torch._grouped_mm(a, b, offs=ENDS), a, b, forward=2 * ROWS * 64 * 16)


@work
def grouped_sums() -> Work:
    # The gradient of the experts' weights: each group sums over its own part of k.
    a, b = torch.ones(16, ROWS, dtype=BF16), torch.ones(ROWS, 64, dtype=BF16)
    return op(lambda a, b: torch._grouped_mm(a, b, offs=ENDS), a, b, forward=2 * 16 * ROWS * 64)


@work
def grouped_columns() -> Work:
    a, b = torch.ones(GROUPS, 16, 64, dtype=BF16), torch.ones(64, ROWS, dtype=BF16)
    return op(lambda a, b: torch._grouped_mm(a, b, offs=ENDS), a, b, forward=2 * 16 * 64 * ROWS)


@work
def grouped_fp8_rows() -> Work:
    a = meta(ROWS, 64, dtype=FP8)
    b = meta(GROUPS, 16, 64, dtype=FP8).transpose(1, 2)
    scales = meta(ROWS, dtype=torch.float32), meta(GROUPS, 16, dtype=torch.float32)
    ends = ENDS.to("meta")
    return op(
        lambda a, b: torch._scaled_grouped_mm(a, b, *scales, offs=ends, out_dtype=BF16), a, b,
        forward=2 * ROWS * 64 * 16, says="how many rows the groups",
    )  # fmt: skip


# --- sparse ----------------------------------------------------------------------------------

SPARSE = torch.eye(M, K) + torch.eye(M, K).roll(1, 1)
STORED = 2 * M  # elements that are not zero


@work
def sparse_times_dense() -> Work:
    # Every stored element meets a row; so does every one of the transpose, in the backward.
    a, b = SPARSE.to_sparse(), weight(K, N)
    return op(torch.sparse.mm, a, b, forward=2 * STORED * N, backward=2 * STORED * N)


@work
def sparse_rows_times_dense() -> Work:
    return op(torch.matmul, SPARSE.to_sparse_csr(), torch.ones(K, N), forward=2 * STORED * N)


@work
def sparse_added_to_dense() -> Work:
    added = torch.ones(M, N)
    return op(
        lambda a, b: torch.sparse.addmm(added, a, b), SPARSE.to_sparse(), torch.ones(K, N),
        forward=2 * STORED * N,
    )  # fmt: skip
