"""Writes the generated parts of docs/published.md: conventions, rows, exceptions.

    python tests/calculator/published_page.py            shows the page
    python tests/calculator/published_page.py --write    writes it

A part stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; people wrote the rest.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from mfu_torch.calculator.claims import Recomputed
from mfu_torch.calculator.published import published
from mfu_torch.calculator.published_table import render, summary
from mfu_torch.flops.formulas import CONVENTIONS

PAGE = Path(__file__).parents[2] / "docs" / "published.md"
COMMAND = "python tests/calculator/published_page.py --write"
LONG = "mosaicml/"
"""Source of which the page shows the first and the last row alone: it has 216."""


def page(text: str) -> str:
    """The page with its parts generated."""
    rows = published()
    parts = {
        "summary": summary(rows),
        "conventions": _conventions(),
        "exceptions": _exceptions(rows),
        "rows": _rows(rows),
    }
    for name, part in parts.items():
        pattern = rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)"
        text, found = re.subn(
            pattern, lambda m, part=part: f"{m[1]}{part}\n{m[2]}", text, flags=re.DOTALL
        )
        assert found == 1, f"the page has {found} parts {name}; expected one"
    return text


def _conventions() -> str:
    lines = ["| convention | counts | for a token of training | who | leaves out |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for one in CONVENTIONS.values():
        share = "MFU" if one.counts == "model" else "HFU"
        lines.append(
            f"| `{one.name}` | {share} | {one.formula} | {one.source} | {one.leaves_out} |"
        )
    return "\n".join(lines)


def _exceptions(rows: Sequence[Recomputed]) -> str:
    lines = ["| row | published | recomputed | why |", "| --- | --- | --- | --- |"]
    for row in rows:
        if row.status != "explained":
            continue
        one = row.differences[0]
        shown = [_figure(one.figure, value) for value in (one.stated, one.found)]
        lines.append(f"| `{row.id}` | {shown[0]} | {shown[1]} | {row.reason} |")
    return "\n".join(lines)


def _figure(name: str, value: float) -> str:
    return f"{100 * value:.2f} %" if name == "mfu" else f"{value / 1e12:.0f} TFLOP/s"


def _rows(rows: Sequence[Recomputed]) -> str:
    mosaic = [row for row in rows if row.source.startswith(LONG)]
    shown = [row for row in rows if row not in mosaic[1:-1]]
    table = render(shown).partition("\n\n")[0].splitlines()
    at = next(n for n, line in enumerate(table) if line.startswith(mosaic[0].id))
    table.insert(at + 1, f"... {len(mosaic) - 2} more: mfu-torch calc --published mosaicml")
    return "\n".join(["```", *table, "```"])


def main(arguments: Sequence[str]) -> None:
    text = page(PAGE.read_text(encoding="utf-8"))
    if "--write" in arguments:
        PAGE.write_text(text, encoding="utf-8")
    else:
        print(text)


if __name__ == "__main__":
    main(sys.argv[1:])
