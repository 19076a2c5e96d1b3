"""Which modules' calls are watched in a fit, and whether micro-batches are announced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

from mfu_torch.flops.calls import compiled_call
from mfu_torch.flops.dynamo import is_compiled


class Watched(NamedTuple):
    """What a meter is to look at.

    Attributes:
        models: Given to the meter.
        announced: Each batch is announced to it, and the calls of the models are no matter.
    """

    models: list[nn.Module]
    announced: bool


def what_to_watch(module: nn.Module, *, same_work: bool) -> Watched:
    """How the steps of a ``LightningModule`` are told apart.

    Args:
        module: The module, as it is trained.
        same_work: Whether batches of equal shape bring equal work. With several optimizers they
            need not: a generator that is trained on every fifth batch.
    """
    if compiled_call(module) is not None:  # module.compile(): a copy would be one of the Trainer
        return Watched([module], announced=True)
    if same_work and not is_compiled(module):
        return Watched([module], announced=True)
    parts = list(_parts(module))
    return Watched(parts, announced=False) if parts else Watched([module], announced=True)


def _parts(module: nn.Module) -> Iterator[nn.Module]:
    """What ``training_step`` calls: children that have parameters, those in containers too."""
    for child in module.children():
        if isinstance(child, (nn.ModuleList, nn.ModuleDict)):
            yield from _parts(child)
        elif next(child.parameters(), None) is not None:
            yield child
