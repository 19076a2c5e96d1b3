"""Names that people give, where they become names of curves: few characters, and none twice."""

from __future__ import annotations

import re
from collections.abc import Iterable

PAUSE = "pause "
"""Before the name of a pause among the shares of the wall time, where that name is taken."""

FURTHER_PAUSES = "further pauses"
"""Among them, all pauses whose names came after so many others that they have no share each."""

_LIMIT = 1000  # names that are remembered: a name can have the number of a step in it


def as_tag(name: str) -> str:
    """What is left of a name in a tag: ``"below peak"`` is ``below_peak``.

    A slash groups curves wherever runs are compared, and TensorBoard allows few other characters.
    """
    return re.sub(r"[^-.0-9A-Za-z_]", "_", name)


class Names:
    """Keeps names apart that would be one tag: the one that comes first keeps its own.

    ``"a b"`` stays, and an ``"a_b"`` that comes later is shown as ``"a_b 2"``, or with a prefix
    ``"pause "`` as ``"pause a_b"``. A name is shown in the same way for ever, unless there are very
    many.

    Args:
        reserved: Names that nobody gets.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._shown: dict[tuple[str, str], str] = {}
        self._tags = {as_tag(name) for name in reserved}

    def of(self, name: str, prefix: str = "") -> str:
        """How a name is shown.

        Args:
            name: Any text.
            prefix: Put before a name that is taken, as often as needed; by default a number
                follows it. The same name with another prefix is another name.
        """
        shown = self._shown.get((prefix, name))
        if shown is None:
            shown, number = name, 1
            while as_tag(shown) in self._tags:
                number += 1
                shown = f"{prefix}{shown}" if prefix else f"{name} {number}"
            if len(self._shown) < _LIMIT:
                self._tags.add(as_tag(shown))
                self._shown[prefix, name] = shown
        return shown
