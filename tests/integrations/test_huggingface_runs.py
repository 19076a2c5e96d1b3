"""A Hugging Face training that is resumed, interrupted, repeated or disturbed."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import ListSink
from hf_models import (
    MICRO_BATCH_S,
    PEAK,
    SEQ,
    Stops,
    arguments,
    callback,
    counted,
    gpt2,
    mfu_of,
    rows,
    trainer_of,
)
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from mfu_torch.figures import Figures, run_figures
from mfu_torch.integrations.huggingface import MFUCallback
from mfu_torch.run.runfile import read_run

MFU = counted(gpt2()).model / (MICRO_BATCH_S * PEAK)

HOOKS = [name for name in dir(TrainerCallback) if name.startswith("on_")]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("mfu_torch")]


# --- resumed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("restore", [False, True])
def test_a_resumed_training_is_numbered_on_and_covers_what_was_before(
    tmp_path: Path, restore: bool, caplog: pytest.LogCaptureFixture
) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    first, _, _ = trainer_of(tmp_path, **saving)
    first.add_callback(Stops(after=4))
    first.train()
    sink = ListSink()
    second, ours, _ = trainer_of(
        tmp_path, options={"sinks": [sink]},
        restore_callback_states_from_checkpoint=restore, **saving,
    )  # fmt: skip
    caplog.clear()
    second.train(resume_from_checkpoint=True)
    assert ours.meter is not None
    run = ours.meter.run
    assert [step.index for step in run.steps] == [4, 5, 6, 7]
    assert [figures.step for figures in sink.of(Figures)] == [5, 6, 7, 8]
    assert mfu_of(ours) == pytest.approx(MFU, rel=1e-12)
    earlier = run.header.earlier
    assert earlier is not None and earlier.steps == 4
    assert earlier.ideal_s["full"] == pytest.approx(4 * MFU * MICRO_BATCH_S, rel=1e-12)
    # 8 steps over the wall time of both attempts.
    wall_s = earlier.wall_s + run.wall_s
    found = run_figures(run).end_to_end
    assert found == pytest.approx(8 * MFU * MICRO_BATCH_S / wall_s, rel=1e-12)
    assert warnings_of(caplog) == []
    assert not any("callbacks not included" in record.message for record in caplog.records)
    # And it can be saved and resumed once more.
    stored = json.loads((tmp_path / "out/checkpoint-8/trainer_state.json").read_text())
    saved = stored["stateful_callbacks"]["MFUPauses"]["attributes"]["saved"]
    assert saved["steps"] == 8


@pytest.mark.parametrize("restore", [False, True])
def test_a_checkpoint_made_without_the_callback_can_be_resumed_with_it(
    tmp_path: Path, restore: bool
) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    first, _, _ = trainer_of(tmp_path, **saving)
    first.remove_callback(MFUCallback)
    first.callback_handler.callbacks.pop()  # MFUPauses
    first.add_callback(Stops(after=4))
    first.train()
    second, ours, _ = trainer_of(
        tmp_path, restore_callback_states_from_checkpoint=restore, **saving
    )
    second.train(resume_from_checkpoint=True)  # the Trainer itself raises KeyError at a save
    assert ours.meter is not None
    assert [step.index for step in ours.meter.run.steps] == [4, 5, 6, 7]
    figures = run_figures(ours.meter.run)
    assert figures.mfu == pytest.approx(MFU, rel=1e-12)
    assert figures.end_to_end is None
    assert "no state of MFUCallback" in figures.absent["end_to_end"]


def test_a_state_that_cannot_be_read_costs_the_numbering_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saving: dict[str, Any] = {"save_strategy": "steps", "save_steps": 4, "max_steps": 8}
    first, _, _ = trainer_of(tmp_path, **saving)
    first.add_callback(Stops(after=4))
    first.train()
    path = tmp_path / "out/checkpoint-4/trainer_state.json"
    stored = json.loads(path.read_text())
    stored["stateful_callbacks"]["MFUPauses"]["attributes"]["saved"] = {"version": 99}
    path.write_text(json.dumps(stored))
    second, ours, _ = trainer_of(tmp_path, **saving)
    second.train(resume_from_checkpoint=True)
    assert len(list(ours.meter.run.steps)) == 4  # type: ignore[union-attr]
    assert any("not continued" in text for text in warnings_of(caplog))


# --- repeated and interrupted ---------------------------------------------------------------------


def test_every_training_is_a_run_of_its_own(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, report_to="tensorboard")
    for number in (1, 2):
        trainer.train()
        assert ours.meter is not None
        assert [step.index for step in ours.meter.run.steps] == list(range(6))
        assert ours.meter.run.header.earlier is None
        assert len(list(tmp_path.rglob("*.jsonl"))) == number
    names = [type(one).__name__ for one in trainer.callback_handler.callbacks]
    assert names.count("MFUPauses") == 1 and names[0] == "MFUCallback"


def test_runs_in_one_folder_have_events_apart(tmp_path: Path) -> None:
    trainer, _, _ = trainer_of(tmp_path, options={"log_dir": tmp_path / "log"})
    trainer.train()
    trainer.train()
    folders = [path.parent.name for path in (tmp_path / "log").rglob("*tfevents*")]
    assert sorted(folders) == ["log", "run-2"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt()])
def test_a_run_that_an_exception_left_ends_when_the_next_begins(
    tmp_path: Path, error: BaseException
) -> None:
    trainer, ours, _ = trainer_of(tmp_path, options={"log_dir": tmp_path / "log"})
    stops = Stops(3, error)
    trainer.add_callback(stops)
    with pytest.raises(type(error)):
        trainer.train()
    trainer.evaluate(rows(2))
    trainer.remove_callback(stops)
    trainer.train()
    left, done = (read_run(tmp_path / "log" / name) for name in ("run.jsonl", "run-2.jsonl"))
    assert left.end is not None and left.end.reason == type(error).__name__
    assert done.end is not None and done.end.reason == "completed"
    assert (len(list(left.steps)), len(list(done.steps))) == (3, 6)
    assert mfu_of(ours) == pytest.approx(MFU, rel=1e-12)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no"), KeyboardInterrupt()])
@pytest.mark.parametrize("step", [0, 3])
def test_an_exception_in_a_step_leaves_nothing_of_ours_behind(
    tmp_path: Path, step: int, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, ours, _ = trainer_of(tmp_path)
    losses = iter(range(100))
    compute = trainer.compute_loss

    def compute_loss(*args: Any, **kwargs: Any) -> Any:
        if next(losses) == step:
            raise error
        return compute(*args, **kwargs)

    monkeypatch.setattr(trainer, "compute_loss", compute_loss)
    with pytest.raises(type(error)) as caught:
        trainer.train()
    assert caught.value is error
    assert torch._C._len_torch_dispatch_stack() == 0  # no step is being counted
    assert "_compiled_call_impl" not in trainer.model.__dict__
    assert not {"training_step"} & vars(trainer).keys()
    assert "call_event" not in vars(trainer.callback_handler)
    run = ours.meter.run  # type: ignore[union-attr]
    assert run.end is not None and run.end.reason == type(error).__name__
    assert len(list(run.steps)) == step


def test_a_callback_that_was_removed_can_be_followed_by_another(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, first, _ = trainer_of(tmp_path, max_steps=4)
    trainer.pop_callback(first)
    second = callback()
    trainer.add_callback(second)
    trainer.train()
    assert first.meter is None
    assert second.meter is not None and len(list(second.meter.run.steps)) == 4
    assert not [text for text in warnings_of(caplog) if "already" in text]


def test_a_callback_that_is_removed_in_training_ends_its_run(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, max_steps=6)

    class Removes(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, *rest: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                trainer.pop_callback(ours)

    trainer.add_callback(Removes)
    trainer.train()
    end = ours.meter.run.end  # type: ignore[union-attr]
    assert end is not None and end.reason == "its callback was removed"
    assert not ours.loop.running


def test_an_exception_inside_a_step_leaves_the_model_unwatched_afterwards(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, gradient_accumulation_steps=2)

    class Fails(TrainerCallback):  # type: ignore[misc]
        def on_substep_end(self, *args: Any, **kwargs: Any) -> None:
            raise ValueError("in the middle of a step")

    trainer.add_callback(Fails)
    with pytest.raises(ValueError, match="in the middle"):
        trainer.train()
    trainer.remove_callback(Fails)
    trainer.train()
    assert len(list(ours.meter.run.steps)) == 6  # type: ignore[union-attr]
    assert "_compiled_call_impl" not in trainer.model.__dict__  # where calls are watched


def test_a_model_that_is_made_anew_for_every_trial_is_the_one_that_is_watched(
    tmp_path: Path,
) -> None:
    widths = iter([32, 32, 64])
    more = {"model": None, "model_init": lambda: gpt2(n_embd=next(widths))}
    trainer, ours, _ = trainer_of(tmp_path, more=more)
    for width in (32, 64):
        trainer.train()
        (entry,) = ours.meter.run.counts.values()  # type: ignore[union-attr]
        assert entry.count.model == counted(gpt2(n_embd=width)).model  # type: ignore[union-attr]


# --- never an exception ---------------------------------------------------------------------------


def test_hooks_may_be_called_in_any_order_by_anybody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, control = TrainerState(), TrainerControl()
    for order in (HOOKS, HOOKS[::-1], ["on_train_begin", *HOOKS, *HOOKS[::-1]]):
        ours = callback()
        for name in order:
            getattr(ours, name)(
                arguments(tmp_path), state, control, model=gpt2(), logs={"loss": 1.0}, metrics={}
            )
        ours.on_train_end(arguments(tmp_path), state, control)
    assert not [text for text in warnings_of(caplog) if "internal error" in text]


def test_what_a_hook_is_given_may_be_anything(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ours = callback()
    trainer, theirs, _ = trainer_of(tmp_path)
    for one in (ours, theirs, trainer.callback_handler.callbacks[-1]):
        for name in HOOKS:
            getattr(one, name)(None, None, None, metrics=None)
    assert ours.meter is None and theirs.meter is None


class Broken:
    def write(self, record: object) -> None:
        raise RuntimeError("broken pipe")

    def close(self) -> None:
        raise RuntimeError("broken pipe")


def test_a_broken_sink_a_folder_that_cannot_be_written_and_fp32_leave_the_training_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    trainer, ours, _ = trainer_of(
        tmp_path, options={"sinks": [Broken()], "log_dir": tmp_path / "file" / "log"}
    )
    result = trainer.train()
    assert result.global_step == 6
    assert result.metrics["train_mfu"] == pytest.approx(MFU, rel=1e-12)
    assert ours.meter is not None and ours.meter.log_dir is None
    assert "cannot be written" in caplog.text and "Broken failed" in caplog.text


def test_the_class_itself_can_be_passed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MFU_TORCH_CACHE", str(tmp_path / "cache"))
    trainer = Trainer(
        model=gpt2(),
        args=arguments(tmp_path, max_steps=2),
        train_dataset=rows(8),
        callbacks=[MFUCallback],
    )
    trainer.train()
    assert len(list(tmp_path.rglob("run.jsonl"))) == 1


def test_it_can_be_added_to_a_trainer_that_exists(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, save_strategy="steps", save_steps=3)
    trainer.remove_callback(MFUCallback)
    trainer.callback_handler.callbacks.pop()
    trainer.add_callback(ours)
    trainer.train()
    assert mfu_of(ours) == pytest.approx(MFU, rel=1e-12)
    assert [p.name for p in ours.meter.run.pauses if p.name == "checkpoint"] == ["checkpoint"] * 2  # type: ignore[union-attr]


def test_one_callback_can_serve_several_trainers(tmp_path: Path) -> None:
    first, ours, clock = trainer_of(tmp_path / "first")
    second, _, _ = trainer_of(tmp_path / "second", more={"callbacks": [ours]})
    second.clock = clock
    for trainer, name in ((first, "first"), (second, "second"), (first, "first")):
        trainer.train()
        assert mfu_of(ours) == pytest.approx(MFU, rel=1e-12)
        assert ours.meter is not None and ours.meter.log_dir is not None
        assert ours.meter.log_dir.is_relative_to(tmp_path / name)


def test_one_that_was_removed_measures_nothing(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path)
    trainer.remove_callback(MFUCallback)
    trainer.train()
    assert ours.meter is None and not list(tmp_path.rglob("*.jsonl"))


def test_a_copy_has_the_options_and_no_run(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, options={"log_every": 3})
    before = [copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))]
    trainer.train()
    for one in (*before, copy.deepcopy(ours)):
        assert one.meter is None
        again, _, _ = trainer_of(tmp_path, more={"callbacks": [one]})
        one._options["clock"] = again.clock
        again.train()
        assert mfu_of(one) == pytest.approx(MFU, rel=1e-12)


@pytest.mark.parametrize(
    "wrong", [{"log_every": 0}, {"attention": "half"}, {"peak": "fast"}, {"sinks": [1]}]
)
def test_a_wrong_argument_is_refused_at_once(wrong: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        MFUCallback(**wrong)


# --- no waiting -----------------------------------------------------------------------------------


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Calls that wait for the device, and those of them that come from this package."""
    calls: Counter[str] = Counter()

    def watch(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def seen(*args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            calls[name] += 1
            while frame is not None:
                ours = "mfu_torch/integrations" in frame.f_code.co_filename
                if ours and frame.f_code.co_name != "guarded":  # that one only lets calls through
                    calls["ours"] += 1
                    break
                frame = frame.f_back  # type: ignore[assignment]
            return original(*args, **kwargs) if owner is torch.Tensor else None

        monkeypatch.setattr(owner, name, seen)

    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__"):
        watch(torch.Tensor, name)
    watch(torch.cuda, "synchronize")
    watch(torch.cuda.Event, "synchronize")
    yield calls


def test_no_hook_waits_for_the_device(tmp_path: Path, waits: Counter[str]) -> None:
    settings: dict[str, Any] = {
        "max_steps": 12, "eval_strategy": "steps", "eval_steps": 4,
        "more": {"eval_dataset": rows(4)}, "gradient_accumulation_steps": 2,
    }  # fmt: skip
    without, _, _ = trainer_of(tmp_path, **settings)
    without.remove_callback(MFUCallback)
    without.train()
    alone = Counter(waits)
    waits.clear()
    trainer, ours, _ = trainer_of(tmp_path, **settings)
    trainer.train()
    assert alone["item"] > 0
    assert waits == alone
    assert [step.tokens for step in ours.meter.run.steps] == [4 * SEQ] * 12  # type: ignore[union-attr]


def test_the_wait_for_data_is_measured(tmp_path: Path) -> None:
    trainer, ours, clock = trainer_of(tmp_path, number=64)

    def collate(batch: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        clock.advance(MICRO_BATCH_S)
        return {key: torch.stack([one[key] for one in batch]) for key in batch[0]}

    trainer.data_collator = collate
    trainer.train()
    figures = run_figures(ours.meter.run)  # type: ignore[union-attr]
    # Of the 5 steady steps all but the last, after which training ends, are followed by a batch.
    assert figures.data_wait_share == pytest.approx(4 / 9)
    assert figures.mfu == pytest.approx(MFU * 5 / 9, rel=1e-12)


def test_a_second_callback_in_one_trainer_does_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer, ours, _ = trainer_of(tmp_path, max_steps=4)
    second = callback()
    trainer.add_callback(second)
    trainer.train()
    assert ours.meter is not None and second.meter is None
    assert trainer.state.log_history[-1]["train_mfu"] == mfu_of(ours)
    assert capsys.readouterr().out.count("mfu-torch report") == 1
    assert warnings_of(caplog) == [
        "this Trainer has an MFUCallback already; the second does nothing"
    ]
