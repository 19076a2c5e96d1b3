"""The tables of docs/planning.md, computed; ``python tests/calculator/planning_page.py`` writes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from plan_rows import ROWS, Row

from mfu_torch.calculator.plan import machine_of

PAGE = Path(__file__).parents[2] / "docs" / "planning.md"
FITTED = 0.689
"""The share of the peak that matmuls reach, fitted on Korthikanti's eight rows alone."""

BEGIN, END = "| run | published | planned |", "\n\n"


def error(row: Row, efficiency: float | None = None) -> float:
    """Of the step, as a fraction: negative where the plan is too short."""
    machine = (
        None if efficiency is None else machine_of(row.device, row.dtype, efficiency=efficiency)
    )
    return row.planned(machine).step_s / row.step_s - 1


def table(rows: Iterable[Row]) -> str:
    lines = [
        "| run | published | planned | error | MFU | planned | error, 68.9 % fitted |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        planned = row.planned()
        lines.append(
            f"| {row.name} | {row.step_s:.2f} s | {planned.step_s:.2f} s | "
            f"{100 * error(row):+.1f} % | {100 * row.mfu:.1f} | {100 * planned.mfu:.1f} | "
            f"{100 * error(row, FITTED):+.1f} % |"
        )
    return "\n".join(lines)


def overview() -> str:
    lines = [
        "| source | rows | mean error | worst | mean size, fitted | worst, fitted |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for source, rows in sources():
        plain = [error(row) for row in rows]
        fitted = [error(row, FITTED) for row in rows]
        lines.append(
            f"| {source} | {len(rows)} | {100 * statistics.mean(plain):+.1f} % | "
            f"{100 * max(plain, key=abs):+.1f} % | {100 * statistics.mean(map(abs, fitted)):.1f} % "
            f"| {100 * max(fitted, key=abs):+.1f} % |"
        )
    return "\n".join(lines)


def sources() -> Iterator[tuple[str, list[Row]]]:
    for source in dict.fromkeys(row.source for row in ROWS):
        yield source, [row for row in ROWS if row.source == source]


def tables() -> dict[str, str]:
    """Marker in the page -> what follows it."""
    found = {"overview": overview()}
    for number, (_, rows) in enumerate(sources()):
        found[f"rows {number}"] = table(rows)
    return found


def with_tables(text: str) -> str:
    """The page with its tables as they are computed now."""
    for name, content in tables().items():
        marker = f"<!-- {name} -->"
        pattern = re.escape(marker) + r"\n(?:\|.*\n)*"
        text = re.sub(pattern, lambda _, m=marker, c=content: f"{m}\n{c}\n", text)  # type: ignore[misc]
    return text


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
