"""Stand-ins for the world outside: what cannot be asked of a machine without a GPU."""

from __future__ import annotations

from typing import Any


class FakeNvmlError(Exception):
    """Base of the errors, as ``pynvml.NVMLError`` is."""


class NVMLError_LibraryNotFound(FakeNvmlError):
    """No driver; named as in pynvml, whose names tell the cases apart."""


class NVMLError_NotFound(FakeNvmlError):
    """No device with that UUID."""


class NVMLError_NoPermission(FakeNvmlError):
    """The call is not allowed."""


class FakeNvml:
    """The module ``pynvml`` of a machine with the given devices.

    ``FakeNvml({"GPU-1": "NVIDIA L4"})`` has one GPU. A handle is the device's UUID, and one that
    begins with ``MIG-`` is a slice. Calls are recorded by name; there is no look-up by index.
    """

    NVMLError = FakeNvmlError

    def __init__(
        self,
        names: dict[str, str] | None = None,
        *,
        init_error: Exception | None = None,
        name_error: Exception | None = None,
    ) -> None:
        self.names = names or {}
        self.init_error = init_error
        self.name_error = name_error
        self.calls: list[str] = []

    def nvmlInit(self) -> None:
        self.calls.append("nvmlInit")
        if self.init_error is not None:
            raise self.init_error

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        self.calls.append(f"nvmlDeviceGetHandleByUUID {uuid}")
        if uuid not in self.names:
            raise NVMLError_NotFound("Not Found")
        return uuid

    def nvmlDeviceIsMigDeviceHandle(self, handle: str) -> int:
        return int(handle.startswith("MIG-"))

    def nvmlDeviceGetName(self, handle: str) -> str:
        if self.name_error is not None:
            raise self.name_error
        return self.names[handle]


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
