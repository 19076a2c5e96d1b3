"""Methods of other libraries that are wrapped while FLOPs are counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Method = Callable[..., Any]


class Patches:
    """Wrapped methods, and what undoes them."""

    def __init__(self) -> None:
        self._wrapped: list[tuple[type, str, Any, Any]] = []  # holder, method, before, ours

    def wrap(
        self, module: str, holder: str, method: str, wrapper: Callable[[Method], Method]
    ) -> None:
        """Put ``wrapper(method)`` in place of a class's method, if its module was imported.

        Wherever this is interrupted, :meth:`remove` undoes it.
        """
        owner = getattr(sys.modules.get(module), holder, None)
        before = vars(owner).get(method) if isinstance(owner, type) else None
        if isinstance(owner, type) and callable(before):
            ours = wrapper(before)
            self._wrapped.append((owner, method, before, ours))
            setattr(owner, method, ours)

    def remove(self) -> None:
        """Undo every wrap; safe to call twice."""
        for owner, method, before, ours in self._wrapped:
            # Another wrapper put on top of ours stays; ours then only passes calls on.
            if vars(owner).get(method) is ours:
                setattr(owner, method, before)
