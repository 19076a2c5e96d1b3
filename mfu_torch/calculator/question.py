"""What is known of a run: read from text as people write it, refused in one line where it is wrong.

A message names inputs as Python does (``step_s``); the command line asks for its flags instead.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from os import PathLike, fspath
from typing import Any, Literal, cast, get_args

from mfu_torch.flops.formulas.conventions import CONVENTIONS
from mfu_torch.flops.formulas.terms import RECOMPUTE, Recompute
from mfu_torch.records import Record
from mfu_torch.units import (
    parse_count,
    parse_flops,
    parse_flops_per_s,
    parse_money,
    parse_per_s,
    parse_seconds,
    parse_share,
    parse_whole,
)

Mode = Literal["training", "inference"]

Number = float | str
"""A number, or the text of one."""


class InputError(ValueError):
    """Inputs that cannot be: malformed, missing, superfluous or contradictory.

    Args:
        text: One line, with inputs in braces: ``"{params} and {model} both say it"``.
    """

    def __init__(self, text: str) -> None:
        self.template = text
        super().__init__(self.named({}))

    def named(self, names: Mapping[str, str]) -> str:
        """The text, with other names for the inputs: ``{"params": "--params"}``."""
        return re.sub(r"\{(\w+)\}", lambda found: names.get(found[1], found[1]), self.template)


class Question(Record, frozen=True, kw_only=True):
    """What is known of a run. What is ``None`` is not; at most one of the four may be asked for.

    FLOPs x rate = share x devices x peak. One of the first three says the FLOPs.

    Attributes:
        model_flops_per_step: Of all devices together, forward and backward.
        params: N: those that a token meets.
        model: A :class:`Described`, an architecture, a known name, the path of a config.json, or
            sizes: ``"layers=22 hidden=2048 heads=32 ffn=5632 vocab=32000"``.
        mode: ``training`` or ``inference`` (the forward alone).
        seq: Tokens of a sequence.
        image_size: Pixels of a side, of a model of images; by default those of its source.
        batch: Sequences (samples) of a step, of all devices together.
        convention: One of :data:`CONVENTIONS`.
        recompute: What the backward computes again.
        step_s: Seconds of a step.
        tokens_per_s: Of all devices together.
        tokens_per_s_per_device: Of each.
        achieved_flops_per_s: Of each device, FLOPs as the convention counts them.
        samples_per_s: Of all devices together.
        tokens_per_step: Of all devices together.
        samples_per_step: Of all devices together.
        devices: How many.
        peak_flops_per_s: Of one device, dense.
        device: Its name, to look the peak up.
        dtype: Of the peak.
        mfu: Model FLOPs utilization, a share.
        hfu: Hardware FLOPs utilization, a share.
        token_budget: Tokens of the whole run.
        within_s: Seconds in which the budget is, or was, reached.
        device_hours: Of all devices together, that the budget takes, or took.
        price_per_device_hour: In any currency.
    """

    model_flops_per_step: float | None = None
    params: float | None = None
    model: Any = None
    mode: Mode | None = None
    seq: int | None = None
    image_size: int | None = None
    batch: int | None = None
    convention: str | None = None
    recompute: Recompute | None = None
    step_s: float | None = None
    tokens_per_s: float | None = None
    tokens_per_s_per_device: float | None = None
    achieved_flops_per_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    devices: int | None = None
    peak_flops_per_s: float | None = None
    device: str | None = None
    dtype: str | None = None
    mfu: float | None = None
    hfu: float | None = None
    token_budget: float | None = None
    within_s: float | None = None
    device_hours: float | None = None
    price_per_device_hour: float | None = None

    def given(self, *names: str) -> list[str]:
        """Which of these are known, in braces, for a message."""
        return [f"{{{name}}}" for name in names if getattr(self, name) is not None]


def finite(value: float, what: str) -> float:
    """The value, where it is a number above 0.

    Raises:
        InputError: If it became 0 or infinite; ``what`` says what it is.
    """
    if not 0 < value < math.inf:
        size = "next to nothing" if value == 0 else "beyond all numbers"
        raise InputError(f"{what} would be {size}; check the units of what is given")
    return value


Reader = Callable[[Any], Any]


def read_question(given: Mapping[str, Any]) -> Question:
    """A question from texts and numbers by the names of :class:`Question`; ``None`` is not given.

    Raises:
        InputError: If one is malformed.
    """
    return Question(**read_values(given, _READERS))


def read_values(given: Mapping[str, Any], readers: Mapping[str, Reader]) -> dict[str, Any]:
    """What is given, read.

    Raises:
        InputError: If one is malformed; it names which.
    """
    values: dict[str, Any] = {}
    for name, value in given.items():
        if value is None:
            continue
        try:
            values[name] = readers[name](value)
        except (ValueError, TypeError) as problem:
            raise InputError(f"{{{name}}}: {problem}") from None
    return values


def _one_of(choices: tuple[str, ...]) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        text = str(value).strip().lower()
        if text not in choices:
            raise ValueError(f"{str(value)[:40]!r} is unknown; expected {', '.join(choices)}")
        return text

    return read


def _text(value: Any) -> str:
    if not str(value).strip():
        raise ValueError("'' is empty; expected a name")
    return str(value).strip()


def _model(value: Any) -> Any:
    return _text(fspath(value)) if isinstance(value, str | PathLike) else value


def _per_device(value: Number) -> float:
    return parse_per_s(value, per_device=True)


def _samples(value: Number) -> float:
    return parse_per_s(value, "samples")


_READERS: dict[str, Callable[[Any], Any]] = {
    "model_flops_per_step": parse_flops,
    "params": parse_count,
    "model": _model,
    "mode": _one_of(cast("tuple[str, ...]", get_args(Mode))),
    "seq": parse_whole,
    "image_size": parse_whole,
    "batch": parse_whole,
    "convention": _one_of(tuple(CONVENTIONS)),
    "recompute": _one_of(cast("tuple[str, ...]", RECOMPUTE)),
    "step_s": parse_seconds,
    "tokens_per_s": parse_per_s,
    "tokens_per_s_per_device": _per_device,
    "achieved_flops_per_s": parse_flops_per_s,
    "samples_per_s": _samples,
    "tokens_per_step": parse_count,
    "samples_per_step": parse_count,
    "devices": parse_whole,
    "peak_flops_per_s": parse_flops_per_s,
    "device": _text,
    "dtype": _text,
    "mfu": parse_share,
    "hfu": parse_share,
    "token_budget": parse_count,
    "within_s": parse_seconds,
    "device_hours": parse_count,
    "price_per_device_hour": parse_money,
}
