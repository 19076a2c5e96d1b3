"""A small residual network classifies images; validation between the epochs is a pause.

The images are ten patterns of coloured squares under noise: there is something to learn, and
nothing to download.
"""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from mfu_torch import Meter

CLASSES, SIDE, BATCH, EPOCHS, WIDTHS = 10, 32, 64, 2, (16, 32, 64)


class Block(nn.Module):  # two 3x3 convolutions beside a 1x1 one; it halves the image
    def __init__(self, into: int, out: int) -> None:
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(into, out, 3, 2, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out),
        )  # fmt: skip
        self.beside = nn.Conv2d(into, out, 1, stride=2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.path(x) + self.beside(x))


def images(count: int, patterns: torch.Tensor) -> TensorDataset:
    """Noisy ones, and which pattern is in each."""
    labels = torch.randint(CLASSES, (count,))
    return TensorDataset(patterns[labels] + 3 * torch.randn(count, 3, SIDE, SIDE), labels)


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
blocks = [Block(into, out) for into, out in itertools.pairwise(WIDTHS)]
stem = nn.Conv2d(3, WIDTHS[0], 3, padding=1, bias=False)
head = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTHS[-1], CLASSES))
model = nn.Sequential(stem, nn.BatchNorm2d(WIDTHS[0]), nn.ReLU(), *blocks, *head).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
patterns = nn.functional.interpolate(torch.randn(CLASSES, 3, 4, 4), SIDE)
train = DataLoader(images(1280, patterns), BATCH, shuffle=True, drop_last=True)
held_out = DataLoader(images(512, patterns), BATCH)
with Meter(model) as meter:
    for epoch in range(1, EPOCHS + 1):
        for x, labels in meter.data(train):
            with meter.step(samples=len(labels)):
                loss = nn.functional.cross_entropy(model(x.to(device)), labels.to(device))
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        with meter.pause("eval"), torch.no_grad():
            model.eval()
            right = [(model(x.to(device)).argmax(1).cpu() == y).float() for x, y in held_out]
            print(f"epoch {epoch}: {torch.cat(right).mean():.0%} of the held-out images are right")
            model.train()
print(f"\n{meter.summary()}")
