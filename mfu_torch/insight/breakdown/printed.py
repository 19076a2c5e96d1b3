"""Shares as they are printed: a hint says the same figure as the table that it stands in."""

from __future__ import annotations

import re
from decimal import ROUND_HALF_UP, Decimal

from mfu_torch.records.breakdown import Breakdown
from mfu_torch.units import percent, rounded_parts

_SHARE = re.compile(r"^[\d.]+ % of the time")


def printed_shares(found: Breakdown, decimals: int) -> dict[str, str]:
    """Bucket -> its share in percent, so rounded that the printed ones add up to 100."""
    wall = max(1, found.wall_ns)
    texts = rounded_parts([100 * one.time_ns / wall for one in found.buckets], decimals)
    return {one.name: text for one, text in zip(found.buckets, texts, strict=True)}


def short_share(found: Breakdown, name: str) -> str:
    """As a sentence has it, beside a table with two decimals: ``4.65`` there, ``"4.7 %"`` here."""
    share = next((one.time_ns for one in found.buckets if one.name == name), 0)
    return shortened(printed_shares(found, 2).get(name, "0.00"), share / max(1, found.wall_ns))


def shortened(printed: str, share: float) -> str:
    """A share of a table with one decimal; below 1 % as it is, with two digits."""
    value = Decimal(printed)
    if abs(value) < 1:
        return percent(share)
    return f"{value.quantize(Decimal('0.1'), ROUND_HALF_UP)} %"


def hint_beside(found: Breakdown, name: str, hint: str) -> str:
    """The hint of a bucket with the share that a table with two decimals rounds to.

    What is in no table keeps its own.
    """
    if all(one.name != name for one in found.buckets):
        return hint
    return _SHARE.sub(f"{short_share(found, name)} of the time", hint)


def says_share(hint: str) -> bool:
    """Whether a hint begins with its bucket's share."""
    return bool(_SHARE.match(hint))
