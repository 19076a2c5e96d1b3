"""Reading a run or a trace afterwards; never imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mfu_torch.insight.breakdown.explain import explain

__all__ = ["explain"]


def __getattr__(name: str) -> Any:
    # Lazily: reports of runs need neither numpy nor the reader of traces.
    if name != "explain":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mfu_torch.insight.breakdown.explain import explain

    return explain
