"""What ``mfu-torch bench --save`` found, kept for the runs of this machine.

Each dtype of each device has a file of its own, replaced as a whole: however many processes
save at once, on one machine or on a home folder that many share, none loses what another saved.

What was saved stands beside the peak that MFU divides by and never replaces it, on a CPU neither:
there the peak is :func:`measured_peak`, so that the MFU of two runs does not depend on whether a
benchmark ran between them.
"""

from __future__ import annotations

import hashlib
import math
import re
from datetime import datetime
from pathlib import Path

import msgspec

from mfu_torch.peak.bench import BenchEntry, BenchResult, driver_version
from mfu_torch.peak.cache import CacheDir, cache_folder, replace, warn_once
from mfu_torch.peak.cpu_time import BUSY, executor
from mfu_torch.peak.drivers import Raw, checked
from mfu_torch.peak.matmuls import FORMS, mnk, reduced_fp32
from mfu_torch.peak.sustained import Sustained
from mfu_torch.peak.table import check_dtype
from mfu_torch.peak.telemetry.source import FIELDS
from mfu_torch.records import Device, Peak, Record, Telemetry


class Saved(Record, frozen=True, kw_only=True):
    """One dtype of one benchmark, as it is kept.

    Attributes:
        key: What it holds for: device, dtype and versions.
        executor: The device, or the threads of a CPU, in words.
        started: UTC time, ISO 8601.
    """

    key: str
    device: Device
    executor: str
    started: str
    torch: str
    driver: str
    sustained: Sustained

    @property
    def peak(self) -> Peak:
        """As a peak, whose source says how it was measured."""
        one = self.sustained
        form = f" ({FORMS[one.dtype]})" if one.dtype in FORMS else ""
        source = f"{one.dtype} matmul {mnk(one.shape)}{form} sustained for {one.time_s:.1f} s"
        source += f" on {self.executor}"
        seen = one.telemetry
        if seen is not None and seen.sm_clock_hz:
            source += f" at {seen.sm_clock_hz / 1e6:.0f} MHz"
        if seen is not None and seen.power_w:
            source += f", {seen.power_w:.0f} W"
        source += f", torch {self.torch}" + (f", driver {self.driver}" if self.driver else "")
        source += "".join(f"; {caution}" for caution in one.cautions)
        return Peak(
            flops_per_s=one.flops_per_s,
            dtype=one.dtype,
            source=f"{source} (mfu-torch bench, {self.started[:10]})",
            provenance="measured",
            device=self.device.name,
        )


def save(found: BenchResult, cache_dir: CacheDir = None) -> tuple[str, ...]:
    """Keep what was measured; a later benchmark of the same replaces it.

    A rate that other work on the CPU made too low is not kept.

    Returns:
        The dtypes that were kept.

    Raises:
        OSError: If the folder cannot be written.
    """
    kept = []
    for entry in found.entries:
        one = _saved(found, entry)
        if one is not None:
            text = msgspec.json.format(msgspec.json.encode(one))
            replace(_path(cache_dir, found.device, entry.dtype, one.key), text)
            kept.append(entry.dtype)
    return tuple(kept)


def saved_peak(device: Device, dtype: str, cache_dir: CacheDir = None) -> Peak | None:
    """What ``mfu-torch bench --save`` found this very device to sustain, or ``None``.

    It holds for the same device (its UUID, size, MIG profile; of a CPU its threads and quota) and
    the same versions of torch and the driver. A file that cannot be read is logged once.

    Args:
        device: From :func:`detect_device`.
        dtype: That contractions run in. fp32 on a CPU where torch runs it as bf16 has none.
        cache_dir: As in :func:`measured_peak`.

    Raises:
        ValueError: If the dtype has no peak in mfu_torch at all.
    """
    check_dtype(dtype)
    if not saved_folder(cache_dir).is_dir():
        return None  # also spares a look-up by name alone the import of torch
    if dtype == "fp32" and device.kind == "cpu" and reduced_fp32(device):
        return None
    key = _key(device, dtype, driver_version(device))
    path = _path(cache_dir, device, dtype, key)
    try:
        one = msgspec.json.decode(path.read_bytes(), type=Saved)
        if one.key != key:
            return None
        _check(one, dtype, key)
        return one.peak
    except FileNotFoundError:
        return None
    # ValueError: a figure that no benchmark gives.
    except (OSError, msgspec.MsgspecError, RecursionError, ValueError) as error:
        warn_once(f"{path} cannot be read ({error}): it is not used. If it stays, delete it")
        return None


def saved_folder(cache_dir: CacheDir = None) -> Path:
    """Where they are kept."""
    return cache_folder(cache_dir) / "sustained"


def _saved(found: BenchResult, entry: BenchEntry) -> Saved | None:
    if entry.sustained is None or entry.sustained.disturbed:
        return None
    return Saved(
        key=_key(found.device, entry.dtype, found.driver),
        device=found.device,
        executor=executor(found.device),
        started=found.started,
        torch=found.torch,
        driver=found.driver,
        sustained=entry.sustained,
    )


def _check(one: Saved, dtype: str, key: str) -> None:
    """Raise ValueError unless all that the peak will say can have been measured for the key."""
    rate = one.sustained
    if rate.dtype != dtype:
        raise ValueError(f"its rate is of {rate.dtype[:40]!r}; expected {dtype!r}")
    if (one.torch, one.executor) != _versions(one.device) or key != _key(
        one.device, dtype, one.driver
    ):
        raise ValueError("its device, torch or driver is another one than its key has")
    datetime.fromisoformat(one.started)
    positive = {
        "flops_per_s": rate.flops_per_s,
        "burst_flops_per_s": rate.burst_flops_per_s,
        "shape": min(rate.shape),
        "time_s": rate.time_s,
        "calls": rate.calls,
        "operand_sets": rate.operand_sets,
        "shapes_tried": rate.shapes_tried,
    }
    for name, value in positive.items():
        if not 0 < value < math.inf:
            raise ValueError(f"its {name} is {value}; expected a positive number")
    if not BUSY <= rate.cpu_share <= 1:
        raise ValueError(f"its cpu_share is {rate.cpu_share}; expected {BUSY} to 1")
    if rate.telemetry is not None:
        _check_telemetry(rate.telemetry)


def _check_telemetry(seen: Telemetry) -> None:
    for field in FIELDS:
        value = getattr(seen, field)
        if isinstance(value, (int, float)):
            problem = checked(field, Raw(value), "it")
            if isinstance(problem, str):
                raise ValueError(f"of {field} {problem}, which cannot be")
    for reason, share in seen.throttle.items():
        if not 0 <= share <= 1:
            raise ValueError(f"its share of {reason[:40]!r} is {share}; expected 0 to 1")


def _versions(device: Device) -> tuple[str, str]:
    import torch

    return str(torch.__version__), executor(device)


def _key(device: Device, dtype: str, driver: str) -> str:
    import torch

    size = f"{device.sm_count} units"
    if device.kind == "cpu":
        size = f"{device.sm_count} cores, {executor(device)}"
    parts = [device.name, device.uuid, size, device.mig and f"MIG {device.mig}", dtype]
    parts += [f"torch {torch.__version__}", driver and f"driver {driver}"]
    return ", ".join(part for part in parts if part)


def _path(cache_dir: CacheDir, device: Device, dtype: str, key: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]+", "-", device.name)[:60].strip("-.")
    digest = hashlib.sha256(key.encode()).hexdigest()[:12]
    return saved_folder(cache_dir) / f"{name}-{dtype}-{digest}.json"
