"""``mfu-torch bench``: what a device sustains for each dtype, beside what is stated of it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

from mfu_torch.messages import first_line
from mfu_torch.peak.cpu_time import usable_cpus
from mfu_torch.peak.matmuls import FAILURES, Shape, exactly, flops, torch_device
from mfu_torch.peak.published import Published, published, published_for
from mfu_torch.peak.sustained import Bench, Sampler, Sustained, Watch, best_sustained
from mfu_torch.peak.table import find_rows
from mfu_torch.peak.user_table import user_index
from mfu_torch.records import Device, Peak, Record, UnknownPeak

BENCH_DTYPES = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
"""The dtypes that torch multiplies; fp4 needs formats and scales of its own."""

CANDIDATES = {"quick": 1, "full": 3}
"""How many shapes are sustained."""

# All shapes are (m, n, k). Powers of two, small ones for slow dtypes, and the layers of Llama 3 8B
# (4096, 14336), Llama 3 70B (8192, 28672) and GPT-3 (12288, 49152) under 8192 tokens.
_GPU_QUICK: tuple[Shape, ...] = (
    *((side, side, side) for side in (1024, 2048, 4096, 8192)),
    *((8192, 14336, 4096), (8192, 4096, 14336), (8192, 8192, 28672)),
)
_GPU_FULL: tuple[Shape, ...] = (
    *_GPU_QUICK,
    *((16384, 16384, 16384), (4096, 4096, 16384), (16384, 4096, 4096), (8192, 4096, 4096)),
    *((8192, 8192, 4096), (8192, 28672, 8192), (8192, 12288, 12288)),
    *((8192, 49152, 12288), (8192, 12288, 49152)),
)
_CPU_QUICK: tuple[Shape, ...] = (
    *((side, side, side) for side in (256, 512, 1024)),
    *((1024, 4096, 1024), (1024, 1024, 4096)),
)
_CPU_FULL: tuple[Shape, ...] = (
    *_CPU_QUICK,
    *((2048, 2048, 2048), (4096, 4096, 4096)),
    *((4096, 1024, 1024), (8192, 2048, 2048), (1024, 768, 3072), (2048, 3072, 768)),
)

_SAMPLE_S = 0.1

_AMPERE = (8, 0)
"""Compute capability of the first NVIDIA GPUs with tf32 and bf16 units."""


class BenchEntry(Record, frozen=True, kw_only=True):
    """One dtype: what was sustained, or why nothing was, beside what is known of the device.

    Attributes:
        unknown: Why ``sustained`` is ``None``.
        peak: That MFU divides by: of a table, derived, or, of a CPU, what a run measured and kept;
            ``None`` for the reason in ``no_peak``.
        published: What others measured on such a device, the highest first.
    """

    dtype: str
    sustained: Sustained | None = None
    unknown: str = ""
    peak: Peak | None = None
    no_peak: str = ""
    published: tuple[Published, ...] = ()

    @property
    def share_of_peak(self) -> float | None:
        """Sustained over peak; above 1 where the clock was above the one of the peak."""
        if self.sustained is None or self.peak is None:
            return None
        return self.sustained.flops_per_s / self.peak.flops_per_s


class BenchResult(Record, frozen=True, kw_only=True):
    """All that one benchmark found.

    Attributes:
        started: UTC time, ISO 8601.
        driver: Its version; empty where it is not known.
        seconds: That each promising shape ran for, about.
        shapes: ``"quick"`` or ``"full"``.
    """

    device: Device
    started: str
    torch: str
    driver: str
    seconds: float
    shapes: str
    entries: tuple[BenchEntry, ...]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a benchmark.

    Attributes:
        found: The dtypes that were done by then.
        dtype: The one that was being measured.
    """

    def __init__(self, found: BenchResult, dtype: str) -> None:
        super().__init__(f"interrupted while {dtype} was measured")
        self.found = found
        self.dtype = dtype


def run_bench(
    device: Device,
    dtypes: Iterable[str] = BENCH_DTYPES,
    *,
    seconds: float = 1.0,
    shapes: str = "full",
    sampler: Sampler | None = None,
    progress: Callable[[str], None] = lambda dtype: None,
) -> BenchResult:
    """Find what a device of this machine sustains, dtype by dtype.

    Args:
        device: From :func:`detect_device`.
        dtypes: Some of :data:`BENCH_DTYPES`. One that the device or torch lacks has an entry that
            says why.
        seconds: For each promising shape, about. A power limit shows within one; heat does not.
        shapes: ``"quick"`` or ``"full"``.
        sampler: Of the device; by default a :class:`DeviceSampler`. It is stopped at the end.
        progress: Called with each dtype before it is measured.

    Raises:
        ValueError: If a dtype, ``shapes`` or ``seconds`` is none that can be, or a user table is
            not valid (:class:`UserTableError`).
        Interrupted: On Ctrl-C, with what was found by then; it is a KeyboardInterrupt.
    """
    dtypes = tuple(dict.fromkeys(dtypes))
    _check(dtypes, seconds, shapes)
    user_index()  # a table that is not valid is said before anything runs
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    entries: list[BenchEntry] = []
    dtype = ""
    try:
        with Watch(sampler or _device_sampler(device)) as watch:
            for dtype in dtypes:
                progress(dtype)
                entries.append(_entry(device, dtype, seconds, shapes, watch))
    except KeyboardInterrupt:
        raise Interrupted(_result(device, started, seconds, shapes, entries), dtype) from None
    return _result(device, started, seconds, shapes, entries)


def _result(
    device: Device, started: str, seconds: float, shapes: str, entries: Iterable[BenchEntry]
) -> BenchResult:
    import torch

    return BenchResult(
        device=device,
        started=started,
        torch=str(torch.__version__),
        driver=driver_version(device),
        seconds=seconds,
        shapes=shapes,
        entries=tuple(entries),
    )


def shapes_for(device: Device, which: str) -> tuple[Shape, ...]:
    """Shapes to try, small ones first.

    On a GPU the winners of published searches are among them: of this device, and with
    ``"full"`` of all.
    """
    full = which == "full"
    if device.kind not in ("cuda", "rocm"):
        return tuple(sorted(_CPU_FULL if full else _CPU_QUICK, key=flops))
    winners = published() if full else [w for d in BENCH_DTYPES for w in published_for(device, d)]
    named = [winner.shape for winner in winners if winner.shape is not None]
    return tuple(sorted({*(_GPU_FULL if full else _GPU_QUICK), *named}, key=flops))


def driver_version(device: Device, root: Path = Path("/")) -> str:
    """Of the GPU's driver, as the kernel states it; empty where it does not."""
    places = {"cuda": "proc/driver/nvidia/version", "rocm": "sys/module/amdgpu/version"}
    if device.kind not in places:
        return ""
    try:
        text = (root / places[device.kind]).read_text(encoding="utf-8", errors="replace")
    except OSError:  # no Linux, a container without it, or the driver of the distribution
        return ""
    found = re.search(r"\b\d+\.\d+(?:\.\d+)*\b", text)
    return found[0] if found else ""


def _device_sampler(device: Device) -> Sampler:
    from mfu_torch.peak.telemetry import DeviceSampler

    return DeviceSampler(device, interval_s=_SAMPLE_S)


def _check(dtypes: tuple[str, ...], seconds: float, shapes: str) -> None:
    for dtype in dtypes:
        if dtype not in BENCH_DTYPES:
            raise ValueError(f"dtype is {dtype!r}; expected one of {', '.join(BENCH_DTYPES)}")
    if shapes not in CANDIDATES:
        raise ValueError(f"shapes is {shapes!r}; expected one of {', '.join(CANDIDATES)}")
    if not 0 < seconds < math.inf:
        raise ValueError(f"seconds is {seconds}; expected a positive number")


def _entry(device: Device, dtype: str, seconds: float, shapes: str, watch: Watch) -> BenchEntry:
    from mfu_torch.peak.resolve import look_up_peak  # which imports what is saved, and that this

    known, found = look_up_peak(device, dtype), None
    unknown = _lacking(device, dtype)
    if not unknown:
        try:
            where = torch_device(device)
            bench = Bench(dtype, where, usable_cpus(device), seconds, watch)
            with exactly(device, dtype):
                found = best_sustained(bench, shapes_for(device, shapes), CANDIDATES[shapes])
        except UnknownPeak as error:
            unknown = str(error)
        except FAILURES as error:
            unknown = f"the matmul failed: {first_line(error) or type(error).__name__}"
    return BenchEntry(
        dtype=dtype,
        sustained=found,
        unknown=unknown,
        peak=known.peak,
        no_peak=known.unknown,
        published=published_for(device, dtype),
    )


def _lacking(device: Device, dtype: str) -> str:
    """Why the device cannot do it, although torch may convert and do it another way."""
    if dtype == "tf32" and device.kind not in ("cuda", "rocm"):
        return f"a device of kind {device.kind!r} has no tf32 units"
    rows = find_rows(device)
    if rows and all(dtype in row.absent for row in rows):
        return f"the {rows[0].name} has no {dtype} units"
    capability = re.fullmatch(r"(\d+)\.(\d+)", device.compute_capability or "")
    if device.kind == "cuda" and capability and dtype in ("tf32", "bf16"):
        major, minor = map(int, capability.groups())
        if (major, minor) < _AMPERE:
            return f"compute capability {major}.{minor} has no {dtype} units"
    return ""
