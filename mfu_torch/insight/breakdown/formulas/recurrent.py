"""Recurrent layers: every position meets every weight matrix once, twice backward."""

from __future__ import annotations

from math import prod

from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, Shape
from mfu_torch.insight.breakdown.formulas.work import Context, Formula, Work

INPUT_GRADIENT = (
    "whether the input of a recurrent layer needs a gradient is not recorded: its FLOPs count, as "
    "the kernel computes it anyway"
)


def _work(call: OpCall, flops: int, note: str = "") -> Work:
    # Weights and states are read at every position, from a cache or not: no honest byte count.
    return Work(family="rnn", flops=flops, causal_flops=flops, dtype=call.dtype(0), note=note)


def _products(positions: int, weights: tuple[Shape, ...]) -> int:
    # (g*h, in) and (g*h, h) with g = 4 gates for LSTM, 3 for GRU, 1 for a plain RNN
    return 2 * positions * sum(prod(weight) for weight in weights if len(weight) == 2)


def _positions(call: OpCall, batch_sizes: int) -> int:
    # (time, batch, in), or packed: (sum of batch_sizes, in)
    sizes = call.integers(batch_sizes)
    if any(size < 0 for size in sizes):
        raise NotRecordedError("the recorded batch sizes of a packed sequence are no sizes")
    return sum(sizes) or prod(call.shape(0)[:-1])


def _forward(call: OpCall, context: Context) -> Work:
    # x, weights, .., batch_sizes, dropout_state
    return _work(call, _products(_positions(call, -2), call.shapes(1)))


def _backward(call: OpCall, context: Context) -> Work:
    # x, weights, weights per layer and direction, .., bidirectional, batch_sizes, dropout_state,
    # reserve, output_mask (x, hx, cx, weights)
    positions, weights, mask = _positions(call, -4), call.shapes(1), call.value(-1)
    stride = call.integers(2)
    if not isinstance(mask, list) or len(mask) < 4 or not stride or stride[0] >= len(weights):
        raise NotRecordedError("which gradients a recurrent backward computes is not recorded")
    forward = _products(positions, weights)
    first = [weights[0], weights[stride[0]]] if call.flag(-5) else [weights[0]]
    data = forward if mask[0] else forward - _products(positions, tuple(first))
    return _work(call, data + (forward if mask[3] else 0))


def _layer(call: OpCall, context: Context) -> Work:
    # x, w_in, w_hidden, ..
    positions = prod(call.shape(0)[:-1])
    return _work(call, _products(positions, (call.shape(1), call.shape(2))))


def _layer_backward(call: OpCall, context: Context) -> Work:
    # dW of both, dX through w_in and dH through w_hidden
    positions = prod(call.shape(0)[:-1])
    return _work(call, 2 * _products(positions, (call.shape(1), call.shape(2))), INPUT_GRADIENT)


RECURRENT: dict[str, Formula] = {
    "aten::_cudnn_rnn": _forward,
    "aten::miopen_rnn": _forward,
    "aten::_cudnn_rnn_backward": _backward,
    "aten::miopen_rnn_backward": _backward,
    "aten::mkldnn_rnn_layer": _layer,
    "aten::mkldnn_rnn_layer_backward": _layer_backward,
}
"""Name of an op -> its formula."""
