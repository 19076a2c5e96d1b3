"""A run's state between two attempts: saved with a checkpoint, read when training goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from mfu_torch.ideal import sum_ideal
from mfu_torch.records import Attention, Counts, Earlier, Peaks, Record

STATE_VERSION = 1

_CONVENTIONS: tuple[Attention, ...] = ("full", "causal")


class State(Record, frozen=True, kw_only=True):
    """What a later attempt has to know.

    Attributes:
        version: :data:`STATE_VERSION` of the writer.
        started: UTC time at which the first attempt began, ISO 8601.
        wall_s: From then until the state was saved.
        steps: Completed until then, over all attempts.
        ideal_s: Ideal time of their model FLOPs, by attention convention; empty if unknown.
        unknown: Then, why.
    """

    version: int
    started: str
    wall_s: float
    steps: int
    ideal_s: dict[Attention, float] = msgspec.field(default_factory=dict)
    unknown: str = ""


def now() -> datetime:
    """The time of day: between two attempts no other clock goes on."""
    return datetime.now(timezone.utc)


def save(
    started: str,
    steps: int,
    times: Mapping[tuple[int, ...], int],
    counts: Counts,
    peaks: Peaks,
    earlier: Earlier | None,
) -> dict[str, Any]:
    """The state of a run, as plain data.

    Args:
        started: UTC time at which this attempt began.
        steps: Completed, over all attempts.
        times: How often steps of this attempt had each combination of counts.
        counts: By count id.
        peaks: By dtype.
        earlier: What this attempt resumed.
    """
    by_id: Counter[int] = Counter()
    for ids, number in times.items():
        for count_id in ids:
            by_id[count_id] += number
    ideal = sum_ideal(by_id, counts, peaks)
    unknown = ideal if isinstance(ideal, str) else earlier.unknown if earlier else ""
    ideal_s: dict[Attention, float] = {}
    if not isinstance(ideal, str) and not unknown:
        before = earlier.ideal_s if earlier else {}
        ideal_s = {way: ideal.of("model", way) + before.get(way, 0.0) for way in _CONVENTIONS}
    first = earlier.started if earlier else started
    state = State(
        version=STATE_VERSION,
        started=first,
        wall_s=(now() - datetime.fromisoformat(first)).total_seconds(),
        steps=steps,
        ideal_s=ideal_s,
        unknown=unknown,
    )
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain


def check_state(state: object) -> State | None:
    """A saved state, as a record.

    Raises:
        TypeError, ValueError: If it is none.
    """
    if state is None:
        return None
    if not isinstance(state, Mapping):
        raise TypeError(f"resume is a {type(state).__name__}; expected what state_dict() returned")
    try:
        found = msgspec.convert(dict(state), State)
        datetime.fromisoformat(found.started)
    except (msgspec.ValidationError, ValueError) as error:
        raise ValueError(
            f"resume is no state of a meter ({error}); expected what state_dict() returned"
        ) from error
    if found.version != STATE_VERSION or found.steps < 0:
        raise ValueError(
            f"resume has version {found.version} and {found.steps} steps; expected version "
            f"{STATE_VERSION}, and what state_dict() returned"
        )
    return found


def earlier_of(state: State | None) -> Earlier | None:
    """What earlier attempts had done, for an attempt that begins now."""
    if state is None:
        return None
    passed_s = (now() - datetime.fromisoformat(state.started)).total_seconds()
    return Earlier(
        started=state.started,
        # The clocks of two hosts can differ: time does not run backwards.
        wall_s=max(passed_s, state.wall_s),
        steps=state.steps,
        ideal_s=state.ideal_s,
        unknown=state.unknown,
    )
