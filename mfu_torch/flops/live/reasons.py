"""Why a step is not a steady one, or has no count, in the words that the report uses."""

from __future__ import annotations

from torch import nn

COUNTING = "FLOPs were being counted"
COMPILING = "torch.compile was compiling"
UNKNOWN = "FLOPs were not known yet"
NOT_CALLED = (
    "the model given to Meter was not called in this step: all that ran in it was counted (is it "
    "the module that the loop calls?)"
)
ELSEWHERE = (
    "a model given to Meter was called on another thread, where its work cannot be seen: call it "
    "on the thread that enters the step, or give flops="
)
ANNOUNCED_ELSEWHERE = (
    "micro_batch() was called on another thread than the step was entered on, where the work "
    "cannot be seen: do both on one thread, or give flops="
)
REPLICAS = (
    "DataParallel runs its replicas on threads of their own, where their work cannot be seen: use "
    "DistributedDataParallel, or give flops="
)

MODEL_NOT_CALLED = "the model given to Meter was not called in a step; the next one is counted"
MET_COMPILED = "compiled code ran in a step; the next one is counted"
NOT_BESIDE_COMPILED = (
    "a step cannot be counted beside compiled code; the next one runs eagerly to be counted"
)
FROM_ITS_MIDDLE = (
    "a step of a kind that came up for the first time was not being counted when it began, and "
    "cannot be from its middle on; the next one is counted from its start"
)
COMPILED_UNSEEN = "compiled code runs in it, and Meter was given no model"
COMPILED_INSIDE = "compiled code runs in it, and how that is called is not seen"
COMPILED_LATER = (
    "the model was compiled after Meter was given it, which hides its inputs (give Meter the "
    "compiled model)"
)


def has_replicas(model: nn.Module) -> bool:
    """Whether a part of the model runs on several devices, on threads of their own."""
    return any(
        isinstance(module, nn.DataParallel) and len(module.device_ids) > 1
        for module in model.modules()
    )


def method(index: int, *, eager: str) -> str:
    """How the count of a step came about; ``eager`` says why it ran eagerly, if it did."""
    if eager:
        return f"counted on step {index}, which ran eagerly: {eager}"
    return f"counted on step {index} as it trained"


def unknown(*, compiled: bool, not_called: bool, eager: bool) -> str:
    """Why a step has no count so far.

    Args:
        compiled: Compiled code ran in it, for the first time.
        not_called: No model that is watched was called.
        eager: Steps have to run eagerly to be counted.
    """
    if compiled:
        return MET_COMPILED
    if not_called:
        return MODEL_NOT_CALLED
    return NOT_BESIDE_COMPILED if eager else FROM_ITS_MIDDLE
