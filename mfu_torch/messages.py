"""What an exception says, short enough for one line of a warning or a reason."""

from __future__ import annotations


def first_line(error: BaseException, length: int = 200) -> str:
    """The first line of its text, cut off; empty where it says nothing."""
    return (str(error).strip().splitlines() or [""])[0][:length]
