"""What a formula gives: FLOPs under both conventions, bytes, and the dtype of the operands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mfu_torch.insight.breakdown.calls import OpCall, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What one call of an op computes.

    Attributes:
        family: ``gemm``, ``conv``, ``attention`` or ``rnn``.
        flops: With every attention score counted (convention ``full``); a multiply-add is 2.
        causal_flops: Only with the scores that the mask keeps.
        kernel_recompute: What a fused kernel computes once more, beside ``flops``: the scores in
            an attention backward.
        kernel_recompute_causal: The same under the convention ``causal``.
        bytes: Of all operands and results, each once; ``None`` where a type is not known.
        dtype: Of the operands; ``None`` where it has no peak.
        note: What the figures leave open; empty where nothing.
    """

    family: str
    flops: int
    causal_flops: int
    kernel_recompute: int = 0
    kernel_recompute_causal: int = 0
    bytes: int | None = None
    dtype: str | None = None
    note: str = ""

    @property
    def executed(self) -> int:
        """What the hardware does: ``flops`` and what the kernel repeats."""
        return self.flops + self.kernel_recompute


@dataclass(frozen=True, slots=True)
class Context:
    """What else of a trace a formula may need.

    Attributes:
        parent: The op around it, for ops whose own record lacks a shape.
        conv_outputs: (x, weight) -> shape of the output that a convolution's backward in the same
            trace shows; for traces without strides and padding.
    """

    parent: OpCall | None = None
    conv_outputs: dict[tuple[Shape, Shape], Shape] = field(default_factory=dict)


Formula = Callable[[OpCall, Context], Work]
"""Raises NotRecordedError where the trace lacks what it needs."""


def added(*parts: int | None) -> int | None:
    """Sum of sizes in bytes; ``None`` if one is not known."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def times(count: int, size: int | None) -> int | None:
    """``count`` elements of ``size`` bytes; ``None`` if the size is not known."""
    return None if size is None else count * size
