"""How many multiprocessors a MIG profile can have of a GPU's: a guard against one that lies."""

from __future__ import annotations

import re

_TOLERANCE = 1.2
"""Slices are cut in whole processors: 3 of 7 slices of an H100 have 60 of its 132 SMs, not 57."""

_PROFILE = re.compile(r"(?:(\d+)c\.)?(\d+)g\.(\d+)gb", re.IGNORECASE)


def why_not_of(
    profile: str, sm_count: int, whole_sms: int, whole_bytes: float | None, whole: str
) -> str:
    """Why a slice cannot have so many SMs; empty if it can.

    ``why_not_of("1g.5gb", 108, 108, 40 * 2**30, "...")``: a 7th of an A100 does not have all SMs.

    Args:
        profile: ``"3g.20gb"``, or ``"1c.3g.20gb"``: one of the three compute slices of that.
        sm_count: Of the slice.
        whole_sms: Of the whole GPU, as is its memory, ``whole_bytes``.
        whole_bytes: ``None`` where it is not known.
        whole: What the whole GPU has, in words.
    """
    share = _largest_share(profile, whole_bytes)
    if share is None:
        return f"it is the MIG slice {profile}, and how large such a profile can be is not known"
    if sm_count > share * whole_sms:
        return f"it reports {sm_count} of {whole}, which is too many for the MIG slice {profile}"
    return ""


def _largest_share(profile: str, whole_bytes: float | None) -> float | None:
    """Of the SMs: "3g.20gb" of 40 GB is half or 3 of 7 slices, "1c.3g.20gb" a third of that."""
    found = _PROFILE.match(profile)
    if found is None:
        return None
    slices, memory_gb = int(found[2]), int(found[3])
    if slices == 0:
        return None
    # A GPU divides into 7 slices (A100), 4 (A30, RTX PRO 6000) or 2.
    share = slices / 4
    if whole_bytes:
        share = max(slices / 7, memory_gb * 2**30 / whole_bytes)
    used = min(int(found[1] or slices), slices) / slices
    return share * used * _TOLERANCE
