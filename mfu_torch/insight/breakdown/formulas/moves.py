"""Bytes of ops that only move and transform data: each operand and the result once.

They are lower bounds: a kernel that reads its input twice (a batch norm, a sum in two passes)
moves more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, bytes_of_type

_Rule = Callable[[OpCall], int]

_FLOATS = ("double", "float", "c10::BFloat16", "c10::Half")


def _item(call: OpCall) -> int:
    # the result has the type of the widest operand, of the floating ones if there are any
    sizes = [size for name in call.types if name in _FLOATS and (size := bytes_of_type(name))]
    if not sizes:
        sizes = [size for name in call.types if (size := bytes_of_type(name))]
    if not sizes:
        raise NotRecordedError("the types of its tensors are not recorded")
    return max(sizes)


def _read(call: OpCall) -> int:
    total = 0
    for index in range(len(call.dims)):
        if not call.has(index):
            continue
        size = call.item_bytes(index)
        if size is None:
            raise NotRecordedError(f"the type of argument {index} is not known")
        total += size * prod(call.shape(index))
    if not total:
        raise NotRecordedError("it has no tensor with a recorded shape")
    return total


def _largest(call: OpCall) -> int:
    # Operands of an elementwise op broadcast to the result.
    sizes: list[int] = [1]
    for index in range(len(call.dims)):
        if call.has(index):
            shape = call.shape(index)
            sizes = [1] * (len(shape) - len(sizes)) + sizes
            for at, size in enumerate(reversed(shape), start=1):
                sizes[-at] = max(sizes[-at], size)
    return prod(sizes)


def _elementwise(call: OpCall) -> int:
    # everything in, the broadcast result out
    return _read(call) + _largest(call) * _item(call)


def _in_place(call: OpCall) -> int:
    # the first operand is also the result
    size = call.item_bytes(0)
    if size is None:
        raise NotRecordedError("the type of its result is not known")
    return _read(call) + prod(call.shape(0)) * size


def _copy(call: OpCall) -> int:
    # destination, source: one is written, one read
    into, of = call.item_bytes(0), call.item_bytes(1)
    if into is None or of is None:
        raise NotRecordedError("the types of a copy are not recorded")
    return prod(call.shape(0)) * into + prod(call.shape(1)) * of


def _fill(call: OpCall) -> int:
    size = call.item_bytes(0)
    if size is None:
        raise NotRecordedError("the type of what is filled is not recorded")
    return prod(call.shape(0)) * size


def _reduction(call: OpCall) -> int:
    # the input; the result is smaller, and not recorded
    return _fill(call)


def _normalised(call: OpCall) -> int:
    # x in and out, weights beside it
    size = call.item_bytes(0)
    if size is None:
        raise NotRecordedError("the type of its input is not recorded")
    return _read(call) + prod(call.shape(0)) * size


def _triton(call: OpCall) -> int:
    # A kernel of the compiler: its arguments are what it reads and what it writes.
    return _read(call)


_ELEMENTWISE = re.compile(
    r"^aten::(add|sub|mul|div|pow|rsub|neg|abs|exp|log|sqrt|rsqrt|sin|cos|tanh|sigmoid|relu|gelu"
    r"|silu|mish|elu|leaky_relu|hardtanh|hardswish|softplus|erf|where|eq|ne|lt|le|gt|ge|maximum"
    r"|minimum|clamp|clamp_min|clamp_max|threshold|reciprocal|bitwise_not|logical_not|logical_and"
    r"|lerp|addcmul|addcdiv|masked_fill|dropout|native_dropout|tanh_backward|sigmoid_backward"
    r"|threshold_backward|gelu_backward|silu_backward|_softmax_backward_data"
    r"|_log_softmax_backward_data|mse_loss|isnan|isfinite|square|sign|floor|ceil|round)$"
)
_IN_PLACE = re.compile(
    r"^aten::(add_|sub_|mul_|div_|relu_|clamp_min_|neg_|exp_|sqrt_|tanh_|sigmoid_|lerp_|addcmul_"
    r"|addcdiv_|masked_fill_|silu_|clamp_|pow_|rsqrt_)$"
)
_NORMALISED = re.compile(
    r"^aten::(native_layer_norm|native_batch_norm|cudnn_batch_norm|miopen_batch_norm|_softmax"
    r"|native_group_norm|_log_softmax|_fused_rms_norm)$"
)
_REDUCTION = re.compile(
    r"^aten::(sum|mean|amax|amin|max|min|norm|linalg_vector_norm|all|any|argmax|argmin)$"
)
_TRITON = re.compile(r"^triton_")


def moved_bytes(call: OpCall) -> int:
    """Bytes that an op without matrix work reads and writes at least.

    ``aten::copy_`` of 1000 fp32 to bf16: 4000 + 2000.

    Raises:
        NotRecordedError: If the op is not known, or its shapes or types are not recorded.
    """
    return _rule(call.name)(call)


def _rule(name: str) -> _Rule:
    if name == "aten::copy_":
        return _copy
    if name in ("aten::fill_", "aten::zero_"):
        return _fill
    for pattern, rule in (
        (_ELEMENTWISE, _elementwise),
        (_IN_PLACE, _in_place),
        (_NORMALISED, _normalised),
        (_REDUCTION, _reduction),
        (_TRITON, _triton),
    ):
        if pattern.match(name):
            return rule
    raise NotRecordedError("the op is none whose bytes follow from shapes")
