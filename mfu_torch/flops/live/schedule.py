"""When steps are counted though it was not their turn: checks, and kinds that are still unknown."""

from __future__ import annotations

from collections.abc import Iterator

CHECKS = (9, 10, 37, 99, 100, 499, 999, 1000, 5003, 9999, 10_000, 49_999, 99_999, 100_000)
"""Steps that are counted again, to see whether equal shapes still mean equal work: some that are
the last of ten, hundred or thousand, some that are the first, and some that are neither."""

EARLY_CHECK = 2
"""The same, where no model shows its calls: what is done on the first step only is found out."""

ALERT_STEPS = 8
"""After a step of a kind that could not be counted, so many are as they come; then ever fewer."""


def check_steps(first: int = 0, *, calls_seen: bool) -> Iterator[int]:
    """The steps that are counted again; more of them where no forward call can be seen.

    Args:
        first: Index of the first step.
        calls_seen: Whether forward calls can be seen.
    """
    return (first + n for n in (CHECKS if calls_seen else (EARLY_CHECK, *CHECKS)))


def is_alert(since: int, *, costly: bool) -> bool:
    """Whether to count the next step, so many after a kind came up that could not be counted.

    Args:
        since: Steps since then.
        costly: A counted step runs eagerly, in place of compiled.
    """
    return since < (2 if costly else ALERT_STEPS) or since & (since - 1) == 0
