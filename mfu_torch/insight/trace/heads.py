"""What is read of a trace beside its events: the device's name, and the place in the job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mfu_torch.insight.trace.decode import plain
from mfu_torch.insight.trace.values import device_name, group_name, listed_ranks, whole

if TYPE_CHECKING:
    from mfu_torch.insight.trace.decode import Head

_MOST = 1 << 20
"""Entries of a list."""


@dataclass
class Job:
    """Name and multiprocessors of the device, and what ``distributedInfo`` says."""

    device_name: str | None = None
    sm_count: int | None = None
    rank: int | None = None
    world_size: int | None = None
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)


def job_of(heads: list[Head], device: int | None) -> Job:
    """Reads both heads; ``device`` is the one that the work ran on, ``None`` for a CPU."""
    job = Job()
    for head in heads:
        devices, info = plain(head.device_properties), plain(head.distributed)
        if isinstance(devices, list) and device is not None:
            _take_device(job, devices[:_MOST], device)
        if isinstance(info, dict):
            _take_info(job, info)
    return job


def _take_device(job: Job, devices: list[Any], device: int) -> None:
    listed = [one for one in devices if isinstance(one, dict)]
    match = [one for one in listed if one.get("id") == device]
    if not match and len({str(one.get("name")) for one in listed}) == 1:
        match = listed  # all alike: whichever it was
    if match:
        job.device_name = device_name(match[0].get("name"))
        job.sm_count = whole(match[0].get("numSms"), 1, 1 << 20)


def _take_info(job: Job, info: dict[str, Any]) -> None:
    job.rank = whole(info.get("rank"))
    job.world_size = whole(info.get("world_size"), 1)
    config = info.get("pg_config")
    for group in config[:_MOST] if isinstance(config, list) else ():
        if not isinstance(group, dict):
            continue
        name, ranks = group_name(group.get("pg_name")), listed_ranks(group.get("ranks"))
        if name is not None and ranks is not None:
            job.groups[name] = ranks
