"""What ``Meter.step`` and ``Meter.data`` return."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class StepContext:
    """A step: one object for all steps of a meter, so that a step allocates none."""

    __slots__ = ("_begin", "_end")

    def __init__(self, begin: Callable[[], None], end: Callable[[bool], None]) -> None:
        self._begin = begin
        self._end = end

    def __enter__(self) -> None:
        self._begin()

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end(kind is not None)


class DataWait(Generic[T]):
    """A loader whose waiting time is measured; iterate over it as over the loader.

    Args:
        loader: What is iterated over, anew for each loop over this object.
        clock: Called when a loop begins; returns the function that tells host seconds.
        waited: Called with the seconds that each item took, and the item.
    """

    def __init__(
        self,
        loader: Iterable[T],
        clock: Callable[[], Callable[[], float]],
        waited: Callable[[float, object], None],
    ) -> None:
        self._loader = loader
        self._clock = clock
        self._waited = waited

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        host_s = self._clock()
        asked_s = host_s()
        for batch in self._loader:
            self._waited(host_s() - asked_s, batch)
            yield batch
            asked_s = host_s()
