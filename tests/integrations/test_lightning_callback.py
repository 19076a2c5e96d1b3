"""The Lightning callback as an object: of either package, copied, misused, and broken."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_clock import FakeClock
from lightning_models import PACKAGES, callback, module, package, rows, trainer

from mfu_torch import read_run
from mfu_torch.integrations.lightning import MFUCallback
from mfu_torch.integrations.lightning import callback as ours
from mfu_torch.integrations.lightning import fit as followed
from mfu_torch.integrations.lightning.package import callback_classes


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return package(request.param)


@pytest.fixture
def one() -> Any:
    """Where the two packages cannot differ."""
    return package(PACKAGES[0])


def test_a_callback_is_one_for_every_package_that_is_imported() -> None:
    for one in [package(name) for name in PACKAGES]:
        assert isinstance(MFUCallback(), one.Callback)
    assert MFUCallback().state_key == "MFUCallback"


def test_a_package_that_is_imported_later_is_served_too(monkeypatch: pytest.MonkeyPatch) -> None:
    class Other:
        """The Callback of a third package."""

    monkeypatch.setattr(ours, "callback_classes", lambda: (Other,))
    for made in (MFUCallback(), Own(), pickle.loads(pickle.dumps(Own()))):
        assert isinstance(made, Other) and isinstance(made, MFUCallback)
        assert made.state_key == type(made).__name__
    assert isinstance(pickle.loads(pickle.dumps(Own())), Own)


def test_what_is_imported_decides_and_then_what_is_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, other = map(package, PACKAGES)
    assert callback_classes() == (one.Callback, other.Callback)
    monkeypatch.delitem(sys.modules, "lightning.pytorch.callbacks")
    assert callback_classes() == (other.Callback,)
    monkeypatch.delitem(sys.modules, "pytorch_lightning.callbacks")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="`pip install lightning` provides it"):
        callback_classes()


def test_a_single_callback_need_not_be_in_a_list(pl: Any, tmp_path: Path) -> None:
    followed = callback(FakeClock())
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    fit = pl.Trainer(
        callbacks=followed, max_steps=2, default_root_dir=tmp_path, accelerator="cpu", **options
    )
    fit.fit(module(pl), rows(2))
    assert len(list(read_run(tmp_path).steps)) == 2


class Own(MFUCallback):
    """A callback of a user's."""


@pytest.fixture(params=[MFUCallback, Own])
def copied(request: pytest.FixtureRequest) -> Iterator[Any]:
    yield request.param(log_every=3, telemetry=False, peak=1e12)


@pytest.mark.parametrize("copy_of", [copy.deepcopy, lambda it: pickle.loads(pickle.dumps(it))])
def test_a_callback_can_be_copied_and_sent_to_another_process(
    one: Any, tmp_path: Path, copied: Any, copy_of: Any
) -> None:
    trainer(one, tmp_path / "a", copied).fit(module(one), rows(2))
    other = copy_of(copied)
    assert type(other).__name__ == type(copied).__name__ and other.meter is None
    trainer(one, tmp_path / "b", other).fit(module(one), rows(2))
    assert read_run(tmp_path / "b").header.log_every == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"log_every": 0}, "log_every is 0"),
        ({"attention": "none"}, "attention is 'none'"),
        ({"tokens": 2048}, "tokens is 2048; expected a function"),
        ({"sinks": [3]}, "sinks has 3"),
    ],
)
def test_an_option_that_cannot_be_understood_is_refused_at_once(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        MFUCallback(**options)


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_batch_start", "on_train_batch_end"])
def test_a_fault_of_ours_ends_measuring_with_one_warning_and_not_the_training(
    one: Any,
    tmp_path: Path,
    hook: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a mistake")

    name = {"on_fit_start": "__init__", "on_train_batch_start": "begin_batch"}.get(
        hook, "end_batch"
    )
    monkeypatch.setattr(followed.Fit, name, broken)
    fit = trainer(one, tmp_path, callback(FakeClock()))
    fit.fit(module(one), rows(4))
    assert fit.global_step == 4
    (said,) = [text for text in caplog.messages if "a mistake" in text]
    assert said.startswith("mfu_torch stopped measuring after an internal error")
    assert "save_checkpoint" not in vars(fit)


def test_the_class_in_place_of_an_instance_is_refused_with_what_to_write(
    one: Any, tmp_path: Path
) -> None:
    with pytest.raises(TypeError, match=r"expected an instance: Trainer\(callbacks=\[MFU"):
        trainer(one, tmp_path, MFUCallback).fit(module(one), rows(1))


def test_an_option_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(TypeError, match="there is no option 'log_every_n_steps'; expected one of"):
        MFUCallback(log_every_n_steps=5)
