"""What a source of telemetry is: one reading at a time, whose fields fail one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from mfu_torch.peak.drivers import Raw, checked, process_ids
from mfu_torch.records import Telemetry

Value = float | frozenset[str]
"""A number in the units of :class:`~mfu_torch.records.Telemetry`; for ``throttle`` the reasons."""

Found = Raw | frozenset[str] | str
"""What a call gives for a field: a driver's figure, a set, or the reason for neither."""

FIELDS: tuple[str, ...] = tuple(
    name
    for name in Telemetry.__struct_fields__
    # sm_clock_min_hz is made of the readings of sm_clock_hz.
    if name not in ("after_step", "samples", "time_s", "absent", "sm_clock_min_hz")
)
"""The fields that a reading can have."""


class NoSource(Exception):
    """There is nothing to read, or nothing any more; the message is the reason."""


@dataclass(slots=True)
class Reading:
    """What a device said at one moment, or over the time since the moment before.

    Attributes:
        values: By field of :class:`~mfu_torch.records.Telemetry`.
        absent: Why a field is not among them.
    """

    values: dict[str, Value] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)


class Source(Protocol):
    """Where a sampler reads a device. All calls come from the sampler's thread."""

    def open(self) -> None:
        """Get ready to read.

        Raises:
            NoSource: If that cannot be.
        """

    def read(self, elapsed_s: float | None) -> Reading:
        """Read every field once.

        Args:
            elapsed_s: Seconds since the reading before; ``None`` where there is none that this one
                may be compared with. Then only counters are read, and no values are expected.

        Raises:
            NoSource: If the device is gone for good.
        """

    def close(self) -> None:
        """Give back what ``open`` took. May be called twice."""


class Reader(NamedTuple):
    """One call, and the fields that it fills.

    Attributes:
        fields: Of :class:`~mfu_torch.records.Telemetry`.
        call: Given ``elapsed_s``, returns what was found.
        counts: It compares with its call before, so it must also be called where a pause ends.
    """

    fields: tuple[str, ...]
    call: Callable[[float | None], Mapping[str, Found]]
    counts: bool = False


class Fault(NamedTuple):
    """What to make of an exception.

    Attributes:
        reason: For people.
        refused: The same call need not be tried again.
    """

    reason: str
    refused: bool = False


@dataclass(slots=True)
class Outcome:
    """A reading, and how the calls for it went.

    Attributes:
        answered: Calls that gave a value.
        errors: What others raised.
    """

    reading: Reading
    answered: int = 0
    errors: list[Exception] = field(default_factory=list)


class Readers:
    """The calls of a source, in the order of preference for a field.

    Args:
        readers: A later one is called only for fields that no earlier one filled.
        judge: Tells what to make of an exception.
        otherwise: Why the fields that no reader has are not known.
        who: Gives the figures, for the reasons against those that cannot be true.
    """

    def __init__(
        self,
        readers: Sequence[Reader],
        judge: Callable[[Exception], Fault],
        otherwise: str,
        who: str = "the driver",
    ) -> None:
        self._readers = readers
        self._judge = judge
        self._who = who
        self._otherwise = otherwise
        self._refused: dict[int, str] = {}  # by index of the reader

    def read(self, elapsed_s: float | None) -> Outcome:
        """Call each reader that may have something to say."""
        outcome = Outcome(Reading())
        values, absent = outcome.reading.values, outcome.reading.absent
        for index, reader in enumerate(self._readers):
            missing = [name for name in reader.fields if name not in values]
            if not missing or (elapsed_s is None and not reader.counts):
                continue
            found, reason = self._call(index, elapsed_s, outcome)
            for name in missing:
                value: Found | Value = found.get(name, reason)
                if isinstance(value, Raw):
                    value = checked(name, value, self._who)
                if not isinstance(value, str):
                    values[name] = value
                else:
                    absent[name] = value
        for name in FIELDS:
            if name in values:
                absent.pop(name, None)
            else:
                absent.setdefault(name, self._otherwise)
        return outcome

    def _call(
        self, index: int, elapsed_s: float | None, outcome: Outcome
    ) -> tuple[Mapping[str, Found], str]:
        if index in self._refused:
            return {}, self._refused[index]
        try:
            found = self._readers[index].call(elapsed_s)
        # A vendor's module may raise anything; what it does must not end a run.
        except Exception as error:
            fault = self._judge(error)
            if fault.refused:
                self._refused[index] = fault.reason
            outcome.errors.append(error)
            return {}, fault.reason
        outcome.answered += any(not isinstance(value, str) for value in found.values())
        return found, "it has not been read twice yet"


def other_processes(pids: set[int], own_pid: int) -> Mapping[str, Found]:
    """How many processes besides this one use a device, from the ids of all that do.

    Where this one is not among them, the list is not of this process's world: drivers list ids of
    the host, a container has its own, and may be shown none at all.
    """
    if own_pid not in pids:
        return {"other_processes": "the driver's list of processes does not have this one"}
    return {"other_processes": Raw(len(process_ids(pids)) - 1, 1.0, "processes")}
