"""Which call launched a piece of work, and for which op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from mfu_torch.insight.trace.events import Ints


def launching_calls(correlation: Ints, calls: dict[str, Ints]) -> Ints:
    """For each piece of work the call of its correlation, the first if there are several.

    All kernels of a CUDA graph have the correlation of the one call that launched it; -1 where
    the call is not in the trace: it was made before the trace began.
    """
    candidates = np.flatnonzero(calls["correlation"] > 0)
    order = np.lexsort((calls["start"][candidates], calls["correlation"][candidates]))
    return _looked_up(correlation, calls["correlation"], candidates[order])


def ops_by_number(external: Ints, ops: dict[str, Ints]) -> Ints:
    """For each piece of work the op whose number it carries; -1 without."""
    candidates = np.flatnonzero(ops["external"] > 0)
    order = np.argsort(ops["external"][candidates], kind="stable")
    return _looked_up(external, ops["external"], candidates[order])


def _looked_up(keys: Ints, of: Ints, candidates: Ints) -> Ints:
    """For each key > 0 the first candidate that has it; candidates are sorted by it."""
    if not len(candidates):
        return np.full(len(keys), -1, np.int64)
    have = of[candidates]
    place = np.minimum(np.searchsorted(have, keys), len(have) - 1)
    return np.where((keys > 0) & (have[place] == keys), candidates[place], -1)
