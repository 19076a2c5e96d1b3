"""Closed forms of recurrent networks against what the counter counts of ``torch.nn``."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, trained
from torch import nn

from mfu_torch.flops.formulas import ClosedForm, Recurrent
from mfu_torch.records import FlopCount

B, S, WIDE, N = 3, 7, 5, 6


class First(nn.Module):
    """The outputs of a recurrent layer, without its last state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[0]


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def assert_counted_without_first_state(
    form: ClosedForm, count: FlopCount, directions: int, layers: int, weights: int
) -> None:
    """A loop over cells gives the zero before the first token no gradient."""
    assert form.forward == count.forward
    assert form.backward - count.backward == layers * directions * 2 * B * weights


def test_lstm_by_hand() -> None:
    form = Recurrent(cell="lstm", inputs=3, hidden=5, layers=2).flops(2, 7)
    # Of 14 tokens: 20 gates of 3 + 5, then of 5 + 5; the data need no gradient.
    first, others = 2 * 14 * 20 * 3, 2 * 14 * 20 * (5 + 5 + 5)
    assert (form.forward, form.backward) == (first + others, first + 2 * others)
    assert form.forward == 10_080
    # papers: B T dirs 4 hid (in + hid) x 2 in each layer
    assert form.forward == 2 * 2 * 7 * 4 * 5 * ((3 + 5) + (5 + 5))


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_lstm(layers: int, bidirectional: bool) -> None:
    model = First(
        nn.LSTM(WIDE, N, num_layers=layers, bidirectional=bidirectional, batch_first=True)
    )
    closed = Recurrent(
        cell="lstm", inputs=WIDE, hidden=N, layers=layers, is_bidirectional=bidirectional
    )
    assert_counted(closed.flops(B, S), trained(model, torch.randn(B, S, WIDE)))
    assert closed.parameters.total == parameters_of(model)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("cell", ["gru", "rnn"])
def test_gru_and_rnn_are_loops_over_cells_on_a_cpu(cell: Any, bidirectional: bool) -> None:
    made: Any = nn.GRU if cell == "gru" else nn.RNN
    model = First(made(WIDE, N, num_layers=2, bidirectional=bidirectional, batch_first=True))
    closed = Recurrent(cell=cell, inputs=WIDE, hidden=N, layers=2, is_bidirectional=bidirectional)
    gates, directions = (3 if cell == "gru" else 1), 1 + bidirectional
    count = trained(model, torch.randn(B, S, WIDE))
    assert_counted_without_first_state(closed.flops(B, S), count, directions, 2, gates * N * N)
    assert closed.parameters.total == parameters_of(model)


def test_gru_whose_first_state_is_trained() -> None:
    gru = nn.GRU(WIDE, N, batch_first=True)
    closed = Recurrent(cell="gru", inputs=WIDE, hidden=N)
    state = torch.zeros(1, B, N, requires_grad=True)
    count = trained(lambda x: gru(x, state)[0], torch.randn(B, S, WIDE))
    assert_counted(closed.flops(B, S), count)


def test_a_projection_makes_the_state_narrow() -> None:
    model = First(nn.LSTM(WIDE, N, num_layers=2, proj_size=4, batch_first=True))
    closed = Recurrent(cell="lstm", inputs=WIDE, hidden=N, layers=2, projection=4)
    count = trained(model, torch.randn(B, S, WIDE))
    assert_counted_without_first_state(closed.flops(B, S), count, 1, 2, 4 * N * 4)
    assert closed.parameters.total == parameters_of(model)
    # 24 gates of 5 + 4, then of 4 + 4, and twice 6 to 4
    assert closed.flops(1, 1).forward == 2 * (24 * 9 + 24 * 8 + 2 * 24)


def test_a_language_model_has_an_embedding_and_a_head() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(50, WIDE), nn.Linear(N, 50)
            self.layers = nn.ModuleList([First(nn.LSTM(WIDE, N, batch_first=True))])
            self.layers.append(First(nn.LSTM(N, N, batch_first=True)))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    model, ids = Model(), torch.randint(50, (B, S))
    closed = Recurrent(cell="lstm", inputs=WIDE, hidden=N, layers=2, vocab=50, outputs=50)
    form = closed.flops(B, S)
    assert_counted(form, trained(model, ids))
    assert form.backward == 2 * form.forward
    assert closed.parameters.total == parameters_of(model)
    # A layer is one op: a checkpoint cannot stop within it.
    assert form.recompute("full") == form.recompute("checkpoint")
    assert_recomputed(form, model, model.layers, ids)


def test_packed_sequences_have_no_padding() -> None:
    closed = Recurrent(cell="gru", inputs=WIDE, hidden=N)
    gru = nn.GRU(WIDE, N, batch_first=True)
    lengths = torch.tensor([7, 4, 2])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(3, 7, WIDE), lengths, batch_first=True)
    count = trained(lambda x: gru(x)[0].data, packed)
    assert closed.flops(lengths=lengths.tolist()).forward == count.forward


def test_absurd_sizes_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="cell is 'qrnn'; expected one of lstm, gru, rnn"):
        Recurrent(cell="qrnn", inputs=1, hidden=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="projection is 4 of a gru"):
        Recurrent(cell="gru", inputs=1, hidden=6, projection=4)
    with pytest.raises(ValueError, match="projection is 6 of a lstm; expected 0, or less"):
        Recurrent(cell="lstm", inputs=1, hidden=6, projection=6)
    with pytest.raises(ValueError, match="layers is 0"):
        Recurrent(cell="lstm", inputs=1, hidden=6, layers=0)
