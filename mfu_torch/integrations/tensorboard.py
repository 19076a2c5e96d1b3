"""TensorBoard: one scalar per known figure, and a text that says how they were computed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from torch.utils.tensorboard import SummaryWriter

from mfu_torch.figures import Figures
from mfu_torch.records import CountEntry, Entry, Header, Peak, PeakEntry, Telemetry
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

_CONVENTIONS = {
    "full": "every attention score is counted (convention `full`)",
    "causal": "only the attention scores that the mask keeps are counted (convention `causal`)",
}


class TensorBoardSink:
    """Writes figures as scalars over the steps completed; what is not known writes no scalar."""

    def __init__(self, log_dir: str | os.PathLike[str]) -> None:
        """Open an event file in ``log_dir``."""
        self._writer = SummaryWriter(str(log_dir))
        self._header: Header | None = None
        self._peaks: dict[str, PeakEntry] = {}
        self._counts: dict[int, CountEntry] = {}
        self._text = ""
        self._stale = False
        self._step = 0

    def write(self, record: Entry | Figures) -> None:
        """Write the scalars of a window, or note what the text has to say."""
        if isinstance(record, Figures):
            self._scalars(record)
        elif isinstance(record, Telemetry):
            for tag, value in device_scalars(record):
                self._writer.add_scalar(tag, value, record.after_step)
        elif isinstance(record, Header):
            self._header, self._stale = record, True
        elif isinstance(record, PeakEntry):
            self._peaks[record.dtype], self._stale = record, True
        elif isinstance(record, CountEntry):
            self._counts[record.id], self._stale = record, True

    def close(self) -> None:
        """Write what is pending and close the event file."""
        self._write_text()
        self._writer.close()

    def _scalars(self, now: Figures) -> None:
        self._step = now.step
        self._write_text()
        for tag, value in scalars(now):
            self._writer.add_scalar(tag, value, now.step)
        self._writer.flush()

    def _write_text(self) -> None:
        """Once per change that shows: a run with many shapes has many counts, and one text."""
        if not self._stale or self._header is None:
            return
        self._stale = False
        text = how_computed(self._header, self._peaks, self._counts)
        if text != self._text:
            self._text = text
            self._writer.add_text("mfu/how_computed", text, self._step)


def scalars(now: Figures) -> Iterator[tuple[str, float]]:
    """Tag and value of every figure that is known."""
    for name, tag in _TAGS.items():
        value = getattr(now, name)
        if value is not None:
            yield tag, value
    if now.model_flops_per_s is not None:
        yield "throughput/model_tflops_per_s_per_device", now.model_flops_per_s / 1e12
    for name, share in now.phases.items():
        yield f"time/phase_{_tag(name)}_share", share


def device_scalars(seen: Telemetry) -> Iterator[tuple[str, float]]:
    """Tag and value of everything that the device told."""
    for name, (tag, unit) in _DEVICE_TAGS.items():
        value = getattr(seen, name)
        if value is not None:
            yield tag, value * unit
    for reason, share in seen.throttle.items():
        yield f"device/throttle_{_tag(reason)}", share


def _tag(name: str) -> str:
    # TensorBoard groups by slash, and allows few other characters in a tag.
    return re.sub(r"[^-.0-9A-Za-z_]", "_", name)


def how_computed(header: Header, peaks: dict[str, PeakEntry], counts: dict[int, CountEntry]) -> str:
    """Markdown that says what stands behind the numbers."""
    known = [entry.count for entry in counts.values() if entry.count is not None]
    unknown = dict.fromkeys(entry.unknown for entry in counts.values() if entry.count is None)
    uncounted = sorted({op for count in known for op in count.uncounted})
    versions = ", ".join(f"{name} {version}" for name, version in header.versions.items())
    rows = [
        ("MFU", "ideal time of the model FLOPs at the peak / step time; 1 multiply-add = 2 FLOPs"),
        ("attention", _CONVENTIONS[header.attention]),
        ("device", header.device.name),
        ("rank", f"{header.rank} of {header.world_size}" if header.world_size > 1 else ""),
        *((f"peak {dtype}", _peak(entry)) for dtype, entry in peaks.items()),
        ("FLOPs", "; ".join(dict.fromkeys(c.method for c in known if c.method))),
        ("FLOPs unknown", "; ".join(unknown)),
        ("not counted", ", ".join(uncounted) or ("nothing" if known else "")),
        ("notes", " ".join(dict.fromkeys(note for count in known for note in count.notes))),
        ("time", header.clock),
        ("versions", versions),
    ]
    lines = [f"| {name} | {_cell(text)} |" for name, text in rows if text]
    return "\n".join(["| | |", "|---|---|", *lines])


def _peak(entry: PeakEntry) -> str:
    peak: Peak | None = entry.peak
    if peak is None:
        return f"unknown: {entry.unknown}"
    how = f"{peak.provenance}{margin(peak.uncertainty)}"
    return f"{scaled(peak.flops_per_s, 'FLOP/s')} dense, {how}: {peak.source}"


def _cell(text: str) -> str:
    """Text that stays inside its cell of a markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
