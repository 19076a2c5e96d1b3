"""A :class:`Serving` as text."""

from __future__ import annotations

import math
import textwrap
from typing import TYPE_CHECKING

from mfu_torch.calculator.answer_table import WIDTH, amount, memory_text
from mfu_torch.units import bytes_, percent, percent_exact, scaled, seconds, significant

if TYPE_CHECKING:
    from mfu_torch.calculator.serving_record import Serving


def render(serving: Serving) -> str:
    """Lines, each with its unit; assumptions last, one a line."""
    rows = [*_memory(serving), *_what(serving), *_roofline(serving), *_measured(serving)]
    width = max(len(label) for label, _ in rows)
    lines = [_title(serving), *(_row(label, value, width) for label, value in rows)]
    lines += ["Assumed", *(_wrapped(line, 2) for line in serving.assumptions)]
    if serving.notes:
        lines += ["Notes", *(_wrapped(line, 2) for line in serving.notes)]
    return "\n".join(lines) + "\n"


def _row(label: str, value: str, width: int) -> str:
    return _wrapped(f"{label:<{width}}  {value}", 2, 4 + width)


def _wrapped(text: str, indent: int, further: int | None = None) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=" " * indent,
        subsequent_indent=" " * (indent + 2 if further is None else further),
        break_long_words=False,
        break_on_hyphens=False,
    )


def _title(serving: Serving) -> str:
    on = "1 device" if serving.devices == 1 else f"{serving.devices} devices"
    size = f"batch {serving.batch}"
    size += f", context {serving.context}" if serving.per == "token" else ""
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
    rows += [
        ("memory time", f"{seconds(serving.memory_s)} at the full bandwidth"),
        ("binds", str(serving.binds)),
    ]
    if serving.fits is False:
        return rows  # what a step would take at best is no answer where none can run
    best = f"{amount(serving.best_tokens_per_s)} {serving.per}s/s"
    if serving.batch > 1 and serving.per == "token":
        best += f", {amount(serving.best_tokens_per_s / serving.batch)} for each sequence"
    batch = (
        f"compute binds from batch {serving.roofline_batch} on"
        if serving.roofline_batch is not None
        else serving.roofline_note
    )
    most = serving.largest_batch
    if serving.roofline_batch is not None and most is not None and serving.roofline_batch > most:
        batch += ", which does not fit the memory"
    return [
        *rows,
        ("at best", f"{seconds(serving.time_s)} a step, {best}"),
        ("roofline batch", batch),
    ]


def _memory(serving: Serving) -> list[tuple[str, str]]:
    needed = bytes_(serving.needed_bytes)
    if serving.memory_bytes is None:
        return [("weights and cache", f"{needed}; whether they fit is not known")]
    word = "fit" if serving.fits else "do not fit"
    on = "the memory" if serving.devices == 1 else f"the {serving.devices} devices"
    rows = [("weights and cache", f"{needed} {word} {on}, {memory_text(serving.memory_bytes)}")]
    if serving.largest_batch == 0:
        each = serving.memory_bytes / serving.devices
        least = math.ceil(serving.needed_bytes / each)
        rows.append(("largest batch", f"none: this batch takes {least} devices"))
    elif serving.largest_batch is not None:
        rows.append(("largest batch", f"{serving.largest_batch:,} of this context fit"))
    return rows


def _measured(serving: Serving) -> list[tuple[str, str]]:
    if serving.tokens_per_s is None or serving.mfu is None:
        return []
    rows = [("measured", f"{amount(serving.tokens_per_s)} {serving.per}s/s")]
    rows.append(("MFU", percent_exact(serving.mfu)))
    if serving.mbu is not None:
        rows.append(("MBU", percent_exact(serving.mbu)))
    if max(serving.mfu, serving.mbu or 0) > 1:
        rows.append(("", "above 100 %: no device does that; check tokens/s, peak and bytes"))
    elif serving.time_s is not None:
        rows.append(("", _what_it_means(serving, serving.time_s)))
    return rows


def _what_it_means(serving: Serving, least_s: float) -> str:
    """Which part of a step the roofline explains, and what it does not."""
    assert serving.tokens_per_s is not None
    step_s = serving.tokens / serving.tokens_per_s
    is_memory = serving.binds == "memory"
    what = "weights and cache" if is_memory else "products"
    rest = seconds(max(0.0, step_s - least_s))
    text = (
        f"a step takes {seconds(step_s)}, of which {what} need {seconds(least_s)}; these figures "
        f"do not say what the other {rest} are (launches, slower kernels, traffic between devices)"
    )
    if not is_memory or serving.mode != "decode":
        return text
    weights = percent(serving.weight_bytes_read / serving.bytes_moved)
    return f"{text}; {weights} of the bytes are weights, which a larger batch reads as often"
