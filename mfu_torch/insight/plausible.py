"""Run files are not trusted: a time that no run can take is refused before anything is computed."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.records import MFUError, Run

_LONGEST_S = 1e10
"""Three hundred years."""


def plausible(run: Run, name: str) -> Run:
    """The run itself, if sums and ratios of its times are numbers.

    Args:
        run: It.
        name: Of its file, for the message.

    Raises:
        MFUError: One of its times is longer than 10^10 s.
    """
    for what, time_s in _times(run):
        if not abs(time_s) <= _LONGEST_S:
            raise MFUError(
                f"{name}: {what} of {time_s:.3g} s is recorded; expected at most {_LONGEST_S:.0e}: "
                "the file is damaged or was changed"
            )
    return run


def _times(run: Run) -> Iterator[tuple[str, float]]:
    for window in run.windows:
        yield "a window", window.wall_s
    for step in run.steps:
        yield "a step", step.duration_s
        yield "a data wait", step.data_wait_s or 0.0
    for pause in run.pauses:
        yield "a pause", pause.duration_s
    if run.end is not None:
        yield "a run", run.end.wall_s
