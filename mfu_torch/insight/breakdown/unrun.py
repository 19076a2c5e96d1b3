"""Ops of a CPU's trace that are recorded although they did not run.

Checkpointing leaves such records. On an accelerator they launch no kernel; on a CPU only what is
recorded inside them tells:

- Selective checkpointing answers an op from its cache: inside is the dispatch to the cache, and no
  op that computes.
- Recomputing stops in the op that saves the last tensor: inside are the tensors that were saved
  (``detach``) and nothing of what other calls of the op hold.
"""

from __future__ import annotations

import numpy as np

from mfu_torch.insight.trace.events import Ints, Ops, Trace

_DISPATCH = "PythonDispatchMode"
_SAVED = "aten::detach"


def did_not_run(trace: Trace, counted: Ints) -> np.ndarray:
    """Whether each of some ops, innermost ones whose FLOPs are known, only left a record.

    Args:
        trace: Of a CPU alone.
        counted: Indices into ``trace.ops``, ascending.
    """
    ops = trace.ops
    inside = np.flatnonzero(np.isin(ops.parent, counted))
    of = np.searchsorted(counted, ops.parent[inside])
    answered = _any(of[_called(trace, inside, _DISPATCH)], len(counted))
    saved = _called(trace, inside, _SAVED)
    saves, computes = _any(of[saved], len(counted)), _any(of[~saved], len(counted))
    known = {_call(ops, op) for op in counted[computes & ~answered].tolist()}
    stopped = saves & ~computes
    stopped[stopped] = [_call(ops, op) in known for op in counted[stopped].tolist()]
    found: np.ndarray = answered | stopped
    return found


def _called(trace: Trace, ops: Ints, name: str) -> np.ndarray:
    number = trace.names.index(name) if name in trace.names else -1
    called: np.ndarray = trace.ops.name[ops] == number
    return called


def _any(index: Ints, count: int) -> np.ndarray:
    return np.bincount(index, minlength=count) > 0


def _call(ops: Ops, op: int) -> tuple[int, bytes]:
    """What is called, over which shapes."""
    return int(ops.name[op]), ops.dims[op]
