"""What ``Meter.step`` and ``Meter.data`` return, and loaders that others iterate over."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")

_GET_ITERATOR = "_get_iterator"  # a method of DataLoader that the instance can override
_ITERATOR = "_iterator"  # where it keeps the one whose workers are persistent


class Waits(Protocol):
    """What measures waits: :class:`mfu_torch.clock.waits.Waits`."""

    def begins(self) -> float | None:
        """A wait begins."""

    def ends(self, asked_s: float | None, *, item: bool) -> bool:
        """It is over; whether it was for an item that the loop waited for."""


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
        waits: Told of each wait: for the iterator, for each item, and for there being no more.
        came: Called with each item that the loop waited for.
    """

    def __init__(self, loader: Iterable[T], waits: Waits, came: Callable[[object], None]) -> None:
        self._loader = loader
        self._waits = waits
        self._came = came

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[T]:
        waits = self._waits
        items = _timed(waits, iter, self._loader)
        while True:
            asked_s, ours = waits.begins(), False
            try:
                batch = next(items)
            except StopIteration:
                return
            finally:
                ours = waits.ends(asked_s, item=True)
            if ours:
                self._came(batch)
            yield batch


class _TimedIterator:
    """An iterator of a ``DataLoader`` whose waiting time is measured; all else is passed on."""

    __slots__ = ("__weakref__", "_items", "_waits")

    def __init__(self, items: Any, waits: Callable[[], Waits | None]) -> None:
        object.__setattr__(self, "_items", items)
        object.__setattr__(self, "_waits", waits)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._items)  # whoever stops the workers asks for the kind of iterator

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Any:
        return _timed(self._waits(), next, self._items, item=True)

    def __len__(self) -> int:
        return len(self._items)

    def _reset(self, *args: Any, **kwargs: Any) -> Any:
        """Begin another epoch with the same workers."""
        return _timed(self._waits(), lambda: self._items._reset(*args, **kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._items.__reduce_ex__(protocol)  # torch's refuse; a copy of others is not timed

    def __getattr__(self, name: str) -> Any:
        if name in _TimedIterator.__slots__:  # asked for before __init__: a copy in the making
            raise AttributeError(name)
        return getattr(self._items, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._items, name, value)


class _GetIterator:
    """Stands in a loader's own dict in place of its method, and times what that returns.

    A copy of the loader has the same dict, so this is then called for a loader that is not ours:
    the caller knows which, it is its ``self``. There it removes itself. What is unpickled or deeply
    copied watches nothing.

    Args:
        loader: The loader that is watched. Not kept alive.
        waits: Told of each wait. Not kept alive: a loader can outlive the meter.
    """

    def __init__(self, loader: object = None, waits: Waits | None = None) -> None:
        self._loader = _weak(loader)
        self._waits = _weak(waits)

    def __reduce__(self) -> tuple[type[_GetIterator], tuple[()]]:
        return _GetIterator, ()

    def __call__(self) -> Any:
        loader, waits = self._called_for(sys._getframe(1).f_locals), self._waits()
        if waits is None or loader is not self._loader():
            if loader.__dict__.get(_GET_ITERATOR) is self:
                del loader.__dict__[_GET_ITERATOR]
            return loader._get_iterator()
        items = _timed(waits, type(loader)._get_iterator, loader)
        return _TimedIterator(items, self._waits)

    def attach(self) -> None:
        """Watch the loader from now on, and the iterator that it keeps, if there is one."""
        attributes = self._loader().__dict__
        attributes[_GET_ITERATOR] = self
        kept = attributes.get(_ITERATOR)
        if kept is not None:
            attributes[_ITERATOR] = _TimedIterator(_untimed(kept), self._waits)

    def detach(self) -> None:
        """Leave the loader as it was."""
        attributes = getattr(self._loader(), "__dict__", {})
        if attributes.get(_GET_ITERATOR) is self:
            del attributes[_GET_ITERATOR]
            if _ITERATOR in attributes:
                attributes[_ITERATOR] = _untimed(attributes[_ITERATOR])

    def watches(self, loader: object) -> bool:
        """Whether it measures the wait for this loader, for a meter that is still there."""
        return self._loader() is loader and self._waits() is not None

    def _called_for(self, names: dict[str, Any]) -> Any:
        for value in (names.get("self"), *names.values()):
            if _is_data_loader(value) and value.__dict__.get(_GET_ITERATOR) is self:
                return value
        loader = self._loader()
        if loader is None:
            raise RuntimeError(
                "_get_iterator() was called on a copy of a DataLoader that a Meter watched, and "
                "which copy is not known; expected iter(loader)"
            )
        return loader


class WatchedLoaders:
    """Loaders that somebody else iterates over, while a meter measures the wait for them.

    Args:
        waits: Told of each wait.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._hooks: weakref.WeakSet[_GetIterator] = weakref.WeakSet()  # the loaders own them

    def add(self, loader: Any) -> bool:
        """Watch a ``DataLoader``; whether it can be, and is not watched yet.

        A wrapper of accelerate's keeps the loader in ``base_dataloader``.
        """
        try:
            loader = getattr(loader, "base_dataloader", loader)
        except Exception:  # an object of any kind, whose __getattr__ is its own
            return False
        if not _is_data_loader(loader):
            return False
        found = loader.__dict__.get(_GET_ITERATOR)
        if found is not None and (type(found) is not _GetIterator or found.watches(loader)):
            return False  # overridden by somebody else, or watched
        hook = _GetIterator(loader, self._waits)
        hook.attach()
        self._hooks.add(hook)
        return True

    def release(self) -> None:
        """Leave all of them as they were."""
        for hook in list(self._hooks):
            hook.detach()
        self._hooks.clear()


def _timed(waits: Waits | None, call: Callable[..., Any], *args: Any, item: bool = False) -> Any:
    """What the call returns: an item, or an iterator. The loop waits for it."""
    if waits is None:  # the meter is gone
        return call(*args)
    asked_s = waits.begins()
    try:
        return call(*args)
    finally:
        waits.ends(asked_s, item=item)


def _untimed(items: Any) -> Any:
    return items._items if type(items) is _TimedIterator else items


def _weak(value: object) -> Callable[[], Any]:
    return _nothing if value is None else weakref.ref(value)


def _nothing() -> None:
    """A reference to nothing."""


def _is_data_loader(value: object) -> bool:
    """Whether it is torch's ``DataLoader`` or a subclass, and no object that only says so."""
    return any(
        kind.__name__ == "DataLoader" and kind.__module__ == "torch.utils.data.dataloader"
        for kind in type(value).__mro__
    )
