"""What a trace says of collectives: on their kernels, or on the op that called them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mfu_torch.insight.trace.climbing import topmost
from mfu_torch.insight.trace.decode import plain
from mfu_torch.insight.trace.events import KERNEL
from mfu_torch.insight.trace.names import COLLECTIVE, matching
from mfu_torch.insight.trace.values import (
    element_bytes,
    group_name,
    known_words,
    listed_ranks,
    whole,
)

if TYPE_CHECKING:
    from mfu_torch.insight.trace.events import Ints


FACTS = (
    *("collective", "group", "group_id", "group_text", "group_size", "dtype"),
    *("elements_in", "elements_out", "sequence", "source", "destination", "group_ranks"),
)
"""Arguments of an event that are kept, in order."""


def collectives(
    work: dict[str, Ints],
    op: Ints,
    ops: dict[str, Ints],
    parent: Ints,
    names: list[str],
    facts: list[tuple[Any, ...]],
) -> dict[int, dict[str, Any]]:
    """Facts of each kernel of a collective that has any, by its index.

    ``collective``, ``group``, ``group_text`` (``mesh_tp``), ``group_size``, ``ranks``, ``dtype``,
    ``bytes`` (of what the rank gives or what it gets, whichever is more), ``seq`` (its number in
    the group), ``src`` and ``dst``.
    """
    if not facts:
        return {}
    fact = _of_ops(work, op, ops["fact"], parent, names)
    fact = np.where(work["fact"] >= 0, work["fact"], fact)
    known = {number: _described(facts[number]) for number in set(fact[fact >= 0].tolist())}
    kernels = np.flatnonzero((fact >= 0) & (work["kind"] == KERNEL)).tolist()
    return {kernel: known[int(fact[kernel])] for kernel in kernels}


def _of_ops(work: dict[str, Ints], op: Ints, fact: Ints, parent: Ints, names: list[str]) -> Ints:
    """The facts of the innermost op around the launch that has any, for kernels by name."""
    found = np.full(len(op), -1, np.int64)
    kernels = np.flatnonzero((op >= 0) & (work["kind"] == KERNEL))
    kernels = kernels[matching(COLLECTIVE, names, work["name"][kernels])]
    if len(kernels):
        found[kernels] = fact[topmost(fact < 0, parent)[op[kernels]]]
    return found


def _described(fact: tuple[Any, ...]) -> dict[str, Any]:
    told = dict(zip(FACTS, fact, strict=True))
    size = element_bytes(told["dtype"])
    elements = max(whole(told["elements_in"]) or 0, whole(told["elements_out"]) or 0)
    found = {
        "collective": known_words(told["collective"]),
        "group": group_name(told["group_id"] if told["group"] is None else told["group"]),
        "group_text": known_words(told["group_text"]),
        "group_size": whole(told["group_size"], 1),
        "dtype": told["dtype"] if size is not None else None,
        "bytes": elements * size if size is not None and elements else None,
        "seq": whole(told["sequence"]),
        "src": whole(told["source"]),
        "dst": whole(told["destination"]),
        "ranks": listed_ranks(plain(told["group_ranks"])),
    }
    return {key: value for key, value in found.items() if value is not None}
