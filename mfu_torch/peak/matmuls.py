"""Matrix multiplies that are timed to find a peak: operands, settings, clocks. This uses torch.

Nothing of the user's changes: operands come from a generator of their own and have their dtype
and device by name; settings of torch that a measurement needs are put back, also after Ctrl-C.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from mfu_torch.records import Device, UnknownPeak

if TYPE_CHECKING:
    import torch

Shape = tuple[int, int, int]
"""``(m, n, k)``: (m, k) @ (k, n)."""

Run = Callable[[], "torch.Tensor"]
"""One multiply."""

TORCH_DTYPES = {
    "fp64": "float64",
    "fp32": "float32",
    "tf32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "int8": "int8",
    "fp8": "float8_e4m3fn",
}
"""What the operands are; the setting of TF32 tells two of them apart."""

FORMS = {
    "fp8": "e4m3, one scale for each operand, bf16 results; on a GPU with fast accumulation",
    "int8": "int32 results",
}
"""How a multiply differs from one whose operands and result are of one dtype."""

FAILURES = (
    RuntimeError,
    NotImplementedError,
    TypeError,
    AssertionError,
    AttributeError,
    ValueError,
)
"""What torch raises where a dtype has no kernel, or the build has no such device, differs by
backend and version; AttributeError: no ``torch._int_mm``."""

_BYTES = {"fp64": (8, 8), "bf16": (2, 2), "fp16": (2, 2), "int8": (1, 4), "fp8": (1, 2)}
"""Of an element of the operands and of the result, where they are not 4."""

_ROTATED_BYTES = 512 * 2**20
"""Operands and results that take turns on a GPU: four times the largest L2 cache (126 MB on a
B200) and twice AMD's Infinity Cache (256 MB), so that none is still there when its turn comes."""

_MEMORY_SHARE = 4
"""At most one in so many bytes of the free device memory."""


def flops(shape: Shape) -> int:
    """Of one multiply: (4, 5, 6) has 2 * 4 * 5 * 6 = 240."""
    m, n, k = shape  # (m, k) @ (k, n)
    return 2 * m * n * k


def mnk(shape: Shape) -> str:
    """``"2048x2048x13312"``: MxNxK."""
    return "x".join(map(str, shape))


def torch_device(device: Device) -> torch.device:
    """The device as torch names it."""
    import torch

    kind = "cuda" if device.kind == "rocm" else device.kind  # torch's word for both
    return torch.device(kind, device.index or 0)


# --- operands ---------------------------------------------------------------------------------


def matmul(shape: Shape, dtype: str, where: torch.device, seed: int = 0) -> Run:
    """A multiply of random operands: constant ones draw less power than training, and clock higher.

    fp8 and int8 are as in :data:`FORMS`, and their second operand is column-major, as cuBLASLt
    wants it. Fast accumulation: what the tensor cores of Hopper do by themselves.
    """
    import torch

    m, n, k = shape
    random = torch.Generator(device=where)  # the user's random numbers stay as they are
    random.manual_seed(seed)
    if dtype == "int8":
        whole = functools.partial(
            torch.randint, -128, 128, generator=random, dtype=torch.int8, device=where
        )
        a, b = whole(size=(m, k)), whole(size=(n, k)).t()
        return lambda: torch._int_mm(a, b)
    normal = functools.partial(torch.randn, generator=random, dtype=torch.float32, device=where)
    if dtype == "fp8":
        e4m3 = _e4m3(where)
        a, b = normal(m, k).to(e4m3), normal(n, k).to(e4m3).t()
        one = torch.ones((), dtype=torch.float32, device=where)
        return lambda: torch._scaled_mm(
            a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    exact = getattr(torch, TORCH_DTYPES[dtype])
    a, b = normal(m, k).to(exact), normal(k, n).to(exact)
    out = torch.empty(m, n, device=where, dtype=exact)
    return lambda: torch.mm(a, b, out=out)


def _e4m3(where: torch.device) -> torch.dtype:
    import torch

    # MI300 has a format of its own, without negative zero; later AMD parts have the common one.
    if where.type == "cuda" and torch.version.hip is not None:
        name = torch.cuda.get_device_properties(where).gcnArchName
        if name.startswith("gfx94"):
            return torch.float8_e4m3fnuz
    return torch.float8_e4m3fn


def rotating(shape: Shape, dtype: str, where: torch.device) -> tuple[Run, ...]:
    """The same multiply of several sets of operands, to run in turn.

    On a GPU they are too many for its caches, if its memory allows: training does not multiply
    the same matrices twice either. Elsewhere there is one.
    """
    return tuple(matmul(shape, dtype, where, seed) for seed in range(_sets(shape, dtype, where)))


def _sets(shape: Shape, dtype: str, where: torch.device) -> int:
    import torch

    if where.type != "cuda":
        return 1
    m, n, k = shape
    of_operand, of_result = _BYTES.get(dtype, (4, 4))
    bytes_ = of_operand * (m * k + k * n) + of_result * m * n
    free_bytes, _ = torch.cuda.mem_get_info(where)
    most = int(free_bytes / _MEMORY_SHARE / bytes_)
    return max(1, min(most, max(2, math.ceil(_ROTATED_BYTES / bytes_))))


# --- settings ---------------------------------------------------------------------------------


def reduced_fp32(device: Device) -> str:
    """What fp32 matmuls really run in, if not fp32: ``"tf32"`` or ``"bf16"``."""
    import torch

    on_gpu = device.kind in ("cuda", "rocm")
    precision = getattr(_fp32_settings(device), "fp32_precision", None)
    if precision is None:  # torch < 2.9; later ones raise when both ways of setting it are mixed
        precision = {"high": "tf32", "medium": "tf32" if on_gpu else "bf16"}.get(
            torch.get_float32_matmul_precision(), "ieee"
        )
    return "" if precision in ("none", "ieee") else str(precision)


def _fp32_settings(device: Device) -> Any:
    import torch

    on_gpu = device.kind in ("cuda", "rocm")
    backend = torch.backends.cuda if on_gpu else torch.backends.mkldnn
    return getattr(backend, "matmul", None)


@contextmanager
def exactly(device: Device, dtype: str) -> Iterator[None]:
    """Inside, multiplies of this dtype run as that and nothing less, whatever the user chose.

    No gradients, no autocast; fp32 in full precision, tf32 as TF32, fp16 accumulated in fp32.
    After it everything is as before. (A precision for fp32 that the user set both for matmuls
    and, to the same, for all of torch is afterwards the one for all of torch.)

    Raises:
        UnknownPeak: If torch does not run fp32 in the precision that was asked for.
    """
    import torch

    kind = torch_device(device).type
    with torch.no_grad(), torch.autocast(kind, enabled=False), _fp16_in_fp32(dtype, kind):
        if dtype not in ("fp32", "tf32"):
            yield
            return
        wanted = "tf32" if dtype == "tf32" else ""
        with _fp32_as(device, wanted or "ieee"):
            found = reduced_fp32(device)
            overridden = os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"  # cuBLAS's, unseen by torch
            if found != wanted or (wanted and overridden):
                runs_as = "fp32" if overridden else found or "fp32"
                raise UnknownPeak(f"torch runs fp32 as {runs_as} here, whatever its setting")
            yield


@contextmanager
def _fp32_as(device: Device, precision: str) -> Iterator[None]:
    import torch

    settings = _fp32_settings(device)
    before = getattr(settings, "fp32_precision", None)
    if before is None:  # torch < 2.9: one setting for all backends
        old = torch.get_float32_matmul_precision()
        try:
            torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
            yield
        finally:
            torch.set_float32_matmul_precision(old)
        return
    try:
        settings.fp32_precision = precision
        yield
    finally:
        # Where nothing was set here, the setting of all of torch was read, and "none" brings it
        # back without fixing it.
        settings.fp32_precision = "none"
        if settings.fp32_precision != before:
            settings.fp32_precision = before


@contextmanager
def _fp16_in_fp32(dtype: str, kind: str) -> Iterator[None]:
    import torch

    settings: Any = torch.backends.cuda.matmul
    if dtype != "fp16" or kind != "cuda" or not hasattr(settings, "allow_fp16_accumulation"):
        yield
        return
    before = settings.allow_fp16_accumulation
    try:
        settings.allow_fp16_accumulation = False
        yield
    finally:
        settings.allow_fp16_accumulation = before


# --- clocks -----------------------------------------------------------------------------------


class Timeline(Protocol):
    """Marks on the time of a device."""

    def mark(self) -> Any:
        """The moment at which the work queued so far is done."""

    def wait(self, mark: Any) -> None:
        """Until the device has passed the mark."""

    def seconds(self, begin: Any, end: Any) -> float:
        """Between two marks that have been waited for."""


class HostTimeline:
    """Of work that is done when its call returns."""

    def mark(self) -> float:
        """Now."""
        return time.perf_counter()

    def wait(self, mark: float) -> None:
        """It has been passed."""

    def seconds(self, begin: float, end: float) -> float:
        """Their difference."""
        return end - begin


class MpsTimeline(HostTimeline):
    """Of an Apple GPU, which is waited for at each mark."""

    def mark(self) -> float:
        """Now that the GPU is done."""
        import torch

        torch.mps.synchronize()
        return super().mark()


class CudaTimeline:
    """Of a CUDA or ROCm device: its own events, on the stream that is current there."""

    def __init__(self, where: torch.device) -> None:
        self._where = where

    def mark(self) -> torch.cuda.Event:
        """An event behind what is queued."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._where))
        return event

    def wait(self, mark: torch.cuda.Event) -> None:
        """For this event alone."""
        mark.synchronize()

    def seconds(self, begin: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Resolution: half a microsecond."""
        return float(begin.elapsed_time(end)) / 1e3


def timeline(where: torch.device) -> Timeline:
    """The one of this device."""
    if where.type == "cuda":
        return CudaTimeline(where)
    return MpsTimeline() if where.type == "mps" else HostTimeline()


def timed(run: Callable[[], object], calls: int, where: torch.device) -> float:
    """Seconds that ``calls`` runs, queued together, take on the device."""
    time_of = timeline(where)
    begin = time_of.mark()
    for _ in range(calls):
        run()
    end = time_of.mark()
    time_of.wait(end)
    return time_of.seconds(begin, end)
