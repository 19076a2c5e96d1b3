"""A crosscheck as text: the readings, and every module in which they differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mfu_torch.flops.crosscheck.witnesses import Difference, Reading
from mfu_torch.flops.ops.attention import MASK_NOT_READ, MASK_READ, PLAIN_SCORES

if TYPE_CHECKING:
    from mfu_torch.flops.crosscheck import Crosscheck

_ON_MASKS = (MASK_NOT_READ, MASK_READ, PLAIN_SCORES)


def render(check: Crosscheck) -> str:
    """The readings one below the other, then every module in which they differ, and why.

    ::

        forward FLOPs of LSTM | 128 x 8 x 256 float32 | float32
          ours             36,700,160
          fvcore                    0   -36,700,160, 0.000 of ours
          torch                     0   -36,700,160, 0.000 of ours
        where fvcore differs
          the model itself: ours 36,700,160, fvcore 0
            fvcore has no formula for aten::lstm (1 calls)
        ...
    """
    of = " | ".join(filter(None, (check.model, check.work)))
    lines = [f"forward FLOPs of {of}", f"  {'ours':<12}{check.ours:>24,}"]
    for reading in check.readings:
        lines.append(f"  {reading.witness:<12}{_against(reading, check.ours)}")
        lines += [f"    {remark}" for remark in reading.remarks]
    for op, calls in check.count.uncounted.items():
        lines.append(f"  not counted by ours: {op} ({calls} calls)")
    # All scores are counted here by everyone, so what is known of masks is beside the point.
    lines += [f"  ours: {note}" for note in check.count.notes if note not in _ON_MASKS]
    lines += [f"  {note}" for note in check.notes]
    for witness in dict.fromkeys(found.witness for found in check.differences):
        lines.append(f"where {witness} differs")
        lines += _differences(check.differences, witness)
    return "\n".join(lines)


def _against(reading: Reading, ours: int) -> str:
    if reading.flops is None:
        why = f"\n    {reading.why}" if reading.why else ""
        return f"could not count: {reading.failure}{why}"
    if reading.flops == ours:
        return f"{reading.flops:>24,}   equal"
    share = f", {reading.flops / ours:.3f} of ours" if ours else ""
    return f"{reading.flops:>24,}   {reading.flops - ours:+,}{share}"


def _differences(differences: tuple[Difference, ...], witness: str) -> Iterator[str]:
    alike: dict[tuple[Any, ...], list[Difference]] = {}
    for found in differences:
        if found.witness == witness:
            # One line for what every layer has: "model.layers.*.self_attn".
            name = re.sub(r"\b\d+\b", "*", found.module) or "the model itself"
            key = (name, found.ours, found.theirs, found.reasons, found.unexplained)
            alike.setdefault(key, []).append(found)
    for (name, *_), group in alike.items():
        first, many = group[0], f" ({len(group)} modules, each)" if len(group) > 1 else ""
        name = name if many else first.module or name
        yield f"  {name}{many}: ours {first.ours:,}, {witness} {first.theirs:,}"
        yield from (f"    {reason}" for reason in first.reasons)
        if first.unexplained:
            yield f"    not explained: {first.unexplained:+,} FLOPs. One of the two is wrong"
