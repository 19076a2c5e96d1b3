"""FLOPs and bytes of the ops of a trace, from the shapes that it records of them.

Ops nest: ``aten::linear`` calls ``aten::addmm``, both are recorded, one of them may count. Where a
kernel is known, it is the innermost op around its launch that has a formula and the shapes for it;
without kernels (a trace of a CPU) the innermost such op of each call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, Shape, call_of
from mfu_torch.insight.breakdown.formulas import FORMULAS
from mfu_torch.insight.breakdown.formulas.work import Context, Work
from mfu_torch.insight.trace.events import Trace

NO_OP = "no op is recorded around the launch"
NO_FORMULA = "the op is none whose FLOPs follow from shapes (a custom or fused op)"

_CONV_BACKWARDS = ("aten::cudnn_convolution_backward", "aten::convolution_backward")

DEEPEST = 256
"""Ops around one that are looked at. Real ones nest less; a damaged trace may nest in a circle."""


def shapes_text(dims: bytes) -> str:
    """The recorded shapes of an op as one line without blanks; some writers indent them."""
    return "".join(dims.decode("utf-8", "replace").split())


class OpWork:
    """The work of each op of a trace; equal calls are computed once.

    Args:
        trace: Whose ops are asked for.
    """

    def __init__(self, trace: Trace) -> None:
        self._ops = trace.ops
        self._names = trace.names
        self._name, self._parent = trace.ops.name.tolist(), trace.ops.parent.tolist()
        self._counted: dict[int, int] = {}
        self._known: dict[tuple[int | bytes, ...], Work | str] = {}
        self._outputs: dict[tuple[Shape, Shape], Shape] | None = None
        self._has_formula = {i for i, name in enumerate(trace.names) if name in FORMULAS}
        # The filters of these are in their parent's record.
        self._needs_parent = {i for i in self._has_formula if "_backward_" in trace.names[i]}

    def name(self, op: int) -> str:
        """Of an op."""
        return str(self._names[self._name[op]])

    def of(self, op: int) -> Work | None:
        """Work of one op by its own record; ``None`` where it does not follow from that."""
        found = self._find(op)
        return found if isinstance(found, Work) else None

    def why_not(self, op: int) -> str:
        """Why the FLOPs of a kernel of this op are not known, as a phrase."""
        if op < 0:
            return NO_OP
        for around in self.around(op):
            found = self._find(around)
            if isinstance(found, str) and found != NO_FORMULA:
                return found
        return NO_FORMULA

    def around(self, op: int) -> Iterable[int]:
        """The op and those that enclose it, from the inside out; at most :data:`DEEPEST`."""
        for _ in range(DEEPEST):
            if op < 0:
                break
            yield op
            op = self._parent[op]

    def counted_op(self, op: int) -> int:
        """The innermost op, itself or around it, whose work is known; -1: none."""
        passed, found = [], -1
        for one in self.around(op):
            if one in self._counted:
                found = self._counted[one]
                break
            if self.of(one) is not None:
                found = one
                break
            passed.append(one)
        self._counted.update(dict.fromkeys([op, *passed], found))
        return found

    def counted_ops(self, ops: Iterable[int]) -> list[int]:
        """These ops without those that enclose another one of them: nothing counts twice."""
        found, parent = set(ops), self._parent
        enclosing: set[int] = set()
        for op in found:
            around = parent[op]
            while around >= 0 and around not in enclosing:  # also where a trace nests in a circle
                enclosing.add(around)
                around = parent[around]
        return sorted(found - enclosing)

    def leaves(self) -> list[int]:
        """The innermost known op of each call, for traces without kernels."""
        with_formula = np.isin(self._ops.name, list(self._has_formula))
        known = {self.counted_op(int(op)) for op in np.flatnonzero(with_formula)}
        return self.counted_ops(known - {-1})

    def call(self, op: int) -> OpCall:
        """The recorded arguments of one op.

        Raises:
            NotRecordedError: If they are not there or cannot be read.
        """
        return call_of(self._names[self._name[op]], *self._texts(op))

    def _texts(self, op: int) -> tuple[bytes, bytes, bytes]:
        return self._ops.dims[op], self._ops.types[op], self._ops.concrete[op]

    def _find(self, op: int) -> Work | str:
        name = self._name[op]
        if name not in self._has_formula:
            return NO_FORMULA
        parent = self._parent[op] if name in self._needs_parent else -1
        key: tuple[int | bytes, ...] = (name, *self._texts(op))
        if parent >= 0:
            key += (self._name[parent], *self._texts(parent))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compute(op, parent)
        return found

    def _compute(self, op: int, parent: int) -> Work | str:
        try:
            call = self.call(op)
            context = Context(
                parent=None if parent < 0 else self.call(parent),
                conv_outputs={} if call.concrete else self._conv_outputs(),
            )
            return _of_complex(call, FORMULAS[call.name](call, context))
        except NotRecordedError as error:
            return str(error)

    def _conv_outputs(self) -> dict[tuple[Shape, Shape], Shape]:
        if self._outputs is None:
            self._outputs = self._find_conv_outputs()
        return self._outputs

    def _find_conv_outputs(self) -> dict[tuple[Shape, Shape], Shape]:
        # The backward's record names x, the filters and the gradient, which has the output's
        # shape. The old op is (x, grad, weight), the new one (grad, x, weight).
        found: dict[tuple[Shape, Shape], set[Shape]] = {}
        for name in _CONV_BACKWARDS:
            texts = self._distinct(name)
            for dims, types in texts:
                try:
                    call = call_of(name, dims, types, b"")
                    first, second, weight = (call.shape(i) for i in range(3))
                except NotRecordedError:
                    continue
                x, grad = (first, second) if "cudnn" in name else (second, first)
                found.setdefault((x, weight), set()).add(grad)
        return {key: outputs.pop() for key, outputs in found.items() if len(outputs) == 1}

    def _distinct(self, name: str) -> set[tuple[bytes, bytes]]:
        if name not in self._names:
            return set()
        ops = np.flatnonzero(self._ops.name == self._names.index(name))
        return {(self._ops.dims[op], self._ops.types[op]) for op in ops}


def _of_complex(call: OpCall, work: Work) -> Work:
    # (a + bi)(c + di) is four products of real numbers
    if not any(name.startswith("c10::complex") for name in call.types):
        return work
    return replace(
        work,
        flops=4 * work.flops,
        causal_flops=4 * work.causal_flops,
        kernel_recompute=4 * work.kernel_recompute,
        kernel_recompute_causal=4 * work.kernel_recompute_causal,
    )
