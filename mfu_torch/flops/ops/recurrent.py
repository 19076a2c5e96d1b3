"""FLOPs of recurrent layers: every position meets every weight matrix once, twice backward.

What a kernel computes and nothing wants is left out: oneDNN's LSTM always has the gradient of the
first layer's input, 2 * positions * 4 h * inputs FLOPs. That is no part of the model's FLOPs, and
no recomputation either, which is what hardware FLOPs add to these.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch

from mfu_torch.flops.ops.registry import formula

Tensor = torch.Tensor


def _rnn(positions: int, weights: Sequence[Tensor]) -> int:
    # Every position of every sequence meets every weight matrix once: the gates' input and
    # hidden weights, (g*h, in) and (g*h, h), with g = 4 for LSTM, 3 for GRU, 1 for a plain RNN.
    return 2 * positions * sum(prod(w.shape) for w in weights if w.dim() == 2)


def _positions(x: Tensor, batch_sizes: Sequence[int]) -> int:
    # (time, batch, in), or packed: (sum of batch_sizes, in)
    return sum(batch_sizes) if batch_sizes else prod(x.shape[:-1])


@formula("aten::mkldnn_rnn_layer", kind="rnn")
def _mkldnn_rnn_layer(
    x: Tensor, w_in: Tensor, w_hidden: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    return _rnn(_positions(x, ()), (w_in, w_hidden))


@formula("aten::mkldnn_rnn_layer_backward", kind="rnn")
def _mkldnn_rnn_layer_backward(
    x: Tensor, w_in: Tensor, w_hidden: Tensor, *_: Any, result: Any, **__: Any
) -> int:
    # dW of both, dH through w_hidden, and dX through w_in where something wants it: the op has
    # no mask to tell (oneDNN computes it anyway), its saved input does.
    positions = _positions(x, ())
    return _rnn(positions, (w_in, w_hidden, w_hidden)) + (
        _rnn(positions, (w_in,)) if x.requires_grad else 0
    )


@formula("aten::_cudnn_rnn", "aten::miopen_rnn", kind="rnn")
def _cudnn_rnn(x: Tensor, weights: Sequence[Tensor], *args: Any, result: Any, **_: Any) -> int:
    # args end with .., batch_sizes, dropout_state
    return _rnn(_positions(x, args[-2]), weights)


@formula("aten::_cudnn_rnn_backward", "aten::miopen_rnn_backward", kind="rnn")
def _cudnn_rnn_backward(
    x: Tensor, weights: Sequence[Tensor], *args: Any, result: Any, **_: Any
) -> int:
    # args start with the number of weights per layer and direction, and end with
    # .., bidirectional, batch_sizes, dropout_state, reserve, output_mask (x, hx, cx, weights)
    bidirectional, batch_sizes, _, _, mask = args[-5:]
    positions = _positions(x, batch_sizes)
    forward = _rnn(positions, weights)
    # A gradient of x goes through the first layer's input weights, in each direction.
    first = [weights[0], weights[args[0]]] if bidirectional else [weights[0]]
    data = forward if mask[0] else forward - _rnn(positions, first)
    return data + (forward if mask[3] else 0)


@formula("aten::_lstm_mps", kind="rnn")
def _lstm_mps(
    x: Tensor, hx: Any, weights: Sequence[Tensor], *_: Any, result: Any, **__: Any
) -> int:
    return _rnn(_positions(x, ()), weights)


@formula("aten::lstm_mps_backward", operand=5, kind="rnn")
def _lstm_mps_backward(*args: Any, result: Any, **_: Any) -> int:
    # args: grad_y, grad_hy, grad_cy, z_state, cell_state_fwd, x, layersOutputs, hx, weights, ..
    return 2 * _rnn(_positions(args[5], ()), args[8])
