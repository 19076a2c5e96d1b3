"""NVML: the driver's own account of an NVIDIA GPU. The one importer of ``pynvml``.

A GPU is opened by UUID, because torch's indices (after ``CUDA_VISIBLE_DEVICES``) are not NVML's.
A process on a GPU in MIG mode runs on one slice of it, which has a handle of its own; most figures
(clocks, power, temperature) exist only for the whole card, whose handle is kept beside it.
What goes wrong is data (:class:`Nvml`), logged once with what to do about it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from mfu_torch.peak.drivers import Raw, checked, said
from mfu_torch.records import Device

_REINSTALL = "run: pip uninstall pynvml nvidia-ml-py3; pip install --force-reinstall nvidia-ml-py"


def _not_imported(error: Exception | None) -> str:
    if error is None or getattr(error, "name", "") == "pynvml":  # of a ModuleNotFoundError
        return "the module pynvml is missing; run: pip install nvidia-ml-py"
    what = f"{type(error).__name__}: {said(error)}"
    return f"the module pynvml cannot be imported ({what}); {_REINSTALL}"


_import_error: Exception | None = None
try:
    import pynvml
# Packages of several makers put a module of this name in place, some of them for Python 2; what
# such a one raises must not keep anybody from training.
except Exception as error:
    pynvml = None
    _import_error = error.with_traceback(None)

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
        return Nvml(problem=_not_imported(_import_error))
    if not hasattr(pynvml, "nvmlDeviceGetHandleByUUID"):
        return Nvml(
            problem=f"{_where()} is not NVIDIA's module; run: pip uninstall pynvml; "
            "pip install --force-reinstall nvidia-ml-py"
        )
    if device.uuid is None:
        return Nvml(problem="this torch gives no UUID to find the GPU by; update torch")
    try:
        pynvml.nvmlInit()
        return _find(pynvml, device, device.uuid)
    # An NVMLError, or whatever an old, incomplete or foreign module raises: TypeError where it
    # hands a str to C, OSError where the driver's library cannot be loaded.
    except Exception as error:
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
    except Exception as error:  # as in nvml_handle
        return None, _explain(error)


def max_sm_clock_hz(nvml: Nvml) -> float | None:
    """The highest clock of the multiprocessors that the card can be set to."""
    if nvml.card is None:
        return None
    mhz = _optional(nvml.api, "nvmlDeviceGetMaxClockInfo", nvml.card, 1)  # NVML_CLOCK_SM
    clock_hz = checked("sm_clock_hz", Raw(mhz, 1e6, "MHz"), "NVML")
    return clock_hz if isinstance(clock_hz, float) else None


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
    except Exception:
        # Whether torch reports the UUID of a MIG slice or of its GPU depends on the driver. If
        # neither is found, or the module raises anything else, what it said first is the reason.
        with contextlib.suppress(Exception):
            return api.nvmlDeviceGetHandleByUUID("MIG-" + uuid.removeprefix("GPU-"))
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
    except Exception:  # as in nvml_handle; the handle is good without it
        return None


def _uuid(api: Any, handle: Any) -> str:
    return _text(api.nvmlDeviceGetUUID(handle))


def _name(api: Any, handle: Any) -> str:
    return _text(api.nvmlDeviceGetName(handle))


def _text(value: str | bytes) -> str:
    # bytes in NVIDIA's modules before 11.515
    return value.decode() if isinstance(value, bytes) else value


def _where() -> str:
    return str(getattr(pynvml, "__file__", None) or "pynvml")


def _explain(error: Exception) -> str:
    kinds = [kind.__name__ for kind in type(error).__mro__]
    text = said(error)
    if isinstance(error, OSError) or {"NVMLError_LibraryNotFound", "NVMLError_DriverNotLoaded"} & {
        *kinds
    }:
        return (
            f"NVIDIA's driver library cannot be opened ({text}); nvidia-smi must work here: "
            "in a container, start it with --gpus and the capability 'utility'"
        )
    if "NVMLError" in kinds:
        return f"NVML refused a call ({text}); does nvidia-smi show the GPU to this user?"
    return (
        f"{_where()} failed ({kinds[0]}: {text}); it is old, incomplete or not NVIDIA's: "
        f"{_REINSTALL}"
    )
