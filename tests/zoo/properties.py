"""What holds for the count of every model, checked on one build of it."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from model_state import differences, snapshot
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops.attention import MASK_NOT_READ
from mfu_torch.flops.shadow import ShadowError, _backward_starts, shadow_count
from mfu_torch.records import FlopCount

Terms = dict[tuple[str, str, str], tuple[int, int, int]]


@dataclass
class Findings:
    """What was seen of one model.

    Attributes:
        faults: Sentences; empty if every property holds.
        refusals: Why the shadow of training, or of evaluation, was refused.
    """

    faults: list[str] = field(default_factory=list)
    refusals: dict[str, str] = field(default_factory=dict)
    train: FlopCount = field(default_factory=FlopCount)
    evaluation: FlopCount = field(default_factory=FlopCount)


def check(
    model: nn.Module,
    kwargs: Mapping[str, Any],
    args: tuple[Any, ...] = (),
    *,
    modes: Sequence[str] = ("train", "eval"),
    exact_ops: bool = True,
) -> Findings:
    """Train and evaluate a model once each; hold its shadow against it.

    With ``exact_ops`` false the totals of each phase and dtype have to be equal, not those of
    each op.
    """
    found = Findings()
    for mode in modes:
        model.train(mode == "train")
        with torch.set_grad_enabled(mode == "train"):
            shadow = _checked_shadow(model, args, kwargs, mode, found)
            real = count_flops(lambda: _step(model, args, kwargs))
        if real.uncounted:
            found.faults.append(f"{mode}: not counted: {real.uncounted}")
        if real.hardware == 0:
            found.faults.append(f"{mode}: nothing was counted")
        doubts = ("failed", "examined", "not seen", "another thread")
        broken = [note for note in real.notes if any(doubt in note for doubt in doubts)]
        if broken:
            found.faults.append(f"{mode}: {broken}")
        if shadow is not None:
            found.faults += [f"{mode}: shadow {line}" for line in unequal(shadow, real, exact_ops)]
        if mode == "train":
            found.train = real
        else:
            found.evaluation = real
    model.zero_grad(set_to_none=True)
    return found


def unequal(shadow: FlopCount, real: FlopCount, exact_ops: bool = True) -> list[str]:
    """The terms in which two counts differ, as sentences."""
    if not exact_ops:
        return [] if _totals(shadow) == _totals(real) else [f"{shadow} instead of {real}"]
    ours, theirs = terms(shadow), terms(real)
    if MASK_NOT_READ in shadow.notes:  # it says that its causal count is an upper bound
        for key, (flops, causal, calls) in ours.items():
            if key in theirs and theirs[key][1] <= causal:
                ours[key] = (flops, theirs[key][1], calls)
    lines = [
        f"{' '.join(key)}: {ours.get(key, (0, 0, 0))} instead of {theirs.get(key, (0, 0, 0))}"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
    if shadow.uncounted != real.uncounted:
        lines.append(f"uncounted {shadow.uncounted} instead of {real.uncounted}")
    return lines


def terms(count: FlopCount) -> Terms:
    return {
        (term.phase, term.op, term.dtype): (term.flops, term.causal_flops, term.calls)
        for term in count.terms
    }


def _totals(count: FlopCount) -> dict[tuple[str, str], int]:
    totals: Counter[tuple[str, str]] = Counter()
    for term in count.terms:
        totals[term.phase, term.dtype] += term.flops
    return totals


def _checked_shadow(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], mode: str, found: Findings
) -> FlopCount | None:
    before, fakes = snapshot(model, args, kwargs), _fakes()
    shadow = None
    try:
        shadow = shadow_count(model, args, kwargs)
    except ShadowError as error:
        found.refusals[mode] = str(error)
    after = snapshot(model, args, kwargs)
    changes = differences(before, after)
    found.faults += [f"{mode}: the shadow changed {change}" for change in changes[:5]]
    if _fakes() > fakes:
        found.faults.append(f"{mode}: a fake tensor is reachable after the shadow")
    return shadow


def _fakes() -> int:
    return list(map(type, gc.get_objects())).count(FakeTensor)


def _step(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    output = model(*args, **kwargs)
    if torch.is_grad_enabled():
        starts = _backward_starts(output)
        if starts:
            torch.autograd.backward([start.sum() for start in starts])


def forward_count(call: Callable[[], Any]) -> FlopCount:
    with torch.no_grad():
        return count_flops(call)
