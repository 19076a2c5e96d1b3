"""What a meter was given, checked; it is all that a copy of the meter has of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from mfu_torch.clock.clocks import Clock
from mfu_torch.peak.resolve import Given, check_given
from mfu_torch.records import Attention, Device, FlopCount
from mfu_torch.resume import State, check_state
from mfu_torch.run.sinks import Sink
from mfu_torch.session import check_arguments, check_sinks, given_count, models_of


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of a meter, as it uses them. Their meaning stands at the meter.

    Attributes:
        models: Those given, as a tuple.
        state: ``resume``, read.
    """

    models: tuple[nn.Module, ...]
    log_dir: str | os.PathLike[str] | None
    log_every: int
    peak: Given | None
    attention: Attention
    flops: FlopCount | None
    sinks: Sequence[Sink] | None
    device: torch.device | str | Device | None
    clock: Clock | None
    sync: bool
    group: Any
    telemetry: bool
    resume: Mapping[str, Any] | None
    explain_every: int | None
    state: State | None

    @classmethod
    def checked(cls, *, model: object, flops: Any, **given: Any) -> Settings:
        """The arguments of :class:`~mfu_torch.Meter`, each of them.

        Raises:
            TypeError, ValueError: If one cannot be understood; the message says which.
        """
        models = models_of(model)
        names = ("attention", "log_every", "log_dir", "device", "explain_every")
        check_arguments(*(given[name] for name in names))
        check_given(given["peak"])
        check_sinks(given["sinks"])
        given["log_every"] = int(given["log_every"])
        return cls(
            models=models, flops=given_count(flops), state=check_state(given["resume"]), **given
        )

    def arguments(self) -> dict[str, Any]:
        """What an equal meter is made from."""
        given = dict(vars(self))
        del given["state"]
        return {"model": given.pop("models"), **given}
