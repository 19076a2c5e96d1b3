"""A small DLRM learns clicks: its MFU is low, and the report says where the time went instead.

The FLOPs are in the MLPs and the dot products (Naumov et al. 2019, arXiv:1906.00091).
"""

import itertools

import torch
from torch import nn

from mfu_torch import Meter

TABLES, ROWS, WIDTH, BAG, BATCH, STEPS = 8, 100_000, 32, 20, 1024, 40
BOTTOM, TOP = (13, 128, 64, WIDTH), (WIDTH + (TABLES + 1) * TABLES // 2, 128, 64, 1)


def mlp(a: int, b: int, c: int, d: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(a, b), nn.ReLU(), nn.Linear(b, c), nn.ReLU(), nn.Linear(c, d))


def batches():
    """Dense features (B, 13), ids to look up (8, B, 20) and clicks (B,), without end."""
    while True:
        dense, ids = torch.rand(BATCH, 13), torch.randint(ROWS, (TABLES, BATCH, BAG))
        yield dense, ids, (torch.rand(BATCH) < dense[:, 0]).float()


class Interaction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bottom, self.top = mlp(*BOTTOM), mlp(*TOP)
        self.register_buffer("pairs", torch.tril_indices(TABLES + 1, TABLES + 1, -1))

    def forward(self, dense: torch.Tensor, looked_up: list[torch.Tensor]) -> torch.Tensor:
        x = self.bottom(dense)
        vectors = torch.stack([x, *looked_up], dim=1)
        products = vectors @ vectors.transpose(1, 2)  # (B, 9, 32) @ (B, 32, 9)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)).squeeze(1)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
bags = (nn.EmbeddingBag(ROWS, WIDTH, sparse=True) for _ in range(TABLES))  # means of bags
tables, model = nn.ModuleList(bags).to(device), Interaction().to(device)
loss_of = nn.BCEWithLogitsLoss()
optimizers = torch.optim.SGD(tables.parameters(), 1.0), torch.optim.Adam(model.parameters(), 5e-3)
with Meter(model) as meter:
    for dense, ids, clicks in itertools.islice(meter.data(batches()), STEPS):
        with meter.step(samples=BATCH):
            with meter.phase("look-ups"):
                looked_up = [table(bag) for table, bag in zip(tables, ids.to(device), strict=True)]
            with meter.phase("MLPs"):
                loss = loss_of(model(dense.to(device), looked_up), clicks.to(device))
            with meter.phase("backward"):
                loss.backward()
            with meter.phase("optimizer"):
                for optimizer in optimizers:
                    optimizer.step()
                    optimizer.zero_grad()
print(f"\nloss {loss.item():.2f} (untrained: 0.69)\n\n{meter.summary()}")
