"""Matrix products: ``(m, k) @ (k, n)`` is 2 m k n FLOPs."""

from __future__ import annotations

from math import prod

from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, Shape
from mfu_torch.insight.breakdown.formulas.work import Context, Formula, Work, added, times

ROWS_NOT_READ = (
    "how many rows the groups of a grouped product hold is not in a trace: all rows count, so it "
    "is an upper bound"
)

_SCALAR_TYPE_BYTES = {5: 2, 6: 4, 7: 8, 15: 2}
"""By torch's number of a dtype, as ``out_dtype`` is recorded: half, float, double, bfloat16."""


def _product(a: Shape, b: Shape) -> tuple[int, int]:
    # FLOPs and elements of the result of torch.matmul over these shapes
    if not a or not b:
        raise NotRecordedError("a factor of the product has no recorded shape")
    left, right = a if len(a) > 1 else (1, *a), b if len(b) > 1 else (*b, 1)
    if left[-1] != right[-2]:
        raise NotRecordedError(f"the recorded shapes {list(a)} and {list(b)} do not multiply")
    # (*, m, k) @ (*, k, n)
    batch, (m, k), n = _broadcast(left[:-2], right[:-2]), left[-2:], right[-1]
    return 2 * batch * m * k * n, batch * m * n


def _broadcast(a: Shape, b: Shape) -> int:
    rank = max(len(a), len(b))
    full = [(1,) * (rank - len(shape)) + shape for shape in (a, b)]
    return prod(max(pair) if 0 not in pair else 0 for pair in zip(*full, strict=True))


def _gemm(
    call: OpCall,
    first: int,
    *,
    flops: int,
    result: int,
    result_bytes: int | None,
    note: str = "",
    reads: tuple[int, ...] = (),
) -> Work:
    if call.dtype(first) == "fp4":  # two elements of k in one
        flops *= 2
    return Work(
        family="gemm",
        flops=flops,
        causal_flops=flops,
        bytes=added(call.bytes_of(first, first + 1, *reads), times(result, result_bytes)),
        dtype=call.dtype(first),
        note=note,
    )


def _matmul(call: OpCall, context: Context) -> Work:
    flops, result = _product(call.shape(0), call.shape(1))
    return _gemm(call, 0, flops=flops, result=result, result_bytes=call.item_bytes(0))


def _int_matmul(call: OpCall, context: Context) -> Work:
    flops, result = _product(call.shape(0), call.shape(1))
    return _gemm(call, 0, flops=flops, result=result, result_bytes=4)  # summed in int32


def _scaled_matmul(call: OpCall, context: Context) -> Work:
    # a, b, scale_a, scale_b, bias, scale_result, out_dtype, use_fast_accum
    flops, result = _product(call.shape(0), call.shape(1))
    code = call.value(6) if call.concrete else None
    size = _SCALAR_TYPE_BYTES.get(code, 1) if isinstance(code, int) else call.item_bytes(0)
    return _gemm(call, 0, flops=flops, result=result, result_bytes=size)


def _added_matmul(call: OpCall, context: Context) -> Work:
    # the matrix or bias that is added, a, b
    flops, result = _product(call.shape(1), call.shape(2))
    size = call.item_bytes(1)
    return _gemm(call, 1, flops=flops, result=result, result_bytes=size, reads=(0,))


def _linear(call: OpCall, context: Context) -> Work:
    # (*, k) @ (n, k)^T
    x, weight = call.shape(0), call.shape(1)
    if not x or not weight or x[-1] != weight[-1]:
        raise NotRecordedError(f"the recorded shapes {list(x)} and {list(weight)} do not multiply")
    result = prod(x[:-1]) * prod(weight[:-1])
    size = call.item_bytes(0)
    return _gemm(call, 0, flops=2 * result * x[-1], result=result, result_bytes=size, reads=(2,))


def _grouped(call: OpCall, context: Context) -> Work:
    return _grouped_flops(call, has_offsets=call.has(2))


def _scaled_grouped(call: OpCall, context: Context) -> Work:
    return _grouped_flops(call, has_offsets=call.has(4))  # a, b, scale_a, scale_b, offs


def _grouped_flops(call: OpCall, *, has_offsets: bool) -> Work:
    a, b = call.shape(0), call.shape(1)
    if len(a) not in (2, 3) or len(b) not in (2, 3):
        raise NotRecordedError(f"the recorded shapes {list(a)} and {list(b)} are no groups")
    size = call.item_bytes(0)
    if not has_offsets or len(a) == len(b) == 3:
        flops, result = _product(a, b)  # (g, m, k) @ (g, k, n)
        return _gemm(call, 0, flops=flops, result=result, result_bytes=size)
    if len(a) == len(b) == 2:
        # (m, k_1 + .. + k_g) @ (k_1 + .. + k_g, n): every element of k is in one group
        groups = prod(call.shape(2))
        flops, result = 2 * a[0] * a[1] * b[1], groups * a[0] * b[1]
    elif len(a) == 2:
        # (m_1 + .. + m_g, k) @ (g, k, n): every row meets the matrix of one group
        flops, result = 2 * a[0] * a[1] * b[2], a[0] * b[2]
    else:
        # (g, m, k) @ (k, n_1 + .. + n_g)
        flops, result = 2 * a[1] * a[2] * b[1], a[1] * b[1]
    return _gemm(
        call, 0, flops=flops, result=result, result_bytes=size, note=ROWS_NOT_READ, reads=(2,)
    )


def _int4_linear(call: OpCall, context: Context) -> Work:
    # (m, k) @ weights packed as (n / 8, k / (16 i), 32, i / 2); widened before they multiply
    (m, k), packed = call.matrix(0, 2), call.shape(1)
    if len(packed) not in (2, 4):
        raise NotRecordedError(f"the recorded shape {list(packed)} is none of packed weights")
    n = packed[0] * 8 if len(packed) == 4 else packed[0]
    size = call.item_bytes(0)
    return _gemm(call, 0, flops=2 * m * k * n, result=m * n, result_bytes=size, reads=(3,))


def _fused_linear(call: OpCall, context: Context) -> Work:
    # a, b, c, d -> a @ b + c @ d
    one, result = _product(call.shape(0), call.shape(1))
    other, _ = _product(call.shape(2), call.shape(3))
    size = call.item_bytes(0)
    return _gemm(call, 0, flops=one + other, result=result, result_bytes=size, reads=(2, 3))


PRODUCTS: dict[str, Formula] = {
    **dict.fromkeys(
        ("aten::mm", "aten::bmm", "aten::matmul", "aten::mv", "aten::dot", "aten::vdot"), _matmul
    ),
    "aten::_int_mm": _int_matmul,
    "aten::_scaled_mm": _scaled_matmul,
    **dict.fromkeys(
        (
            *("aten::addmm", "aten::addmm_", "aten::_addmm_activation"),
            *("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_"),
            *("aten::addmv", "aten::addmv_"),
        ),
        _added_matmul,
    ),
    **dict.fromkeys(
        (
            *("aten::linear", "aten::mkldnn_linear", "aten::_weight_int8pack_mm"),
            *("aiter::gemm_a16w16", "vllm::rocm_unquantized_gemm"),
        ),
        _linear,
    ),
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _scaled_grouped,
    "aten::_weight_int4pack_mm": _int4_linear,
    "aten::_weight_int4pack_mm_for_cpu": _int4_linear,
    "inductor::_mm_plus_mm": _fused_linear,
}
"""Name of an op -> its formula."""
