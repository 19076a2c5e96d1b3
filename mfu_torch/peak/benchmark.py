"""The peak that a device can reach, measured: a few matrix multiplies through torch.

For CPUs no document states a usable figure (the clock under load is not the nominal one, and
the vector units differ by part), so the best rate of a plain matmul stands in for the peak, and
says so. Nothing of the user's changes: the operands come from a generator of their own, no
global setting of torch is touched, and a measurement is kept per machine, so that it costs
``seconds`` once. Other work on the machine makes it too low, a hundred times even: it is then
repeated, and where no repeat does better, the peak is unknown. This is not the step path: it
synchronises with the device.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from mfu_torch.messages import first_line
from mfu_torch.peak.cache import CacheDir, peaks_path, read_peaks, write_peaks
from mfu_torch.peak.cpu_time import (
    BUSY,
    clocks,
    executor,
    limiting_quota,
    share_since,
    usable_cpus,
)
from mfu_torch.peak.matmuls import (
    FAILURES,
    TORCH_DTYPES,
    Run,
    Shape,
    flops,
    matmul,
    mnk,
    reduced_fp32,
    timed,
    torch_device,
)
from mfu_torch.peak.names import check_dtype, unknown
from mfu_torch.records import Device, Peak, UnknownPeak

if TYPE_CHECKING:
    import torch

# (m, n, k), smallest first, so that a slow dtype stops early. Squares, and tall operands as a
# batch of tokens makes them.
_CPU_SHAPES: tuple[Shape, ...] = (
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (4096, 1024, 1024),
    (2048, 2048, 2048),
    (8192, 2048, 2048),
    (4096, 4096, 4096),
)
_GPU_SHAPES: tuple[Shape, ...] = (
    (1024, 1024, 1024),
    (4096, 4096, 4096),
    (16384, 4096, 4096),
    (8192, 8192, 8192),
)

_DTYPES = tuple(dtype for dtype in TORCH_DTYPES if dtype != "fp8")
"""fp8 has no figure that a run could need quickly: GPUs that have it are in the table."""

_TRIALS = 3
"""Calls of a shape of which the fastest decides whether the next larger one is tried: a single one
may have met a pause of the scheduler."""

_ROUNDS = 5
"""Measurements to make, at most, until one is not disturbed."""

_REPEAT_S = 0.01
"""Calls back to back that are timed as one: long against the timer, short against a slice of
the scheduler's time."""


class _Trial(NamedTuple):
    flops_per_s: float
    shape: Shape
    run: Run
    share: float = 1.0


class _Best(NamedTuple):
    flops_per_s: float
    shape: Shape
    repeats: int
    share: float = 1.0

    @property
    def disturbed(self) -> bool:
        """Whether the threads got too little of the CPU to show what it can do for them."""
        return self.share < BUSY


def measured_peak(
    device: Device, dtype: str, *, cache_dir: CacheDir = None, seconds: float = 0.6
) -> Peak:
    """The best rate that a matrix multiply reaches on a device of this machine.

    The result is kept in ``peaks.json`` and reused for the same device, threads, dtype and torch
    version (and CPU quota). A cache that cannot be read or written is logged once and does without.

    Args:
        device: From :func:`detect_device`.
        dtype: ``fp64``, ``fp32``, ``tf32`` (GPUs), ``bf16``, ``fp16`` or ``int8``.
        cache_dir: Folder of ``peaks.json``; the user's cache folder by default.
        seconds: To spend on measuring, about; the smallest shape is always measured.

    Raises:
        ValueError: If the dtype has no peak in mfu_torch at all.
        UnknownPeak: If it cannot be measured on this device, or other work disturbed it every
            time; the message says why.
    """
    check_dtype(dtype)
    kept = kept_peak(device, dtype, cache_dir=cache_dir)
    if kept is not None:
        return kept
    path = peaks_path(cache_dir)
    reduced = reduced_fp32(device) if dtype in ("fp32", "tf32") else ""
    key = _key(device, dtype, reduced)
    peak = _measure(device, dtype, reduced, seconds)
    write_peaks(path, {**read_peaks(path), key: peak}, otherwise="the next process measures again")
    return peak


def kept_peak(device: Device, dtype: str, *, cache_dir: CacheDir = None) -> Peak | None:
    """What :func:`measured_peak` found before and would give again; ``None`` if it would measure.

    Raises:
        UnknownPeak: If it cannot be measured on this device.
    """
    reduced = reduced_fp32(device) if dtype in ("fp32", "tf32") else ""
    _check_measurable(device, dtype, reduced)
    return read_peaks(peaks_path(cache_dir)).get(_key(device, dtype, reduced))


def forget_measured(device: Device, dtype: str, *, cache_dir: CacheDir = None) -> None:
    """Drop a kept measurement that turned out too low; the next run measures again."""
    path = peaks_path(cache_dir)
    reduced = reduced_fp32(device) if dtype in ("fp32", "tf32") else ""
    kept = read_peaks(path)
    if kept.pop(_key(device, dtype, reduced), None) is not None:
        write_peaks(path, kept, otherwise=f"the {dtype} measurement in it stays in use")


def _check_measurable(device: Device, dtype: str, reduced: str) -> None:
    if dtype not in _DTYPES:
        raise unknown(device, dtype, f"measured are only {', '.join(_DTYPES)}")
    if device.kind not in ("cuda", "rocm"):
        if dtype == "tf32":
            raise unknown(device, dtype, f"a device of kind {device.kind!r} has no tf32 units")
        return
    # On a GPU the two are different peaks of one torch dtype, and the setting that chooses
    # between them is the user's.
    if dtype == "fp32" and reduced:
        raise unknown(device, dtype, f"torch runs fp32 matmuls as {reduced} here")
    if dtype == "tf32" and not reduced:
        raise unknown(
            device,
            dtype,
            "torch runs fp32 matmuls in full precision here; allow TF32 first, with "
            "torch.set_float32_matmul_precision('high')",
        )


def _measure(device: Device, dtype: str, reduced: str, seconds: float) -> Peak:
    import torch

    where = torch_device(device)
    shapes = _CPU_SHAPES if device.kind == "cpu" else _GPU_SHAPES
    try:
        # The user's autocast would run the operands in another dtype.
        with torch.no_grad(), torch.autocast(where.type, enabled=False):
            best = _undisturbed(shapes, dtype, where, usable_cpus(device), seconds)
    except FAILURES as error:
        raise unknown(
            device, dtype, f"the matmul failed: {first_line(error) or type(error).__name__}"
        ) from error
    if best.disturbed:
        raise UnknownPeak(_why_disturbed(device, dtype, best.share))
    source = f"{dtype} matmul {mnk(best.shape)} on {executor(device)}, "
    source += f"torch {torch.__version__}, best of {best.repeats}"
    if reduced:
        source += f", run as {reduced}"
    return Peak(
        flops_per_s=best.flops_per_s,
        dtype=dtype,
        source=source,
        provenance="measured",
        device=device.name,
    )


def _undisturbed(
    shapes: tuple[Shape, ...], dtype: str, where: torch.device, cpus: float | None, seconds: float
) -> _Best:
    """The first measurement that other work did not disturb, or else the least disturbed."""
    tries: list[_Best] = []
    for _ in range(_ROUNDS):
        tries.append(_best_of(shapes, dtype, where, cpus, seconds))
        if not tries[-1].disturbed:
            return tries[-1]
    return max(tries, key=lambda one: one.share)


def _best_of(
    shapes: tuple[Shape, ...], dtype: str, where: torch.device, cpus: float | None, seconds: float
) -> _Best:
    """Try each shape once in half of the time; repeat the fastest in the rest."""
    begin_s = time.perf_counter()
    fastest = trial = None
    for shape in shapes:
        left_s = begin_s + seconds / 2 - time.perf_counter()
        # A warm-up and the trials have to fit into what is left.
        cost = (1 + _TRIALS) * flops(shape)
        if fastest is not None and cost / fastest.flops_per_s > left_s:
            break
        try:
            trial = _try(shape, dtype, where, cpus)
        except RuntimeError:
            if fastest is None:
                raise
            break  # out of memory: smaller shapes have been measured
        if fastest is None or trial.flops_per_s > fastest.flops_per_s:
            fastest = trial
    assert fastest is not None and trial is not None  # the first shape is always tried
    best = _repeat(fastest, where, cpus, begin_s + seconds)
    # Two things make a rate too low: slow repeats, and a slow last trial, after which no larger
    # shape was tried. Making the operands, on one thread, is neither.
    return best._replace(share=min(best.share, trial.share))


def _try(shape: Shape, dtype: str, where: torch.device, cpus: float | None) -> _Trial:
    run = matmul(shape, dtype, where)
    run()  # the first call builds kernels and allocates workspaces
    begin = clocks()
    fastest_s = min(timed(run, 1, where) for _ in range(_TRIALS))
    return _Trial(flops(shape) / fastest_s, shape, run, share_since(begin, cpus))


def _repeat(trial: _Trial, where: torch.device, cpus: float | None, deadline_s: float) -> _Best:
    once = flops(trial.shape)
    calls = max(1, int(_REPEAT_S * trial.flops_per_s / once))
    best, repeats, begin = 0.0, 0, clocks()
    while repeats == 0 or time.perf_counter() < deadline_s:
        best = max(best, once * calls / timed(trial.run, calls, where))
        repeats += 1
    return _Best(best, trial.shape, repeats, share_since(begin, cpus))


def _key(device: Device, dtype: str, reduced: str) -> str:
    import torch

    size = [f"{device.sm_count} units"]
    if device.kind == "cpu":
        size = [f"{device.sm_count} cores", f"{torch.get_num_threads()} threads"]
        size.append(limiting_quota())
    parts = [device.name, *size, dtype, f"torch {torch.__version__}", reduced]
    return ", ".join(part for part in parts if part)


def _why_disturbed(device: Device, dtype: str, share: float) -> str:
    quota = limiting_quota()
    allowed = f"the time that {quota} leaves them" if quota else "their time"
    return (
        f"no {dtype} peak for {device.name!r}: other work kept the machine busy while it was "
        f"measured (the threads got at most {100 * share:.0f} % of {allowed}, in {_ROUNDS} tries). "
        "Run again when it is idle, or give the rate that a matmul reaches then, such as "
        'peak="200 GFLOP/s"'
    )
