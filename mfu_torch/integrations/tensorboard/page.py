"""The page ``mfu/how_computed`` of the Text tab: what stands behind the numbers, in markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mfu_torch.integrations.tensorboard.counted import Counted
from mfu_torch.integrations.tensorboard.picture import HOW_TO_GET_IT, can_draw
from mfu_torch.records import Header, Peak, PeakEntry, Peaks
from mfu_torch.units import margin, scaled, significant

_DEFINITIONS = (
    ("MFU", "ideal time of the model FLOPs at the peak / step time; 1 multiply-add = 2 FLOPs"),
    ("HFU", "the same with hardware FLOPs: what is computed twice counts twice"),
    ("end-to-end MFU", "ideal time of the model FLOPs of all steps / wall time of the run"),
)

_CONVENTIONS = {
    "full": "every attention score is counted (convention `full`)",
    "causal": "only the attention scores that the mask keeps are counted (convention `causal`)",
}


def how_computed(header: Header, peaks: Peaks, counted: Counted) -> str:
    """Markdown that says what stands behind the numbers of a run."""
    parts = [
        "### How the numbers of this run were computed",
        markdown_table(("figure", "what it is"), _DEFINITIONS),
        "#### Time and FLOPs",
        markdown_table(("", "of this run"), [*_of_run(header), *counted.rows()]),
        "#### Peaks, dense, of one device",
        markdown_table(
            ("dtype", "FLOP/s", "how it is known", "source"),
            [row for entry in peaks.values() for row in _of_peak(entry)],
        )
        or "None was needed yet.",
        "" if can_draw() else HOW_TO_GET_IT,
    ]
    return "\n\n".join(part for part in parts if part)


def _of_run(header: Header) -> list[tuple[str, str]]:
    size = header.parameters
    parameters = "" if size is None else f"{_short(size)} parameters"
    if header.trainable is not None and header.trainable != size:
        parameters += f", {_short(header.trainable)} of them trainable"
    several = header.world_size > 1
    return [
        ("attention", _CONVENTIONS[header.attention]),
        ("model", ", ".join(text for text in (header.model, parameters) if text)),
        ("device", header.device.name),
        ("rank", f"{header.rank} of {header.world_size}" if several else ""),
        ("time", header.clock),
        ("began", header.started),
        ("versions", ", ".join(f"{name} {version}" for name, version in header.versions.items())),
    ]


def _of_peak(entry: PeakEntry) -> list[tuple[str, str, str, str]]:
    rows = []
    if entry.peak is None:
        rows.append((entry.dtype, "unknown", "", entry.unknown))
    else:
        rows.append(_peak(entry.peak, entry.dtype))
    if entry.measured is not None:
        rows.append(_peak(entry.measured, f"{entry.dtype}, of `mfu_of_measured_peak`"))
    return rows


def _peak(peak: Peak, name: str) -> tuple[str, str, str, str]:
    how = f"{peak.provenance}{margin(peak.uncertainty)}"
    return name, scaled(peak.flops_per_s, "FLOP/s"), how, peak.source


def _short(number: int) -> str:
    """``3_300_000`` -> ``"3.30 M"``, as models are spoken of."""
    for unit, size in (("B", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{significant(number / size)} {unit}"
    return str(number)


def markdown_table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A markdown table; rows with nothing in their last cell are left out."""
    lines = [_row(row) for row in rows if row[-1]]
    return "\n".join([_row(titles), "|---" * len(titles) + "|", *lines]) if lines else ""


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """Text that stays inside its cell."""
    return " ".join(text.split()).replace("|", "\\|")
