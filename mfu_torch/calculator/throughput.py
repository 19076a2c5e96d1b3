"""How fast: whatever a log says of steps, tokens and samples, as units of work per second."""

from __future__ import annotations

from typing import Literal, NamedTuple

from mfu_torch.calculator.question import InputError, Question, finite
from mfu_torch.calculator.work import Work

AGREE = 0.01
"""Two figures that agree this far are the same, printed with other digits."""


class Sizes(NamedTuple):
    """What a step consists of, of all devices together; ``None`` where it is not known."""

    tokens_per_step: float | None
    samples_per_step: float | None
    tokens_per_sample: float | None

    def per_step(self, unit: str) -> float | None:
        """Units of work in a step; ``None`` where nothing says it."""
        of = {"step": 1.0, "token": self.tokens_per_step, "sample": self.samples_per_step}
        return of.get(unit)


def sizes_of(question: Question, work: Work) -> Sizes:
    """Tokens and samples of a step, each from the other where sequences have one length.

    Raises:
        InputError: If they contradict one another.
    """
    samples, tokens, seq = question.samples_per_step, question.tokens_per_step, work.seq
    if question.batch is not None:
        if samples is not None and not agree(samples, question.batch):
            raise InputError(
                f"{{batch}} {question.batch} and {{samples_per_step}} {samples:g} differ; give one"
            )
        samples = float(question.batch)
    if work.unit == "token" and seq is not None:
        if samples is not None and tokens is not None and not agree(tokens, samples * seq):
            raise InputError(
                f"{{tokens_per_step}} {tokens:g} is not {samples:g} samples of {seq} tokens, "
                f"{samples * seq:g}; leave one out"
            )
        tokens = samples * seq if tokens is None and samples is not None else tokens
        samples = tokens / seq if samples is None and tokens is not None else samples
        return Sizes(tokens, samples, float(seq))
    if tokens is None or samples is None:
        return Sizes(tokens, samples, None)
    return Sizes(tokens, samples, finite(tokens / samples, "the tokens of a sample"))


def rate_of(question: Question, work: Work, sizes: Sizes) -> float | None:
    """Units of work per second of all devices; ``None`` where nothing says it.

    A rate of each device needs their number; :func:`rate_per_device_of` has it without.

    Raises:
        InputError: If two figures contradict each other, or a size is missing to use one.
    """
    found: list[Named] = []
    for name, rate, kind in (
        ("tokens_per_s", question.tokens_per_s, "token"),
        ("samples_per_s", question.samples_per_s, "sample"),
        ("step_s", None if question.step_s is None else 1 / question.step_s, "step"),
        ("within_s", _of_budget(question, "within_s"), "token"),
    ):
        if rate is not None:
            found.append((name, _in_units(name, rate, kind, work, sizes)))
    if question.devices is not None:
        each = _per_device(question, work, sizes)
        found += [(name, rate * question.devices) for name, rate in each]
    return _agreed(found, work)


def rate_per_device_of(question: Question, work: Work, sizes: Sizes) -> float | None:
    """Units of work per second of each device, where that was given.

    Raises:
        InputError: If two figures contradict each other.
    """
    return _agreed(_per_device(question, work, sizes), work)


Named = tuple[str, float]
"""An input and the rate that it says."""


def _per_device(question: Question, work: Work, sizes: Sizes) -> list[Named]:
    found: list[Named] = []
    for name, rate in (
        ("tokens_per_s_per_device", question.tokens_per_s_per_device),
        ("device_hours", _of_budget(question, "device_hours")),
    ):
        if rate is not None:
            found.append((name, _in_units(name, rate, "token", work, sizes)))
    if question.achieved_flops_per_s is not None:
        found.append(("achieved_flops_per_s", question.achieved_flops_per_s / work.flops))
    return found


def _agreed(found: list[Named], work: Work) -> float | None:
    for name, rate in found[1:]:
        if not agree(rate, found[0][1]):
            raise InputError(_differ(found[0], (name, rate), work))
    return finite(found[0][1], "the throughput") if found else None


def _of_budget(question: Question, name: Literal["within_s", "device_hours"]) -> float | None:
    """Tokens per second of all devices, or of each, by the time that all tokens take."""
    time = question.within_s if name == "within_s" else question.device_hours
    if time is None:
        return None
    if question.token_budget is None:
        raise InputError(
            f"{{{name}}} is the time for a budget that is missing; give {{token_budget}}"
        )
    return question.token_budget / (time if name == "within_s" else 3600 * time)


def agree(one: float, other: float) -> bool:
    """Whether two figures are the same but for their digits."""
    return abs(one - other) <= AGREE * max(one, other)


def _in_units(name: str, rate: float, kind: str, work: Work, sizes: Sizes) -> float:
    """A rate of tokens, samples or steps as one of what the work is counted in."""
    if kind == work.unit:
        return rate
    if {kind, work.unit} == {"token", "sample"}:
        each = sizes.tokens_per_sample
        if each is None:
            raise InputError(
                f"{{{name}}} does not say how many {work.unit}s pass in a second, and {work.of} is "
                f"counted per {work.unit}; give {{{work.unit}s_per_s}}"
            )
        return rate / each if kind == "token" else rate * each
    if kind == "step":
        units = sizes.per_step(work.unit)
        if units is None:
            more = "{tokens_per_step} 4M" if work.unit == "token" else "{samples_per_step} 256"
            batch = ", or {batch} 512" if work.seq is not None else ""
            raise InputError(
                f"{{{name}}} alone does not say how many {work.unit}s a step has; "
                f"give {more}{batch}"
            )
        return rate * units
    units = sizes.per_step(kind)
    if units is None:
        raise InputError(
            f"{{{name}}} alone does not say how long a step takes; give {{{kind}s_per_step}}, or "
            "{step_s}"
        )
    return rate / units


_OF_BUDGET = {name: f"{{token_budget}} over {{{name}}}" for name in ("within_s", "device_hours")}


def rate_words(question: Question) -> str:
    """What the throughput is known by, where that is a budget and its time; for a message."""
    rates = ("tokens_per_s", "samples_per_s", "step_s", "tokens_per_s_per_device")
    if not question.given(*rates):
        for name, words in _OF_BUDGET.items():
            if question.given(name):
                return words
    return "the throughput"


def _differ(one: Named, other: Named, work: Work) -> str:
    first, second = (_OF_BUDGET.get(name, f"{{{name}}}") for name, _ in (one, other))
    return (
        f"{first} and {second} contradict each other: {one[1]:.6g} and {other[1]:.6g} "
        f"{work.unit}s per second; leave one out"
    )
