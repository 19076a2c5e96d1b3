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
_LAUNCH = re.compile(r"Launch|Memcpy\w*Async|Memset\w*Async")
_BEGIN_CAPTURE = re.compile(r"StreamBeginCapture")
_END_CAPTURE = re.compile(r"StreamEndCapture")


def without_times(lost: Mapping[int, int], work: dict[str, Ints]) -> str:
    """A warning about kernels and copies whose times cannot be; empty where they are few.

    Their own time is not known. Each is taken to last as long as the others of its name do, or as
    long as all others where there is none of its name: 1 lost of 2 alike is 50 % of their time.

    Args:
        lost: Number of a name -> how many of it were left out.
        work: What is left.
    """
    if not lost or not len(work["start"]):
        return ""
    counts = np.bincount(work["name"], minlength=max(lost) + 1)
    busy = np.bincount(work["name"], work["end"] - work["start"], minlength=max(lost) + 1)
    all_ns = float(busy.sum())
    mean_ns = all_ns / len(work["start"])
    lost_ns = sum(
        count * (busy[name] / counts[name] if counts[name] else mean_ns)
        for name, count in lost.items()
    )
    count = sum(lost.values())
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


def launches_without_work(names: list[str], calls: dict[str, Ints], work: Ints) -> tuple[str, str]:
    """A warning and a note about launches of which nothing ran; empty without.

    Args:
        names: Of all events.
        calls: Of the runtime.
        work: Correlations of the work of every device.
    """
    name, correlation, start = calls["name"], calls["correlation"], calls["start"]
    launches = np.flatnonzero(matching(_LAUNCH, names, name) & (correlation > 0))
    alone = launches[~np.isin(correlation[launches], work)]
    if not len(alone) or not len(work):
        return "", ""
    begins = start[matching(_BEGIN_CAPTURE, names, name)]
    ends = start[matching(_END_CAPTURE, names, name)]
    in_capture = np.zeros(len(alone), bool)
    if len(begins):
        in_capture = start[alone] >= begins.min()
        if len(ends) and ends.max() > begins.max():
            in_capture &= start[alone] <= ends.max()
    captured, others = int(in_capture.sum()), int((~in_capture).sum())
    told = f"of {len(launches)} launches of kernels and copies"
    capturing = (
        f"{captured} {told} are captured into a graph and not run: the time of capturing is no "
        "step; record the steps that replay the graph"
        if captured
        else ""
    )
    if captured > _MANY * len(launches):
        return capturing, ""
    if others > _MANY * len(launches):
        return "", (
            f"{others} {told} have no record of what ran: it ran after the recording ended, or the "
            "profiler lost it; its time is missing"
        )
    return "", capturing


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
