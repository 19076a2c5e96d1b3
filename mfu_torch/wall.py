"""Where the wall time of a run went, and what each part costs of the MFU."""

from __future__ import annotations

import math
from typing import Literal

from mfu_torch.figures import figures, ideal_s_of
from mfu_torch.records import Record, Run, Step
from mfu_torch.utilization import utilization

_Kind = Literal["steady", "excluded", "pause", "other"]


class WallShare(Record, frozen=True, kw_only=True):
    """One part of a run's wall time; the parts sum to the whole.

    Attributes:
        kind: ``steady`` steps, ``excluded`` steps, a ``pause``, or what is left (``other``).
        name: Why the steps are excluded, or the name of the pause; else empty.
        times: Number of steps or pauses.
        time_s: Negative only for ``other``, where the parts overlap.
        share: Of the wall time.
        mfu_gap: The part of (steady-state MFU - end-to-end MFU) that it is responsible for, as a
            fraction; ``None`` where one of the two is not known.
    """

    kind: _Kind
    name: str = ""
    times: int
    time_s: float
    share: float
    mfu_gap: float | None = None


def wall_shares(run: Run) -> tuple[WallShare, ...]:
    """Where the wall time of a run went: parts that sum to it, and to the gap between its MFUs.

    With steady-state MFU m, wall time W and ideal time T* of the model FLOPs, a part of length t
    and ideal time t* widens the gap m - T*/W by (m t - t*) / W; steady steps by 0.
    """
    if not run.wall_s > 0:
        return ()
    steps: dict[str, list[Step]] = {"": []}  # steady steps first, also where there are none
    for step in run.steps:
        steps.setdefault(step.excluded, []).append(step)
    pauses: dict[str, list[float]] = {}
    for pause in run.pauses:
        pauses.setdefault(pause.name, []).append(pause.duration_s)
    mfu = figures(steps[""], run.counts, run.peaks, run.header.attention).mfu
    parts = []
    for reason, group in steps.items():
        kind: _Kind = "excluded" if reason else "steady"
        time_s = math.fsum(step.duration_s for step in group)
        parts.append(
            _wall_share(run, mfu, kind, reason, len(group), time_s, ideal_s_of(run, group))
        )
    for name, durations in pauses.items():
        time_s = math.fsum(durations)
        parts.append(_wall_share(run, mfu, "pause", name, len(durations), time_s, 0.0))
    rest_s = run.wall_s - math.fsum(part.time_s for part in parts)
    return (*parts, _wall_share(run, mfu, "other", "", 1, rest_s, 0.0))


def _wall_share(
    run: Run,
    mfu: float | None,
    kind: _Kind,
    name: str,
    times: int,
    time_s: float,
    ideal_s: float | str,
) -> WallShare:
    gap = None
    if mfu is not None and not isinstance(ideal_s, str):
        gap = utilization(mfu * time_s - ideal_s, run.wall_s)
    share = utilization(time_s, run.wall_s)
    return WallShare(kind=kind, name=name, times=times, time_s=time_s, share=share, mfu_gap=gap)
