"""A Hugging Face Trainer with one line more: a small GPT-2 on the sources of Python's library."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from mfu_torch.integrations.huggingface import MFUCallback

SEQ = 128


def standard_library(limit_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Its sources, cut into rows; one byte is one token."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)[:limit_bytes]
    rows = torch.tensor(bytearray(text), dtype=torch.uint8).long().split(SEQ)
    return [{"input_ids": row, "labels": row} for row in rows if len(row) == SEQ]


def main() -> None:
    """Train, evaluate and save in between, print the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output-dir", default="hf_trainer_output")
    options = parser.parse_args()

    config = GPT2Config(
        vocab_size=256, n_positions=SEQ, n_layer=2, n_embd=128, n_head=2, bos_token_id=None,
        eos_token_id=None, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    arguments = TrainingArguments(
        options.output_dir, max_steps=options.steps, per_device_train_batch_size=4,
        gradient_accumulation_steps=2, learning_rate=1e-3, logging_steps=10, eval_strategy="steps",
        eval_steps=15, save_steps=15, report_to="tensorboard", disable_tqdm=True,
    )  # fmt: skip
    rows = standard_library(400_000)
    callback = MFUCallback()
    trainer = Trainer(
        model=GPT2LMHeadModel(config),
        args=arguments,
        train_dataset=rows[:-32],
        eval_dataset=rows[-32:],
        callbacks=[callback],  # the one line
    )
    trainer.train()
    print(callback.summary())


if __name__ == "__main__":
    main()
