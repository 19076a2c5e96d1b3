"""A :class:`Serving` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mfu_torch.units import bytes_, scaled, seconds, significant

if TYPE_CHECKING:
    from mfu_torch.calculator.serving import Serving


def render(serving: Serving) -> str:
    """Lines, each with its unit; assumptions last, one a line."""
    rows = [*_what(serving), *_roofline(serving), *_memory(serving), *_measured(serving)]
    width = max(len(label) for label, _ in rows)
    lines = [_title(serving), *(f"  {label:<{width}}  {value}" for label, value in rows)]
    lines += ["  assumed:", *(f"    {line}" for line in serving.assumptions)]
    return "\n".join(lines) + "\n"


def _title(serving: Serving) -> str:
    on = "1 device" if serving.devices == 1 else f"{serving.devices} devices"
    size = f"batch {serving.batch}, context {serving.context}"
    return f"{serving.name}, {serving.mode}, {size}, {on}"


def _what(serving: Serving) -> list[tuple[str, str]]:
    rows = [
        ("FLOPs of a step", scaled(serving.flops, "FLOP", 4)),
        ("weights read", bytes_(serving.weight_bytes_read)),
        ("cache moved", bytes_(serving.cache_bytes_moved)),
        ("intensity", f"{significant(serving.intensity)} FLOP/byte"),
    ]
    if serving.ridge is not None and serving.bytes_per_s is not None:
        peak, bandwidth = scaled(serving.flops_per_s, "FLOP/s", 4), bytes_(serving.bytes_per_s)
        value = f"{significant(serving.ridge)} FLOP/byte ({peak} over {bandwidth}/s)"
        rows.append(("ridge point", value))
    return rows


def _roofline(serving: Serving) -> list[tuple[str, str]]:
    rows = [("compute time", f"{seconds(serving.compute_s)} at the peak")]
    if serving.memory_s is None:
        return [*rows, ("memory time", "unknown: the memory bandwidth is not known")]
    assert serving.time_s is not None and serving.best_tokens_per_s is not None
    best = f"{_rate(serving.best_tokens_per_s)} tokens/s"
    if serving.batch > 1:
        best += f", {_rate(serving.best_tokens_per_s / serving.batch)} for each sequence"
    batch = (
        f"compute binds from batch {serving.roofline_batch} on"
        if serving.roofline_batch is not None
        else serving.roofline_note
    )
    return [
        *rows,
        ("memory time", f"{seconds(serving.memory_s)} at the full bandwidth"),
        ("binds", str(serving.binds)),
        ("at best", f"{seconds(serving.time_s)} a step, {best}"),
        ("roofline batch", batch),
    ]


def _memory(serving: Serving) -> list[tuple[str, str]]:
    needed = bytes_(serving.needed_bytes)
    if serving.memory_bytes is None:
        return [("weights and cache", f"{needed}; whether they fit is not known")]
    word = "fit" if serving.fits else "do not fit"
    return [("weights and cache", f"{needed} {word} {bytes_(serving.memory_bytes)}")]


def _measured(serving: Serving) -> list[tuple[str, str]]:
    if serving.tokens_per_s is None or serving.mfu is None:
        return []
    rows = [("measured", f"{_rate(serving.tokens_per_s)} tokens/s")]
    rows.append(("MFU", _percent(serving.mfu)))
    if serving.mbu is not None:
        rows.append(("MBU", _percent(serving.mbu)))
    if max(serving.mfu, serving.mbu or 0) > 1:
        rows.append(("", "above 100 %: no device does that; check tokens/s, peak and bytes"))
    return rows


def _rate(value: float) -> str:
    return f"{value:.2f}" if value < 1000 else f"{value:.0f}"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
