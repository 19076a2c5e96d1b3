"""Recommenders, graph networks, speech and recurrent models, small and written out."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations


class DLRM(nn.Module):
    """Embedding bags of categories, a bottom MLP, and the dot products of all pairs."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(50, 16, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16))
        self.top = nn.Sequential(nn.Linear(16 + 6, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: Tensor, ids: Tensor, offsets: Tensor, clicked: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(bag(ids[i], offsets) for i, bag in enumerate(self.bags))], 1)
        pairs = torch.bmm(features, features.mT)
        row, column = torch.tril_indices(4, 4, -1)
        score = self.top(torch.cat([x, pairs[:, row, column]], 1)).squeeze(1)
        return F.binary_cross_entropy_with_logits(score, clicked)


class SASRec(nn.Module):
    """Next-item prediction with causal attention and sampled negatives."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.places = nn.Embedding(100, 32, padding_idx=0), nn.Embedding(20, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, seen: Tensor, following: Tensor, negative: Tensor) -> Tensor:
        n = seen.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(n)
        x = self.encoder(self.items(seen) + self.places(torch.arange(n)), mask=mask)
        positive = (x * self.items(following)).sum(-1)
        return -(F.logsigmoid(positive) + F.logsigmoid(-(x * self.items(negative)).sum(-1))).mean()


class HSTU(nn.Module):
    """Attention by SiLU in place of softmax, gated, with a bias by relative position."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.uvqk, self.out = (
            nn.Embedding(100, 32),
            nn.Linear(32, 128),
            nn.Linear(32, 32),
        )
        self.norm, self.bias = nn.LayerNorm(32), nn.Parameter(torch.zeros(2 * 20 - 1))

    def forward(self, seen: Tensor) -> Tensor:
        x, n = self.items(seen), seen.shape[1]
        u, v, q, k = F.silu(self.uvqk(x)).chunk(4, -1)
        place = torch.arange(n)
        scores = q @ k.mT + self.bias[place[:, None] - place + 19]
        scores = F.silu(scores) / n * torch.ones(n, n).tril()
        return (x + self.out(self.norm(scores @ v) * u)) @ self.items.weight.t()


class GCN(nn.Module):
    """Two graph convolutions over a sparse adjacency matrix."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        self.first, self.second, self.layout = nn.Linear(16, 32), nn.Linear(32, 4), layout

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        adjacency = torch.sparse_coo_tensor(edges, torch.ones(edges.shape[1]), (len(x), len(x)))
        adjacency = adjacency.coalesce()
        if self.layout == "csr":
            adjacency = adjacency.to_sparse_csr()
        x = F.relu(torch.sparse.mm(adjacency, self.first(x)))
        return torch.sparse.mm(adjacency, self.second(x))


class MessagePassing(nn.Module):
    """Messages along edges, gathered, transformed and added up at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(32, 16), nn.GRUCell(16, 16)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        for _ in range(2):
            message = F.relu(self.message(torch.cat([x[source], x[target]], 1)))
            x = self.update(torch.zeros_like(x).index_add(0, target, message), x)
        return x


class GAT(nn.Module):
    """Attention over edges: a softmax by target, with scatter."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.score = nn.Linear(16, 32), nn.Parameter(torch.randn(4, 16))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        h = self.project(x).view(-1, 4, 8)
        score = F.leaky_relu((torch.cat([h[source], h[target]], -1) * self.score).sum(-1))
        place = target[:, None].expand(-1, 4)
        highest = torch.full((len(x), 4), -9e9).scatter_reduce(0, place, score.detach(), "amax")
        weight = (score - highest[target]).exp()
        total = torch.zeros(len(x), 4).scatter_add(0, place, weight)
        message = h[source] * (weight / total[target])[..., None]
        return torch.zeros_like(h).index_add(0, target, message).flatten(1)


class DeepSpeech(nn.Module):
    """Convolutions, a recurrent layer in both directions, and CTC."""

    def __init__(self, recurrent: type[nn.Module]) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, (11, 5), (2, 2), (5, 2)), nn.BatchNorm2d(8),
                                  nn.Hardtanh(0, 20))  # fmt: skip
        self.recurrent = recurrent(8 * 10, 24, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(48, 20)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        x = self.conv(x[:, None]).transpose(1, 2).flatten(2)
        scores = self.head(self.recurrent(x)[0]).log_softmax(-1).transpose(0, 1)
        frames = torch.full((len(targets),), len(scores))
        lengths = torch.full((len(targets),), targets.shape[1])
        return F.ctc_loss(scores, targets, frames, lengths)


class Conformer(nn.Module):
    """Half-step feed-forwards around attention and a gated depthwise convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(32, 32), nn.Linear(32, 32)
        self.attention = nn.MultiheadAttention(32, 4)
        self.point, self.depth = nn.Conv1d(32, 64, 1), nn.Conv1d(32, 32, 15, padding=7, groups=32)
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * F.silu(self.before(x))
        x = x + self.attention(x, x, x)[0]
        y = self.norm(self.depth(F.glu(self.point(x.permute(1, 2, 0)), 1)))
        x = x + F.silu(y).permute(2, 0, 1)
        return x + 0.5 * self.after(x)


class WaveNet(nn.Module):
    """Causal dilated convolutions with normalised weights and gates."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            parametrizations.weight_norm(nn.Conv1d(16, 32, 2, dilation=2**i)) for i in range(3)
        )
        self.first, self.last = (
            nn.Conv1d(1, 16, 1),
            parametrizations.spectral_norm(nn.Linear(16, 8)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for i, layer in enumerate(self.layers):
            x = x + F.glu(layer(F.pad(x, (2**i, 0))), 1)
        return self.last(x.mT)


class Seq2Seq(nn.Module):
    """An encoder and a decoder of LSTM cells, with additive attention, token by token."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.encoder = nn.Embedding(40, 16), nn.GRU(16, 16, batch_first=True)
        self.cell, self.query = nn.LSTMCell(32, 16), nn.Linear(16, 16, bias=False)
        self.score, self.head = nn.Bilinear(16, 16, 1), nn.Linear(16, 40)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, state = self.encoder(self.table(source))
        h, c, loss = state[0], torch.zeros_like(state[0]), torch.zeros(())
        for i in range(target.shape[1] - 1):
            query = self.query(h)[:, None].expand_as(memory).contiguous()
            context = (self.score(query, memory).softmax(1) * memory).sum(1)
            h, c = self.cell(torch.cat([self.table(target[:, i]), context], 1), (h, c))
            loss = loss + F.cross_entropy(self.head(h), target[:, i + 1])
        return loss


class LinearAttention(nn.Module):
    """A chunked recurrence over states, as in the linear attention and state-space models."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.decay = nn.Linear(32, 96), nn.Parameter(torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        state, out = torch.zeros(b, 4, 8, 8), []
        for i in range(0, n, 4):
            qi, ki, vi = (t[:, :, i : i + 4] for t in (q, k, v))
            out.append(qi @ state + (qi @ ki.mT).tril() @ vi)
            state = state * self.decay.sigmoid()[:, None, None] + ki.mT @ vi
        return torch.cat(out, 2)


class SwitchFFN(nn.Module):
    """Tokens dispatched to experts with a fixed capacity, by einsum: no shape depends on data."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(16, 4)
        self.up, self.down = (nn.Parameter(torch.randn(4, *s) / 8) for s in ((16, 32), (32, 16)))

    def forward(self, x: Tensor) -> Tensor:
        gate, expert = self.router(x).softmax(-1).max(-1)
        chosen = F.one_hot(expert, 4).float()
        place = F.one_hot(((chosen.cumsum(0) - 1) * chosen).sum(-1).long().clamp(max=7), 8).float()
        dispatch = torch.einsum("te,tc->tec", chosen, place)
        y = torch.einsum("tec,td->ecd", dispatch, x)
        y = torch.einsum(
            "ecf,efd->ecd", F.relu(torch.einsum("ecd,edf->ecf", y, self.up)), self.down
        )
        return torch.einsum("tec,ecd->td", dispatch, y) * gate[:, None]


def _graph() -> tuple[Tensor, Tensor]:
    return torch.randn(12, 16), torch.stack([torch.arange(12), torch.arange(12).roll(1)])


def _clicks() -> tuple[Tensor, ...]:
    ids = torch.randint(0, 50, (3, 20))
    return torch.randn(4, 13), ids, torch.tensor([0, 5, 9, 14]), torch.tensor([0.0, 1.0, 0.0, 1.0])


def _items(n: int) -> tuple[Tensor, ...]:
    return tuple(torch.randint(1, 100, (2, 16)) for _ in range(n))


_SPEECH = (torch.randn(2, 40, 20), torch.randint(1, 20, (2, 6)))

WRITTEN: dict[str, Any] = {
    "dlrm": lambda: (DLRM(), _clicks()),
    "sasrec": lambda: (SASRec(), _items(3)),
    "hstu": lambda: (HSTU(), _items(1)),
    "gcn coo": lambda: (GCN("coo"), _graph()),
    "gcn csr": lambda: (GCN("csr"), _graph()),
    "message passing": lambda: (MessagePassing(), _graph()),
    "gat": lambda: (GAT(), _graph()),
    "deepspeech lstm": lambda: (DeepSpeech(nn.LSTM), _SPEECH),
    "deepspeech gru": lambda: (DeepSpeech(nn.GRU), _SPEECH),
    "deepspeech rnn": lambda: (DeepSpeech(nn.RNN), _SPEECH),
    "conformer": lambda: (Conformer(), (torch.randn(20, 2, 32),)),
    "wavenet": lambda: (WaveNet(), (torch.randn(2, 1, 32),)),
    "seq2seq": lambda: (Seq2Seq(), (torch.randint(0, 40, (2, 7)), torch.randint(0, 40, (2, 5)))),
    "linear attention": lambda: (LinearAttention(), (torch.randn(2, 16, 32),)),
    "switch": lambda: (SwitchFFN(), (torch.randn(16, 16),)),
}
