"""The name of every figure where runs are compared: TensorBoard, W&B, MLflow, trackio.

One table for all of them, so that a curve has the same name wherever it is looked at. Shares are
fractions; a figure that is not known has no value, and never 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mfu_torch.figures import Figures
from mfu_torch.records import BreakdownEntry, CountEntry, Entry, Header, PeakEntry, Telemetry
from mfu_torch.records.losses import shares
from mfu_torch.records.names import Names, as_tag
from mfu_torch.step_parts import SplitSteps
from mfu_torch.units import margin, scaled

_TAGS = {
    "mfu": "mfu/mfu",
    "hfu": "mfu/hfu",
    "mfu_causal": "mfu/mfu_causal",
    "mfu_of_measured": "mfu/mfu_of_measured_peak",
    "end_to_end": "mfu/end_to_end",
    "tokens_per_s": "throughput/tokens_per_s",
    "samples_per_s": "throughput/samples_per_s",
    "step_s": "time/step_s",
    "step_s_p95": "time/step_s_p95",
    "data_wait_share": "time/data_wait_share",
    "memory_bytes": "device/memory_bytes",
}

# Parts of a step that are there at a length of 0, too: they are measured and not just seen.
_MEASURED_PARTS = ("data_wait", "rest", "between")

# Field of Telemetry -> tag, and the unit that people read it in.
_DEVICE_TAGS = {
    "gpu_util": ("device/gpu_util", 1.0),
    "cpu_util": ("device/cpu_util", 1.0),
    "sm_active": ("device/sm_active", 1.0),
    "tensor_active": ("device/tensor_active", 1.0),
    "dram_active": ("device/dram_active", 1.0),
    "sm_clock_hz": ("device/sm_clock_mhz", 1e-6),
    "memory_clock_hz": ("device/memory_clock_mhz", 1e-6),
    "power_w": ("device/power_w", 1.0),
    "temperature_c": ("device/temperature_c", 1.0),
    "memory_used_bytes": ("device/memory_used_bytes", 1.0),
    "pcie_rx_bytes_per_s": ("device/pcie_rx_bytes_per_s", 1.0),
    "pcie_tx_bytes_per_s": ("device/pcie_tx_bytes_per_s", 1.0),
    "nvlink_rx_bytes_per_s": ("device/nvlink_rx_bytes_per_s", 1.0),
    "nvlink_tx_bytes_per_s": ("device/nvlink_tx_bytes_per_s", 1.0),
}

DILATION = "breakdown/dilation"
"""Time of a traced step over that of the untraced ones around it."""


def scalars(now: Figures) -> Iterator[tuple[str, float]]:
    """Tag and value of every figure that is known; each tag once.

    Of names that differ in no character that a tag may have, the second has ``_2`` behind it.
    """
    for name, tag in _TAGS.items():
        value = getattr(now, name)
        if value is not None:
            yield tag, value
    if now.model_flops_per_s is not None:
        yield "throughput/model_tflops_per_s_per_device", now.model_flops_per_s / 1e12
    if now.split is not None:
        yield from _part_scalars(now.split)
    for tag, share in _tagged(now.phases):
        yield f"time/phase_{tag}_share", share
    for tag, share in _tagged(now.goodput):
        yield f"goodput/{tag}", share


def part_shares(split: SplitSteps) -> dict[str, float]:
    """Shares of the step time of the parts that were seen; they sum to 1.

    A part of which nothing was seen has none: an optimizer that is no ``torch.optim.Optimizer`` is
    in the rest, and did not take 0 seconds.
    """
    return {name: share for name, share in split.shares.items() if share or name in _MEASURED_PARTS}


def _part_scalars(split: SplitSteps) -> Iterator[tuple[str, float]]:
    for name, share in part_shares(split).items():
        if name != "data_wait":  # `time/data_wait_share` is the host's waiting
            yield f"time/{name}_share", share
    if split.lead_s is not None:
        yield "time/host_lead_s", split.lead_s
    for name, share in split.of_peak.items():
        yield f"mfu/hfu_{name}", share


def device_scalars(seen: Telemetry) -> Iterator[tuple[str, float]]:
    """Tag and value of everything that the device told; each tag once."""
    for name, (tag, unit) in _DEVICE_TAGS.items():
        value = getattr(seen, name)
        if value is not None:
            yield tag, value * unit
    for tag, share in _tagged(seen.throttle):
        yield f"device/throttle_{tag}", share


def breakdown_scalars(entry: BreakdownEntry) -> Iterator[tuple[str, float]]:
    """Tag and value of every part of the traced steps' time, and how much slower tracing made them.

    The parts sum to exactly 1, also in single precision.
    """
    for name, share in shares(entry.breakdown).items():
        yield f"breakdown/{name}", share
    if entry.dilation is not None:
        yield DILATION, entry.dilation


def facts(record: Entry | Figures) -> Iterator[tuple[str, str]]:
    """What stands behind the numbers, as name and text: the device, the convention, the peaks.

    For the places that keep a run's settings beside its curves. A name is given once, or again
    with the same text.
    """
    if isinstance(record, Header):
        yield "device", record.device.name
        yield "attention", record.attention
        yield "clock", record.clock
        yield "rank", f"{record.rank} of {record.world_size}"
        yield "version", record.versions.get("mfu_torch", "unknown")
    elif isinstance(record, PeakEntry) and record.peak is not None:
        peak = record.peak
        how = f"{peak.provenance}{margin(peak.uncertainty)}: {peak.source}"
        yield f"peak_{record.dtype}", f"{scaled(peak.flops_per_s, 'FLOP/s')} dense, {how}"
    elif isinstance(record, PeakEntry):
        yield f"peak_{record.dtype}", f"unknown: {record.unknown}"
    elif isinstance(record, CountEntry) and record.count is not None:
        for op in record.count.uncounted:
            yield f"not_counted_{as_tag(op)}", f"{op} has no FLOP formula"


def _tagged(shares: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    names = Names()
    for name, share in shares.items():
        yield as_tag(names.of(name)), share
