"""The spread of conventions over one run as a table, and the list of the conventions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from mfu_torch.calculator.answer_table import amount, field, peak_text, sentence
from mfu_torch.calculator.spread import Spread
from mfu_torch.flops.formulas.conventions import CONVENTIONS
from mfu_torch.units import percent_exact

_KINDS = {"model": "MFU", "hardware": "HFU"}


def render_spread(found: Spread) -> str:
    """One line for each convention, the lowest share first; at most 100 columns wide."""
    lines = [found.of, *_head(found), "", *_rows(found)]
    for title, sentences in (("Assumed", found.assumptions), ("Notes", found.notes)):
        if sentences:
            lines += [title, *map(sentence, sentences)]
    if found.absent:
        names = ", ".join(found.absent)
        lines += ["Not for this model", sentence(f"{names}: {next(iter(found.absent.values()))}")]
    lines += ["", last_line(found)]
    return "\n".join(lines) + "\n"


def last_line(found: Spread) -> str:
    """From the lowest to the highest share."""
    lowest, highest = found.rows[0], found.rows[-1]
    return (
        f"The same run, by its convention: from {percent_exact(lowest.share)} "
        f"({lowest.convention}) to {percent_exact(highest.share)} ({highest.convention})"
    )


def _head(found: Spread) -> Iterator[str]:
    each = f", {amount(found.units_per_s / found.devices)} per device" if found.devices > 1 else ""
    yield field("throughput", f"{amount(found.units_per_s)} {found.unit}s/s{each}")
    yield field("peak", peak_text(found.peak))
    yield field("devices", f"{found.devices:,}")


def _rows(found: Spread) -> Iterator[str]:
    width = max(len(row.convention) for row in found.rows)
    yield f"  {'convention':<{width}}  {'':<13}FLOPs for a {found.unit}"
    for row in found.rows:
        share = f"{_KINDS[row.counts]} {percent_exact(row.share):>8}"
        over = ": above 100 %" if row.share > 1 else ""
        yield f"  {row.convention:<{width}}  {share} {row.formula}{over}"
        yield textwrap.fill(
            f"leaves out {row.leaves_out}",
            100,
            initial_indent=" " * (width + 17),
            subsequent_indent=" " * (width + 17),
            break_long_words=False,
            break_on_hyphens=False,
        )


def render_conventions() -> str:
    """Every convention: formula, what it counts, source, what it leaves out."""
    lines = [
        "For one token of training. N: parameters that a token meets; W: weights that it is "
        "multiplied",
        "with; L layers, h hidden, H heads of d (values: dv), V vocabulary, s tokens a sequence.",
    ]
    for one in CONVENTIONS.values():
        lines += ["", f"{one.name}: {one.formula}"]
        lines.append(field("counts", f"{one.counts} FLOPs, whose share is an {_KINDS[one.counts]}"))
        lines += [field("source", one.source), field("leaves out", one.leaves_out)]
    return "\n".join(lines) + "\n"


def conventions_summary() -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "name": one.name,
            "counts": one.counts,
            "formula": one.formula,
            "source": one.source,
            "leaves_out": one.leaves_out,
            "is_general": one.is_general,
        }
        for one in CONVENTIONS.values()
    ]
