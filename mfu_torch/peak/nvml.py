"""NVML: the driver's own account of an NVIDIA GPU. The one importer of ``pynvml``.

A GPU is opened by UUID, because torch's indices (after ``CUDA_VISIBLE_DEVICES``) are not NVML's.
A process on a GPU in MIG mode runs on one slice of it, which has a handle of its own; most figures
(clocks, power, temperature) exist only for the whole card, whose handle is kept beside it.
What goes wrong is data (:class:`Nvml`), logged once with what to do about it.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from mfu_torch.records import Device

try:
    import pynvml
except ImportError:
    pynvml = None

logger = logging.getLogger(__name__)


class Nvml(NamedTuple):
    """NVML's handles for one GPU or one slice of a GPU, or the reason why there are none.

    Attributes:
        handle: For the ``nvml...`` calls; ``None`` if there is a problem.
        problem: What went wrong and what to do; empty if nothing did.
        card: The handle of the whole card: ``handle`` itself, or for a MIG slice its parent.
        is_slice: ``handle`` is a MIG slice's.
        gpu_instance: Of a slice: the id of its GPU instance; ``None`` where NVML hides it.
        shares_instance: The slice is one of several compute instances of its GPU instance.
        api: The module whose calls take the handles.
    """

    handle: Any | None = None
    problem: str = ""
    card: Any | None = None
    is_slice: bool = False
    gpu_instance: int | None = None
    shares_instance: bool = False
    api: Any | None = None


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
        return _find(pynvml, device, device.uuid)
    # OSError: the driver's library is there but cannot be loaded. AttributeError: a module that
    # is incomplete. Every other failure is an NVMLError.
    except (pynvml.NVMLError, AttributeError, OSError) as error:
        return Nvml(problem=_explain(error))


def mig_profile(name: str) -> str | None:
    """``"NVIDIA A100-SXM4-40GB MIG 1g.5gb"`` -> ``"1g.5gb"``."""
    _, found, profile = name.partition(" MIG ")
    return profile.strip() if found else None


def nvml_mig_profile(nvml: Nvml) -> tuple[str | None, str]:
    """The profile of a slice by its NVML name, or ``None``; and what went wrong, if anything."""
    if not nvml.is_slice:
        return None, nvml.problem
    try:
        return mig_profile(_name(nvml.api, nvml.handle)), ""
    except (pynvml.NVMLError, AttributeError) as error:  # as in nvml_handle
        return None, _explain(error)


def max_sm_clock_hz(nvml: Nvml) -> float | None:
    """The highest clock of the multiprocessors that the card can be set to."""
    if nvml.card is None:
        return None
    mhz = _optional(nvml.api, "nvmlDeviceGetMaxClockInfo", nvml.card, 1)  # NVML_CLOCK_SM
    return mhz * 1e6 if mhz else None


@functools.cache
def warn_once(problem: str) -> None:
    """Say that NVML does not work; once for each reason."""
    logger.warning(
        "NVML is not available: %s. MFU is not affected; clocks, power and MIG profiles are "
        "not reported.",
        problem,
    )


def _find(api: Any, device: Device, uuid: str) -> Nvml:
    handle = _by_uuid(api, uuid)
    # A c_uint in NVIDIA's module, so bool() and no comparison.
    if bool(_optional(api, "nvmlDeviceIsMigDeviceHandle", handle)):
        return _slice(api, handle)
    if device.mig is None and not _in_mig_mode(api, handle):
        return Nvml(handle, card=handle, api=api)
    # torch names the card, but what the process runs on is a slice of it.
    return _slice_in_use(api, handle, device)


def _by_uuid(api: Any, uuid: str) -> Any:
    try:
        return api.nvmlDeviceGetHandleByUUID(uuid)
    except api.NVMLError:
        # Whether torch reports the UUID of a MIG slice or of its GPU depends on the driver.
        try:
            return api.nvmlDeviceGetHandleByUUID("MIG-" + uuid.removeprefix("GPU-"))
        except api.NVMLError:
            pass
        raise


def _slice(api: Any, handle: Any) -> Nvml:
    attributes = _optional(api, "nvmlDeviceGetAttributes", handle)
    return Nvml(
        handle,
        card=_optional(api, "nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle),
        is_slice=True,
        gpu_instance=_optional(api, "nvmlDeviceGetGpuInstanceId", handle),
        shares_instance=attributes is not None
        and attributes.computeInstanceSliceCount < attributes.gpuInstanceSliceCount,
        api=api,
    )


def _slice_in_use(api: Any, card: Any, device: Device) -> Nvml:
    """Which slice of the card torch runs on; a problem if that cannot be told."""
    slices = dict(_slices(api, card))
    visible = _visible_slice(device.index or 0)
    if visible is not None:
        handle = _optional(api, "nvmlDeviceGetHandleByUUID", visible)
        if handle is not None and _uuid(api, handle) in slices:
            return _slice(api, handle)
    fits = list(slices.values())
    if len(fits) > 1 and device.mig is not None:
        fits = [handle for handle in fits if mig_profile(_name(api, handle)) == device.mig]
    if len(fits) == 1:
        return _slice(api, fits[0])
    return Nvml(
        problem="the GPU is in MIG mode, and which of its slices this process uses cannot be told "
        f"({len(fits)} fit); set CUDA_VISIBLE_DEVICES to the slice's UUID (nvidia-smi -L)",
        card=card,
        api=api,
    )


def _visible_slice(index: int) -> str | None:
    """The entry of ``CUDA_VISIBLE_DEVICES`` for a torch index, if it names a MIG slice.

    ``MIG-<uuid>``, or on drivers before R470 ``MIG-GPU-<uuid>/<GPU instance>/<compute instance>``;
    NVML takes both.
    """
    entries = [entry.strip() for entry in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if index < len(entries) and entries[index].startswith("MIG-"):
        return entries[index]
    return None


def _slices(api: Any, card: Any) -> Iterator[tuple[str, Any]]:
    """UUID and handle of each slice that exists."""
    for index in range(_optional(api, "nvmlDeviceGetMaxMigDeviceCount", card) or 0):
        handle = _optional(api, "nvmlDeviceGetMigDeviceHandleByIndex", card, index)
        if handle is not None:  # the indices of slices that were not made are not found
            yield _uuid(api, handle), handle


def _in_mig_mode(api: Any, handle: Any) -> bool:
    mode = _optional(api, "nvmlDeviceGetMigMode", handle)  # [current, pending]
    return mode is not None and mode[0] == 1  # NVML_DEVICE_MIG_ENABLE


def _optional(api: Any, call: str, *arguments: Any) -> Any | None:
    """What a call says, or ``None`` where this GPU, driver or module does not have it."""
    try:
        return getattr(api, call)(*arguments)
    except (api.NVMLError, AttributeError):
        return None


def _uuid(api: Any, handle: Any) -> str:
    return _text(api.nvmlDeviceGetUUID(handle))


def _name(api: Any, handle: Any) -> str:
    return _text(api.nvmlDeviceGetName(handle))


def _text(value: str | bytes) -> str:
    # bytes in NVIDIA's modules before 11.515
    return value.decode() if isinstance(value, bytes) else value


def _explain(error: Exception) -> str:
    if type(error).__name__ in ("NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"):
        return (
            f"NVIDIA's driver library cannot be opened ({error}); nvidia-smi must work here: "
            "in a container, start it with --gpus and the capability 'utility'"
        )
    return f"NVML refused a call ({error}); does nvidia-smi show the GPU to this user?"
