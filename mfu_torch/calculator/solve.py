"""One equation, solved for whichever of its four terms is not known.

    share = FLOPs x rate / (devices x peak)

The share is an MFU where the FLOPs are model FLOPs, and an HFU where they are hardware FLOPs. For
a single dtype it is the ratio of :mod:`mfu_torch.utilization`: ideal time over time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from mfu_torch.calculator.answer import Answer, Asked, Budget
from mfu_torch.calculator.peaks import figure_note, peak_of
from mfu_torch.calculator.question import InputError, Question, finite
from mfu_torch.calculator.slips import slips
from mfu_torch.calculator.throughput import (
    AGREE,
    Sizes,
    rate_of,
    rate_per_device_of,
    rate_words,
    sizes_of,
)
from mfu_torch.calculator.work import Unit, Work, work_of
from mfu_torch.records import Peak
from mfu_torch.units import percent_exact
from mfu_torch.utilization import utilization

_ROUNDED = (0.005, 0.1)
"""A published share of whole percents may be so many points, and so far of itself, off."""

_TOO_FAR_APART = "what is given is too far apart to be of one run; check the units"
_TOTALS_OF_1 = "how many devices is not given: totals are those of 1"
_ALL_OF_1 = "1 device: the throughput is taken as that of one, as the peak is"

_MOST_DEVICES = 10**15
_FEW_TOKENS = 1e6  # no run has so few
_NOISE = 1e-9
_WORDS = {
    "step_s": "the time of a step",
    "tokens_per_s": "tokens per second",
    "tokens_per_s_per_device": "tokens per second of a device",
    "samples_per_s": "samples per second",
    "share_asked": "the MFU",
}


class Terms(NamedTuple):
    """The equation, all of it known."""

    asked: Asked
    share: float
    rate: float
    devices: float
    peak: Peak


def solve(question: Question) -> Answer:
    """Solve for the term that is not given.

    Raises:
        InputError: If more than one is missing, or what is given contradicts itself.
    """
    work = work_of(question)
    sizes = sizes_of(question, work)
    terms, assumptions = terms_of(question, work, sizes)
    try:
        return _answer(question, work, sizes, terms, (*work.assumptions, *assumptions))
    except (ZeroDivisionError, OverflowError):  # products of what is given became 0 or infinite
        raise InputError(_TOO_FAR_APART) from None


def terms_of(question: Question, work: Work, sizes: Sizes) -> tuple[Terms, tuple[str, ...]]:
    """The four terms, and what was presumed to find them.

    Raises:
        InputError: If more than one is missing, or they contradict each other.
    """
    share, rate = _share_of(question, work), rate_of(question, work, sizes)
    peak, assumptions = peak_of(question)
    each = rate_per_device_of(question, work, sizes)
    devices: float | None = question.devices
    asked: Asked = "nothing"
    if devices is None and each is not None:
        # With the throughput of each and of all, their number is known; else it does not matter.
        asked = "nothing" if rate is None else "devices"
        devices = 1.0 if rate is None else rate / each
        rate = each if rate is None else rate
        if asked == "nothing":
            assumptions += (_TOTALS_OF_1,)
    missing = [n for n, v in (("share", share), ("rate", rate), ("peak", peak)) if v is None]
    if devices is None and (missing or share is None):
        devices = 1.0
        assumptions += (_TOTALS_OF_1 if "rate" in missing else _ALL_OF_1,)
    if len(missing) > 1:
        raise InputError(_missing(missing, work))
    if devices is None:
        asked = "devices"
    elif missing and asked == "nothing":
        asked = missing[0]  # type: ignore[assignment]
    try:
        terms = _solved(work.flops, asked, share, rate, devices, peak)
        found = utilization(work.flops * terms.rate / terms.peak.flops_per_s, terms.devices)
        if share is not None and not _agrees(share, found):
            raise InputError(_contradiction(question, work, share, found, terms.peak))
        return terms, assumptions
    except (ZeroDivisionError, OverflowError):
        raise InputError(_TOO_FAR_APART) from None


def _solved(
    flops: float,
    asked: Asked,
    share: float | None,
    rate: float | None,
    devices: float | None,
    peak: Peak | None,
) -> Terms:
    if peak is None:
        assert share is not None and rate is not None and devices is not None
        needed = finite(flops * rate / (devices * share), "the peak")
        peak = Peak(flops_per_s=needed, dtype="", source="solved for", provenance="derived")
    if rate is None:
        assert share is not None and devices is not None
        rate = finite(share * devices * peak.flops_per_s / flops, "the throughput")
    if devices is None:
        assert share is not None
        devices = finite(flops * rate / (share * peak.flops_per_s), "the number of devices")
    rest = (rate, devices, peak)
    # Model FLOPs of a second on all devices, in seconds of one device at its peak.
    ideal_s = finite(flops * rate, "the throughput") / peak.flops_per_s
    found = utilization(ideal_s, finite(devices, "the devices"))
    finite(found * 1e3, "the share")  # as percent, and as an HFU, too
    # Not what it is computed back to: 100 % must not become a digit more.
    return Terms(asked, found if share is None or asked == "nothing" else share, *rest)


def _agrees(share: float, found: float) -> bool:
    return abs(share - found) <= max(AGREE * found, min(_ROUNDED[0], _ROUNDED[1] * found))


def _contradiction(question: Question, work: Work, share: float, found: float, peak: Peak) -> str:
    """A share that is given is another than the rest gives, which may be impossible as well."""
    meant = ""
    if found > 1 + _NOISE:
        known = [(s.share, s.text) for s in slips(question, work, found, peak) if s.share]
        known.sort(key=lambda slip: abs(slip[0] - share))
        gives = [f"{text} gives {percent_exact(by)}" for by, text in known[:2]]
        meant = f", impossible: no device runs above its peak ({'; '.join(gives)})"
        meant = meant.removesuffix(" ()")
    return (
        f"what is given contradicts itself: a share of {percent_exact(share)} is given, and "
        f"{rate_words(question)}, devices and peak give {percent_exact(found)}{meant}; leave one "
        "of them out"
    )


def _share_of(question: Question, work: Work) -> float | None:
    """The share of the FLOPs that the convention counts."""
    mfu, hfu = question.mfu, question.hfu
    if mfu is not None and hfu is not None:
        raise InputError("{mfu} and {hfu} are the same run's; give one of them")
    if work.model_flops is None:
        if mfu is not None:
            raise InputError(
                f"{work.convention} counts hardware FLOPs, whose share is an HFU; give {{hfu}}"
            )
        return hfu
    if hfu is None:
        return mfu
    if work.hardware_flops is None:
        raise InputError(
            "{hfu} needs what is computed again; give {recompute} full, or a {convention} that "
            "counts hardware FLOPs"
        )
    return hfu * work.model_flops / work.hardware_flops


def _missing(missing: list[str], work: Work) -> str:
    rate = {
        "step": "the time of a step ({step_s} 1.2)",
        "token": "the throughput ({tokens_per_s} 2000, or {step_s} with {tokens_per_step})",
        "sample": "the throughput ({samples_per_s} 1500, or {step_s} with {batch})",
        "FLOP": "the FLOP/s of each ({achieved_flops_per_s} 400)",
    }[work.unit]
    words = {
        "rate": rate,
        "peak": "the peak ({device} h100-sxm, or {peak_flops_per_s})",
        "share": "the MFU ({mfu} 0.40)",
    }
    needed = [words[name] for name in missing if name != "share"]
    verb = "are" if len(needed) > 1 else "is"
    if len(missing) == 3 or "share" not in missing:
        end = "" if len(missing) == 3 else "; one term can be solved for, not two"
        return f"{' and '.join(needed)} {verb} missing{end}"
    return f"{needed[0]} {verb} missing; to solve for it give {words['share']}"


def _answer(
    question: Question, work: Work, sizes: Sizes, terms: Terms, assumptions: tuple[str, ...]
) -> Answer:
    exact = terms.devices if terms.asked == "devices" else None
    devices = _whole(terms.devices)
    count = terms.devices if exact is None else devices
    flops_per_s, step_units = work.flops * terms.rate, sizes.per_step(work.unit)
    tokens = _tokens_per_s(work, sizes, terms.rate)
    samples = _samples_per_s(work, sizes, terms.rate)
    per, rate = _most_telling(tokens, samples, work.unit, terms.rate)
    hours = count * 1e6 / finite(rate, f"{per}s per second") / 3600
    price = question.price_per_device_hour
    # The whole number of devices has the throughput that was asked for with a lower share.
    mfu, hfu = _shares(work, terms.share if exact is None else terms.share * exact / devices)
    highest = max(share for share in (mfu, hfu) if share is not None)
    answer = Answer(
        solved_for=terms.asked,
        work=work,
        mfu=mfu,
        hfu=hfu,
        devices=devices,
        devices_known=_TOTALS_OF_1 not in assumptions,
        devices_exact=exact,
        share_asked=None if exact is None else _asked_share(question, terms.share),
        units_per_s_at_asked=None if exact is None else terms.rate * devices / exact,
        peak=terms.peak,
        cluster_peak_flops_per_s=finite(count * terms.peak.flops_per_s, "the peak of all devices"),
        units_per_s=terms.rate,
        flops_per_s=flops_per_s,
        flops_per_s_per_device=flops_per_s / count,
        step_s=step_units / terms.rate if step_units is not None else None,
        tokens_per_s=tokens,
        tokens_per_s_per_device=None if tokens is None else tokens / count,
        samples_per_s=samples,
        per=per,
        device_hours_per_million=finite(hours, "the device-hours"),
        cost_per_million=None if price is None else finite(hours * price, "the cost"),
        budget=_budget(question, work, tokens, count),
        possible=highest <= 1 + _NOISE,
        slips=slips(question, work, highest, terms.peak),
        assumptions=assumptions,
        notes=_notes(question, work, terms, highest),
    )
    return _checked(answer)


def _notes(question: Question, work: Work, terms: Terms, highest: float) -> tuple[str, ...]:
    return (
        *_agreement(question, terms),
        *figure_note(terms.peak, None if terms.asked == "peak" else highest),
        *_few_tokens(question.token_budget),
        *work.notes,
    )


def _whole(devices: float) -> int:
    """The next whole number of devices."""
    if devices > _MOST_DEVICES:
        raise InputError(f"it would take {devices:.3g} devices; check the units given")
    return max(1, math.ceil(round(devices, 9)))


def _checked(answer: Answer) -> Answer:
    for name in answer.__struct_fields__:
        value = getattr(answer, name)
        if isinstance(value, float):
            finite(value, _WORDS.get(name, name))
    return answer


def _most_telling(
    tokens: float | None, samples: float | None, unit: Unit, rate: float
) -> tuple[Unit, float]:
    """What is spoken of: tokens, samples, or the unit of the work."""
    if tokens is not None:
        return "token", tokens
    return (unit, rate) if samples is None else ("sample", samples)


def _agreement(question: Question, terms: Terms) -> tuple[str, ...]:
    given = question.mfu if question.mfu is not None else question.hfu
    if given is None or terms.asked != "nothing":
        return ()
    return (f"the {percent_exact(given)} that are given agree with the other three terms",)


def _asked_share(question: Question, found: float) -> float:
    """As it was given; else by what one device was measured to do."""
    return next((one for one in (question.mfu, question.hfu) if one is not None), found)


def _few_tokens(budget: float | None) -> tuple[str, ...]:
    if budget is None or budget >= _FEW_TOKENS:
        return ()
    return (f"the budget is {budget:,g} tokens; trillions are written {budget:g}T",)


def _shares(work: Work, share: float) -> tuple[float | None, float | None]:
    """MFU and HFU, by a share of the FLOPs that the convention counts."""
    if work.model_flops is None:
        return None, share
    if work.hardware_flops is None:
        return share, None
    return share, share * work.hardware_flops / work.model_flops


def _tokens_per_s(work: Work, sizes: Sizes, rate: float) -> float | None:
    if work.unit == "token":
        return rate
    per = sizes.tokens_per_step if work.unit == "step" else sizes.tokens_per_sample
    return None if per is None else rate * per


def _samples_per_s(work: Work, sizes: Sizes, rate: float) -> float | None:
    if work.unit == "sample":
        return rate
    if work.unit == "step":
        return None if sizes.samples_per_step is None else rate * sizes.samples_per_step
    return None if sizes.tokens_per_sample is None else rate / sizes.tokens_per_sample


def _budget(question: Question, work: Work, tokens: float | None, devices: float) -> Budget | None:
    budget, price = question.token_budget, question.price_per_device_hour
    if budget is None:
        return None
    if tokens is None and work.unit == "sample":
        raise InputError(f"{{token_budget}} is in tokens, and {work.of} is counted per sample")
    if tokens is None:
        raise InputError(
            "{token_budget} needs tokens per second, and a step does not say how many it has; give "
            "{tokens_per_step}"
        )
    time_s = finite(budget / tokens, "the time of the budget")
    hours = finite(devices * time_s / 3600, "the device-hours")
    of_token = None if work.model_flops is None or work.unit != "token" else work.model_flops
    return Budget(
        tokens=budget,
        model_flops=None if of_token is None else finite(of_token * budget, "the FLOPs"),
        time_s=time_s,
        device_hours=hours,
        cost=None if price is None else finite(hours * price, "the cost"),
    )
