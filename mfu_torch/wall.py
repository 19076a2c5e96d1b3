"""Where the wall time of a run went, and what each part costs of the MFU."""

from __future__ import annotations

import math
from collections import Counter
from typing import Literal

from mfu_torch.figures import figures
from mfu_torch.ideal import (
    earlier_ideal_s,
    earlier_wall_s,
    end_to_end,
    ideal_s_of,
    sum_ideal,
)
from mfu_torch.records import Counts, Header, Pause, Peaks, Record, Run, Step, Window
from mfu_torch.records.names import FURTHER_PAUSES, PAUSE, Names
from mfu_torch.utilization import utilization

_Kind = Literal["earlier", "steady", "excluded", "pause", "other"]

_OF_STEPS = ("model", "recompute", "below peak")
_STEPS, _EARLIER, _OTHER = "steady steps", "earlier attempts", "other"

PAUSES_LIMIT = 30
"""Names of pauses that have a share each: every share is a curve, and written once a window."""


class WallShare(Record, frozen=True, kw_only=True):
    """One part of a run's wall time; the parts sum to the whole.

    Attributes:
        kind: ``earlier`` attempts at the run, ``steady`` steps, ``excluded`` steps, a ``pause``, or
            what is left (``other``).
        name: Why the steps are excluded, or the name of the pause; else empty.
        times: Number of steps or pauses; of earlier attempts the steps that were kept.
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
    earlier = run.header.earlier
    if earlier is not None:
        parts.append(
            _wall_share(
                run, mfu, "earlier", "", earlier.steps, earlier.wall_s, earlier_ideal_s(run.header)
            )
        )
    for reason, group in steps.items():
        kind: _Kind = "excluded" if reason else "steady"
        time_s = math.fsum(step.duration_s for step in group)
        parts.append(
            _wall_share(run, mfu, kind, reason, len(group), time_s, ideal_s_of(run, group))
        )
    for name, durations in pauses.items():
        time_s = math.fsum(durations)
        parts.append(_wall_share(run, mfu, "pause", name, len(durations), time_s, 0.0))
    rest_s = whole_s(run) - math.fsum(part.time_s for part in parts)
    return (*parts, _wall_share(run, mfu, "other", "", 1, rest_s, 0.0))


def whole_s(run: Run) -> float:
    """Wall time of a run from the begin of its first attempt."""
    return run.wall_s + earlier_wall_s(run.header)


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
        gap = utilization(mfu * time_s - ideal_s, whole_s(run))
    share = utilization(time_s, whole_s(run))
    return WallShare(kind=kind, name=name, times=times, time_s=time_s, share=share, mfu_gap=gap)


class WallSoFar:
    """The wall time of a run while it goes on: sums are kept, not steps.

    Args:
        header: Of the run.
    """

    def __init__(self, header: Header) -> None:
        self._header = header
        self._wall_s = 0.0
        self._steps_s: dict[str, float] = {"": 0.0}  # by why they are excluded
        self._steps: dict[str, Counter[int]] = {"": Counter()}  # likewise, how often by count id
        self._pauses_s: dict[str, float] = {}
        self._further_s = 0.0
        self._names = Names((*_OF_STEPS, _STEPS, _EARLIER, FURTHER_PAUSES, _OTHER))
        self._shown: dict[str, None] = {}  # names of reasons and pauses, in the order of sight
        self._lost = ""

    def add(self, record: Window | Pause) -> None:
        """Take in what happened next."""
        if isinstance(record, Pause):
            self._add_pause(record)
            return
        self._wall_s = record.wall_s
        for step in record.steps:
            spent_s = self._steps_s.get(step.excluded, 0.0) + step.duration_s
            self._steps_s[step.excluded] = spent_s
            self._steps.setdefault(step.excluded, Counter()).update(step.count_ids)

    def _add_pause(self, pause: Pause) -> None:
        if pause.name in self._pauses_s:
            self._pauses_s[pause.name] += pause.duration_s
        elif len(self._pauses_s) < PAUSES_LIMIT:
            self._pauses_s[pause.name] = pause.duration_s
        else:
            self._further_s += pause.duration_s

    def lose(self, reason: str) -> None:
        """A part of the run never came here: from now on its end-to-end MFU is not known."""
        self._lost = reason

    def end_to_end(self, counts: Counts, peaks: Peaks) -> float | str:
        """End-to-end MFU at the end of the last window, or why it is not known."""
        if self._lost:
            return self._lost
        ideal = sum_ideal(sum(self._steps.values(), Counter()), counts, peaks)
        ideal_s = ideal if isinstance(ideal, str) else ideal.of("model", self._header.attention)
        return end_to_end(ideal_s, self._wall_s, self._header)

    def shares(self, counts: Counts, peaks: Peaks) -> dict[str, float]:
        """Where the wall time went up to the end of the last window: shares that sum to 1.

        ``model`` is the end-to-end MFU; ``recompute`` what hardware FLOPs need beyond it at the
        peak; ``below peak`` the rest of the steady steps. Then earlier attempts, the rest of the
        excluded steps by reason, and pauses by name, ``other`` last. Where ideal times are not
        known, ``steady steps`` stands for the first three.

        The first 30 names of pauses have a share each, the others one together, ``further pauses``.
        A pause whose name is that of another share, or would have its tag, is ``pause NAME``.
        """
        whole_s = self._wall_s + earlier_wall_s(self._header)
        if not whole_s > 0:
            return {}
        spent, reasons_s = self._split(counts, peaks) or (
            {
                _STEPS: self._steps_s[""],
                **({_EARLIER: earlier_wall_s(self._header)} if self._header.earlier else {}),
            },
            self._steps_s,
        )
        named = {self._names.of(why): time_s for why, time_s in reasons_s.items() if why}
        named |= {self._names.of(name, PAUSE): s for name, s in self._pauses_s.items()}
        self._shown |= dict.fromkeys(named)  # those that are new come last
        spent |= {name: named[name] for name in self._shown}
        if self._further_s:
            spent[FURTHER_PAUSES] = self._further_s
        spent[_OTHER] = whole_s - math.fsum(spent.values())
        return {name: utilization(time_s, whole_s) for name, time_s in spent.items()}

    def _split(
        self, counts: Counts, peaks: Peaks
    ) -> tuple[dict[str, float], dict[str, float]] | None:
        """Seconds at the peak and beyond, of steady steps and earlier attempts; of others by why.

        ``None`` where ideal times are not known.
        """
        attention = self._header.attention
        before = earlier_ideal_s(self._header)
        if isinstance(before, str) or self._lost:
            return None
        spent = dict.fromkeys(_OF_STEPS, 0.0)
        spent["model"] = before
        reasons_s = {}
        for why, time_s in self._steps_s.items():
            ideal = sum_ideal(self._steps[why], counts, peaks)
            if isinstance(ideal, str):
                return None
            model_s, hardware_s = ideal.of("model", attention), ideal.of("hardware", attention)
            spent["model"] += model_s
            spent["recompute"] += hardware_s - model_s
            reasons_s[why] = time_s - hardware_s
        spent["below peak"] = reasons_s[""]
        if self._header.earlier is not None:
            spent[_EARLIER] = earlier_wall_s(self._header) - before
        return spent, reasons_s
