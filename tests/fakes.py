"""Stand-ins for the world outside: what cannot be asked of a machine without a GPU."""

from __future__ import annotations

from typing import Any


class ListSink:
    """Keeps the records that it is given."""

    def __init__(self) -> None:
        self.records: list[Any] = []

    def write(self, record: Any) -> None:
        self.records.append(record)

    def close(self) -> None:
        """Nothing to close."""

    def of(self, kind: type) -> list[Any]:
        """The records of one kind, in order."""
        return [record for record in self.records if type(record) is kind]
