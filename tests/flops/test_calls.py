"""Watching a model's calls must be invisible to everything but the watcher."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from mfu_torch.flops.calls import CallWatch, compiled_call

X = torch.ones(2, 4)


def watched(model: nn.Module) -> tuple[CallWatch, list[tuple[Any, Any]]]:
    seen: list[tuple[Any, Any]] = []
    watch = CallWatch(model, lambda module, args, kwargs: seen.append((args, kwargs)))
    watch.attach()
    return watch, seen


def test_every_forward_call_is_seen_with_its_inputs() -> None:
    model = nn.Linear(4, 4)
    expected = model(X)
    watch, seen = watched(model)
    assert torch.equal(model(X), expected)
    assert torch.equal(model(input=X), expected)
    assert seen == [((X,), {}), ((), {"input": X})]
    watch.detach()
    model(X)
    assert len(seen) == 2


def test_detaching_leaves_the_module_as_it_was() -> None:
    model = nn.Linear(4, 4)
    before = dict(vars(model))
    watch, _ = watched(model)
    watch.detach()
    assert vars(model) == before


def test_a_forward_that_raises_is_left_too() -> None:
    model = nn.Linear(4, 4)
    watch, _ = watched(model)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.ones(2, 5))
    assert watch.inside is False


def test_copies_and_pickles_of_the_model_are_not_watched() -> None:
    model = nn.Linear(4, 4)
    _, seen = watched(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
    copies.append(torch.load(file, weights_only=False))
    for duplicate in copies:
        assert torch.equal(duplicate(X), model(X))
    assert len(seen) == len(copies)  # the calls of the model itself


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("watches", [1, 2, 3])
def test_a_replica_runs_its_own_weights(watches: int, threaded: bool) -> None:
    model = nn.Linear(4, 4)
    seen = [watched(model)[1] for _ in range(watches)]
    replica = model._replicate_for_data_parallel()
    replica.weight, replica.bias = torch.zeros(4, 4), torch.ones(4)
    results: list[torch.Tensor] = []
    run_in(threaded, lambda: results.append(replica(X)))
    assert torch.equal(results[0], torch.ones(2, 4))
    assert not threaded or seen == [[]] * watches


@pytest.mark.parametrize("watches", [1, 2, 3])
def test_a_model_that_is_called_in_another_thread_runs(watches: int) -> None:
    model = nn.Linear(4, 4)
    for _ in range(watches):
        watched(model)
    results: list[torch.Tensor] = []
    run_in(True, lambda: results.append(model(X)))
    assert torch.equal(results[0], model.forward(X))


def test_only_torchs_own_caller_is_asked_which_module_it_calls() -> None:
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner._compiled_call_impl(x)

    outer = Outer()
    watched(outer.inner)
    assert torch.equal(outer(X), outer.inner.forward(X))


def run_in(threaded: bool, work: Callable[[], None]) -> None:
    """Do the work here, or in a thread."""
    if not threaded:
        return work()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_two_watches_on_one_model_see_the_same_and_go_in_any_order() -> None:
    model = nn.Linear(4, 4)
    first, seen_first = watched(model)
    second, seen_second = watched(model)
    model(X)
    first.detach()
    model(X)
    second.detach()
    model(X)
    assert (len(seen_first), len(seen_second)) == (1, 2)
    assert "_compiled_call_impl" not in vars(model)


def test_a_module_compiled_in_place_is_watched_and_given_back_compiled() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.compile(backend="eager")
    compiled = compiled_call(model)
    watch, seen = watched(model)
    assert compiled_call(model) is compiled
    model(X)
    assert len(seen) == 1
    watch.detach()
    assert model._compiled_call_impl is compiled


def test_a_module_compiled_in_place_while_it_is_watched_stays_compiled() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    watch, _ = watched(model)
    model.compile(backend="eager")
    compiled = compiled_call(model)
    watch.detach()
    assert model._compiled_call_impl is compiled


def test_keeping_watch_attaches_again_only_where_the_watch_was_lost() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    first, seen_first = watched(model)
    second, seen_second = watched(model)
    first.keep()  # it stands below the second, and sees every call
    model(X)
    assert (len(seen_first), len(seen_second)) == (1, 1)
    model.compile(backend="eager")  # both are lost
    model(X)
    first.keep()
    model(X)
    assert (len(seen_first), len(seen_second)) == (2, 1)
    first.detach()
    second.detach()
    assert compiled_call(model) is model._compiled_call_impl is not None


def test_the_wrapper_of_torch_compile_is_watched_from_outside() -> None:
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    watch, seen = watched(compiled)
    assert torch.equal(compiled(X), model(X))
    assert len(seen) == 1 and not model._forward_pre_hooks
    watch.detach()
    assert not compiled._forward_pre_hooks and not compiled._forward_hooks
