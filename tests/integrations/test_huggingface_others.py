"""What is built on the Trainer or stands beside it: TRL, Accelerate, several processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from hf_models import MICRO_BATCH_S, PEAK, SEQ, TimedTrainer, callback, counted, gpt2, mfu_of, rows
from torch.utils.data import DataLoader

from mfu_torch import Meter
from mfu_torch.figures import run_figures
from mfu_torch.run.runfile import read_run

LIMIT_S = 150


# --- TRL ------------------------------------------------------------------------------------------


class LogProbabilities:
    """In place of TRL's Triton kernel, which needs a GPU: the same products, in torch."""

    @staticmethod
    def apply(hidden: Any, weight: Any, bias: Any, targets: Any, *options: Any) -> Any:
        logits = hidden @ weight.T  # (n, d) @ (d, v)
        log_p = logits.log_softmax(-1)
        entropy = -(log_p.exp() * log_p).sum(-1).detach()
        chosen = log_p.gather(-1, targets[:, None]).squeeze(-1)
        return chosen, entropy, None, logits.mean(-1).detach(), logits.argmax(-1) == targets


def words() -> Any:
    """A tokenizer of 64 words, made here: nothing is downloaded."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<eos>", "<unk>", *(f"w{number}" for number in range(61))]
    ids = {name: number for number, name in enumerate(names)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


@pytest.fixture
def trl(monkeypatch: pytest.MonkeyPatch) -> Any:
    trl = pytest.importorskip("trl")
    utils = pytest.importorskip("trl.trainer.utils")
    if getattr(utils, "_ChunkedLogProbFunction", False) is None:
        monkeypatch.setattr(utils, "_ChunkedLogProbFunction", LogProbabilities)
    return trl


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 4, "per_device_train_batch_size": 2,
        "logging_steps": 2, "report_to": "none", "use_cpu": True, "bf16": False,
        "disable_tqdm": True, "save_strategy": "no", "gradient_checkpointing": False,
    }  # fmt: skip
    return fields | changes


def timed(base: type, clock: FakeClock) -> type:
    return type("Timed", (TimedTrainer, base), {"clock": clock})


def steps_of(ours: Any) -> list[tuple[int, int | None]]:
    """Model FLOPs and tokens of every step."""
    run = ours.meter.run
    return [
        (sum(run.counts[c].count.model for c in step.count_ids), step.tokens) for step in run.steps
    ]


def test_trls_sft_trainer_is_measured_by_the_same_line(tmp_path: Path, trl: Any) -> None:
    datasets = pytest.importorskip("datasets")
    clock = FakeClock()
    ours = callback(clock=clock)
    texts = [" ".join(f"w{(i * j) % 61}" for j in range(SEQ - 1)) for i in range(32)]
    trainer = timed(trl.SFTTrainer, clock)(
        model=gpt2(),
        args=trl.SFTConfig(**settings(tmp_path, gradient_accumulation_steps=2)),
        train_dataset=datasets.Dataset.from_dict({"text": texts}),
        processing_class=words(),
        callbacks=[ours],
    )
    trainer.train()
    # The last position of a row predicts nothing: its logits, (1, d) @ (d, v), are not made.
    unmade = 3 * 2 * 2 * 32 * 64
    expected = counted(gpt2()).model - unmade
    assert steps_of(ours) == [(2 * expected, 2 * 2 * SEQ)] * 4
    assert mfu_of(ours) == pytest.approx(expected / (MICRO_BATCH_S * PEAK), rel=1e-12)
    assert trainer.state.log_history[-1]["train_mfu"] == mfu_of(ours)


def test_trls_dpo_trainer_counts_the_reference_model_as_well(tmp_path: Path, trl: Any) -> None:
    datasets = pytest.importorskip("datasets")
    clock = FakeClock()
    ours = callback(clock=clock)
    pairs = {"prompt": ["w1 w2 w3"], "chosen": [" w4 w5"], "rejected": [" w7 w8"]}
    trainer = timed(trl.DPOTrainer, clock)(
        model=gpt2(),
        ref_model=gpt2(),
        args=trl.DPOConfig(**settings(tmp_path)),
        train_dataset=datasets.Dataset.from_dict({k: 16 * v for k, v in pairs.items()}),
        processing_class=words(),
        callbacks=[ours],
    )
    trainer.train()
    (entry,) = ours.meter.run.counts.values()  # type: ignore[union-attr]
    count = entry.count
    assert count is not None
    assert count.forward == count.forward_no_grad > 0
    assert count.backward == 2 * count.forward
    # Chosen and rejected of 2 pairs: 4 rows, of the model that is trained.
    assert {step.samples for step in ours.meter.run.steps} == {4}  # type: ignore[union-attr]


# --- Accelerate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_a_loop_with_accelerate_is_a_plain_loop(
    tmp_path: Path, accumulation: int, precision: str
) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(reset_partial_state=True)  # what other tests left
    accelerator = Accelerator(
        gradient_accumulation_steps=accumulation, mixed_precision=precision, cpu=True
    )
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(rows(16), batch_size=2)  # type: ignore[arg-type]
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    clock = FakeClock()
    with Meter(model, log_dir=tmp_path, peak=PEAK, clock=clock, sinks=[], telemetry=False) as meter:
        batches = iter(meter.data(loader))
        for _ in range(len(loader) // accumulation):
            with meter.step() as step:
                for _ in range(accumulation):
                    batch = next(batches)
                    step.add(tokens=batch["input_ids"].numel(), samples=len(batch["input_ids"]))
                    with accelerator.accumulate(model):
                        accelerator.backward(model(**batch).loss)
                        optimizer.step()
                        optimizer.zero_grad()
                    clock.advance(MICRO_BATCH_S)
    AcceleratorState._reset_state(reset_partial_state=True)
    assert len(list(meter.run.steps)) == 8 // accumulation
    plain = counted(gpt2())
    assert run_figures(meter.run).mfu == pytest.approx(plain.model / (MICRO_BATCH_S * PEAK))
    (entry,) = meter.run.counts.values()
    assert entry.count is not None
    assert set(entry.count.by_dtype) == {"fp32" if precision == "no" else "bf16"}


# --- several processes ----------------------------------------------------------------------------


def test_each_process_measures_its_own_device_and_rank_0_writes(tmp_path: Path) -> None:
    program = Path(__file__).with_name("hf_ranks.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(program.parents[2])}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, "--nproc-per-node=2", str(program), str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    first, second = (json.loads((tmp_path / f"rank{n}.json").read_text()) for n in (0, 1))
    expected = counted(gpt2()).model / (MICRO_BATCH_S * PEAK)
    for found in (first, second):
        assert found["wrapper"] == "DistributedDataParallel"
        assert found["mfu"] == pytest.approx(expected, rel=1e-12)
        assert found["tokens"] == [2 * 2 * SEQ] * 6
        assert found["pauses"].count("checkpoint") == 2
    assert sum(first["tokens"] + second["tokens"]) == first["tokens_seen"]
    assert (first["rank"], second["rank"]) == (0, 1)
    assert second["log_dir"] is None
    assert len(list((tmp_path / "out").rglob("run*.jsonl"))) == 1
    assert len(list((tmp_path / "out").rglob("*tfevents*"))) == 1
    assert done.stdout.count("mfu_torch: MFU") == 2  # a line for each training, and of rank 0 alone
    # A training that was given up has its file whole.
    left = read_run(tmp_path / "left" / "run.jsonl")
    assert left.end is not None and left.end.reason == "KeyboardInterrupt"
    assert len(list(left.steps)) == 3
