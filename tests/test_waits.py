"""Which waits for data are the loop's, and how long they are. Times are of a fake clock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from fake_clock import FakeClock
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from mfu_torch import Meter
from mfu_torch.figures import run_figures


class Slow:
    """Takes 0.5 s to begin, 0.25 s per item, and 0.125 s to find that there are no more."""

    def __init__(self, clock: FakeClock, items: int = 4) -> None:
        self._clock = clock
        self._items = items

    def __iter__(self) -> Iterator[torch.Tensor]:
        self._clock.advance(0.5)
        return self._each()

    def _each(self) -> Iterator[torch.Tensor]:
        for _ in range(self._items):
            self._clock.advance(0.25)
            yield torch.ones(1, 16)
        self._clock.advance(0.125)


class Stream(IterableDataset[torch.Tensor]):
    def __init__(self, items: Iterable[torch.Tensor]) -> None:
        self._items = items

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._items)


def meter_of(clock: FakeClock, folder: Path, model: nn.Module | None = None) -> Meter:
    return Meter(
        model, log_dir=folder, clock=clock, peak=1e6, sinks=[], telemetry=False, log_every=2
    )


def train(meter: Meter, clock: FakeClock, batches: Iterable[torch.Tensor], epochs: int = 1) -> None:
    for _ in range(epochs):
        for _ in batches:
            with meter.step():
                clock.advance(0.75)


def waits(meter: Meter) -> list[float | None]:
    return [step.data_wait_s for step in meter.run.steps]


def on_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


@pytest.mark.parametrize("watched", [True, False])
def test_beginning_an_epoch_and_finding_its_end_are_waits(watched: bool, tmp_path: Path) -> None:
    clock = FakeClock()
    meter = meter_of(clock, tmp_path)
    loader = DataLoader(Stream(Slow(clock, 2)), batch_size=None)
    assert not watched or meter.watch_loader(loader)
    with meter:
        train(meter, clock, loader if watched else meter.data(loader), epochs=2)
    # After the 2nd step: 0.125 (no more) + 0.5 (the iterator is made) + 0.25 (the first item).
    assert waits(meter) == [0.25, 0.875, 0.25, 0.0]


def test_a_wait_after_the_last_step_belongs_to_no_step(tmp_path: Path) -> None:
    clock = FakeClock()
    with meter_of(clock, tmp_path) as meter:
        for index, _ in enumerate(meter.data(Slow(clock))):
            if index == 2:
                break
            with meter.step():
                clock.advance(0.75)
    assert waits(meter) == [0.25, 0.0]
    assert [step.duration_s for step in meter.run.steps] == [1.0, 0.75]


def test_a_wait_inside_a_step_stays_there_at_the_end(tmp_path: Path) -> None:
    clock = FakeClock()
    with meter_of(clock, tmp_path) as meter:
        batches = iter(meter.data(Slow(clock)))
        for _ in range(2):
            with meter.step():
                next(batches)
    assert waits(meter) == [0.75, 0.25]


def test_a_loader_that_is_watched_and_wrapped_is_waited_for_once(tmp_path: Path) -> None:
    clock = FakeClock()
    loader = DataLoader(Stream(Slow(clock)), batch_size=None)
    with meter_of(clock, tmp_path) as meter:
        assert meter.watch_loader(loader)
        train(meter, clock, meter.data(loader))
    assert waits(meter) == [0.25, 0.25, 0.25, 0.0]


@pytest.mark.parametrize("outer", ["watched", "wrapped"])
@pytest.mark.parametrize("inner", ["watched", "wrapped"])
def test_of_a_loader_inside_a_loader_only_the_outer_wait_counts(
    inner: str, outer: str, tmp_path: Path
) -> None:
    clock = FakeClock()
    meter = meter_of(clock, tmp_path)

    def measured(items: Iterable[torch.Tensor], how: str) -> Iterable[torch.Tensor]:
        loader = DataLoader(Stream(items), batch_size=None)
        return loader if how == "watched" and meter.watch_loader(loader) else meter.data(loader)

    with meter:
        train(meter, clock, measured(measured(Slow(clock), inner), outer))
    assert waits(meter) == [0.25, 0.25, 0.25, 0.0]


def test_an_error_in_a_loader_ends_the_wait(tmp_path: Path) -> None:
    clock = FakeClock()

    def broken() -> Iterator[torch.Tensor]:
        clock.advance(2.0)
        raise KeyError("theirs")
        yield

    with meter_of(clock, tmp_path) as meter:
        with meter.step():
            clock.advance(0.75)
        with pytest.raises(KeyError, match="theirs"):
            next(iter(meter.data(broken())))
        train(meter, clock, meter.data(Slow(clock, 2)))
    assert waits(meter) == [2.75, 0.25, 0.0]


@pytest.mark.parametrize("begun", ["by the loop", "by the first wait"])
@pytest.mark.parametrize("watched", [True, False])
def test_a_thread_that_loads_ahead_does_not_wait_in_place_of_the_loop(
    begun: str, watched: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, model = FakeClock(), nn.Linear(16, 4, bias=False)
    meter = meter_of(clock, tmp_path, model)
    loader = DataLoader(Stream(Slow(clock)), batch_size=None)
    assert not watched or meter.watch_loader(loader)
    ahead = iter(loader if watched else meter.data(loader))
    if begun == "by the loop":
        meter.start()
    box: list[torch.Tensor] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(4):
            on_a_thread(lambda: box.append(next(ahead)))
            with meter.step():
                model(box.pop()).sum().backward()
                clock.advance(1.0)
        meter.close()
    assert waits(meter) == [None] * 4
    found = run_figures(meter.run)
    assert found.data_wait_share is None and "data_wait_share" in found.absent
    said = [r.message for r in caplog.records if "another thread" in r.message]
    assert len(said) == 1 and said[0] in " ".join(meter.summary().split())
    assert found.mfu is not None  # the run is the loop's, whoever was first


def test_waits_of_the_loop_count_beside_those_of_another_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()
    with meter_of(clock, tmp_path) as meter:
        for _ in meter.data(Slow(clock, 3)):
            on_a_thread(lambda: list(meter.data(Slow(clock))))
            with meter.step():
                clock.advance(0.75)
    assert waits(meter) == [0.25, 0.25, 0.0]
    assert "another thread" not in caplog.text


def test_a_loop_on_a_thread_of_its_own_is_measured_there(tmp_path: Path) -> None:
    clock = FakeClock()
    with meter_of(clock, tmp_path) as meter:
        on_a_thread(lambda: train(meter, clock, meter.data(Slow(clock, 3))))
    assert waits(meter) == [0.25, 0.25, 0.0]


def test_what_waits_after_the_run_is_left_alone(tmp_path: Path) -> None:
    clock = FakeClock()
    meter = meter_of(clock, tmp_path)
    batches = meter.data(Slow(clock))
    with meter:
        train(meter, clock, batches)
    assert len(list(batches)) == 4
    assert waits(meter) == [0.25, 0.25, 0.25, 0.0]
