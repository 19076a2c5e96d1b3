"""An answer as text: what was given, what follows from it, and what it leaves open."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from mfu_torch.calculator.answer import Answer, Budget
from mfu_torch.calculator.slips import TINY
from mfu_torch.calculator.work import Work
from mfu_torch.records import Peak
from mfu_torch.units import bytes_, count_text, margin, percent_exact, scaled, seconds

WIDTH = 100
"""Of all text: no line is longer."""

_LABEL = 24
_SOLVED = " <- solved for"

_ARE = {"token": "tokens", "sample": "samples", "step": "steps"}


def render(answer: Answer) -> str:
    """The answer, at most 100 columns wide."""
    blocks = (_given(answer), _found(answer), _costs(answer), _remarks(answer))
    return "\n\n".join("\n".join(lines) for lines in map(list, blocks) if lines) + "\n"


def field(label: str, text: str) -> str:
    """A label and what stands beside it, wrapped."""
    return textwrap.fill(
        f"{label:{_LABEL - 2}}{text}",
        WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * _LABEL,
        break_long_words=False,
        break_on_hyphens=False,
    )


def amount(value: float) -> str:
    """``866.77``, ``6,826.67``, ``1.234M``; below 1 three digits."""
    if value >= 1e6:
        return scaled(value, "", 4)
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


def memory_text(value: float) -> str:
    """``"85.9 GB (80 GiB)"``: bytes are counted by the first, devices are named by the second."""
    gib = value / 2**30
    if gib < 1 or abs(gib - round(gib)) > 1e-6:
        return bytes_(value)
    return f"{bytes_(value)} ({round(gib):,} GiB)"


def peak_text(peak: Peak) -> str:
    """The peak of a device and where it is from."""
    of = " ".join(filter(None, (peak.device, peak.dtype)))
    rate = f"{scaled(peak.flops_per_s, 'FLOP/s', 4)} per device"
    if peak.source == "solved for":
        return rate
    source = "" if peak.source == peak.provenance else f": {peak.source}"
    of = f" ({of})" if of else ""
    return f"{rate}{margin(peak.uncertainty)}{of}, {peak.provenance}{source}"


def flops_text(work: Work) -> str:
    """FLOPs of a unit, model and hardware."""
    counted = []
    if work.model_flops is not None:
        counted.append(f"{scaled(work.model_flops, 'FLOP', 4)} per {work.unit}")
    if work.hardware_flops is not None:
        counted.append(f"hardware {scaled(work.hardware_flops, 'FLOP', 4)} per {work.unit}")
    return ", ".join(counted)


def _given(answer: Answer) -> Iterator[str]:
    work = answer.work
    yield f"{work.of}{'' if work.training else ', inference'}"
    if work.unit != "FLOP":
        yield field("FLOPs", flops_text(work))
    if work.formula:
        yield field(
            "convention", f"{work.convention}: {work.formula}; leaves out {work.leaves_out}"
        )
    if work.recompute:
        yield field("recompute", work.recompute)
    mark = _SOLVED if answer.solved_for == "peak" else ""
    yield field("peak", f"{peak_text(answer.peak)}{mark}")
    exact = answer.devices_exact
    if exact is None:
        yield field("devices", f"{answer.devices:,}")
    else:
        at = f", at {percent_exact(answer.share_asked)}" if answer.share_asked else ""
        yield field("devices", f"{answer.devices:,} (exactly {_exactly(exact)}{at}){_SOLVED}")


def _exactly(devices: float) -> str:
    return f"{devices:,.2f}" if devices >= 0.01 else f"{devices:.2g}"


def _found(answer: Answer) -> Iterator[str]:
    work = answer.work
    kind = "model" if work.model_flops is not None else "hardware"
    each = f", {scaled(answer.flops_per_s_per_device, 'FLOP/s', 4)} per device"
    text = scaled(answer.flops_per_s, "FLOP/s", 4) + (each if answer.devices > 1 else "")
    yield field(f"{kind} throughput", text)
    yield field("peak of all devices", scaled(answer.cluster_peak_flops_per_s, "FLOP/s", 4))
    for name, share in (("MFU", answer.mfu), ("HFU", answer.hfu)):
        if share is not None:
            yield field(name, f"{percent_exact(share)}{_remark(share, answer.work)}")
    yield from _at_asked(answer)
    yield from _throughput(answer)


def _at_asked(answer: Answer) -> Iterator[str]:
    """Figures are of the throughput that was asked for; beside them, what the devices can do."""
    share, rate = answer.share_asked, answer.units_per_s_at_asked
    if share is None or rate is None or f"{rate:.4g}" == f"{answer.units_per_s:.4g}":
        return
    unit = _ARE.get(answer.work.unit, answer.work.unit)
    yield field(
        "",
        f"enough for the throughput below; at {percent_exact(share)} so many devices reach "
        f"{amount(rate)} {unit}/s",
    )


def _remark(share: float, work: Work) -> str:
    if share > 1 + 1e-9:
        return ": impossible, no device runs above its peak"
    return ": next to nothing; check the units" if share < TINY and work.training else ""


def _throughput(answer: Answer) -> Iterator[str]:
    mark = _SOLVED if answer.solved_for == "rate" else ""
    if answer.tokens_per_s is not None:
        each = answer.tokens_per_s_per_device
        beside = f", {amount(each)} per device" if each is not None and answer.devices > 1 else ""
        solved = mark if answer.work.unit == "token" else ""
        yield field("tokens/s", f"{amount(answer.tokens_per_s)}{beside}{solved}")
    if answer.samples_per_s is not None:
        solved = mark if answer.work.unit == "sample" else ""
        yield field("samples/s", f"{amount(answer.samples_per_s)}{solved}")
    if answer.step_s is not None:
        solved = mark if answer.work.unit == "step" else ""
        yield field("time of a step", f"{seconds(answer.step_s)}{solved}")


def _costs(answer: Answer) -> Iterator[str]:
    if answer.per == "FLOP":
        return
    units = _ARE[answer.per]
    each = f"{amount(answer.device_hours_per_million)} for a million {units}"
    yield field("device-hours", each)
    if answer.cost_per_million is not None:
        yield field("cost", f"{amount(answer.cost_per_million)} for a million {units}")
    if answer.budget is not None:
        yield from _budget(answer.budget, answer.devices if answer.devices_known else None)


def _budget(budget: Budget, devices: int | None) -> Iterator[str]:
    text = f"{amount(budget.device_hours)} device-hours"
    if devices is not None:
        days = budget.time_s / 86400
        time = f"{amount(days)} days" if days >= 1 else seconds(budget.time_s)
        text = f"{time} on {devices:,} device{'s' if devices > 1 else ''}, {text}"
    yield field(f"{count_text(budget.tokens)} tokens", text)
    if budget.model_flops is not None:
        yield field("", f"{budget.model_flops:.3g} model FLOPs".replace("e+", "e"))
    if budget.cost is not None:
        cost = f"{budget.cost:,.2f}" if budget.cost < 1e12 else amount(budget.cost)
        yield field("", f"costs {cost}")


def _remarks(answer: Answer) -> Iterator[str]:
    if answer.slips:
        is_low = answer.possible and (answer.mfu or answer.hfu or 0) >= TINY
        yield "What could also be meant" if is_low else "What may have been meant"
        for slip in answer.slips:
            gives = "" if slip.share is None else f" gives {percent_exact(slip.share)}"
            yield sentence(slip.text + gives)
    for title, sentences in (("Assumed", answer.assumptions), ("Notes", answer.notes)):
        if sentences:
            yield title
            yield from map(sentence, sentences)


def sentence(text: str) -> str:
    """A remark, wrapped."""
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
