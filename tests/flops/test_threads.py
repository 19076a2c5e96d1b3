"""What the counted code hands to other threads cannot be seen there; that it does is said."""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from mfu_torch.flops.counter import FlopCounter, count_flops

X = torch.randn(8, 8)
PRODUCT = 2 * 8**3


def in_a_thread(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_a_forward_in_a_thread_beside_one_that_is_seen_is_said() -> None:
    def step() -> None:
        in_a_thread(lambda: X @ X)
        _ = X @ X

    count = count_flops(step)
    assert count.model == PRODUCT
    assert [note.split(":")[0] for note in count.notes] == [
        f"{__name__} gave work to another thread (Thread.start)"
    ]


def test_so_is_work_for_a_pool_that_was_there_before() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        count = count_flops(lambda: pool.submit(torch.mm, X, X).result() @ X)
    assert count.model == PRODUCT
    assert ["ThreadPoolExecutor.submit" in note for note in count.notes] == [True]


def test_threads_that_load_or_write_are_no_reason_to_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    loader = types.ModuleType("torch.utils.data.loader_of_a_test")
    source = "def load(start):\n    start()\n"
    exec(source, loader.__dict__)
    monkeypatch.setitem(sys.modules, loader.__name__, loader)

    def step() -> None:
        thread = threading.Thread(target=int)
        loader.load(thread.start)
        thread.join()
        _ = X @ X

    assert count_flops(step).notes == ()


@pytest.mark.parametrize("workers", [0, 1])
def test_the_threads_of_a_data_loader_are_none_either(workers: int) -> None:
    loader = DataLoader(TensorDataset(X), batch_size=8, num_workers=workers)

    def step() -> None:
        for (batch,) in loader:
            _ = batch @ X

    count = count_flops(step)
    assert (count.model, count.notes) == (PRODUCT, ())


def test_what_other_threads_start_is_not_this_counts_business() -> None:
    go, done = threading.Event(), threading.Event()

    def beside() -> None:
        go.wait()
        in_a_thread(int)
        done.set()

    thread = threading.Thread(target=beside)
    thread.start()

    def step() -> None:
        go.set()
        done.wait()
        _ = X @ X

    assert count_flops(step).notes == ()
    thread.join()


def test_the_methods_are_put_back_also_after_an_error() -> None:
    before = threading.Thread.start, ThreadPoolExecutor.submit
    with contextlib.suppress(KeyError), FlopCounter():
        assert threading.Thread.start is not before[0]
        raise KeyError
    assert (threading.Thread.start, ThreadPoolExecutor.submit) == before
