"""What sources state about MFU, and what recomputing it found: the records."""

from __future__ import annotations

import math
from typing import Literal

from mfu_torch.flops.formulas import Role
from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.conventions import CONVENTIONS
from mfu_torch.records import Record

Status = Literal["agrees", "explained", "disagrees", "not checkable"]


class Figures(Record, frozen=True, kw_only=True):
    """What a source prints, or what its inputs give; ``None``: not printed, or not known.

    Attributes:
        mfu: As a fraction.
        hfu: As a fraction.
        flops_per_s: Of one device.
        flops_per_token: Of training.
        hardware_flops_per_token: With what is computed again.
        days: To train on :attr:`Claim.train_tokens`.
    """

    mfu: float | None = None
    hfu: float | None = None
    flops_per_s: float | None = None
    flops_per_token: float | None = None
    hardware_flops_per_token: float | None = None
    days: float | None = None


class Claim(Record, frozen=True, kw_only=True):
    """What a source states. Throughput is given in one of five ways, the first that is there.

    Attributes:
        id: A name for it.
        source: Where it stands.
        name: Of the model.
        device: As the source calls it.
        model: Its sizes; ``None`` where they are not stated.
        convention: Of MFU and FLOP/s, one of ``CONVENTIONS``; empty: not stated.
        hardware_convention: Of HFU; empty: not stated.
        flops_convention: Of FLOP/s, where it is not ``convention``: hardware FLOPs, mostly.
        without: Roles that the source leaves out of its products: ``("router",)``.
        parameters: N, where the source does not mean the model's own.
        seq: Tokens of a sequence.
        batch: Sequences of a step, of all devices.
        devices: How many.
        peak_flops_per_s: Of one.
        tokens_per_s: Of all devices; samples/s, of a model that is counted in samples.
        step_s: Seconds of a step, with ``batch`` (and ``seq``) or ``step_flops``.
        step_flops: FLOPs of a step of all devices.
        given_flops_per_s: Of one device, where the source states neither of these.
        given_step: To what that is rounded: 10e12, of "400 TFLOP/s" to the nearest 10.
        given_hfu: Where nothing but the ratio of HFU and MFU can be held.
        train_tokens: That ``days`` are for.
        stated: What is claimed.
        assumed: Inputs that the source does not print: ``("peak", "vocab")``.
        exception: Why it is known not to agree; empty where it should.
        note: On how it is recomputed.
    """

    id: str = ""
    source: str = ""
    name: str = ""
    device: str = ""
    model: Architecture | None = None
    convention: str = ""
    hardware_convention: str = ""
    flops_convention: str = ""
    without: tuple[Role, ...] = ()
    parameters: float | None = None
    seq: int | None = None
    batch: int | None = None
    devices: int = 1
    peak_flops_per_s: float | None = None
    tokens_per_s: float | None = None
    step_s: float | None = None
    step_flops: float | None = None
    given_flops_per_s: float | None = None
    given_step: float = 0.0
    given_hfu: float | None = None
    train_tokens: float | None = None
    stated: Figures = Figures()
    assumed: tuple[str, ...] = ()
    exception: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; expected a finite number above 0")
        if not (math.isfinite(self.given_step) and self.given_step >= 0):
            raise ValueError(f"given_step is {self.given_step}; expected a finite number, or 0")
        for name in Figures.__struct_fields__:
            value, top = getattr(self.stated, name), 1 if name in ("mfu", "hfu") else math.inf
            if value is not None and not 0 < value <= top:
                end = ", up to 1: 0.462 for 46.2 %" if top == 1 else ""
                raise ValueError(f"stated.{name} is {value}; expected a number above 0{end}")
        for name in ("convention", "hardware_convention", "flops_convention"):
            value = getattr(self, name)
            if value and value not in CONVENTIONS:
                raise ValueError(f"{name} is {value!r}; expected one of {', '.join(CONVENTIONS)}")


_POSITIVE = (
    *("devices", "seq", "batch", "parameters", "peak_flops_per_s", "tokens_per_s", "step_s"),
    *("step_flops", "given_flops_per_s", "given_hfu", "train_tokens"),
)


class Difference(Record, frozen=True, kw_only=True):
    """One figure, as printed and as recomputed.

    Attributes:
        figure: Name of the attribute of :class:`Figures`.
        stated: As printed.
        found: Recomputed.
        difference: Recomputed less printed, in ``unit``.
        unit: ``points`` of the peak, ``%`` where there is none, ``days``.
        tolerance: Within which both agree, in ``unit``.
    """

    figure: str
    stated: float
    found: float
    difference: float
    unit: Literal["points", "%", "days"]
    tolerance: float

    @property
    def agrees(self) -> bool:
        """Whether it is within the tolerance."""
        return abs(self.difference) <= self.tolerance


class Recomputed(Record, frozen=True, kw_only=True):
    """A claim, and what its inputs give.

    Attributes:
        id, source, device, seq, devices, peak_flops_per_s, convention, hardware_convention,
            flops_convention, without, assumed, note: As in :class:`Claim`.
        model: Its name.
        stated: What is printed.
        found: What the inputs give by these conventions.
        ours: What they give by ``matmul``, nothing left out.
        differences: Of all figures that are printed and recomputed.
        mfu_range: Between which the MFU lies, where it comes from a rounded figure.
        status: ``agrees``; ``explained`` (it does not, for a known reason); ``disagrees``; ``not
            checkable``.
        reason: Why it does not agree or cannot be checked; empty where it agrees.
    """

    id: str
    source: str
    model: str
    device: str
    seq: int | None
    devices: int
    peak_flops_per_s: float | None
    convention: str
    hardware_convention: str
    flops_convention: str
    without: tuple[Role, ...]
    assumed: tuple[str, ...]
    stated: Figures
    found: Figures
    ours: Figures
    differences: tuple[Difference, ...]
    mfu_range: tuple[float, float] | None
    status: Status
    reason: str
    note: str

    @property
    def largest(self) -> Difference | None:
        """The difference that is largest for its tolerance; ``None`` where nothing is compared."""
        return max(self.differences, key=lambda d: abs(d.difference) / d.tolerance, default=None)


class Fit(Record, frozen=True, kw_only=True):
    """What a claim would be under a convention.

    Attributes:
        convention: Its name.
        counts: ``model``: the figure is an MFU; ``hardware``: an HFU.
        utilization: The share of the peak, as a fraction.
        difference_points: That less the claimed MFU, or HFU where no MFU is claimed.
    """

    convention: str
    counts: Literal["model", "hardware"]
    utilization: float
    difference_points: float
