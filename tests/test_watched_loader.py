"""The wait for a DataLoader that somebody else iterates over."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from mfu_torch import Meter


class Slow(Dataset[torch.Tensor]):
    """Takes 0.25 s of a fake clock per item."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self._clock.advance(0.25)
        return torch.ones(16)


class SlowStream(IterableDataset[torch.Tensor]):
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(4):
            self._clock.advance(0.25)
            yield torch.ones(16)


def waits(meter: Meter, clock: FakeClock, loader: Any, model: nn.Module) -> list[float | None]:
    with meter:
        for batch in loader:
            with meter.step():
                model(batch).sum().backward()
                clock.advance(0.75)
    return [step.data_wait_s for step in meter.run.steps]


@pytest.mark.parametrize("kind", [Slow, SlowStream])
def test_the_wait_for_the_next_batch_belongs_to_the_step_before(kind: Any, tmp_path: Path) -> None:
    clock, model = FakeClock(), nn.Linear(16, 4)
    loader = DataLoader(kind(clock), batch_size=1)
    meter = Meter(model, log_dir=tmp_path, clock=clock, peak=1e6, sinks=[], telemetry=False)
    assert meter.watch_loader(loader)
    assert waits(meter, clock, loader, model) == [0.25, 0.25, 0.25, 0.0]
    steps = list(meter.run.steps)
    assert [step.duration_s for step in steps] == [1.0, 1.0, 1.0, 0.75]
    assert meter.run.pauses[0].duration_s == 0.25  # the first batch: the run had no step yet


def test_the_loader_is_left_as_it_was(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 16)))
    before = dict(loader.__dict__)
    meter = Meter(log_dir=tmp_path, sinks=[], clock=FakeClock(), telemetry=False)
    assert meter.watch_loader(loader)
    with meter:
        assert len(list(loader)) == 4
    assert loader.__dict__ == before


def test_a_loader_watched_twice_is_watched_once(tmp_path: Path) -> None:
    loader = DataLoader(TensorDataset(torch.ones(4, 16)))
    meter = Meter(log_dir=tmp_path, sinks=[], clock=FakeClock(), telemetry=False)
    assert meter.watch_loader(loader)
    assert not meter.watch_loader(loader)


@pytest.mark.parametrize("loader", [[1, 2], None, iter([])])
def test_what_is_no_data_loader_is_not_watched(loader: object, tmp_path: Path) -> None:
    meter = Meter(log_dir=tmp_path, sinks=[], clock=FakeClock(), telemetry=False)
    assert not meter.watch_loader(loader)


def test_persistent_workers_are_reset_as_ever(tmp_path: Path) -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(4)), num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    meter = Meter(log_dir=tmp_path, sinks=[], clock=FakeClock(), telemetry=False)
    assert meter.watch_loader(loader)
    with meter:
        for _ in range(2):
            assert [int(batch) for (batch,) in loader] == [0, 1, 2, 3]


# --- copies, leftovers, and iterators that were there before --------------------------------------


def idle_meter(folder: Path) -> Meter:
    return Meter(log_dir=folder, sinks=[], clock=FakeClock(), telemetry=False)


COPIES: list[Callable[[Any], Any]] = [
    copy.copy, copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader)),
]  # fmt: skip


def mine(batch: list[int]) -> str:
    return "mine"


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("copied", COPIES)
def test_a_copy_of_a_watched_loader_is_a_loader_of_its_own(
    copied: Callable[[Any], Any], closed: bool, tmp_path: Path
) -> None:
    loader = DataLoader([1, 2, 3, 4], batch_size=2)
    meter = idle_meter(tmp_path)
    assert meter.watch_loader(loader)
    with meter:
        other = copied(copied(loader))
        other.collate_fn = mine
        if not closed:
            assert list(other) == ["mine", "mine"]
        assert [batch.tolist() for batch in loader] == [[1, 2], [3, 4]]
    assert list(other) == ["mine", "mine"]
    assert other.__dict__.keys() == loader.__dict__.keys()


@pytest.mark.parametrize("copied", COPIES)
def test_only_the_loader_that_is_watched_is_measured(
    copied: Callable[[Any], Any], tmp_path: Path
) -> None:
    clock, model = FakeClock(), nn.Linear(16, 4)
    loader = DataLoader([torch.ones(16)] * 3)
    meter = Meter(model, log_dir=tmp_path, clock=clock, peak=1e6, sinks=[], telemetry=False)
    assert meter.watch_loader(loader)
    other = copied(loader)
    assert waits(meter, clock, other, model) == [None] * 3


def test_a_copy_of_a_watched_loader_can_be_watched_itself(tmp_path: Path) -> None:
    clock, model = FakeClock(), nn.Linear(16, 4)
    loader = DataLoader(Slow(clock), batch_size=1)
    meter = Meter(model, log_dir=tmp_path, clock=clock, peak=1e6, sinks=[], telemetry=False)
    assert meter.watch_loader(loader)
    other = copy.copy(loader)
    assert meter.watch_loader(other) and not meter.watch_loader(other)
    assert waits(meter, clock, other, model) == [0.25, 0.25, 0.25, 0.0]
    assert not {"_get_iterator"} & (loader.__dict__.keys() | other.__dict__.keys())


def test_a_subclass_that_makes_its_own_iterators_still_does(tmp_path: Path) -> None:
    class Twice(DataLoader[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:  # type: ignore[override]
            yield from super().__iter__()
            yield from super().__iter__()

    clock, model = FakeClock(), nn.Linear(16, 4)
    loader = Twice(Slow(clock), batch_size=1)
    meter = Meter(model, log_dir=tmp_path, clock=clock, peak=1e6, sinks=[], telemetry=False)
    assert meter.watch_loader(loader)
    assert waits(meter, clock, loader, model) == [0.25] * 7 + [0.0]


def test_a_watched_loader_is_freed_when_nobody_else_has_it(tmp_path: Path) -> None:
    with idle_meter(tmp_path) as meter:
        loader = DataLoader([1, 2])
        assert meter.watch_loader(loader) and len(list(loader)) == 2
        gone = weakref.ref(loader)
        gc.disable()
        try:
            del loader
            assert gone() is None  # at once: nothing points back to it
        finally:
            gc.enable()


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_a_meter_that_never_started_leaves_the_loader_to_another(end: str, tmp_path: Path) -> None:
    loader = DataLoader([1, 2])
    first = idle_meter(tmp_path)
    assert first.watch_loader(loader)
    if end == "closed":
        first.close()
        assert "_get_iterator" not in loader.__dict__
    del first
    gc.collect()
    assert [int(batch) for batch in loader] == [1, 2]
    second = idle_meter(tmp_path)
    assert second.watch_loader(loader)
    second.close()
    assert "_get_iterator" not in loader.__dict__


def test_workers_that_were_there_before_are_watched_too(tmp_path: Path) -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(4)), num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    assert len(list(loader)) == 4
    workers = loader._iterator
    for _ in range(2):
        with idle_meter(tmp_path) as meter:
            assert meter.watch_loader(loader)
            for _ in loader:
                assert isinstance(loader._iterator, type(workers))  # as who stops them would ask
                with meter.step():
                    pass
        assert [step.data_wait_s for step in meter.run.steps] == [0.0] * 4  # seen, on that clock
        assert loader._iterator is workers


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_workers_cannot_be_copied_whether_they_are_watched_or_not(
    copied: Callable[[Any], Any], tmp_path: Path
) -> None:
    loader = DataLoader(
        TensorDataset(torch.arange(4)), num_workers=1, persistent_workers=True,
        multiprocessing_context="fork",
    )  # fmt: skip
    with idle_meter(tmp_path) as meter:
        assert meter.watch_loader(loader) and len(list(loader)) == 4
        with pytest.raises(NotImplementedError, match="cannot be pickled"):  # torch's own
            copied(loader)


def test_an_object_that_answers_nothing_is_not_watched(tmp_path: Path) -> None:
    class Odd:
        def __getattr__(self, name: str) -> object:
            raise OSError(name)

    assert not idle_meter(tmp_path).watch_loader(Odd())
    assert not idle_meter(tmp_path).watch_loader(DataLoader)
