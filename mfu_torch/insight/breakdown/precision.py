"""What matrix kernels could save in a faster dtype that their device has."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from mfu_torch.insight.breakdown.codes import ATTENTION
from mfu_torch.insight.breakdown.counted import Counted
from mfu_torch.insight.breakdown.evidence import trains
from mfu_torch.insight.breakdown.labels import Labels
from mfu_torch.insight.breakdown.rates import may_have_tf32
from mfu_torch.insight.breakdown.top import short
from mfu_torch.insight.trace.events import Trace
from mfu_torch.peak.rows import find_rows, table
from mfu_torch.records import Device
from mfu_torch.records.breakdown import Bucket
from mfu_torch.units import percent

NAME = "precision"
"""Of the bucket, which is no part of the time: it lies across the parts of the matrix time."""

FAR_FASTER = 1.9
"""Times the peak from which another dtype is worth a sentence: bf16 has twice that of TF32."""

_LEAST_SHARE = 0.01
_AUTOCAST = ("bf16", "fp16")  # of equal rates the first: it needs no scaling of gradients
_TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16"}
_FP32 = re.compile(r"sgemm|scudnn|f32f32_f32f32")
_TENSOR_CORES = re.compile(r"fp16|bf16|884|1688|16816|tensorop|tf32|xf32")
_FAMILY = re.compile(r"\b[A-Z]{1,2}\d{2,4}X?\b")  # A100, V100, T4, MI300X


@dataclass(frozen=True, kw_only=True)
class Faster:
    """A dtype of autocast, against a slower one on the same device.

    Attributes:
        dtype: The faster one.
        times: Its peak, in that of the slower one.
        tf32_times: The same of TF32; 1 where the device has none, or that is the slower one.
        by_family: The device is not in the table; others of its name are, and agree.
    """

    dtype: str
    times: float
    tf32_times: float
    by_family: bool

    @property
    def text(self) -> str:
        """``where fp16 (autocast) has 8 times the peak``."""
        others = ", as on others of this name" if self.by_family else ""
        return f"where {self.dtype} (autocast) has {self.times:.3g} times the peak{others}"


def faster(device: str | None, slow: str) -> Faster | None:
    """The fastest dtype of autocast that a device has, if it is far faster than ``slow``."""
    if device is None:
        return None
    rows, by_family = find_rows(Device(name=device, kind="")), False
    if not rows:
        family = set(_FAMILY.findall(device))
        rows, by_family = tuple(row for row in table() if family & set(row.name.split())), True
    found = []
    for row in rows:
        rates, own = row.flops_per_s, row.flops_per_s.get(slow)
        known = [dtype for dtype in _AUTOCAST if dtype in rates]
        if own is None or not known:
            return None
        dtype = max(known, key=lambda one: rates[one])
        tf32 = rates.get("tf32", own) / own
        found.append(
            Faster(dtype=dtype, times=rates[dtype] / own, tf32_times=tf32, by_family=by_family)
        )
    if not found or len({one.dtype for one in found}) > 1:
        return None
    least = min(found, key=lambda one: one.times)
    return least if least.times >= FAR_FASTER else None


def precision(trace: Trace, labels: Labels, counted: Counted) -> Bucket | None:
    """The time of fp32 and TF32 matrix kernels less what it takes at the faster peak.

    100 ns of fp32 on a V100 (15.7 and 125 TFLOP/s): 87 ns. ``None`` on a CPU, and where nothing
    is known to be far faster, or to run in fp32.
    """
    if labels.of_ops:
        return None
    parts = {}
    for dtype, mask in _by_dtype(trace, counted).items():
        better = faster(trace.device_name, dtype)
        if better is not None and mask.any():
            parts[dtype] = (better, mask)
    per_step = np.zeros(len(labels.edges.names), np.float64)
    on_top = labels.time_class <= ATTENTION
    for better, mask in parts.values():
        mine = on_top.copy()
        mine[on_top] = mask[labels.work[on_top]]
        per_step += labels.per_step_ns(mine) * (1 - 1 / better.times)
    if per_step.sum() < _LEAST_SHARE * labels.length_ns.sum():
        return None
    saved = tuple(np.rint(per_step).astype(np.int64).tolist())
    hint = _sentence(trace, labels, counted, parts)
    return Bucket(name=NAME, time_ns=sum(saved), per_step_ns=saved, hint=hint)


def _by_dtype(trace: Trace, counted: Counted) -> dict[str, np.ndarray]:
    """Which work runs in fp32, and which in TF32, where that may be: the faster of them."""
    may_be_tf32 = may_have_tf32(trace.device_name)
    dtypes = np.array(
        [
            "tf32" if one.dtype == "fp32" and may_be_tf32 and not one.certain else one.dtype or ""
            for one in counted.ops
        ]
        + [""]
    )
    own = dtypes[counted.of_work]  # -1: the empty one
    timed = np.flatnonzero((counted.time_ns > 0) & (counted.of_work < 0))
    names = trace.work.name[timed]
    shown = {one: _shows_fp32(trace.names[one]) for one in np.unique(names).tolist()}
    by_name = np.zeros(len(own), np.bool_)
    by_name[timed] = [shown[one] for one in names.tolist()]
    counts = counted.time_ns > 0
    return {"fp32": counts & ((own == "fp32") | by_name), "tf32": counts & (own == "tf32")}


def _shows_fp32(kernel: str) -> bool:
    return bool(_FP32.search(kernel)) and not _TENSOR_CORES.search(kernel)


def _sentence(
    trace: Trace,
    labels: Labels,
    counted: Counted,
    parts: dict[str, tuple[Faster, np.ndarray]],
) -> str:
    times = {dtype: int(counted.time_ns[mask].sum()) for dtype, (_, mask) in parts.items()}
    dtype = max(times, key=lambda one: times[one])
    better, mask = parts[dtype]
    by_kernel = Counter[int]()
    for entry in np.flatnonzero(mask).tolist():
        by_kernel[int(trace.work.name[entry])] += int(counted.time_ns[entry])
    example = short(trace.names[by_kernel.most_common(1)[0][0]])
    example = example.partition("(")[0].partition("<")[0]
    share = percent(times[dtype] / int(labels.length_ns.sum()))
    scaler = " and torch.amp.GradScaler" if trains(trace) and better.dtype == "fp16" else ""
    tf32 = ""
    if dtype == "fp32" and better.tf32_times >= FAR_FASTER:
        tf32 = (
            '; torch.set_float32_matmul_precision("high") alone, which is TF32, has '
            f"{better.tf32_times:.3g} times"
        )
    return (
        f"{share} of the time matrix kernels run in {dtype} (e.g. {example}), {better.text}: try "
        f'torch.autocast("cuda", {_TORCH[better.dtype]}){scaler}{tf32}'
    )
