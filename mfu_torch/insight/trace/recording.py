"""How a trace was recorded, and whether it holds what was recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mfu_torch.insight.trace.decode import plain

if TYPE_CHECKING:
    from mfu_torch.insight.trace.decode import Head
    from mfu_torch.insight.trace.events import Ints

STACKS, MEMORY = "with_stack", "profile_memory"
PYTHON = frozenset({"python_function", "Python function"})
"""Categories of the calls of Python that ``with_stack=True`` records."""

_FEW = 0.1
_UNBROKEN = 0.8
_ENOUGH = 100  # ops: of fewer, numbers say little


def recorded_with(heads: list[Head], python_calls: int) -> tuple[str, ...]:
    """The options of the profiler that slow the host, by what stands beside the events.

    Args:
        heads: They say it in traces of torch 2.1 and later.
        python_calls: Events of Python, which are there with stacks alone.
    """
    stacks = bool(python_calls) or any(plain(head.with_stack) for head in heads)
    memory = any(plain(head.profile_memory) for head in heads)
    return (STACKS,) * stacks + (MEMORY,) * memory


def kept_share(heads: list[Head], ops: dict[str, Ints]) -> float | None:
    """The share of the recorded ops that are in the file, where it was thinned out; else ``None``.

    The profiler numbers the ops one after another, in newer versions in a range for each thread.
    So numbers are missing where threads have a range each, but not between the ops of one thread.
    Of 2,329 ops whose numbers span 170,156 and have holes in every thread, 1.4 % are there. A clean
    copy has other numbers, and says the share itself.
    """
    for said in (plain(head.kept_ops) for head in heads):
        if isinstance(said, float) and 0 < said < 1:
            return said
    number, thread = ops["external"], ops["thread"]
    known = number > 0
    number, thread = number[known], thread[known]
    if len(number) < _ENOUGH:
        return None
    span = int(number.max()) - int(number.min()) + 1
    if len(number) >= _FEW * span:
        return None
    busiest = np.unique(number[thread == np.bincount(thread).argmax()])
    if np.mean(np.diff(busiest) <= 2) >= _UNBROKEN:  # an annotation has a number, too
        return None
    return float(len(np.unique(number)) / span)
