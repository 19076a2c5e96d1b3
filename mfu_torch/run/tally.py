"""How much of a run was handed to the recorder, and how much of it can be read back."""

from __future__ import annotations

from mfu_torch.records import Entry, Window


class Tally:
    """Counts records, and the steps in them.

    Attributes:
        dropped: Records that no sink got, since too many waited.
        failure: Why the run file takes no more records; empty while it does.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.failure = ""
        self._put_records = self._put_steps = 0  # written by one thread each
        self._kept_records = self._kept_steps = 0

    def put(self, record: Entry) -> None:
        """It was handed over."""
        self._put_records += 1
        self._put_steps += _steps(record)

    def kept(self, record: Entry) -> None:
        """It is where it can be read back."""
        self._kept_records += 1
        self._kept_steps += _steps(record)

    def missing(self, why: str) -> tuple[str, ...]:
        """What cannot be read back, as a note: "26 steps are not in it: ..."; or nothing.

        Args:
            why: The reason.
        """
        steps = self._put_steps - self._kept_steps
        records = self._put_records - self._kept_records
        if steps:
            return (f"{steps} of {self._put_steps} steps are not in it: {why}",)
        return (f"{records} records are not in it: {why}",) if records else ()


def _steps(record: Entry) -> int:
    return len(record.steps) if isinstance(record, Window) else 0
