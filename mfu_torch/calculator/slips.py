"""What may have been meant where a share is impossible, or low: slips by a usual factor.

Each is the input that would give a plausible share if it were another by a usual factor; none is
more than a guess, and none changes the answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from mfu_torch.calculator.peaks import has_sparsity
from mfu_torch.calculator.question import Question
from mfu_torch.calculator.work import Work
from mfu_torch.records import Peak, Record, UnknownPeak
from mfu_torch.units import percent_exact, scaled, seconds, significant

TINY = 0.001
"""A training below this share is as rare as a unit that was forgotten is common."""

LOW = 0.05
"""A training below this share is possible, and rare."""

USUAL = (0.15, 0.8)
"""Between these most runs are that somebody publishes."""

PLAUSIBLE = (0.02, 1.0)
"""Between these a share can be that of a run that somebody looks at."""

_DEVICE_PEAKS = (1e12, 2e16)  # FLOP/s, of one device
_STEPS_S = (0.001, 900.0)
_PER_NODE = 8
_TYPICAL = 0.4
_MOST = 4
_MOST_DEVICES = 1e5
_IN_PRINT = 0.002


class Slip(Record, frozen=True, kw_only=True):
    """An input that may have been meant.

    Attributes:
        text: Which, and the factor.
        share: What it would give; ``None`` where it depends on a number that is not known.
    """

    text: str
    share: float | None


def slips(question: Question, work: Work, share: float, peak: Peak) -> tuple[Slip, ...]:
    """The likely slips behind a share above 1 or below :data:`LOW`, the likeliest first.

    Between :data:`TINY` and :data:`LOW` only what was said of one device and taken for all.

    Args:
        question: What was given.
        work: Its FLOPs.
        share: The highest of MFU and HFU.
        peak: Of one device.
    """
    if share > 1 + 1e-9:
        return tuple(_too_high(question, work, share, peak))[:_MOST]
    if share < TINY:
        return tuple(_too_low(question, work, share, peak))[:_MOST]
    return tuple(_of_one_device(question, share, USUAL)) if share < LOW and work.training else ()


def _is_plausible(share: float, between: tuple[float, float] = PLAUSIBLE) -> bool:
    return between[0] <= share <= between[1]


def _too_high(question: Question, work: Work, share: float, peak: Peak) -> Iterator[Slip]:
    for exponent in (3, 6, 9):
        if _is_plausible(share / 10**exponent):
            yield from _by_factor(question, share, peak, -exponent)
    devices = question.devices or 1
    if question.tokens_per_s_per_device and devices > 1:
        yield from _if_plausible("tokens/s of all devices, not of each", share / devices)
    if question.devices is not None:
        yield from _if_plausible(f"nodes of {_PER_NODE} devices, not devices", share / _PER_NODE)
    yield from _inference(question, work, share)
    yield from _other_dtypes(question, share, peak)
    of_one = question.tokens_per_s_per_device or question.achieved_flops_per_s
    if devices == 1 and not (of_one or question.model_flops_per_step) and share < _MOST_DEVICES:
        several = f"{math.ceil(share / _TYPICAL):,} at {percent_exact(_TYPICAL)}"
        yield Slip(text=f"the throughput is that of several devices, say {several}", share=None)


def _too_low(question: Question, work: Work, share: float, peak: Peak) -> Iterator[Slip]:
    for exponent in (3, 6, 9, 12):
        if _is_plausible(share * 10**exponent):
            yield from _by_factor(question, share, peak, exponent)
    yield from _of_one_device(question, share, PLAUSIBLE)
    if not work.training:
        yield Slip(
            text="none: decoding few sequences at a time waits for memory, and has such an MFU",
            share=None,
        )


def _of_one_device(
    question: Question, share: float, between: tuple[float, float]
) -> Iterator[Slip]:
    """What was said of one device, or of a node, and taken for all."""
    devices = question.devices or 1
    if devices == 1:
        return
    for value, what in (
        (question.tokens_per_s, "tokens/s of each device, not of all"),
        (question.samples_per_s, "samples/s of each device, not of all"),
        (question.batch, "the batch of each device, not of all"),
        (question.tokens_per_step, "tokens per step of each device, not of all"),
        (question.samples_per_step, "samples per step of each device, not of all"),
        (question.model_flops_per_step, "FLOPs per step of each device, not of all"),
    ):
        if value is not None and (question.step_s is not None or "/s" in what):
            yield from _if_plausible(what, share * devices, between)
    if question.tokens_per_s_per_device is None and devices >= _PER_NODE:
        text = f"devices counted as nodes of {_PER_NODE}"
        yield from _if_plausible(text, share * _PER_NODE, between)


def _inference(question: Question, work: Work, share: float) -> Iterator[Slip]:
    """The forward alone."""
    if not work.training or work.forward_flops is None or work.model_flops is None:
        return
    # The share is the higher of MFU and HFU.
    counted = max(work.model_flops, work.hardware_flops or 0)
    of = "(2N), not training (6N)" if question.params else "(the forward alone), not training"
    yield from _if_plausible(f"inference {of}", share * work.forward_flops / counted)


def _by_factor(question: Question, share: float, peak: Peak, exponent: int) -> Iterator[Slip]:
    """Inputs that a power of ten was lost from, or slipped into."""
    factor = 10.0**exponent
    times = f"a factor of {10 ** abs(exponent):,}".replace(",", "")
    for value, what in (
        (question.model_flops_per_step, "FLOPs per step"),
        (question.params, "parameters"),
        (question.tokens_per_s, "tokens/s"),
        (question.tokens_per_s_per_device, "tokens/s per device"),
        (question.samples_per_s, "samples/s"),
        (question.achieved_flops_per_s, "FLOP/s reached by each device"),
        (question.tokens_per_step, "tokens per step"),
    ):
        if value is not None and value * factor < math.inf:
            yield Slip(text=f"{times}: {_number(value * factor)} {what}", share=share * factor)
    step_s = question.step_s
    if step_s is not None and _STEPS_S[0] <= step_s / factor <= _STEPS_S[1]:
        yield Slip(text=f"{times}: a step of {seconds(step_s / factor)}", share=share * factor)
    meant = peak.flops_per_s / factor
    if peak.provenance == "given" and _DEVICE_PEAKS[0] <= meant <= _DEVICE_PEAKS[1]:
        yield Slip(text=f"{times}: a peak of {scaled(meant, 'FLOP/s')}", share=share * factor)


def _other_dtypes(question: Question, share: float, peak: Peak) -> Iterator[Slip]:
    """Higher peaks of the device; of one that is not named, a peak of twice as much."""
    if question.device is None:
        yield from _if_plausible(
            "a peak of twice as much, of a narrower dtype (fp8, not bf16) or with 2:4 sparsity",
            share / 2,
        )
        return
    from mfu_torch.peak.table import DTYPES, peak_for

    names: dict[float, list[str]] = {}
    for dtype in DTYPES:
        try:
            other = peak_for(question.device, dtype)
        except UnknownPeak:
            continue  # the device has none in this dtype, so nobody meant it
        if other.flops_per_s > peak.flops_per_s:
            names.setdefault(_near(other.flops_per_s, names), []).append(dtype)
    if has_sparsity(question.device):
        twice = 2 * peak.flops_per_s
        names.setdefault(_near(twice, names), []).append(f"{peak.dtype} with 2:4 sparsity")
    for rate, listed in names.items():
        text = f"{' or '.join(listed)}, whose peak is {scaled(rate, 'FLOP/s', 4)}"
        yield from _if_plausible(text, share * peak.flops_per_s / rate)


def _near(rate: float, others: Iterable[float]) -> float:
    """The one of the others that it is but for the digits in print; else itself."""
    return next((one for one in others if abs(rate / one - 1) < _IN_PRINT), rate)


def _if_plausible(
    text: str, share: float, between: tuple[float, float] = PLAUSIBLE
) -> Iterator[Slip]:
    if _is_plausible(share, between):
        yield Slip(text=text, share=share)


def _number(value: float) -> str:
    """``2.4e15``, ``2000``."""
    if 1 <= value < 1e6:
        return significant(value, max(3, len(str(int(value)))))
    return f"{value:.6g}".replace("e+", "e").replace("e0", "e")
