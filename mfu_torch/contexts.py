"""What ``Meter.step`` and ``Meter.data`` return, and loaders that others iterate over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class StepContext:
    """A step: one object for all steps of a meter, so that a step allocates none."""

    __slots__ = ("_add", "_begin", "_end")

    def __init__(
        self,
        begin: Callable[[], None],
        end: Callable[[bool], None],
        add: Callable[[int | None, int | None], None],
    ) -> None:
        self._begin = begin
        self._end = end
        self._add = add

    def __enter__(self) -> StepContext:
        self._begin()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._end(kind is not None)

    def add(self, *, tokens: int | None = None, samples: int | None = None) -> None:
        """Add to what the open step trains on, as its micro-batches become known.

        Raises:
            RuntimeError: Outside of a step.
        """
        self._add(tokens, samples)


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


class _TimedIterator:
    """An iterator of a ``DataLoader`` whose waiting time is measured; all else is passed on."""

    def __init__(
        self, items: Any, host_s: Callable[[], float], waited: Callable[[float], object]
    ) -> None:
        self._items = items
        self._host_s = host_s
        self._waited = waited

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        asked_s = self._host_s()
        batch = next(self._items)
        self._waited(self._host_s() - asked_s)
        return batch

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        if name == "_items":  # asked for before __init__: a copy in the making
            raise AttributeError(name)
        return getattr(self._items, name)


def watch_loader(
    loader: Any, clock: Callable[[], Callable[[], float]], waited: Callable[[float], object]
) -> Callable[[], None] | None:
    """Measure the wait for a ``DataLoader`` that somebody else iterates over.

    ``iter(loader)`` asks the loader's own ``_get_iterator``, which the instance can override; a
    wrapper of accelerate's keeps the loader in ``base_dataloader``.

    Args:
        loader: The loader.
        clock: Called when a loop begins; returns the function that tells host seconds.
        waited: Called with the seconds that each batch took.

    Returns:
        What undoes it; ``None`` if the loader is of another kind.
    """
    loader = getattr(loader, "base_dataloader", loader)
    make = getattr(loader, "_get_iterator", None)
    attributes = getattr(loader, "__dict__", None)
    if not callable(make) or attributes is None or "_get_iterator" in attributes:
        return None

    def timed() -> _TimedIterator:
        return _TimedIterator(make(), clock(), waited)

    attributes["_get_iterator"] = timed

    def undo() -> None:
        if attributes.get("_get_iterator") is timed:
            del attributes["_get_iterator"]

    return undo
