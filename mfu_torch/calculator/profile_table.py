"""A model by itself as text, and the models that are known by name."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from mfu_torch.calculator.answer_table import WIDTH, field, sentence
from mfu_torch.calculator.profile import Profile
from mfu_torch.flops.formulas.conventions import CONVENTIONS
from mfu_torch.flops.formulas.known_table import KnownFamily, KnownModel
from mfu_torch.units import count_text, percent_exact, scaled

_OF_A_GPT = ", of a GPT with this L and h"
_COUNTS = {"model": "", "hardware": " (HFU)"}


def render_profile(found: Profile) -> str:
    """Parameters, FLOPs, and these by every convention; at most 100 columns wide."""
    lines = [_title(found), *_facts(found), "", *_costs(found)]
    remarks = (("Assumed", found.assumptions), ("Notes", found.notes))
    for title, sentences in remarks:
        if sentences:
            lines += [title, *map(sentence, sentences)]
    return "\n".join(lines) + "\n"


def _title(found: Profile) -> str:
    return found.name if found.seq is None else f"{found.name}, {found.seq:,} tokens a sequence"


def _facts(found: Profile) -> Iterator[str]:
    yield field("parameters", f"{count_text(found.parameters)} ({found.parameters:,})")
    if found.active != found.parameters:
        yield field("", f"{count_text(found.active)} that a token meets ({found.active:,})")
    if found.unit == "token":
        yield field("", f"{count_text(found.weights)} of them in products: W")
    if found.forward_flops is not None and found.training_flops is not None:
        forward = scaled(found.forward_flops, "FLOP", 4)
        training = scaled(found.training_flops, "FLOP", 4)
        yield field(f"FLOPs of a {found.unit}", f"forward {forward}, training {training}")
    if found.mixing_share:
        share = percent_exact(found.mixing_share)
        yield field("", f"{share} of the forward in {', '.join(found.mixing)}")
    if found.source:
        yield field("source", found.source)


def _costs(found: Profile) -> Iterator[str]:
    width = max((len(cost.convention) for cost in found.costs), default=0)
    yield f"  {'convention':<{width}}  training, a {found.unit}"
    for cost in found.costs:
        flops = scaled(cost.flops, "FLOP", 4)
        of = _OF_A_GPT if CONVENTIONS[cost.convention].presumes_gpt else ""
        how = f"{cost.formula}{of}{_COUNTS[cost.counts]}"
        yield f"  {cost.convention:<{width}}  {flops:>14}  {how}"


def chosen(families: Sequence[KnownFamily], wanted: str) -> tuple[KnownFamily, ...]:
    """Those whose series, name or other names have the text; all of an empty one.

    Raises:
        ValueError: If there are none.
    """
    text = wanted.strip().lower()
    found = []
    for family in families:
        of = family.name.lower()
        models = tuple(m for m in family.models if text in of or text in _words(m))
        if models:
            found.append(KnownFamily(name=family.name, models=models))
    if not found:
        names = ", ".join(family.name for family in families)
        raise ValueError(f"no known model has {wanted[:40]!r} in its name; series are {names}")
    return tuple(found)


def _words(model: KnownModel) -> str:
    return " ".join((model.name, *model.aliases)).lower()


def render_models(families: Sequence[KnownFamily]) -> str:
    """A line for each, by series."""
    models = [model for family in families for model in family.models]
    width = max(len(model.name) for model in models)
    lines = [f"{'':<{width + 2}}  parameters  active  trained with"]
    for family in families:
        lines.append(family.name)
        lines += [_line(model, width) for model in family.models]
    count = f"{len(models)} model{'s' if len(models) > 1 else ''}"
    lines += ["", f"{count}; mfu-torch calc --model NAME has the costs of one"]
    return "\n".join(lines) + "\n"


def _line(model: KnownModel, width: int) -> str:
    active = count_text(model.active, 3) if model.active != model.parameters else ""
    length = f"{model.seq:,} tokens" if model.seq is not None else ""
    also = f"  also {', '.join(model.aliases)}" if model.aliases else ""
    row = f"  {model.name:<{width}}  {count_text(model.parameters, 3):>10}  {active:>6}  {length}"
    if not also:
        return row.rstrip()
    return textwrap.fill(f"{row:<{width + 37}}{also}", WIDTH, subsequent_indent=" " * (width + 44))
