"""How much of a CPU's time a measurement's threads may have, and what share of it they got.

They may have less than their cores' under the CPU quota of a container; they get less than they
may where other work keeps them off.
"""

from __future__ import annotations

import functools
import math
import time
from pathlib import Path

from mfu_torch.records import Device

_ALONE = 0.05
"""The other threads of the process, when they got less than this share of what the measuring one
got, had nothing to do: not every dtype has a kernel that uses them all."""

BUSY = 0.85
"""A CPU measurement whose threads got less than this share of the time they may have was disturbed
by other work."""

Clocks = tuple[float, float, float]
"""Seconds that passed, that the process got of the CPU, and that this thread got of it."""


def clocks() -> Clocks:
    """What the clocks show now."""
    return time.perf_counter(), time.process_time(), time.thread_time()


def share_since(begin: Clocks, cpus: float | None) -> float:
    """Of the time since ``begin`` that the threads may have on ``cpus``, what they got.

    Two threads that had 1.2 s of CPU in 1 s got 60 %; on 1.5 ``cpus``, 80 %.

    Args:
        begin: What :func:`clocks` gave.
        cpus: From :func:`usable_cpus`; with ``None``, the share is 1.
    """
    import torch

    if cpus is None:
        return 1.0
    wall_s, all_s, own_s = (now - then for now, then in zip(clocks(), begin, strict=True))
    threads = torch.get_num_threads() if all_s - own_s > _ALONE * own_s else 1
    return min(1.0, all_s / (wall_s * min(threads, cpus)))


def usable_cpus(device: Device) -> float | None:
    """How many CPUs' time this process may use; ``None`` where the work is not the CPU's."""
    if device.kind != "cpu":
        return None
    return min(device.sm_count or math.inf, cpu_quota() or math.inf)


def limiting_quota() -> str:
    """The CPU quota in words, where it leaves torch's threads less than all of their time."""
    import torch

    quota = cpu_quota()
    return f"a CPU quota of {quota:.3g}" if quota and quota < torch.get_num_threads() else ""


def executor(device: Device) -> str:
    """What runs a matmul, in words: the device's name; of a CPU the threads, and their quota."""
    import torch

    if device.kind != "cpu":
        return device.name
    threads = f"{torch.get_num_threads()} threads"
    return f"{threads} with {quota}" if (quota := limiting_quota()) else threads


@functools.cache
def cpu_quota(root: Path = Path("/sys/fs/cgroup")) -> float | None:
    """How many CPUs' time the container may use, read once; ``None`` where nothing limits it.

    ``docker run --cpus=1.5`` gives 1.5. A container finds its own control group at ``root``. A
    quota on a part of the machine that is no container (a unit of systemd) is not seen.
    """
    second = _quota(root / "cpu.max")
    if second is not None:
        return second
    first = root / "cpu"
    return _quota(first / "cpu.cfs_quota_us", first / "cpu.cfs_period_us")


def _quota(*files: Path) -> float | None:
    try:
        words = (word for file in files for word in file.read_text(encoding="ascii").split())
        quota_us, period_us = (int(word) for word in words)
        cpus = quota_us / period_us
    # No such file; "max", the word for no limit; or none of what the kernel documents.
    except (OSError, ValueError, ArithmeticError):
        return None
    return cpus if quota_us > 0 and cpus > 0 else None  # -1 is version 1's word for no limit
