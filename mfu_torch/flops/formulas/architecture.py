"""What every architecture is: FLOPs and parameters, from its sizes."""

from __future__ import annotations

from typing import Literal, Protocol

from mfu_torch.flops.formulas.decoder import Parameters
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.flops.formulas.terms import ClosedForm


class Architecture(Protocol):
    """A model that is known by its sizes."""

    @property
    def per(self) -> Literal["token", "sample"]:
        """What its throughput is counted in."""
        ...

    @property
    def parameters(self) -> Parameters:
        """How many it has."""
        ...

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """Its FLOPs for a batch."""
        ...
