"""A breakdown of a few steps now and then, while the training goes on.

    steps    ... | warm-up | traced | traced | traced |explain| ...           the loop's thread
                                                          |
    a thread                                              +--> waits for ---+
    a process of low priority                                  analysis     |
                                                                            v
    steps    ...                             a later step's start: BreakdownEntry recorded

What the recording costs is nobody's step: traced steps are excluded from steady-state figures, and
starting, stopping and exporting are a pause named ``explain``.
"""

from __future__ import annotations

from collections.abc import Callable

from mfu_torch.explaining.explained import ExplainedStepping
from mfu_torch.stepping import Stepping

__all__ = ["stepping_for"]


def stepping_for(explain_every: int | None, start: Callable[[], None]) -> Stepping:
    """The loop as it moves on; without ``explain_every`` not one instruction is added to a step.

    Args:
        explain_every: Steps between two recordings.
        start: Begins the run.
    """
    return (
        Stepping(start) if explain_every is None else ExplainedStepping(start, int(explain_every))
    )
