"""Models of other fields than language: vision, diffusion, recommendation, graphs, speech."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from models import Case, case
from torch import nn


@case
def u_net() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, padding=1)
            self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
            self.middle = nn.Conv2d(16, 16, 3, padding=1)
            self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
            self.head = nn.Conv2d(16, 3, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            skip = F.relu(self.stem(x))
            deep = F.relu(self.middle(F.relu(self.down(skip))))
            return self.head(torch.cat([skip, self.up(deep)], dim=1))

    b, full, half = 2, 16 * 16, 8 * 8
    stem = 2 * b * full * (8 * 3 * 9)
    others = 2 * b * half * (16 * 8 * 9 + 16 * 16 * 9 + 16 * 8 * 4) + 2 * b * full * (3 * 16 * 9)
    return Case(
        Model(), (torch.randn(b, 3, 16, 16),), stem + others, 2 * stem + 3 * others
    )  # fmt: skip


@case
def convnext_block() -> Case:
    class Model(nn.Module):
        def __init__(self, d: int) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, d, 4, stride=4)
            self.depthwise = nn.Conv2d(d, d, 7, padding=3, groups=d)
            self.norm = nn.LayerNorm(d)
            self.wide, self.narrow = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.stem(x)
            y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
            return x + self.narrow(F.gelu(self.wide(y))).permute(0, 3, 1, 2)

    b, d, positions = 2, 24, 8 * 8
    stem = 2 * b * positions * (d * 3 * 16)
    others = 2 * b * positions * (d * 49 + 2 * d * 4 * d)
    return Case(
        Model(d), (torch.randn(b, 3, 32, 32),), stem + others, 2 * stem + 3 * others
    )  # fmt: skip


@case
def mlp_mixer() -> Case:
    class Block(nn.Module):
        def __init__(self, tokens: int, d: int) -> None:
            super().__init__()
            self.across, self.along = nn.Linear(tokens, tokens), nn.Linear(d, d)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x + self.across(x.transpose(1, 2)).transpose(1, 2)
            return x + self.along(x)

    b, tokens, d = 3, 20, 32
    across, along = 2 * b * d * tokens * tokens, 2 * b * tokens * d * d
    model = nn.Sequential(Block(tokens, d), Block(tokens, d))
    flops = 2 * (across + along)
    return Case(model, (torch.randn(b, tokens, d),), flops, 3 * flops - across)


@case
def diffusion_transformer() -> Case:
    class Model(nn.Module):
        """One block whose scales and shifts come from the time step (adaLN)."""

        def __init__(self, d: int, heads: int) -> None:
            super().__init__()
            self.heads = heads
            self.patches, self.time = nn.Conv2d(4, d, 2, stride=2), nn.Linear(16, d)
            self.modulation = nn.Linear(d, 2 * d)
            self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
            x = self.patches(x).flatten(2).transpose(1, 2)
            scale, shift = self.modulation(F.silu(self.time(t)))[:, None].chunk(2, dim=-1)
            qkv = self.qkv(x * (1 + scale) + shift).unflatten(-1, (3, self.heads, -1))
            out = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
            x = x + self.out(out.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(x)))

    b, d, s = 2, 32, 6 * 6
    patches, time = 2 * b * s * (d * 4 * 4), 2 * b * 16 * d
    scores = 2 * b * s * s * d
    others = 2 * b * d * 2 * d + 2 * b * s * (4 * d * d + 8 * d * d) + 2 * scores
    forward = patches + time + others
    step = 2 * (patches + time) + 3 * others
    batch = torch.randn(b, 4, 12, 12), torch.randn(b, 16)
    return Case(Model(d, 4), batch, forward, step, step + scores)


@case
def dlrm() -> Case:
    class Model(nn.Module):
        def __init__(self, d: int, tables: int) -> None:
            super().__init__()
            self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, d))
            self.tables = nn.ModuleList(nn.EmbeddingBag(50, d, mode="sum") for _ in range(tables))
            pairs = (tables + 1) * tables // 2
            self.top = nn.Sequential(nn.Linear(d + pairs, 32), nn.ReLU(), nn.Linear(32, 1))

        def forward(self, dense: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            x = self.bottom(dense)
            rows = torch.stack([x, *(t(i) for t, i in zip(self.tables, ids, strict=True))], dim=1)
            dots = torch.bmm(rows, rows.transpose(1, 2))
            i, j = torch.tril_indices(rows.shape[1], rows.shape[1], offset=-1)
            return self.top(torch.cat([x, dots[:, i, j]], dim=1))

    b, d, tables = 6, 16, 4
    rows, pairs = tables + 1, (tables + 1) * tables // 2
    first = 2 * b * 13 * 32
    others = 2 * b * 32 * d + 2 * b * rows * rows * d + 2 * b * ((d + pairs) * 32 + 32)
    batch = torch.randn(b, 13), torch.randint(0, 50, (tables, b, 3))
    return Case(Model(d, tables), batch, first + others, 2 * first + 3 * others)


@case
def sequential_recommender() -> Case:
    class Model(nn.Module):
        """Scores every item by the dot product with a user's state (as SASRec, GRU4Rec)."""

        def __init__(self, items: int, d: int) -> None:
            super().__init__()
            self.items, self.gru = nn.Embedding(items, d), nn.GRU(d, d, batch_first=True)

        def forward(self, history: torch.Tensor) -> torch.Tensor:
            state = self.gru(self.items(history))[0][:, -1]
            return state @ self.items.weight.t()

    b, s, items, d = 4, 6, 100, 16
    gates = 2 * b * s * 3 * d * d  # each of input and hidden
    head, first = 2 * b * d * items, 2 * b * 3 * d * d
    forward = 2 * gates + head
    # The first hidden state is zero and wants no gradient.
    step = 3 * forward - first
    return Case(Model(items, d), (torch.randint(0, items, (b, s)),), forward, step)


@case
def graph_convolution() -> Case:
    class Model(nn.Module):
        def __init__(self, adjacency: torch.Tensor, d: int) -> None:
            super().__init__()
            self.register_buffer("adjacency", adjacency)
            self.first, self.second = nn.Linear(d, d), nn.Linear(d, 7)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(torch.sparse.mm(self.adjacency, self.first(x)))
            return torch.sparse.mm(self.adjacency, self.second(x))

    nodes, d, edges = 30, 16, 60  # two ring roads: every node has two neighbours
    adjacency = (torch.eye(nodes).roll(1, 1) + torch.eye(nodes).roll(-1, 1)).to_sparse()
    first, second = 2 * nodes * d * d, 2 * nodes * d * 7
    gather = 2 * edges * (d + 7)  # the gradient is gathered along the edges as well
    forward = first + second + gather
    step = 2 * first + 3 * second + 2 * gather
    return Case(Model(adjacency, d), (torch.randn(nodes, d),), forward, step)


@case
def graph_by_scatter() -> Case:
    class Model(nn.Module):
        """Messages are computed per edge and added up per node: nothing sparse is multiplied."""

        def __init__(self, source: torch.Tensor, target: torch.Tensor, d: int) -> None:
            super().__init__()
            self.register_buffer("source", source)
            self.register_buffer("target", target)
            self.message = nn.Linear(d, d)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x).index_add(0, self.target, self.message(x[self.source]))

    nodes, edges, d = 10, 40, 16
    source, target = torch.randint(0, nodes, (2, edges))
    flops = 2 * edges * d * d
    return Case(Model(source, target, d), (torch.randn(nodes, d),), flops, 2 * flops)


@case
def speech_recognizer() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.front = nn.Conv2d(1, 4, 3, stride=2, padding=1)
            self.rnn = nn.LSTM(4 * 8, 12, bidirectional=True, batch_first=True)
            self.head = nn.Linear(24, 20)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = F.relu(self.front(x[:, None])).transpose(1, 2).flatten(2)  # (b, t, channels x f)
            return self.head(self.rnn(x)[0]).log_softmax(-1)

    b, t, f, h = 2, 20, 16, 12
    front = 2 * b * (t // 2) * (f // 2) * (4 * 1 * 9)
    gates = 2 * (2 * b * (t // 2) * 4 * h * (4 * 8 + h))
    head = 2 * b * (t // 2) * 24 * 20
    forward = front + gates + head
    return Case(Model(), (torch.randn(b, t, f),), forward, 3 * forward - front)


@case
def siamese_towers() -> Case:
    class Model(nn.Module):
        """One tower sees both sides; every pair in the batch is compared (as CLIP)."""

        def __init__(self) -> None:
            super().__init__()
            self.tower = nn.Sequential(nn.Linear(24, 32), nn.GELU(), nn.Linear(32, 16))

        def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return F.normalize(self.tower(a)) @ F.normalize(self.tower(b)).t()

    n = 6
    first, second, pairs = 2 * n * 24 * 32, 2 * n * 32 * 16, 2 * n * n * 16
    forward = 2 * (first + second) + pairs
    step = 2 * (2 * first + 3 * second) + 3 * pairs
    return Case(Model(), (torch.randn(n, 24), torch.randn(n, 24)), forward, step)
