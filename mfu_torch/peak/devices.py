"""What is there: the accelerator or CPU that a process trains on, as a :class:`Device`.

torch says most of it. NVML, which only this module imports, adds what torch lacks; it is opened
by UUID, because torch's indices (after ``CUDA_VISIBLE_DEVICES``) are not NVML's. A device is
described with or without NVML: what went wrong is data (:class:`Nvml`), logged once with what to
do about it.
"""

from __future__ import annotations

import functools
import logging
import os
import platform
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

from mfu_torch.records import Device

try:
    import pynvml
except ImportError:
    pynvml = None

logger = logging.getLogger(__name__)

KINDS = ("cuda", "rocm", "mps", "cpu")
"""Kinds of device, the ones to prefer first."""


class Nvml(NamedTuple):
    """NVML's handle for one GPU, or the reason why there is none.

    Attributes:
        handle: For the ``nvml...`` calls; ``None`` if there is a problem.
        problem: What went wrong and what to do; empty if nothing did.
    """

    handle: Any | None = None
    problem: str = ""


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


def nvml_handle(device: Device) -> Nvml:
    """Open NVML for an NVIDIA GPU, found by its UUID.

    NVML stays initialised until the process ends: handles are valid only so long, and whoever
    samples clocks and power keeps them.
    """
    if device.kind != "cuda":
        return Nvml(problem=f"NVML knows NVIDIA GPUs only, and {device.name} is none")
    if pynvml is None:
        return Nvml(problem="the module pynvml is missing; run: pip install nvidia-ml-py")
    if not hasattr(pynvml, "nvmlDeviceGetHandleByUUID"):
        where = getattr(pynvml, "__file__", "pynvml")
        return Nvml(
            problem=f"{where} is not NVIDIA's module; run: pip uninstall pynvml; "
            "pip install --force-reinstall nvidia-ml-py"
        )
    if device.uuid is None:
        return Nvml(problem="this torch gives no UUID to find the GPU by; update torch")
    try:
        pynvml.nvmlInit()
        return Nvml(handle=_open(pynvml, device.uuid))
    # OSError: the driver's library is there but cannot be loaded. AttributeError: a module that
    # is incomplete. Every other failure is an NVMLError.
    except (pynvml.NVMLError, AttributeError, OSError) as error:
        return Nvml(problem=_explain(error))


def _open(nvml: ModuleType, uuid: str) -> Any:
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        # Whether torch reports the UUID of a MIG slice or of its GPU depends on the driver.
        try:
            return nvml.nvmlDeviceGetHandleByUUID("MIG-" + uuid.removeprefix("GPU-"))
        except nvml.NVMLError:
            pass
        raise


def _explain(error: Exception) -> str:
    if type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return (
            f"NVIDIA's driver library cannot be opened ({error}); nvidia-smi must work here: "
            "in a container, start it with --gpus and the capability 'utility'"
        )
    return f"NVML refused a call ({error}); does nvidia-smi show the GPU to this user?"


@functools.cache
def _warn_once(problem: str) -> None:
    logger.warning(
        "NVML is not available: %s. MFU is not affected; clocks, power and MIG profiles are "
        "not reported.",
        problem,
    )


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
    )
    return _with_mig(device) if kind == "cuda" else device


def _with_mig(device: Device) -> Device:
    mig = _mig_profile(device.name)
    nvml = nvml_handle(device)
    if mig is None and nvml.handle is not None:
        mig, problem = _nvml_mig_profile(nvml.handle)
        nvml = Nvml(nvml.handle, problem)
    if nvml.problem:
        _warn_once(nvml.problem)
    return msgspec.structs.replace(device, mig=mig)


def _nvml_mig_profile(handle: Any) -> tuple[str | None, str]:
    try:
        if not pynvml.nvmlDeviceIsMigDeviceHandle(handle):
            return None, ""
        name = pynvml.nvmlDeviceGetName(handle)
    except (pynvml.NVMLError, AttributeError) as error:  # as in nvml_handle
        if type(error).__name__ in ("NVMLError_NotSupported", "NVMLError_FunctionNotFound"):
            return None, ""  # a GPU or driver without MIG has no profile to report
        return None, _explain(error)
    return _mig_profile(name.decode() if isinstance(name, bytes) else name), ""


def _mig_profile(name: str) -> str | None:
    """``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"`` -> ``"1g.5gb"``."""
    _, found, profile = name.partition(" MIG ")
    return profile.strip() if found else None


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
