"""Work of the device that ran and is not in the trace, or not with a time that can be used."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from mfu_torch.insight.trace.names import matching
from mfu_torch.units import percent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mfu_torch.insight.trace.events import Ints

_SMALL = 0.01
"""Of the device's time: less is not worth a warning."""
_MANY = 0.1
"""Of the launches."""
_LAUNCH = re.compile(r"LaunchKernel|ModuleLaunch|LaunchCooperative")
"""Of kernels alone: a copy or a memset of 0 bytes leaves no record, and a graph may be empty."""
_BEGIN_CAPTURE = re.compile(r"StreamBeginCapture")
_END_CAPTURE = re.compile(r"StreamEndCapture")


def missing(
    names: list[str], calls: dict[str, Ints], work: dict[str, Ints], lost: Mapping[int, int]
) -> tuple[list[str], list[str]]:
    """Warnings and notes about work that is not in a trace.

    Args:
        names: Of all events.
        calls: Of the runtime.
        work: Of every device.
        lost: Work whose times cannot be: number of a name -> how many of it were left out.
    """
    captured, note = launches_without_work(names, calls, work["correlation"], sum(lost.values()))
    warnings = (without_times(lost, work), captured)
    return [one for one in warnings if one], [note] if note else []


def without_times(lost: Mapping[int, int], work: dict[str, Ints]) -> str:
    """A warning about kernels and copies whose times cannot be; empty where they are few.

    Their own time is not known. Each is taken to last as long as the others of its name do, or as
    long as all others where there is none of its name: 1 lost of 2 alike is 50 % of their time.

    Args:
        lost: Number of a name -> how many of it were left out.
        work: What is left.
    """
    count = sum(lost.values())
    if not len(work["start"]):
        return "all kernels and copies have impossible times; record the trace again" * bool(count)
    if not count:
        return ""
    counts = np.bincount(work["name"], minlength=max(lost) + 1)
    busy = np.bincount(work["name"], work["end"] - work["start"], minlength=max(lost) + 1)
    all_ns = float(busy.sum())
    mean_ns = all_ns / len(work["start"])
    lost_ns = sum(
        count * (busy[name] / counts[name] if counts[name] else mean_ns)
        for name, count in lost.items()
    )
    share = lost_ns / (lost_ns + all_ns) if lost_ns else count / (count + len(work["start"]))
    if share < _SMALL:
        return ""
    plural = "" if count == 1 else "s"
    return (
        f"{count} kernel{plural} or cop{'y' if count == 1 else 'ies'} with an impossible time "
        f"{'was' if count == 1 else 'were'} left out, by the others of the trace about "
        f"{percent(share)} of the device's time: the time of steps, FLOPs and MFU are wrong by as "
        "much; record the trace again"
    )


def launches_without_work(
    names: list[str], calls: dict[str, Ints], work: Ints, lost: int
) -> tuple[str, str]:
    """A warning and a note about launches of which nothing ran; empty without.

    Args:
        names: Of all events.
        calls: Of the runtime.
        work: Correlations of the work of every device.
        lost: Kernels that were left out in reading: their launches are not counted.
    """
    correlation, start = calls["correlation"], calls["start"]
    launches = np.flatnonzero(matching(_LAUNCH, names, calls["name"]) & (correlation > 0))
    asked, known = correlation[launches], np.sort(work)  # four times as fast as np.isin
    known = known if len(known) else np.array([-1])
    place = np.minimum(np.searchsorted(known, asked), len(known) - 1)
    alone = launches[known[place] != asked]
    if not len(alone):
        return "", ""
    captured = _captured(start[alone], names, calls)
    others = len(alone) - captured - lost
    told = f"of {len(launches)} launches of kernels"
    capturing = (
        f"{captured} {told} are captured into a graph and not run: the time of capturing is no "
        "step; record the steps that replay the graph"
        if captured
        else ""
    )
    if captured > _MANY * len(launches):
        return capturing, ""
    if len(work) and others > _MANY * len(launches):
        return "", (
            f"{others} {told} have no record of what ran: it ran after the recording ended, or the "
            "profiler lost it; its time is missing"
        )
    return "", capturing


def _captured(start: Ints, names: list[str], calls: dict[str, Ints]) -> int:
    """How many of some launches lie between the first begin of a capture and the last end."""
    begins = calls["start"][matching(_BEGIN_CAPTURE, names, calls["name"])]
    ends = calls["start"][matching(_END_CAPTURE, names, calls["name"])]
    if not len(begins):
        return 0
    ended = len(ends) and ends.max() > begins.max()
    return int(((start >= begins.min()) & (start <= (ends if ended else start).max())).sum())


def without_device(work: int, calls: int, unread: int) -> tuple[str, ...]:
    """A warning that a device was used, and nothing of what it did is read.

    Args:
        work: Kernels and copies that are read.
        calls: Of the runtime, such as mean that a device works.
        unread: Events of a kind that only a device has, and that is not known here.
    """
    if work or not (calls or unread):
        return ()
    seen = [f"{calls} call{'' if calls == 1 else 's'} of its runtime"] if calls else []
    seen += (
        [f"{unread} event{'' if unread == 1 else 's'} of a kind that is not read"] if unread else []
    )
    return (
        f"a device was used ({' and '.join(seen)}), and none of its work is read: times are those "
        "of the host, which launches it and waits for it; for a GPU record activities=[CPU, CUDA]",
    )
