"""Convolutions: each position meets the whole filter bank, forward and twice backward."""

from __future__ import annotations

from functools import partial
from math import prod

from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, Shape
from mfu_torch.insight.breakdown.formulas.work import Context, Formula, Work, added, times

DEDUCED = (
    "strides and padding of convolutions are not recorded (an old torch): the sizes of their "
    "outputs are those that the backward of the same convolutions shows"
)


def _work(
    call: OpCall, *, flops: int, reads: tuple[int, ...], result: int | None, note: str = ""
) -> Work:
    written = None if result is None else times(result, call.item_bytes(reads[0]))
    return Work(
        family="conv",
        flops=flops,
        causal_flops=flops,
        bytes=added(call.bytes_of(*reads), written),
        dtype=call.dtype(reads[0]),
        note=note,
    )


def _flops(batch: int, spatial: Shape, weight: Shape) -> int:
    # Filters are (c_out, c_in / groups, *kernel), or (c_in, c_out / groups, *kernel) if
    # transposed, so groups need no treatment of their own.
    return 2 * batch * prod(spatial) * prod(weight)


def _sizes(x: Shape, weight: Shape) -> tuple[int, Shape]:
    # batch and spatial sizes, with or without a batch dimension
    rank = len(weight) - 2
    if rank < 1 or len(x) not in (rank + 1, rank + 2):
        raise NotRecordedError(f"the recorded shapes {list(x)}, {list(weight)} do not convolve")
    return (x[0] if len(x) == rank + 2 else 1), x[-rank:]


def _spread(values: list[int], rank: int, default: int) -> list[int]:
    values = values or [default]
    if len(values) not in (1, rank):
        raise NotRecordedError(f"{len(values)} strides or paddings for {rank} dimensions")
    return values * rank if len(values) == 1 else values


def _output(call: OpCall, spatial: Shape, weight: Shape, where: dict[str, int]) -> Shape:
    rank, kernel = len(spatial), weight[2:]

    def of(name: str, default: int) -> list[int]:
        index = where.get(name)
        return _spread([] if index is None else call.integers(index), rank, default)

    stride, padding, dilation = of("stride", 1), of("padding", 0), of("dilation", 1)
    if any(step < 1 for step in stride):
        raise NotRecordedError("a recorded stride is no stride")
    return tuple(
        max((spatial[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1, 0)
        for i in range(rank)
    )


def _forward(call: OpCall, context: Context, where: dict[str, int]) -> Work:
    x, weight = call.shape(0), call.shape(1)
    batch, spatial = _sizes(x, weight)
    note = ""
    try:
        out = _output(call, spatial, weight, where)
    except NotRecordedError:
        if (x, weight) not in context.conv_outputs:
            raise
        out, note = context.conv_outputs[x, weight][-len(spatial) :], DEDUCED
    flops = _flops(batch, out, weight)
    return _work(
        call, flops=flops, reads=(0, 1, 2), result=batch * weight[0] * prod(out), note=note
    )


def _transposed(call: OpCall, context: Context) -> Work:
    # Each input position meets (c_in, c_out / groups, *kernel); the output's size does not matter.
    x, weight = call.shape(0), call.shape(1)
    batch, spatial = _sizes(x, weight)
    return _work(call, flops=_flops(batch, spatial, weight), reads=(0, 1, 2), result=None)


def _convolution(call: OpCall, context: Context) -> Work:
    # x, weight, bias, stride, padding, dilation, transposed, output_padding, groups
    if call.concrete and call.flag(6):
        return _transposed(call, context)
    return _forward(call, context, {"stride": 3, "padding": 4, "dilation": 5})


def _added_forward(call: OpCall, context: Context) -> Work:
    # x, weight, z, ..: what is added has the output's shape
    x, weight, out = call.shape(0), call.shape(1), call.shape(2)
    batch, spatial = _sizes(x, weight)
    flops = _flops(batch, out[-len(spatial) :], weight)
    return _work(call, flops=flops, reads=(0, 1, 2), result=prod(out))


def _backward(call: OpCall, context: Context, *, transposed: int, mask: int) -> Work:
    # grad, x, weight, ..: dX and dW each meet the filters once more; the bias gradient is a sum
    grad, x, weight = call.shape(0), call.shape(1), call.shape(2)
    batch, spatial = _sizes(x if call.flag(transposed) else grad, weight)
    wanted = call.value(mask)
    if not isinstance(wanted, list) or len(wanted) < 2:
        raise NotRecordedError("which gradients a convolution's backward computes is not recorded")
    d_x, d_weight = bool(wanted[0]), bool(wanted[1])
    result = prod(x) * d_x + prod(weight) * d_weight
    reads = (0, *((1,) if d_weight else ()), *((2,) if d_x else ()))
    flops = _flops(batch, spatial, weight) * (d_x + d_weight)
    return _work(call, flops=flops, reads=reads, result=result)


def _backward_input(call: OpCall, context: Context) -> Work:
    # input_size, grad, weight, ..
    grad, weight = call.shape(1), call.shape(2)
    batch, spatial = _sizes(grad, weight)
    return _work(call, flops=_flops(batch, spatial, weight), reads=(1, 2), result=None)


def _backward_weight(call: OpCall, context: Context) -> Work:
    # weight_size, grad, x, ..: the weight itself is an argument of the op around it
    grad, parent = call.shape(1), context.parent
    if parent is None or not parent.name.endswith("convolution_backward"):
        raise NotRecordedError("the shape of the filters is not recorded")
    weight = parent.shape(2)
    batch, spatial = _sizes(grad, weight)
    flops = _flops(batch, spatial, weight)
    return _work(call, flops=flops, reads=(1, 2), result=prod(weight))


def _at(**where: int) -> Formula:
    return partial(_forward, where=where)


_PADDING_FIRST = ("aten::miopen_convolution", "aten::miopen_depthwise_convolution")
_KERNEL_SIZE = ("aten::_slow_conv2d_forward", "aten::slow_conv3d_forward", "aten::thnn_conv2d")
_DILATED = ("aten::slow_conv_dilated2d", "aten::slow_conv_dilated3d", "aten::_conv_depthwise2d")
_COMPOSITE = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_RELU = ("aten::cudnn_convolution_relu", "aten::miopen_convolution_relu")
_ADD_RELU = ("aten::cudnn_convolution_add_relu", "aten::miopen_convolution_add_relu")
_TRANSPOSED = (
    *("aten::cudnn_convolution_transpose", "aten::miopen_convolution_transpose"),
    *("aten::slow_conv_transpose2d", "aten::slow_conv_transpose3d"),
    *("aten::conv_transpose1d", "aten::conv_transpose2d", "aten::conv_transpose3d"),
)

CONVOLUTIONS: dict[str, Formula] = {
    **dict.fromkeys(("aten::convolution", "aten::_convolution"), _convolution),
    "aten::convolution_overrideable": _convolution,
    "aten::cudnn_convolution": _at(padding=2, stride=3, dilation=4),
    "aten::mkldnn_convolution": _at(padding=3, stride=4, dilation=5),
    "aten::_nnpack_spatial_convolution": _at(padding=3, stride=4),
    **dict.fromkeys(_PADDING_FIRST, _at(padding=3, stride=4, dilation=5)),
    **dict.fromkeys((*_RELU, *_COMPOSITE), _at(stride=3, padding=4, dilation=5)),
    **dict.fromkeys(_KERNEL_SIZE, _at(stride=4, padding=5)),
    **dict.fromkeys((*_DILATED, "aten::conv_depthwise3d"), _at(stride=4, padding=5, dilation=6)),
    **dict.fromkeys(_ADD_RELU, _added_forward),
    **dict.fromkeys(_TRANSPOSED, _transposed),
    "aten::convolution_backward": partial(_backward, transposed=7, mask=10),
    "aten::convolution_backward_overrideable": partial(_backward, transposed=6, mask=9),
    "aten::cudnn_convolution_backward_input": _backward_input,
    "aten::cudnn_convolution_backward_weight": _backward_weight,
}
"""Name of an op -> its formula."""
