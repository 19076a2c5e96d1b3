"""Closed forms of recommenders against what the counter counts."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from formula_models import assert_counted, assert_recomputed, trained
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from mfu_torch.flops.formulas import DLRM, HSTU, Block, Mask, SequenceRecommender

B = 6


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def mlp(*sizes: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(sizes):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Model(nn.Module):
    """arXiv:1906.00091, figure 1."""

    def __init__(self, closed: DLRM) -> None:
        super().__init__()
        self.closed = closed
        self.bottom = mlp(closed.dense, *closed.bottom)
        self.top = mlp(closed.joined, *closed.top)
        self.tables = nn.ModuleList(
            nn.EmbeddingBag(rows, closed.width, mode="sum") for rows in closed.rows
        )

    def forward(self, dense: torch.Tensor, ids: list[torch.Tensor]) -> torch.Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(t(i) for t, i in zip(self.tables, ids, strict=True))], dim=1)
        if self.closed.interaction == "cat":
            return self.top(rows.flatten(1))
        dots = torch.bmm(rows, rows.transpose(1, 2))
        f = rows.shape[1]
        i, j = torch.tril_indices(f, f, offset=0 if self.closed.with_itself else -1)
        return self.top(torch.cat([x, dots[:, i, j]], dim=1))


@pytest.mark.parametrize(
    "closed",
    [
        DLRM(dense=13, bottom=(32, 16), rows=(50, 40, 30, 20), top=(32, 1), pooling=3),
        DLRM(dense=5, bottom=(8,), rows=(9, 7), top=(4, 4, 1), pooling=(1, 4), with_itself=True),
        DLRM(dense=5, bottom=(8,), rows=(9,), top=(1,), interaction="cat"),
    ],
)
def test_dlrm(closed: DLRM) -> None:
    ids = [
        torch.randint(rows, (B, bag)) for rows, bag in zip(closed.rows, closed.bags, strict=True)
    ]
    model = Model(closed)
    assert_counted(closed.flops(B), trained(model, torch.randn(B, closed.dense), ids))
    assert closed.parameters.total == parameters_of(model)
    assert closed.flops(B).recompute("full") == 0


def test_dlrm_by_hand() -> None:
    closed = DLRM(dense=3, bottom=(4, 2), rows=(10, 10), top=(5, 1), pooling=(1, 7))
    form = closed.flops(2)
    # F = 3 vectors of 2: 9 products of them, 3 of which are used beside the 2 dense ones.
    first, bottom, dot, top = 2 * 2 * 12, 2 * 2 * 8, 2 * 2 * 9 * 2, 2 * 2 * (5 * 5 + 5)
    assert form.forward == first + bottom + dot + top
    assert form.backward == first + 2 * (bottom + dot + top)
    assert form.only("interaction").forward == dot
    # 8 rows of 2 numbers are added, and 2 bags written.
    assert closed.embedding_adds(2) == 2 * closed.embedding_adds() == 2 * 8 * 2
    assert closed.embedding_bytes(2) == 2 * closed.embedding_bytes() == 2 * (8 + 2) * 2 * 4
    assert closed.embedding_bytes(2, number_bytes=2) * 2 == closed.embedding_bytes(2)


def test_the_tables_have_no_flops_and_nearly_all_parameters() -> None:
    # MLPerf's: 13-512-256-128, 26 tables, 479-1024-1024-512-256-1 behind 351 products.
    closed = DLRM(
        dense=13, bottom=(512, 256, 128), rows=(1_000_000,) * 26, top=(1024, 1024, 512, 256, 1)
    )
    assert closed.joined == 479
    weights = 13 * 512 + 512 * 256 + 256 * 128
    weights += 479 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert closed.flops(1).forward == 2 * weights + 2 * 27 * 27 * 128 == 4_916_992
    more = DLRM(dense=13, bottom=closed.bottom, rows=(2,) * 26, top=closed.top, pooling=100)
    assert more.flops(8) == closed.flops(8)


def pointwise(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(q @ k.transpose(2, 3)).tril() / q.shape[2] @ v


class Unit(nn.Module):
    """A layer of arXiv:2402.17152, equations 1 to 3."""

    def __init__(self, h: int, part: HSTU) -> None:
        super().__init__()
        self.part, self.norm = part, nn.LayerNorm(h)
        self.core = pointwise
        self.uvqk = nn.Linear(h, 2 * part.heads * (part.qk_dim + part.value_dim))
        self.inner = nn.LayerNorm(part.heads * part.value_dim)
        self.o = nn.Linear(part.heads * part.value_dim, h)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        part = self.part
        wide, narrow = part.heads * part.value_dim, part.heads * part.qk_dim
        u, v, q, k = F.silu(self.uvqk(self.norm(x))).split([wide, wide, narrow, narrow], -1)
        v, q, k = (t.unflatten(-1, (part.heads, -1)).transpose(1, 2) for t in (v, q, k))
        attended = self.core(q, k, v).transpose(1, 2).flatten(2)
        return x + self.o(u * self.inner(attended))


class Ranker(nn.Module):
    def __init__(self, items: int, h: int, layers: int, part: HSTU) -> None:
        super().__init__()
        self.items = nn.Embedding(items, h)
        self.layers = nn.ModuleList(Unit(h, part) for _ in range(layers))

    def forward(self, *histories: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each user's history by itself, as kernels for jagged batches see them."""
        return tuple(self._one(ids[None]) for ids in histories)

    def _one(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.items(ids)
        for layer in self.layers:
            x = layer(x)
        return x @ self.items.weight.t()


PART = HSTU(heads=2, qk_dim=3, value_dim=5)


def test_hstu_with_jagged_histories() -> None:
    lengths, items, h = (9, 4, 1, 4), 30, 8
    closed = SequenceRecommender(hidden=h, items=items, blocks=(Block(parts=(PART,), count=3),))
    model = Ranker(items, h, 3, PART)
    histories = [torch.randint(items, (length,)) for length in lengths]
    form = closed.flops(lengths=lengths)
    assert_counted(form, trained(model, *histories))
    # 81 + 16 + 1 + 16 = 114 pairs; the mean of 4.5 would give 4 x 20.25 = 81.
    assert form.only("attention").forward == 3 * 2 * 2 * (3 + 5) * 114
    causal = closed.flops(lengths=lengths, attention="causal").only("attention").forward
    assert causal == 3 * 2 * 2 * (3 + 5) * (45 + 10 + 1 + 10)


def test_hstu_layers_are_recomputed() -> None:
    closed = SequenceRecommender(hidden=8, items=30, blocks=(Block(parts=(PART,), count=3),))
    model, history = Ranker(30, 8, 3, PART), torch.randint(30, (9,))
    form = closed.flops(1, 9)
    assert_recomputed(form, model, model.layers, history)
    assert form.recompute("full") - form.recompute("checkpoint") == 3 * 2 * 9 * 10 * 8
    for layer in model.layers:
        layer.core = partial(checkpoint, pointwise, use_reentrant=False)
    with set_checkpoint_early_stop(False):
        count = trained(model, history)
    assert count.recompute == form.recompute("selective") == 3 * 2 * 2 * 8 * 81


def test_sampled_softmax_scores_few_items() -> None:
    blocks = (Block(parts=(PART,)),)
    every = SequenceRecommender(hidden=8, items=1000, blocks=blocks).flops(2, 9)
    some = SequenceRecommender(hidden=8, items=1000, blocks=blocks, negatives=99).flops(2, 9)
    assert every.only("head").training == 10 * some.only("head").training
    assert some.only("head").forward == 2 * 18 * 8 * 100

    def scores(x: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        return x[:, None] @ chosen.transpose(1, 2)  # (t, 1, h) @ (t, h, 1 + negatives)

    tensors = torch.randn(18, 8, requires_grad=True), torch.randn(18, 100, 8, requires_grad=True)
    assert trained(scores, *tensors).model == some.only("head").training


def test_a_recommender_is_counted_in_items_and_its_table_is_its_head() -> None:
    closed = SequenceRecommender(
        hidden=8, items=30, blocks=(Block(parts=(PART,), count=2),), positions=9, others=5
    )
    layers = 2 * (8 * 2 * 2 * (3 + 5) + 2 * 5 * 8)
    assert closed.per == "token"
    assert closed.parameters.total == layers + 30 * 8 + 9 * 8 + 5
    sampled = SequenceRecommender(
        hidden=8, items=30, blocks=(Block(parts=(PART,), count=2),), negatives=4
    )
    assert sampled.parameters.used == layers + 5 * 8


def test_absurd_sizes_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="pooling has 1 numbers; expected one for each of the 2"):
        DLRM(dense=1, bottom=(1,), rows=(1, 1), top=(1,), pooling=(3,))
    with pytest.raises(ValueError, match="bottom is empty"):
        DLRM(dense=1, bottom=(), rows=(1,), top=(1,))
    with pytest.raises(ValueError, match="top is 0; expected a whole number above 0"):
        DLRM(dense=1, bottom=(1,), rows=(1,), top=(0,))
    with pytest.raises(ValueError, match="interaction is 'sum'"):
        DLRM(dense=1, bottom=(1,), rows=(1,), top=(1,), interaction="sum")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="qk_dim is 0"):
        HSTU(heads=1, qk_dim=0, value_dim=1, mask=Mask())
