"""A model that somebody described by its sizes, and what has to be said about the description."""

from __future__ import annotations

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.records import Record


class ModelError(ValueError):
    """A model is not known, or its sizes make none; the message says what was seen and expected."""


class Described(Record, frozen=True, kw_only=True):
    """An architecture with its name and where its sizes stand.

    Attributes:
        name: Of the model, or the file.
        model: What has its FLOPs and parameters.
        seq: Tokens of a sequence in training, where the source states them; never the most
            positions that it has.
        source: Where the sizes are from.
        notes: What was left out or assumed, a sentence each.
        stated_parameters: N as the source prints it, which may be rounded.
    """

    name: str
    model: Architecture
    seq: int | None
    source: str
    notes: tuple[str, ...] = ()
    stated_parameters: float | None = None
