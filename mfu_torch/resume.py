"""A run's state between two attempts: saved with a checkpoint, read when training goes on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import msgspec

from mfu_torch.ideal import sum_ideal
from mfu_torch.records import Attention, Counts, Earlier, Peaks, Record
from mfu_torch.records.lines import check_amounts

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
    *,
    own_s: float = 0.0,
    stopped: str = "",
) -> dict[str, Any]:
    """The state of a run, as plain data.

    Args:
        started: UTC time at which this attempt began.
        steps: Completed, over all attempts.
        times: How often steps of this attempt had each combination of counts.
        counts: By count id.
        peaks: By dtype.
        earlier: What this attempt resumed.
        own_s: How long this attempt has lasted on a clock that only goes forward.
        stopped: Why measuring stopped before now; empty if it goes on.
    """
    by_id: Counter[int] = Counter()
    for ids, number in times.items():
        for count_id in ids:
            by_id[count_id] += number
    ideal = sum_ideal(by_id, counts, peaks)
    before = earlier.ideal_s if earlier else dict.fromkeys(_CONVENTIONS, 0.0)
    unknown = (earlier.unknown or _not_saved(before)) if earlier else ""
    unknown = unknown or stopped or (ideal if isinstance(ideal, str) else "")
    ideal_s: dict[Attention, float] = {}
    if not isinstance(ideal, str) and not unknown:
        ideal_s = {way: ideal.of("model", way) + before[way] for way in _CONVENTIONS}
    first = earlier.started if earlier else started
    state = State(
        version=STATE_VERSION,
        started=first,
        # The time of day can be set, and differs from host to host.
        wall_s=max(_passed_s(first), own_s + (earlier.wall_s if earlier else 0.0)),
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
        check_amounts(found.wall_s, found.steps, found.ideal_s)
        _check_texts(found)
    except (msgspec.ValidationError, ValueError, OverflowError) as error:
        raise ValueError(
            f"resume is no state of a meter ({error}); expected what state_dict() returned"
        ) from error
    if found.version != STATE_VERSION:
        raise ValueError(
            f"resume has version {found.version}; expected version {STATE_VERSION}, and what "
            "state_dict() returned"
        )
    unknown = found.unknown or _not_saved(found.ideal_s)
    if unknown:
        return msgspec.structs.replace(found, ideal_s={}, unknown=unknown)
    return found


def _check_texts(state: State) -> None:
    """That the start is a moment, and that the reason can be written to a file.

    Raises:
        ValueError, OverflowError: If not.
    """
    if datetime.fromisoformat(state.started).tzinfo is None:
        raise ValueError(f"started is {state.started!r}, without a time zone")
    _passed_s(state.started)
    state.unknown.encode()


def _not_saved(ideal_s: Mapping[Attention, float]) -> str:
    """Which ideal times a state lacks, as the reason why its part is not known."""
    missing = [way for way in _CONVENTIONS if way not in ideal_s]
    if not missing:
        return ""
    return f"its state has no ideal time of the model FLOPs (attention {', '.join(missing)})"


def _passed_s(started: str) -> float:
    return (now() - datetime.fromisoformat(started)).total_seconds()


def earlier_of(state: State | None) -> Earlier | None:
    """What earlier attempts had done, for an attempt that begins now."""
    if state is None:
        return None
    return Earlier(
        started=state.started,
        # The clocks of two hosts can differ: time does not run backwards.
        wall_s=max(_passed_s(state.started), state.wall_s),
        steps=state.steps,
        ideal_s=state.ideal_s,
        unknown=state.unknown,
    )


def state_of_unmeasured(steps: int, why: str) -> dict[str, Any]:
    """The state of a run whose first steps nobody measured."""
    state = State(
        version=STATE_VERSION,
        started=now().isoformat(timespec="milliseconds"),
        wall_s=0.0,
        steps=steps,
        unknown=why,
    )
    plain: dict[str, Any] = msgspec.to_builtins(state)
    return plain
