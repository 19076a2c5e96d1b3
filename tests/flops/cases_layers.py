"""Convolutions and recurrent layers, beyond those in the zoo of models."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from cases import Work, meta, op, weight, work
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

# --- convolutions: batch x output positions x weights, or input positions if transposed ------

BATCH, IN, OUT = 2, 8, 16


@work
def strided_convolution() -> Work:
    flops = 2 * BATCH * 8 * 8 * (OUT * IN * 3 * 3)  # (16 + 2 - 3) // 2 + 1 = 8
    x, w = weight(BATCH, IN, 16, 16), weight(OUT, IN, 3, 3)
    return op(
        lambda x, w: F.conv2d(x, w, stride=2, padding=1), x, w, forward=flops, backward=2 * flops
    )


@work
def dilated_convolution() -> Work:
    flops = 2 * BATCH * 12 * 12 * (OUT * IN * 3 * 3)  # 16 - 2 * (3 - 1) = 12
    x, w = weight(BATCH, IN, 16, 16), weight(OUT, IN, 3, 3)
    return op(lambda x, w: F.conv2d(x, w, dilation=2), x, w, forward=flops, backward=2 * flops)


@work
def convolution_without_a_batch() -> Work:
    flops = 2 * 14 * 14 * (OUT * IN * 3 * 3)
    return op(
        F.conv2d, weight(IN, 16, 16), weight(OUT, IN, 3, 3), forward=flops, backward=2 * flops
    )


@work
def grouped_convolution_1d() -> Work:
    flops = 2 * BATCH * 18 * (OUT * (IN // 4) * 3)
    x, w = weight(BATCH, IN, 20), weight(OUT, IN // 4, 3)
    return op(lambda x, w: F.conv1d(x, w, groups=4), x, w, forward=flops, backward=2 * flops)


@work
def depthwise_convolution_3d() -> Work:
    flops = 2 * BATCH * 4**3 * (IN * 1 * 3**3)
    x, w = weight(BATCH, IN, 6, 6, 6), weight(IN, 1, 3, 3, 3)
    return op(lambda x, w: F.conv3d(x, w, groups=IN), x, w, forward=flops, backward=2 * flops)


@work
def transposed_convolution_1d() -> Work:
    flops = 2 * BATCH * 20 * (IN * OUT * 4)
    x, w = weight(BATCH, IN, 20), weight(IN, OUT, 4)
    return op(
        lambda x, w: F.conv_transpose1d(x, w, stride=2), x, w, forward=flops, backward=2 * flops
    )


@work
def transposed_depthwise_convolution_3d() -> Work:
    flops = 2 * BATCH * 5**3 * (IN * 1 * 2**3)
    x, w = weight(BATCH, IN, 5, 5, 5), weight(IN, 1, 2, 2, 2)
    return op(
        lambda x, w: F.conv_transpose3d(x, w, stride=2, groups=IN), x, w,
        forward=flops, backward=2 * flops,
    )  # fmt: skip


@work
def convolution_of_a_frozen_layer() -> Work:
    # The gradient of the input only.
    flops = 2 * BATCH * 14 * 14 * (OUT * IN * 3 * 3)
    x, w = weight(BATCH, IN, 16, 16), torch.ones(OUT, IN, 3, 3)
    return op(F.conv2d, x, w, forward=flops, backward=flops)


@work
def complex_convolution() -> Work:
    # torch makes three real convolutions of it.
    flops = 3 * 2 * BATCH * 18 * (OUT * IN * 3)
    x = torch.ones(BATCH, IN, 20, dtype=torch.complex64)
    return op(F.conv1d, x, torch.ones(OUT, IN, 3, dtype=torch.complex64), forward=flops)


@work
def convolution_by_unfold() -> Work:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return w.flatten(1) @ F.unfold(x, 3)

    flops = 2 * BATCH * 14 * 14 * (OUT * IN * 3 * 3)
    x, w = torch.ones(BATCH, IN, 16, 16), weight(OUT, IN, 3, 3)
    return op(fn, x, w, forward=flops, backward=flops)


# --- recurrent layers: every position meets every weight matrix, 4 gates (LSTM), 3 (GRU), 1 --

SEQ, D, H = 5, 6, 8
POSITIONS = BATCH * SEQ


def _recurrent(layer: nn.Module, x: torch.Tensor, gates: int, **kernel: bool) -> Work:
    """One layer; only kernels that are fused compute the first state's gradient as well."""
    into, across = 2 * POSITIONS * gates * H * D, 2 * POSITIONS * gates * H * H
    first = 0 if kernel.get("fused") else 2 * BATCH * gates * H * H
    data = into if x.requires_grad else 0
    return op(
        layer, x, forward=into + across, backward=data + into + across + (across - first)
    )  # fmt: skip


@work
def lstm() -> Work:
    return _recurrent(nn.LSTM(D, H, batch_first=True), torch.ones(BATCH, SEQ, D), 4, fused=True)


@work
def lstm_whose_input_wants_a_gradient() -> Work:
    return _recurrent(nn.LSTM(D, H, batch_first=True), weight(BATCH, SEQ, D), 4, fused=True)


@work
def gru() -> Work:
    return _recurrent(nn.GRU(D, H, batch_first=True), weight(BATCH, SEQ, D), 3)


@work
def plain_rnn() -> Work:
    return _recurrent(nn.RNN(D, H, batch_first=True), weight(BATCH, SEQ, D), 1)


@work
def lstm_in_two_directions() -> Work:
    layer = nn.LSTM(D, H, batch_first=True, bidirectional=True)
    forward = 2 * (2 * POSITIONS * 4 * H * (D + H))
    backward = 2 * (2 * POSITIONS * 4 * H * (D + H + H))
    return op(layer, torch.ones(BATCH, SEQ, D), forward=forward, backward=backward)


@work
def lstm_with_a_projection() -> Work:
    # Not fused on the CPU: (h -> p) after the gates, and the gates take p instead of h.
    p = 3
    layer = nn.LSTM(D, H, proj_size=p, batch_first=True)
    into, across = 2 * POSITIONS * 4 * H * D, 2 * POSITIONS * 4 * H * p
    project, first = 2 * POSITIONS * H * p, 2 * BATCH * 4 * H * p
    forward = into + across + project
    backward = into + across + (across - first) + 2 * project
    return op(layer, torch.ones(BATCH, SEQ, D), forward=forward, backward=backward)


@work
def lstm_of_packed_sequences() -> Work:
    lengths = (5, 3, 2)
    layer, x = nn.LSTM(D, H, batch_first=True), torch.ones(3, SEQ, D)

    def fn(x: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True)
        return layer(packed)[0].data

    into, across = 2 * sum(lengths) * 4 * H * D, 2 * sum(lengths) * 4 * H * H
    first = 2 * len(lengths) * 4 * H * H
    backward = into + across + (across - first)
    return op(fn, x, forward=into + across, backward=backward, layer=layer)


@work
def lstm_cell() -> Work:
    # The state that it starts from is zero and wants no gradient.
    cell = nn.LSTMCell(D, H)
    flops = 2 * BATCH * 4 * H * (D + H)
    x = torch.ones(BATCH, D)
    return op(lambda x: cell(x)[0], x, forward=flops, backward=flops, layer=cell)


@work
def gru_cell() -> Work:
    flops = 2 * BATCH * 3 * H * (D + H)
    return op(nn.GRUCell(D, H), torch.ones(BATCH, D), forward=flops, backward=flops)


@work
def lstm_of_cudnn() -> Work:
    layer = [meta(4 * H, D), meta(4 * H, H), meta(4 * H), meta(4 * H)]
    state = meta(1, BATCH, H)

    def fn(x: torch.Tensor) -> object:
        # weight_stride, weight_buf, hx, cx, mode (2: LSTM), hidden, proj, layers, batch_first,
        # dropout, train, bidirectional, batch_sizes, dropout_state
        return torch.ops.aten._cudnn_rnn(
            x, layer, 4, None, state, state, 2, H, 0, 1, False, 0.0, True, False, [], None
        )

    return op(fn, meta(SEQ, BATCH, D), forward=2 * POSITIONS * 4 * H * (D + H))
