"""What is there: the accelerator or CPU that a process trains on, as a :class:`Device`.

torch says most of it; NVML adds what torch lacks: the MIG profile and the highest clock. A device
is described with or without NVML: what went wrong there is logged once, with what to do about it.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

import msgspec

from mfu_torch.peak.drivers import Raw, checked
from mfu_torch.peak.nvml import (
    max_sm_clock_hz,
    mig_profile,
    nvml_handle,
    nvml_mig_profile,
    warn_once,
)
from mfu_torch.records import Device

KINDS = ("cuda", "rocm", "mps", "cpu")
"""Kinds of device, the ones to prefer first."""


def detect_device(index: int | None = None, kind: str | None = None) -> Device:
    """Describe a device of this machine.

    Args:
        index: The torch index; by default the current device of the process.
        kind: ``"cuda"``, ``"rocm"``, ``"mps"`` or ``"cpu"``; by default the first of them that
            torch can use here. ``"cuda"`` is taken for ``"rocm"`` on a ROCm build, as in torch.

    Raises:
        ValueError: If there is no such device; NVML trouble never raises.
    """
    kind = _choose_kind(kind)
    if kind in ("cuda", "rocm"):
        return _gpu(index, kind)
    if index not in (None, 0):
        raise ValueError(
            f"device index is {index}, but this machine has one device of kind {kind!r}; "
            "leave out the index, or use 0"
        )
    return _mps() if kind == "mps" else _cpu()


def devices_here() -> tuple[Device, ...]:
    """All that torch can use on this machine; first the one that it would take, last the CPU."""
    import torch

    first = detect_device()
    found = [first]
    if first.kind in ("cuda", "rocm"):
        others = [index for index in range(torch.cuda.device_count()) if index != first.index]
        found += [detect_device(index, first.kind) for index in others]
    if first.kind != "cpu":
        found.append(detect_device(kind="cpu"))
    return tuple(found)


def _choose_kind(kind: str | None) -> str:
    import torch

    if kind not in (None, *KINDS):
        raise ValueError(f"device kind is {kind!r}; expected one of {', '.join(KINDS)}")
    usable = ["cpu"]
    if torch.backends.mps.is_available():
        usable.insert(0, "mps")
    if torch.cuda.is_available():
        usable.insert(0, "cuda" if torch.version.hip is None else "rocm")
    if kind == "cuda" and "rocm" in usable:
        return "rocm"
    if kind is not None and kind not in usable:
        raise ValueError(
            f"device kind is {kind!r}, but torch {torch.__version__} can use only "
            f"{', '.join(usable)} here; install the torch build and driver for it"
        )
    return kind or usable[0]


def _gpu(index: int | None, kind: str) -> Device:
    import torch

    count = torch.cuda.device_count()
    if index is None:
        index = torch.cuda.current_device()
    if not 0 <= index < count:
        raise ValueError(
            f"device index is {index}, but torch sees {count} GPU(s); expected 0 to {count - 1} "
            "(torch counts after CUDA_VISIBLE_DEVICES)"
        )
    properties = torch.cuda.get_device_properties(index)
    uuid = getattr(properties, "uuid", None)
    if kind == "rocm":
        architecture = properties.gcnArchName.split(":")[0]
    else:
        architecture = f"{properties.major}.{properties.minor}"
        uuid = None if uuid is None else "GPU-" + str(uuid).removeprefix("GPU-")
    device = Device(
        name=properties.name,
        kind=kind,
        index=index,
        uuid=None if uuid is None else str(uuid),
        sm_count=properties.multi_processor_count,
        memory_bytes=properties.total_memory,
        compute_capability=architecture,
        mig=mig_profile(properties.name) if kind == "cuda" else None,
        max_clock_hz=_torch_clock_hz(properties),
    )
    return _with_nvml(device) if kind == "cuda" else device


def _with_nvml(device: Device) -> Device:
    nvml = nvml_handle(device)
    mig, problem = device.mig, nvml.problem
    if mig is None:
        mig, problem = nvml_mig_profile(nvml)
    if problem:
        warn_once(problem)
    clock_hz = max_sm_clock_hz(nvml) or device.max_clock_hz
    return msgspec.structs.replace(device, mig=mig, max_clock_hz=clock_hz)


def _torch_clock_hz(properties: Any) -> float | None:
    khz = getattr(properties, "clock_rate", None)  # absent from older torch
    clock_hz = checked("sm_clock_hz", Raw(khz, 1e3, "kHz"), "torch")
    return clock_hz if isinstance(clock_hz, float) else None


def _mps() -> Device:
    import torch

    # get_name and get_core_count are younger than the oldest torch that mfu_torch supports.
    mps = torch.backends.mps
    return Device(
        name=mps.get_name() if hasattr(mps, "get_name") else "Apple GPU",
        kind="mps",
        index=0,
        sm_count=mps.get_core_count() if hasattr(mps, "get_core_count") else None,
        memory_bytes=_machine_memory(),
    )


def _cpu() -> Device:
    import torch

    return Device(
        name=_cpu_name(),
        kind="cpu",
        sm_count=_usable_cores(),
        memory_bytes=_machine_memory(),
        threads=torch.get_num_threads(),
    )


def _cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        lines = []
    for line in lines:
        field, _, value = line.partition(":")
        if field.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "CPU"


def _usable_cores() -> int | None:
    # Fewer than the machine's under taskset, Slurm or a container's cpuset.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _machine_memory() -> int | None:
    # os.sysconf spares a dependency; Windows has no sysconf, some systems lack the two names.
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
