"""Whether the forward of what the backward multiplies was seen.

Autograd numbers its nodes, on each thread from 0, and makes the node of an op just before the op
runs. So a product that is seen knows the number of its node; and a product in the backward, whose
node runs, knows whether that node's forward was seen. ::

    forward     y = x @ w        node 7 is made, then the product runs     7 was seen
    backward    dx, dw           node 7 runs                               fine
                dx, dw           node 3 runs                               its forward is missing
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from mfu_torch.flops.frames import InEngine
from mfu_torch.records import Phase

UNSEEN = (
    "products ran in the backward whose forward was not seen, so the FLOPs are too low: it ran in "
    "another thread (DataParallel's replicas do), before the count began or where it cannot be seen"
)
HOOKED = (
    "a hook or a special function multiplies inside the backward: it is counted as a part of it"
)

_FORWARD, _BACKWARD = 0, 1
_SIDE: dict[Phase, int] = {
    "forward": _FORWARD,
    "forward_no_grad": _FORWARD,
    "backward": _BACKWARD,
}
_NO_NUMBER = 2**63
"""Of a node that accumulates a gradient, and greater: no op has made it."""

# Bound once: they are called at every contraction.
_next_number = torch._C._autograd._get_sequence_nr
_current_node = torch._C._current_autograd_node


class Balance:
    """The contractions of forward and backward since a count began.

    Over the whole count, not over what is taken from it: a forward can have been taken before its
    backward runs.
    """

    def __init__(self) -> None:
        self._numbers: set[int] = set()  # of the nodes whose forward was seen
        self._unseen: dict[str, None] = {}  # what to say of products in the backward
        self._functions: dict[str, list[int]] = {}  # FLOPs of autograd.Functions by name
        self._unseen_functions: dict[str, None] = {}

    def saw(self) -> None:
        """An op ran that may contract, whatever it counts."""
        self._numbers.add(_next_number() - 1)

    def add(self, phase: Phase, within: InEngine, flops: int) -> None:
        """Add a call.

        Args:
            phase: Of the call.
            within: What it ran in, inside the engine; outside, which ``autograd.Function``.
            flops: Of the call.
        """
        side = _SIDE.get(phase)
        if side is None:
            return
        name = within.function
        if name:
            self._functions.setdefault(name, [0, 0])[side] += flops
        if side != _BACKWARD:
            return
        if within.foreign and not name:
            self._unseen[HOOKED] = None  # it runs in some node, and multiplies whatever it likes
        elif not self._was_seen():
            if not name:
                self._unseen[UNSEEN] = None
            elif not self._functions[name][_FORWARD]:
                self._unseen_functions[name] = None

    def doubts(self, transformed: bool) -> Iterator[str]:
        """What cannot be right as it stands, as sentences.

        Args:
            transformed: A transform of torch.func made nodes, one at each of its levels: their
                numbers tell nothing.
        """
        for name, (forward, backward) in self._functions.items():
            excess = backward - 2 * forward
            if forward and excess > 0:
                yield (
                    f"at least {excess / backward:.0%} of the backward of the autograd.Function "
                    f"{name} recomputes its forward, and is counted as backward"
                )
        if not transformed:
            yield from self._unseen
            for name in self._unseen_functions:
                yield (
                    f"the autograd.Function {name} multiplies in its backward and was not seen to "
                    "in its forward: what that multiplied in a kernel of its own, in another "
                    "thread or before the count began is not counted"
                )

    def _was_seen(self) -> bool:
        node = _current_node()
        if node is None:
            return True
        number = node._sequence_nr()
        return number in self._numbers or number >= _NO_NUMBER or _is_compound(node.name())


def _is_compound(name: str) -> bool:
    # Nodes that stand for others: of a write to a view, of a scripted graph.
    return "CopySlices" in name or name.startswith("torch::jit")
