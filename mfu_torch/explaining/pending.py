"""Recorded steps whose breakdown is not there yet, and the steps around them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mfu_torch.clock.ledger import OpenStep
from mfu_torch.explaining.analysis import Analysis
from mfu_torch.records import BreakdownEntry

SIDE = 10
"""Steps before, and as many after, whose time is compared with that of the recorded ones."""


class Pending:
    """What was recorded, and waits for its analysis and for the times of the steps around it.

    Args:
        steps: Those that were recorded.
        before: The steps before them.
        analysis: Of their trace.
        path: Of the trace.
    """

    def __init__(
        self,
        steps: tuple[OpenStep, ...],
        before: Sequence[OpenStep],
        analysis: Analysis,
        path: Path,
    ) -> None:
        self.analysis, self.path = analysis, path
        self._steps = steps
        self._around = [step for step in before if is_steady(step)]
        self._after = 0

    def add_after(self, step: OpenStep) -> None:
        """A step was left that was not recorded."""
        if self._after < SIDE and is_steady(step):
            self._around.append(step)
            self._after += 1

    @property
    def is_ready(self) -> bool:
        """Whether the analysis is done, and the times of all these steps are known."""
        done = self._after == SIDE and self.analysis.done
        return done and _is_known(self._around[-1]) and _is_known(self._steps[-1])

    def entry(self, trace: str) -> BreakdownEntry | str:
        """The record, or why there is none.

        Args:
            trace: Where the trace is kept.
        """
        found = self.analysis.result
        if isinstance(found, str):
            return found
        if not all(map(_is_known, self._steps)):
            return "the recorded steps could not be timed"
        around = [_duration_s(step) for step in self._around if _is_known(step)]
        return BreakdownEntry(
            after_step=self._steps[-1].index + 1,
            steps=tuple(step.index for step in self._steps),
            breakdown=found,
            traced_s=sum(map(_duration_s, self._steps)) / len(self._steps),
            untraced_s=sum(around) / len(around) if around else None,
            untraced_steps=len(around),
            trace=trace,
        )


def is_steady(step: OpenStep) -> bool:
    """Whether its time is that of any other step."""
    return not (step.failed or step.excluded)


def _duration_s(step: OpenStep) -> float:
    return step.inside_s + step.tail_s


def _is_known(step: OpenStep) -> bool:
    """Whether the device has reached its end."""
    return hasattr(step, "wall_s")
