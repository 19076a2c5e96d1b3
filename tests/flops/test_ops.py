"""Each op's FLOPs against a closed form written by hand; a multiply-add is 2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formula_calls import flops_of, shape
from torch import nn

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops import OpFlops
from mfu_torch.flops.ops.products import ROWS_NOT_READ, SPARSE_NOT_READ

aten = torch.ops.aten


# --- matrix products -------------------------------------------------------------------------

A, B, V = torch.randn(8, 16), torch.randn(16, 32), torch.randn(16)
BATCH_A, BATCH_B = torch.randn(3, 8, 16), torch.randn(3, 16, 32)
PRODUCT = 2 * 8 * 16 * 32


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: A @ B, PRODUCT),
        (lambda: torch.mm(A, B, out=torch.empty(8, 32)), PRODUCT),
        (lambda: torch.zeros(8, 32).addmm_(A, B), PRODUCT),
        (lambda: torch._addmm_activation(torch.zeros(32), A, B), PRODUCT),
        (lambda: torch.baddbmm(torch.zeros(3, 8, 32), BATCH_A, BATCH_B), 3 * PRODUCT),
        (lambda: torch.zeros(3, 8, 32).baddbmm_(BATCH_A, BATCH_B), 3 * PRODUCT),
        (lambda: torch.addbmm(torch.zeros(8, 32), BATCH_A, BATCH_B), 3 * PRODUCT),
        (lambda: torch.zeros(8, 32).addbmm_(BATCH_A, BATCH_B), 3 * PRODUCT),
        (lambda: torch.mv(A, V), 2 * 8 * 16),
        (lambda: torch.addmv(torch.zeros(8), A, V), 2 * 8 * 16),
        (lambda: torch.zeros(8).addmv_(A, V), 2 * 8 * 16),
        (lambda: torch.dot(V, V), 2 * 16),
        (lambda: torch.vdot(V, V), 2 * 16),
        (lambda: torch.linalg.multi_dot([A, B, B.T]), 2 * PRODUCT),  # (A @ B) @ B^T
        (lambda: torch.block_diag(A) @ F.one_hot(torch.arange(16)).float(), 2 * 8 * 16 * 16),
    ],
)
def test_matrix_products_are_two_flops_per_multiply_add(call: Any, expected: int) -> None:
    count = count_flops(call)
    assert count.model == expected
    assert count.uncounted == {}


@pytest.mark.parametrize(
    "call", [lambda: torch.outer(V, V), lambda: torch.ger(V, V), lambda: torch.addr(B @ B.T, V, V)]
)
def test_an_outer_product_is_elementwise_and_listed_nowhere(call: Any) -> None:
    count = count_flops(call)
    assert count.model in (0, 2 * 16 * 32 * 16)  # the last one's own B @ B.T
    assert count.uncounted == {}


def test_bilinear_is_two_products_in_a_row() -> None:
    layer = nn.Bilinear(4, 5, 6)
    count = count_flops(layer, torch.randn(8, 4), torch.randn(8, 5))
    # (b, i) @ (o, i, j) -> (b, o, j), then (b, o, j) . (b, j) -> (b, o)
    assert count.forward == 2 * 8 * 6 * 4 * 5 + 2 * 8 * 6 * 5


def test_each_gradient_of_bilinear_is_one_product_and_but_one_of_them_two_in_a_row() -> None:
    layer = nn.Bilinear(4, 5, 6)
    x, z = torch.randn(8, 4, requires_grad=True), torch.randn(8, 5, requires_grad=True)
    count = count_flops(lambda: layer(x, z).sum().backward())
    # dx: per output (b, i, j) . (b, j); dW: (o, i, b) . (b, j); dz: per output (b, i) @ (i, j).
    # Adding up the outputs' parts of dx and dz is elementwise. mkl_verbose shows the same.
    assert count.backward == 3 * (2 * 8 * 6 * 4 * 5)


def test_matmul_and_linear_are_counted_whole_under_inference_mode() -> None:
    with torch.inference_mode():
        count = count_flops(lambda: F.linear(A, B.T) + BATCH_A @ B)
    assert count.forward_no_grad == PRODUCT + 3 * PRODUCT
    assert count.forward == 0


def test_a_complex_product_is_four_real_ones() -> None:
    z = torch.randn(8, 8, dtype=torch.complex64)
    count = count_flops(lambda: z @ z)
    assert count.model == 4 * 2 * 8 * 8 * 8
    assert count.by_dtype == {"fp32": 4 * 2 * 8 * 8 * 8}


def test_a_product_of_int64_is_no_flop_and_of_int8_is() -> None:
    ints = torch.ones(32, 32, dtype=torch.int64)
    count = count_flops(lambda: ints @ ints)
    assert (count.hardware, count.uncounted) == (0, {})
    bytes_ = torch.ones(32, 32, dtype=torch.int8)
    assert count_flops(lambda: torch._int_mm(bytes_, bytes_)).by_dtype == {"int8": 2 * 32**3}


def test_a_product_of_int8_summed_in_int32_is_counted_as_the_product_that_it_is() -> None:
    module = pytest.importorskip("torch._higher_order_ops.out_dtype")
    a = torch.ones(4, 8, dtype=torch.int8)
    count = count_flops(lambda: module.out_dtype(aten.mm.default, torch.int32, a, a.T))
    assert (count.by_dtype, count.uncounted) == ({"int8": 2 * 4 * 8 * 4}, {})


def test_a_scaled_product_of_fp8_is_counted_as_fp8() -> None:
    a = torch.randn(16, 32).to(torch.float8_e4m3fn)
    b = torch.randn(48, 32).to(torch.float8_e4m3fn).t()
    one = torch.tensor(1.0)
    count = count_flops(lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16))
    assert count.by_dtype == {"fp8": 2 * 16 * 32 * 48}


@pytest.mark.skipif(not hasattr(aten, "_scaled_mm_v2"), reason="this torch lacks the op")
def test_the_newer_scaled_product_is_counted_too() -> None:
    a, b = (shape(*size, dtype=torch.float8_e4m3fn) for size in ((16, 32), (32, 48)))
    op = aten._scaled_mm_v2.default
    assert flops_of(op, a, b, [], [], [], [], [], [], None, None).full == 2 * 16 * 32 * 48


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="this torch lacks the dtype")
def test_fp4_is_packed_in_pairs() -> None:
    a, b = (shape(*size, dtype=torch.float4_e2m1fn_x2) for size in ((16, 32), (32, 48)))
    assert flops_of(aten._scaled_mm.default, a, b, None, None).full == 2 * 16 * 64 * 48


@pytest.mark.parametrize(
    ("a", "b", "size", "rest"),
    [
        ((40, 16), (4, 16, 32), 40, 16 * 32),  # rows in groups
        ((16, 40), (40, 32), 40, 16 * 32),  # k in groups: a weight gradient
        ((4, 10, 16), (16, 32), 32, 10 * 16),  # columns in groups
    ],
)
def test_a_grouped_product_multiplies_what_is_in_a_group_once(
    a: Any, b: Any, size: int, rest: int
) -> None:
    op, scale = aten._grouped_mm.default, shape(1)
    for used in (size, size - 8):  # all of it, or padded behind the last group
        ends = torch.tensor([8, 8, 16, used], dtype=torch.int32)
        assert flops_of(op, shape(*a), shape(*b), ends)[:2] == (2 * used * rest,) * 2
    unread = flops_of(op, shape(*a), shape(*b), shape(4))
    assert (unread.full, unread.note) == (2 * size * rest, ROWS_NOT_READ)
    scaled = flops_of(aten._scaled_grouped_mm.default, shape(*a), shape(*b), scale, scale, ends)
    assert scaled.full == 2 * (size - 8) * rest


def test_a_grouped_product_of_batches_needs_no_groups() -> None:
    product = 4 * 2 * 10 * 16 * 32
    a, b = shape(4, 10, 16), shape(4, 16, 32)
    assert flops_of(aten._grouped_mm.default, a, b) == OpFlops(product, product)


@pytest.mark.skipif(not hasattr(aten, "_scaled_grouped_mm_v2"), reason="this torch lacks the op")
def test_the_newer_scaled_grouped_product_has_its_groups_behind_six_lists() -> None:
    a, b = shape(40, 16, dtype=torch.float8_e4m3fn), shape(4, 16, 32, dtype=torch.float8_e4m3fn)
    ends = torch.tensor([8, 16, 24, 32], dtype=torch.int32)
    flops = flops_of(aten._scaled_grouped_mm_v2.default, a, b, [], [], [], [], [], [], ends)
    assert flops == OpFlops(2 * 32 * 16 * 32, 2 * 32 * 16 * 32)


def test_a_grouped_product_costs_twice_as_much_backward() -> None:
    x = torch.randn(32, 16, dtype=torch.bfloat16, requires_grad=True)
    w = torch.randn(2, 16, 16, dtype=torch.bfloat16, requires_grad=True)
    offsets = torch.tensor([16, 32], dtype=torch.int32)

    def step() -> None:
        y = torch._grouped_mm(x, w, offs=offsets)
        y.backward(torch.ones_like(y))

    count = count_flops(step)
    assert (count.forward, count.backward) == (2 * 32 * 16 * 16, 2 * 2 * 32 * 16 * 16)
    assert count.by_dtype == {"bf16": 3 * 2 * 32 * 16 * 16}


# --- convolutions and recurrent layers -------------------------------------------------------


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("input_gradient", [False, True])
def test_a_convolution_is_right_for_all_groups_and_masks(
    groups: int, transposed: bool, input_gradient: bool
) -> None:
    layer = (nn.ConvTranspose2d if transposed else nn.Conv2d)(6, 12, 3, groups=groups, stride=2)
    x = torch.randn(4, 6, 11, 11, requires_grad=input_gradient)
    count = count_flops(lambda: layer(x).sum().backward())
    positions = 11 * 11 if transposed else 5 * 5
    expected = 2 * 4 * positions * 6 * (12 // groups) * 3 * 3
    assert count.forward == expected
    assert count.backward == (1 + input_gradient) * expected


def test_an_unbatched_convolution_is_a_batch_of_one() -> None:
    assert count_flops(nn.Conv2d(3, 8, 3), torch.randn(3, 9, 9)).model == 2 * 7 * 7 * 3 * 8 * 9


def test_convolution_kernels_have_their_own_argument_orders() -> None:
    x, w, out = shape(2, 4, 9, 9), shape(8, 4, 3, 3), shape(2, 8, 7, 7)
    forward = 2 * 2 * 7 * 7 * 8 * 4 * 9
    rest = ([0, 0], [1, 1], [1, 1], 1, True, False, True)
    assert flops_of(aten.cudnn_convolution.default, x, w, *rest, result=out).full == forward
    mask = [False, True, True]
    backward = aten.convolution_backward_overrideable.default
    args = (out, x, w, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, mask)
    assert flops_of(backward, *args).full == forward


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("input_gradient", [False, True])
def test_an_lstm_is_four_gates_over_input_and_hidden(
    bidirectional: bool, input_gradient: bool
) -> None:
    t, b, i, h = 5, 3, 6, 7
    layer = nn.LSTM(i, h, bidirectional=bidirectional)
    x = torch.randn(t, b, i, requires_grad=input_gradient)
    count = count_flops(lambda: layer(x)[0].sum().backward())
    ways = 1 + bidirectional
    from_input, from_hidden = 2 * t * b * 4 * h * i, 2 * t * b * 4 * h * h
    assert count.forward == ways * (from_input + from_hidden)
    assert count.backward == ways * ((1 + input_gradient) * from_input + 2 * from_hidden)
    assert count.uncounted == {}


def test_a_gru_on_the_cpu_is_three_gates() -> None:
    t, b, i, h = 5, 3, 6, 7
    count = count_flops(nn.GRU(i, h), torch.randn(t, b, i))
    assert count.forward == 2 * t * b * 3 * h * (i + h)


def test_a_cudnn_lstm_needs_no_gradient_of_an_input_without_one() -> None:
    t, b, i, h = 5, 3, 6, 7
    first = [shape(4 * h, i), shape(4 * h, h), shape(4 * h), shape(4 * h)]
    second = [shape(4 * h, h), shape(4 * h, h), shape(4 * h), shape(4 * h)]
    x, weights = shape(t, b, i), first + second
    forward = 2 * t * b * 4 * h * (i + 3 * h)
    layer = (2, h, 0, 2, False, 0.0, True, False, [], None)  # mode, .., batch_sizes, state
    forward_args = (x, weights, 4, None, None, None, *layer)
    assert flops_of(aten._cudnn_rnn.default, *forward_args).full == forward
    for wanted, input_flops in ((True, 0), (False, 2 * t * b * 4 * h * i)):
        tail = (*layer, None, [wanted, False, False, True])
        args = (x, weights, 4, *[None] * 7, *tail)
        flops = flops_of(aten._cudnn_rnn_backward.default, *args).full
        assert flops == 2 * forward - input_flops


def test_packed_sequences_count_what_is_there() -> None:
    x, weights = shape(9, 6), [shape(28, 6), shape(28, 7)]
    layer = (2, 7, 0, 1, False, 0.0, True, False, [3, 3, 2, 1], None)
    flops = flops_of(aten._cudnn_rnn.default, x, weights, 2, None, None, None, *layer)
    assert flops.full == 2 * 9 * 28 * (6 + 7)


# --- sparse and triangular matrices ----------------------------------------------------------


@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_product_counts_the_stored_elements(layout: torch.layout) -> None:
    sparse = torch.eye(8).to_sparse(layout=layout)
    dense = torch.randn(8, 5)
    assert count_flops(lambda: sparse @ dense).model == 2 * 8 * 5
    assert count_flops(lambda: sparse @ sparse).model == 2 * 8


def test_the_inner_sizes_of_two_sparse_matrices_that_cannot_be_read_are_a_bound() -> None:
    a, b = (torch.eye(8).to_sparse_coo().to("meta") for _ in range(2))
    dense = 2 * min(a._nnz() * 8, b._nnz() * 8)
    flops = flops_of(aten._sparse_sparse_matmul.default, a, b)
    assert (flops.full, flops.note) == (dense, SPARSE_NOT_READ)


def test_semi_structured_products_do_half_of_the_dense_one() -> None:
    half, dense = shape(8, 16, dtype=torch.float16), shape(32, 6, dtype=torch.float16)
    x, meta = shape(5, 32, dtype=torch.float16), shape(8, 2, dtype=torch.int16)
    product = 2 * 8 * 32 * 6 // 2
    assert flops_of(aten._sparse_semi_structured_mm.default, half, meta, dense).full == product
    out = shape(8, 6)
    assert flops_of(aten._sparse_semi_structured_addmm.default, out, half, meta, dense) == (
        product, product, 0, 0, "",
    )  # fmt: skip
    linear = flops_of(aten._sparse_semi_structured_linear.default, x, half, meta)
    assert linear.full == 2 * 5 * 32 * 8 // 2
    packed = shape(8 * 18, dtype=torch.float16)
    assert flops_of(aten._cslt_sparse_mm.default, packed, dense, result=out).full == product


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_product_of_nested_tensors_is_the_sum_of_its_parts() -> None:
    a = torch.nested.nested_tensor([torch.randn(2, 3, 8), torch.randn(2, 5, 8)])
    product = 2 * 2 * (3 * 3 + 5 * 5) * 8
    assert count_flops(lambda: a @ a.transpose(-1, -2)).model == product
    count = count_flops(F.scaled_dot_product_attention, a, a, a)
    assert (count.model, count.uncounted) == (2 * product, {})


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_a_linear_layer_over_nested_tensors_counts_their_rows(layout: torch.layout) -> None:
    x = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(5, 8)], layout=layout)
    x.requires_grad_()
    layer = nn.Linear(8, 4)

    def step() -> None:
        y = layer(x)
        (y.values() if layout == torch.jagged else torch.cat(y.unbind())).sum().backward()

    count = count_flops(step)
    assert (count.forward, count.backward) == (2 * 8 * 8 * 4, 2 * 2 * 8 * 8 * 4)
    assert count.uncounted == {}


def test_products_fused_with_communication_are_counted_on_the_rank_that_runs_them() -> None:
    symm_mem = pytest.importorskip("torch.distributed._symmetric_memory")
    assert symm_mem is not None
    a, b, out = shape(4, 16), shape(16, 32), shape(8, 32)  # two ranks hold half of (8, 16) each
    ops = torch.ops.symm_mem
    gathered = flops_of(
        ops.fused_all_gather_matmul.default, a, [b, b], 0, "", result=(a, [out] * 2)
    )
    assert gathered.full == 2 * 2 * 8 * 16 * 32
    scattered = flops_of(ops.fused_matmul_reduce_scatter.default, shape(8, 16), b, "sum", 0, "")
    assert scattered.full == 2 * 8 * 16 * 32


def test_two_products_that_the_compiler_adds_are_both_counted() -> None:
    a, b, c, d = shape(4, 8), shape(8, 5), shape(4, 6), shape(6, 5)
    op = torch.ops.inductor._mm_plus_mm.default
    assert flops_of(op, a, b, c, d, shape(4, 5)).full == 2 * 4 * 5 * (8 + 6)


def test_the_gradients_of_an_mkldnn_linear_layer_follow_their_mask() -> None:
    x, grad, weight = shape(4, 8), shape(4, 5), shape(5, 8)
    product = 2 * 4 * 8 * 5
    op = aten.mkldnn_linear_backward.default
    assert flops_of(op, x, grad, weight, [False, True, True]).full == product
    assert flops_of(aten.mkldnn_linear_backward_input.default, [4, 8], grad, weight).full == product
    op = aten.mkldnn_linear_backward_weights.default
    assert flops_of(op, grad, x, weight, True).full == product


def test_layers_of_other_devices_read_their_own_arguments() -> None:
    x, weight, grad = shape(2, 4, 5, 5), shape(4, 8, 3, 3), shape(2, 8, 7, 7)
    op = aten.mps_convolution_transpose_backward.default
    tail = ([0, 0], [0, 0], [1, 1], [1, 1], 1)
    product = 2 * 2 * 25 * 4 * 8 * 9
    assert flops_of(op, x, grad, weight, *tail, [True, True]).full == 2 * product
    assert flops_of(op, x, grad, weight, *tail, [True, False]).full == product
    x, weights = shape(5, 3, 6), [shape(28, 6), shape(28, 7), shape(28), shape(28)]
    layer = (True, 1, 0.0, True, False, False)
    forward = 2 * 5 * 3 * 28 * (6 + 7)
    assert flops_of(aten._lstm_mps.default, x, [], weights, *layer).full == forward
    op = aten.lstm_mps_backward.default
    assert flops_of(op, *[None] * 5, x, None, [], weights, *layer).full == 2 * forward


def test_an_affine_grid_is_a_product_with_each_position() -> None:
    theta = torch.randn(2, 2, 3, requires_grad=True)
    count = count_flops(lambda: F.affine_grid(theta, [2, 1, 5, 7]).sum().backward())
    assert (count.forward, count.backward) == (2 * 2 * 35 * 3 * 2, 2 * 2 * 35 * 3 * 2)
    grad, gradient = shape(2, 5, 7, 2), shape(2, 2, 3)
    op = aten.cudnn_affine_grid_generator_backward.default
    assert flops_of(op, grad, 2, 1, 5, 7, result=gradient).full == count.backward


def test_a_triangular_system_is_half_a_product() -> None:
    a, b = torch.eye(8).expand(3, 8, 8), torch.randn(3, 8, 5)
    count = count_flops(torch.linalg.solve_triangular, a, b, upper=True)
    assert count.model == 3 * 8 * 8 * 5
