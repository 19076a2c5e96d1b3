"""Every number of a run's summary, unrounded, under the name that ``report --json`` gives it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from mfu_torch.insight.html.markup import Markup, table
from mfu_torch.insight.summary import summary
from mfu_torch.records import Run


def numbers(run: Run) -> Markup:
    """A table of the name and the value of everything in the summary."""
    return table(("name", "value"), flat(msgspec.to_builtins(summary(run))), class_="numbers")


def flat(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of nested data with their path: ``("figures.mfu", "0.3")``."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from flat(each, f"{name}.{key}" if name else str(key))
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from flat(each, f"{name}[{number}]")
    else:
        yield name, "not known" if value is None else str(value)
