"""Numbers of events, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mfu_torch.insight.trace.values import first_number

if TYPE_CHECKING:
    from mfu_torch.insight.trace.decode import Args
    from mfu_torch.insight.trace.events import Ints


def ints(values: Ints | list[int]) -> Ints:
    """As a column."""
    return np.fromiter(values, np.int64, len(values)) if isinstance(values, list) else values


def ids(values: list[int | None]) -> Ints:
    """The numbers; -1 for ``null``."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except TypeError:
        return ints([-1 if value is None else value for value in values])


def external(args: list[Args], correlation: Ints | None = None) -> Ints:
    """Number of the op that an event is or belongs to; -1 where it only repeats a correlation."""
    number = ids([a.external for a in args])
    missing = np.flatnonzero(number == -1)
    if correlation is not None:
        number[number == correlation] = -1
    if len(missing):
        number[missing] = ids([args[i].external_old for i in missing.tolist()])
    return number


def leading_numbers(values: list[int | str | None]) -> Ints:
    """Of a text, the first number in it."""
    if set(map(type, values)) <= {int}:
        return np.fromiter(values, np.int64, len(values))
    return ints([first_number(value) for value in values])
