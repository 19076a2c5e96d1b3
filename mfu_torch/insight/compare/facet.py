"""What a comparison looks at in one run, read off it once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cached_property

from mfu_torch.figures import Figures, run_figures
from mfu_torch.ideal import by_count, counts_of
from mfu_torch.records import Attention, FlopCount, Run, Step

Shape = tuple[int | None, int | None]
"""Tokens and samples of a step."""


class Facet:
    """One run under comparison.

    Attributes:
        run: The run.
        figures: Over its steady steps.
        steady: These steps.
        pairs: Their distinct counts, with how often; or why one is not known.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.figures: Figures = run_figures(run)
        self.steady: list[Step] = [step for step in run.steps if not step.excluded]
        self.pairs: list[tuple[FlopCount, int]] | str = (
            counts_of(by_count(self.steady), run.counts) if self.steady else "no steady step"
        )

    @cached_property
    def known(self) -> list[tuple[FlopCount, int]]:
        """The counts that are known, all or none."""
        return [] if isinstance(self.pairs, str) else self.pairs

    def model(self, attention: Attention) -> int:
        """Model FLOPs of all steady steps; 0 where they are not known."""
        return sum(
            times * (count.model if attention == "full" else count.model_causal)
            for count, times in self.known
        )

    @cached_property
    def hardware(self) -> int:
        """Hardware FLOPs of all steady steps, every attention score counted."""
        return sum(times * count.hardware for count, times in self.known)

    @cached_property
    def by_dtype(self) -> dict[str, float]:
        """Share of the hardware FLOPs by dtype, largest first."""
        totals: Counter[str] = Counter()
        for count, times in self.known:
            for dtype, flops in count.by_dtype.items():
                totals[dtype] += times * flops
        return {dtype: flops / self.hardware for dtype, flops in totals.most_common()}

    @cached_property
    def uncounted(self) -> frozenset[str]:
        """Ops without a formula, in any step."""
        return frozenset(op for count, _ in self.known for op in count.uncounted)

    @cached_property
    def methods(self) -> tuple[str, ...]:
        """How the counts came about, without the number of the step."""
        return tuple(dict.fromkeys(count.method for count, _ in self.known if count.method))

    def total(self, of: str) -> int | None:
        """Sum of ``tokens`` or ``samples`` over the steady steps; ``None`` if one lacks it."""
        if not self.steady or getattr(self.figures, f"{of}_per_s") is None:
            return None
        return sum(getattr(step, of) for step in self.steady) or None

    def flops_by_shape(self, attention: Attention) -> dict[Shape, set[int]]:
        """Model FLOPs of a step by its tokens and samples, of steps that have either."""
        of_ids: dict[tuple[int, ...], int] = {}
        found: dict[Shape, set[int]] = {}
        for step in self.steady if self.known else ():
            if step.tokens is None and step.samples is None:
                continue
            if step.count_ids not in of_ids:
                of_ids[step.count_ids] = _flops(self.run.count_of(step), attention)
            found.setdefault((step.tokens, step.samples), set()).add(of_ids[step.count_ids])
        return found

    def mean(self, values: Sequence[float]) -> float:
        """Of one value for each steady step."""
        return sum(values) / len(values)


def _flops(count: FlopCount | str, attention: Attention) -> int:
    if isinstance(count, str):
        return 0
    return count.model if attention == "full" else count.model_causal
