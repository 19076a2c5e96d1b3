"""What the calculator answers: every term of the equation, and what follows from them."""

from __future__ import annotations

from typing import Literal

from mfu_torch.calculator.slips import Slip
from mfu_torch.calculator.work import Unit, Work
from mfu_torch.records import Peak, Record

Asked = Literal["share", "rate", "devices", "peak", "nothing"]


class Budget(Record, frozen=True, kw_only=True):
    """What a number of tokens takes.

    Attributes:
        tokens: How many.
        model_flops: For all of them; ``None`` where the convention counts hardware FLOPs.
        time_s: On all devices.
        device_hours: Of all devices together.
        cost: In the currency of the price; ``None`` without one.
    """

    tokens: float
    model_flops: float | None
    time_s: float
    device_hours: float
    cost: float | None


class Answer(Record, frozen=True, kw_only=True):
    """All terms of the equation, and what follows from them. SI units; shares are fractions.

    Attributes:
        solved_for: Which term was not given; ``nothing`` where all were, and agree.
        work: What one unit of throughput costs.
        mfu: Of this throughput on these devices; ``None`` where the convention counts hardware
            FLOPs.
        hfu: ``None`` where nothing says what is computed again.
        devices: How many; where they are solved for, the next whole number.
        devices_known: Whether their number was given or found; else all totals are those of one.
        devices_exact: What the equation gives, where they are solved for.
        share_asked: The MFU or HFU that they were solved for; ``mfu`` is that of the next whole
            number, which needs less.
        units_per_s_at_asked: What so many reach at ``share_asked``.
        peak: Of one device; provenance ``derived`` where it is solved for.
        cluster_peak_flops_per_s: Of all devices.
        units_per_s: Throughput in units of ``work``.
        flops_per_s: Throughput of all devices in FLOPs of the convention.
        flops_per_s_per_device: Of each.
        step_s: ``None`` where nothing says what a step is; so the next three.
        tokens_per_s: Of all devices.
        tokens_per_s_per_device: Of each.
        samples_per_s: Of all devices.
        per: What the next two are for a million of: tokens or, where their number is not known,
            samples, steps or FLOPs.
        device_hours_per_million: Of all devices together.
        cost_per_million: The same in money; ``None`` without a price.
        budget: ``None`` where none was asked for.
        possible: Whether no share is above 1.
        slips: What may have been meant, where a share is impossible or next to nothing.
        assumptions: What was not given and is presumed, as sentences.
        notes: What else has to be said.
    """

    solved_for: Asked
    work: Work
    mfu: float | None
    hfu: float | None
    devices: int
    devices_known: bool
    devices_exact: float | None
    share_asked: float | None
    units_per_s_at_asked: float | None
    peak: Peak
    cluster_peak_flops_per_s: float
    units_per_s: float
    flops_per_s: float
    flops_per_s_per_device: float
    step_s: float | None
    tokens_per_s: float | None
    tokens_per_s_per_device: float | None
    samples_per_s: float | None
    per: Unit
    device_hours_per_million: float
    cost_per_million: float | None
    budget: Budget | None
    possible: bool
    slips: tuple[Slip, ...]
    assumptions: tuple[str, ...]
    notes: tuple[str, ...]
