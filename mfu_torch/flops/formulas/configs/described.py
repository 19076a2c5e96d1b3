"""A model that somebody described by its sizes, and what has to be said about the description."""

from __future__ import annotations

from typing import Any, Literal

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.decoder import Parameters
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.flops.formulas.terms import ClosedForm
from mfu_torch.records import Record
from mfu_torch.units import count_text


class ModelError(ValueError):
    """A model is not known, or its sizes make none; the message says what was seen and expected."""


class Described(Record, frozen=True, kw_only=True):
    """An architecture with its name and where its sizes stand; itself an architecture, too.

    Attributes:
        name: Of the model, or the file.
        model: What has its FLOPs and parameters.
        seq: Tokens of a sequence in training, where the source states them; never the most
            positions that it has.
        max_seq: The most tokens of a sequence: learned positions, or those that the config states.
            ``None``: not known, or there is no such limit.
        source: Where the sizes are from.
        notes: What was left out or assumed, a sentence each.
        stated_parameters: N as the source prints it, which may be rounded.
    """

    name: str
    model: Architecture
    seq: int | None
    max_seq: int | None = None
    source: str
    notes: tuple[str, ...] = ()
    stated_parameters: float | None = None

    @property
    def per(self) -> Literal["token", "sample"]:
        """What its throughput is counted in."""
        return self.model.per

    @property
    def parameters(self) -> Parameters:
        """How many it has."""
        return self.model.parameters

    def flops(
        self,
        batch: int = 1,
        seq: int | None = None,
        *,
        attention: PairRule = "full",
        **more: Any,
    ) -> ClosedForm:
        """Its FLOPs for a batch.

        Args:
            batch: Sequences or samples.
            seq: Tokens of a sequence.
            attention: Which scores count.
            **more: What its kind of model takes beside these: ``lengths``; ``source`` of an encoder
                with a decoder.

        Raises:
            ValueError: If the sizes are no whole numbers above 0.
            TypeError: If its kind of model does not take what is given.
        """
        return self.model.flops(batch, seq, attention=attention, **more)

    def beyond(self, seq: int) -> str | None:
        """What has to be said of sequences of ``seq`` tokens: nothing where they fit.

        ``model_of("bert-base").beyond(4096)`` is ``"4096 tokens are beyond the 512 positions of
        bert-base"``.
        """
        if self.max_seq is None or seq <= self.max_seq:
            return None
        return f"{seq} tokens are beyond the {self.max_seq} positions of {self.name}"

    def __str__(self) -> str:
        numbers = self.parameters
        size = f"{count_text(numbers.total)} parameters"
        if numbers.active != numbers.total:
            size += f", {count_text(numbers.active)} active"
        lines = [f"{self.name}: {type(self.model).__name__}, {size}"]
        if self.seq is not None:
            lines.append(f"trained with {self.seq} tokens a sequence")
        if self.max_seq is not None:
            lines.append(f"at most {self.max_seq} positions")
        return "\n  ".join([*lines, f"source: {self.source}", *self.notes])


def undescribed(model: Architecture) -> Architecture:
    """The architecture itself, of one that is described."""
    while isinstance(model, Described):
        model = model.model
    return model
