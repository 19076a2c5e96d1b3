"""Lines of a report: labels, wrapped text, words for shares and numbers."""

from __future__ import annotations

import textwrap

from mfu_torch.units import percent

COLUMNS = 100
LABEL = 14
"""Columns of the labels on the left."""
_ROOM = 30
"""Columns that are left for a text beside what it begins with."""


def share_text(share: float | None) -> str:
    """``0.412`` -> ``"41.2 %"``; ``"-"`` where it is not known."""
    return "-" if share is None else percent(share)


def plural(number: int, noun: str) -> str:
    """``3``, ``"step"`` -> ``"3 steps"``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def field(label: str, text: str, width: int = LABEL) -> str:
    """A label and its text, continued under the text."""
    return "\n".join(wrap(text, f"{label:<{width - 1}} ", " " * width))


def wrap(text: str, first: str = "", rest: str = "  ") -> list[str]:
    """Text in lines of at most :data:`COLUMNS` columns; what it begins with on its own if long."""
    if len(first) > COLUMNS - _ROOM:  # without room for a character textwrap may never end
        begin = first[: len(first) - len(first.lstrip())][: COLUMNS - _ROOM]
        return [
            *wrap(first.strip(), begin, f"{begin}  "[: COLUMNS - _ROOM]),
            *wrap(text, rest, rest),
        ]
    return textwrap.wrap(
        text, COLUMNS, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False
    )
