"""Two runs beside each other: whether they can be compared, and what changed."""

from __future__ import annotations

from mfu_torch.insight.compare.comparison import compare
from mfu_torch.insight.compare.record import Change, Comparison, Difference, Side

__all__ = ["Change", "Comparison", "Difference", "Side", "compare"]
