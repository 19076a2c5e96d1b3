"""The wait for a DataLoader that somebody else iterates over."""

from __future__ import annotations

from collections.abc import Iterator
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
