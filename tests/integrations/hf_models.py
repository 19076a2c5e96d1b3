"""A small model, its data, and a Trainer whose time is told by a FakeClock."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from fake_clock import FakeClock
from fakes import ListSink
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from mfu_torch import count_flops
from mfu_torch.figures import run_figures
from mfu_torch.integrations.huggingface import MFUCallback
from mfu_torch.records import FlopCount

PEAK = 2.0**40  # FLOP/s
SEQ = 16
VOCAB = 64
MICRO_BATCH_S = 0.125
EVAL_BATCH_S = 3.0
SAVE_S = 7.0


def gpt2(**changes: Any) -> GPT2LMHeadModel:
    torch.manual_seed(0)
    fields: dict[str, Any] = {
        "vocab_size": VOCAB, "n_positions": 64, "n_layer": 2, "n_embd": 32, "n_head": 2,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
        "bos_token_id": None, "eos_token_id": None, "attn_implementation": "sdpa",
    }  # fmt: skip
    return GPT2LMHeadModel(GPT2Config(**fields | changes))


def rows(number: int, seq: int = SEQ) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCAB, (number, seq), generator=generator)
    return [{"input_ids": one, "labels": one} for one in ids]


def arguments(folder: Path, **changes: Any) -> TrainingArguments:
    fields: dict[str, Any] = {
        "output_dir": str(folder / "out"), "per_device_train_batch_size": 2, "max_steps": 6,
        "per_device_eval_batch_size": 2, "logging_steps": 2, "report_to": "none",
        "save_strategy": "no", "disable_tqdm": True, "use_cpu": True,
    }  # fmt: skip
    return TrainingArguments(**fields | changes)


class TimedTrainer(Trainer):  # type: ignore[misc]
    """Every micro-batch takes 1/8 s, a batch of evaluation 3 s, a save 7 s."""

    clock: FakeClock

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.clock.advance(MICRO_BATCH_S)
        return loss

    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        self.clock.advance(EVAL_BATCH_S)
        return super().prediction_step(*args, **kwargs)

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        self.clock.advance(SAVE_S)
        super()._save_checkpoint(*args, **kwargs)


class Stops(TrainerCallback):  # type: ignore[misc]
    """Ends the training after a step, with an exception if there is one."""

    def __init__(self, after: int, error: BaseException | None = None) -> None:
        self.after, self.error = after, error

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        if state.global_step == self.after:
            if self.error is not None:
                raise self.error
            control.should_training_stop = True
        return control


def callback(**options: Any) -> MFUCallback:
    sinks = [ListSink()]
    fields: dict[str, Any] = {"peak": PEAK, "telemetry": False, "sinks": sinks}
    return MFUCallback(**fields | options)


def trainer_of(
    folder: Path,
    *,
    model: Any = None,
    options: dict[str, Any] | None = None,
    cls: type[TimedTrainer] = TimedTrainer,
    number: int = 64,
    more: dict[str, Any] | None = None,
    **changes: Any,
) -> tuple[Any, MFUCallback, FakeClock]:
    """A Trainer, its callback and its clock; ``changes`` are of the TrainingArguments."""
    clock = FakeClock()
    ours = callback(**{"clock": clock} | (options or {}))
    fields: dict[str, Any] = {
        "model": gpt2() if model is None else model,
        "args": arguments(folder, **changes),
        "train_dataset": rows(number),
        "callbacks": [ours],
    }
    trainer = cls(**fields | (more or {}))
    trainer.clock = clock
    return trainer, ours, clock


def counted(model: Any, batch: int = 2, seq: int = SEQ, **inputs: Any) -> FlopCount:
    """Forward and backward of one micro-batch, counted apart from any Trainer."""
    ids = torch.zeros((batch, seq), dtype=torch.long)
    model.train()

    def fn() -> None:
        model(input_ids=ids, labels=ids, **inputs).loss.backward()

    count = count_flops(fn)
    model.zero_grad()
    return count


def mfu_of(ours: MFUCallback) -> float:
    """Steady-state MFU of the run."""
    assert ours.meter is not None
    found = run_figures(ours.meter.run).mfu
    assert found is not None
    return found
