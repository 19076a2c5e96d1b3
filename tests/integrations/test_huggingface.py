"""One line in a Hugging Face Trainer: steps, pauses, tokens, FLOPs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import (
    EVAL_BATCH_S,
    MICRO_BATCH_S,
    PEAK,
    SAVE_S,
    SEQ,
    TimedTrainer,
    arguments,
    callback,
    counted,
    gpt2,
    mfu_of,
    rows,
    trainer_of,
)
from transformers import Trainer, TrainerCallback

from mfu_torch.figures import run_figures
from mfu_torch.integrations.huggingface import MFUCallback
from mfu_torch.records import FlopCount, Run, Step


def run_of(ours: MFUCallback) -> Run:
    assert ours.meter is not None
    return ours.meter.run


def steps_of(ours: MFUCallback) -> list[Step]:
    return list(run_of(ours).steps)


def flops_of(ours: MFUCallback) -> list[int]:
    """Model FLOPs of each step."""
    run = run_of(ours)
    found = []
    for step in run.steps:
        counts = [run.counts[count_id].count for count_id in step.count_ids]
        assert None not in counts
        found.append(sum(count.model for count in counts if count is not None))
    return found


def count_of(ours: MFUCallback) -> FlopCount:
    """The one that all steps have."""
    (entry,) = run_of(ours).counts.values()
    assert entry.count is not None
    return entry.count


def pauses_of(ours: MFUCallback) -> list[tuple[str, int, float]]:
    """Of those that the Trainer makes: name, steps before, seconds."""
    return [
        (pause.name, pause.after_step, pause.duration_s)
        for pause in run_of(ours).pauses
        if pause.name in ("eval", "checkpoint")
    ]


# --- a step is one update of the optimizer --------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_accumulation_does_not_change_the_mfu(tmp_path: Path, accumulation: int) -> None:
    trainer, ours, _ = trainer_of(tmp_path, gradient_accumulation_steps=accumulation)
    trainer.train()
    steps = steps_of(ours)
    assert [step.index for step in steps] == [0, 1, 2, 3, 4, 5]
    assert {step.duration_s for step in steps} == {accumulation * MICRO_BATCH_S}
    assert {step.tokens for step in steps} == {accumulation * 2 * SEQ}
    assert {step.samples for step in steps} == {accumulation * 2}
    expected = counted(gpt2()).model / (MICRO_BATCH_S * PEAK)
    assert mfu_of(ours) == pytest.approx(expected, rel=1e-12)


def test_the_last_step_of_an_epoch_may_have_fewer_micro_batches(tmp_path: Path) -> None:
    # 10 rows are 5 micro-batches: updates of 2, 2 and 1, twice.
    trainer, ours, _ = trainer_of(
        tmp_path, number=10, gradient_accumulation_steps=2, max_steps=-1, num_train_epochs=2
    )
    trainer.train()
    steps = steps_of(ours)
    assert [step.micro_batches for step in steps] == [2, 2, 1, 2, 2, 1]
    assert [step.tokens for step in steps] == [64, 64, 32, 64, 64, 32]
    expected = counted(gpt2()).model / (MICRO_BATCH_S * PEAK)
    assert mfu_of(ours) == pytest.approx(expected, rel=1e-12)


def test_the_flops_of_a_step_are_those_worked_by_hand(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path)
    trainer.train()
    count = count_of(ours)
    b, s, d, v = 2, SEQ, 32, 64
    # qkv, attention output, two of the MLP: 12 d^2 weights a layer; the head: d v. The first
    # layer's inputs come from an embedding that is trained, so all have input gradients.
    weights = 2 * 12 * d * d + d * v
    attention = 2 * 2 * (2 * b * s * s * d)  # 2 layers, 2 matmuls
    assert count.forward == 2 * b * s * weights + attention
    assert count.backward == 2 * 2 * b * s * weights + 2 * attention


# --- evaluation and saving are pauses -------------------------------------------------------------


def test_evaluation_and_saving_in_between_leave_the_mfu_as_it_is(tmp_path: Path) -> None:
    plain, ours, _ = trainer_of(tmp_path / "plain", max_steps=10)
    plain.train()
    busy, theirs, _ = trainer_of(
        tmp_path / "busy",
        max_steps=10,
        more={"eval_dataset": rows(4)},
        eval_strategy="steps",
        eval_steps=5,
        eval_on_start=True,
        save_strategy="steps",
        save_steps=5,
    )
    busy.train()
    assert mfu_of(theirs) == mfu_of(ours)
    evaluation = 2 * EVAL_BATCH_S
    assert pauses_of(theirs) == [
        ("eval", 0, evaluation),
        ("eval", 5, evaluation),
        ("checkpoint", 5, SAVE_S),
        ("eval", 10, evaluation),
        ("checkpoint", 10, SAVE_S),
    ]
    assert pauses_of(ours) == []
    end_to_end = run_figures(run_of(theirs)).end_to_end
    work_s, wall_s = 10 * MICRO_BATCH_S, 10 * MICRO_BATCH_S + 3 * evaluation + 2 * SAVE_S
    assert end_to_end == pytest.approx(mfu_of(ours) * work_s / wall_s, rel=1e-12)


def test_evaluation_at_the_end_of_an_epoch_is_a_pause(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(
        tmp_path,
        number=8,
        max_steps=-1,
        num_train_epochs=2,
        logging_strategy="epoch",
        more={"eval_dataset": {"one": rows(2), "two": rows(4)}},
        eval_strategy="epoch",
        save_strategy="epoch",
    )
    trainer.train()
    assert pauses_of(ours) == [
        (name, after, duration_s)
        for after in (4, 8)
        for name, duration_s in (("eval", 3 * EVAL_BATCH_S), ("checkpoint", SAVE_S))
    ]
    assert {step.duration_s for step in steps_of(ours)} == {MICRO_BATCH_S}


class Asks(TrainerCallback):  # type: ignore[misc]
    """A user's callback, after ours: wants one evaluation and one save."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_evaluate = state.global_step == 2
        control.should_save = state.global_step == 4
        return control


def test_what_other_callbacks_ask_for_is_a_pause_too(tmp_path: Path) -> None:
    clock_options: dict[str, Any] = {"eval_dataset": rows(4)}
    trainer, ours, _ = trainer_of(tmp_path, more=clock_options, logging_steps=1)
    trainer.add_callback(Asks)
    trainer.train()
    assert pauses_of(ours) == [("eval", 2, 2 * EVAL_BATCH_S), ("checkpoint", 4, SAVE_S)]


@pytest.mark.parametrize("better", [True, False])
def test_the_save_of_a_best_model_is_foreseen(tmp_path: Path, better: bool) -> None:
    class Judged(TimedTrainer):
        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            self.judged = getattr(self, "judged", 0) + 1
            return super().evaluate(*args, **kwargs)

        def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
            if "eval_loss" in logs:
                logs["eval_loss"] = float(-self.judged if better else self.judged)
            super().log(logs, *args, **kwargs)

    trainer, ours, _ = trainer_of(
        tmp_path, cls=Judged, max_steps=4, more={"eval_dataset": rows(2)}, eval_strategy="steps",
        eval_steps=2, save_strategy="best", metric_for_best_model="loss", greater_is_better=False,
    )  # fmt: skip
    trainer.train()
    names = [name for name, _, _ in pauses_of(ours)]
    assert names == ["eval", "checkpoint", "eval", "checkpoint"][: 4 if better else 3]


def test_evaluation_and_prediction_alone_are_no_run(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, more={"eval_dataset": rows(4)})
    trainer.evaluate()
    trainer.predict(rows(4))
    assert ours.meter is None
    assert not list(tmp_path.rglob("*.jsonl"))
    trainer.train()
    steps = len(steps_of(ours))
    trainer.evaluate()
    trainer.predict(rows(4))
    assert len(list(tmp_path.rglob("*.jsonl"))) == 1
    assert len(steps_of(ours)) == steps == 6


def test_prediction_within_training_is_a_pause(tmp_path: Path) -> None:
    class Predicts(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                trainer.predict(rows(4))

    trainer, ours, _ = trainer_of(tmp_path)
    trainer.add_callback(Predicts)
    trainer.train()
    # Nobody announces it: it is noticed when its first batch is done.
    assert pauses_of(ours) == [("eval", 3, EVAL_BATCH_S)]


# --- tokens and samples ---------------------------------------------------------------------------


@pytest.mark.parametrize("counting", ["all", "non_padding"])
def test_tokens_are_those_that_the_trainer_counts(tmp_path: Path, counting: str) -> None:
    data = [one | {"attention_mask": torch.ones(SEQ, dtype=torch.long)} for one in rows(64)]
    for one in data[::2]:
        one["attention_mask"][-5:] = 0
    trainer, ours, _ = trainer_of(
        tmp_path,
        more={"train_dataset": data},
        gradient_accumulation_steps=2,
        include_num_input_tokens_seen=counting,
    )
    trainer.train()
    tokens = [step.tokens for step in steps_of(ours)]
    assert sum(t or 0 for t in tokens) == trainer.state.num_input_tokens_seen
    # 6 steps x 4 rows x 16; half of the 24 rows, as they were drawn, have 5 less.
    assert trainer.state.num_input_tokens_seen <= 6 * 4 * SEQ


class Pixels(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 4)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.cross_entropy(self.layer(pixel_values), labels)}


def test_pixels_are_samples_and_no_tokens(tmp_path: Path) -> None:
    images = [{"pixel_values": torch.ones(8), "labels": torch.tensor(1)} for _ in range(32)]
    trainer, ours, _ = trainer_of(tmp_path, model=Pixels(), more={"train_dataset": images})
    trainer.train()
    assert {(step.samples, step.tokens) for step in steps_of(ours)} == {(2, None)}
    # Forward (2, 8) @ (8, 4), and the gradient of the weight; the input needs none.
    assert flops_of(ours) == [2 * (2 * 2 * 8 * 4)] * 6
    assert "tokens_per_s" not in trainer.state.log_history[-2]


def test_padded_batches_of_many_lengths_have_the_flops_of_their_shapes(tmp_path: Path) -> None:
    lengths = [5, 9, 13, 7, 5, 11, 16, 8, 14, 6, 10, 12]
    data = [{"input_ids": list(range(n)), "attention_mask": [1] * n} for n in lengths]

    def pad(batch: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(one["input_ids"]) for one in batch)
        padded = {
            key: torch.tensor([one[key] + [0] * (longest - len(one[key])) for one in batch])
            for key in batch[0]
        }
        return padded | {"labels": padded["input_ids"]}

    trainer, ours, _ = trainer_of(
        tmp_path,
        more={"train_dataset": data, "data_collator": pad},
        max_steps=-1,
        num_train_epochs=2,
    )
    trainer.train()
    widths = [(step.tokens or 0) // 2 for step in steps_of(ours)]
    assert len(widths) == 12
    assert len(set(widths)) > 2
    mask = {n: torch.ones((2, n), dtype=torch.long) for n in set(widths)}
    hand = {n: counted(gpt2(), seq=n, attention_mask=mask[n]).model for n in set(widths)}
    assert flops_of(ours) == [hand[n] for n in widths]


# --- FLOPs in other set-ups -----------------------------------------------------------------------


def test_gradient_checkpointing_costs_the_recompute_and_nothing_else(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(
        tmp_path,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
    )
    trainer.train()
    figures = run_figures(run_of(ours))
    plain = counted(gpt2())
    b, s, d, v = 2, SEQ, 32, 64
    head = 2 * b * s * d * v  # not inside a checkpoint
    # Recomputing stops when all that the backward needs is there: the last product of a layer,
    # (b*s, 4d) @ (4d, d), is not made again.
    recomputed = plain.forward - head - 2 * (2 * b * s * 4 * d * d)
    assert count_of(ours).recompute == recomputed
    assert figures.mfu == pytest.approx(plain.model / (MICRO_BATCH_S * PEAK), rel=1e-12)
    ideal_s = (plain.hardware + recomputed) / PEAK
    assert figures.hfu == pytest.approx(ideal_s / MICRO_BATCH_S, rel=1e-12)


def test_bf16_is_counted_as_bf16(tmp_path: Path) -> None:
    trainer, ours, _ = trainer_of(tmp_path, bf16=True)
    trainer.train()
    assert set(count_of(ours).by_dtype) == {"bf16"}
    assert count_of(ours).model == counted(gpt2()).model


def test_frozen_weights_of_lora_have_no_weight_gradient(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    trainer, ours, _ = trainer_of(tmp_path, model=peft.get_peft_model(gpt2(), config))
    trainer.train()
    same = counted(peft.get_peft_model(gpt2(), config))
    assert count_of(ours).model == same.model
    full = counted(gpt2())
    assert same.forward > full.forward and same.backward < 0.6 * full.backward


def test_a_compute_loss_of_ones_own_is_counted(tmp_path: Path) -> None:
    class Twice(TimedTrainer):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            with torch.no_grad():
                teacher = model(input_ids=inputs["input_ids"]).logits
            student = model(input_ids=inputs["input_ids"]).logits
            return torch.nn.functional.mse_loss(student, teacher + 1)

    trainer, ours, _ = trainer_of(tmp_path, cls=Twice)
    trainer.train()
    plain = counted(gpt2())
    assert flops_of(ours) == [plain.model + plain.forward] * 6
    assert [step.tokens for step in steps_of(ours)] == [2 * SEQ] * 6  # those with gradients


@pytest.fixture
def environment() -> Iterator[None]:
    """Puts it back: older TrainingArguments tell Accelerate to compile by it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.usefixtures("environment")
def test_a_compiled_model_stays_compiled_and_is_counted(tmp_path: Path) -> None:
    graphs = []
    for name in ("with", "without"):
        trainer, ours, _ = trainer_of(
            tmp_path / name, torch_compile=True, torch_compile_backend="eager"
        )
        if name == "without":
            trainer.remove_callback(MFUCallback)
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        trainer.train()
        assert isinstance(trainer.model_wrapped, torch._dynamo.OptimizedModule)
        graphs.append(dict(torch._dynamo.utils.counters["stats"]))
        if name == "with":
            assert flops_of(ours) == [counted(gpt2()).model] * 6
            methods = {entry.count.method for entry in run_of(ours).counts.values() if entry.count}
            assert any("shadow" in method for method in methods)
            assert not any("eagerly" in method for method in methods)
            assert [step.tokens for step in steps_of(ours)] == [2 * SEQ] * 6
    assert graphs[0] == graphs[1]


def test_training_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    losses = []
    for callbacks in ([], [callback()]):
        trainer = Trainer(
            model=gpt2(resid_pdrop=0.1),
            args=arguments(tmp_path, logging_steps=1, gradient_accumulation_steps=2),
            train_dataset=rows(64),
            callbacks=callbacks,
        )
        trainer.train()
        losses.append([log["loss"] for log in trainer.state.log_history if "loss" in log])
        losses[-1].append(sum(p.double().sum().item() for p in trainer.model.parameters()))
    assert len(losses[0]) == 7 and losses[0] == losses[1]
