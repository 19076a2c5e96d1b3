"""Figures over a whole run, from sums: memory does not grow with the number of steps."""

from __future__ import annotations

from collections import Counter

from mfu_torch.ideal import sum_ideal
from mfu_torch.records import Counts, Header, Peaks, Window
from mfu_torch.utilization import rate_per_s, utilization
from mfu_torch.wall import WallSoFar

TAGS = ("run/mfu", "run/hfu", "run/end_to_end", "run/step_s", "run/tokens_per_s")
"""Of the whole run so far, while ``mfu/mfu`` and its like are of a window."""


class Totals:
    """What a run amounts to so far, as ``mfu-torch report`` computes it from the run file.

    Args:
        header: Of the run.

    Attributes:
        steady_steps: Those that the figures are over, but for the end-to-end MFU.
    """

    def __init__(self, header: Header) -> None:
        self.header = header
        self.steady_steps = 0
        self._steady_s = 0.0
        self._steady: Counter[int] = Counter()  # how often steps had each count, by its id
        self._wall = WallSoFar(header)
        self._amounts: dict[str, int | None] = {"tokens": 0, "samples": 0}

    def add(self, window: Window) -> None:
        """Take in the next window."""
        self._wall.add(window)
        for step in window.steps:
            if step.excluded:
                continue
            self.steady_steps += 1
            self._steady_s += step.duration_s
            self._steady.update(step.count_ids)
            for name, amount in self._amounts.items():
                given = getattr(step, name)
                self._amounts[name] = None if amount is None or given is None else amount + given

    def per_step(self, name: str) -> float | None:
        """Mean ``tokens`` or ``samples`` of a steady step; ``None`` where a step has none."""
        amount = self._amounts[name]
        if amount is None or not self.steady_steps:
            return None
        return rate_per_s(amount, self.steady_steps)

    def figures(self, counts: Counts, peaks: Peaks) -> dict[str, float]:
        """Tag and value of what is known of :data:`TAGS`."""
        found: dict[str, float] = {}
        if not self._steady_s > 0:
            return found
        way = self.header.attention
        steady = sum_ideal(self._steady, counts, peaks)
        if not isinstance(steady, str):
            found["run/mfu"] = utilization(steady.of("model", way), self._steady_s)
            found["run/hfu"] = utilization(steady.of("hardware", way), self._steady_s)
        whole = self._wall.end_to_end(counts, peaks)
        if not isinstance(whole, str):
            found["run/end_to_end"] = whole
        found["run/step_s"] = self._steady_s / self.steady_steps
        tokens = self._amounts["tokens"]
        if tokens is not None:
            found["run/tokens_per_s"] = rate_per_s(tokens, self._steady_s)
        return found
