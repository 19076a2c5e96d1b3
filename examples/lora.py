"""LoRA: frozen weights have no weight gradient, so a step is not three times its forward."""

from __future__ import annotations

import argparse
import sysconfig
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

from mfu_torch.integrations.huggingface import MFUCallback

SEQ = 128


def standard_library(limit_bytes: int) -> list[dict[str, torch.Tensor]]:
    """Its sources, cut into rows; one byte is one token."""
    paths = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in paths)[:limit_bytes]
    rows = torch.tensor(bytearray(text), dtype=torch.uint8).long().split(SEQ)
    return [{"input_ids": row, "labels": row} for row in rows if len(row) == SEQ]


def main() -> None:
    """Train the adapters; print the report, and what the backward costs beside the forward."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output-dir", default="lora_output")
    options = parser.parse_args()

    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=384, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=SEQ,
    )  # fmt: skip
    adapters = LoraConfig(r=8, target_modules=["q_proj", "v_proj"])
    arguments = TrainingArguments(
        options.output_dir, max_steps=options.steps, per_device_train_batch_size=8,
        learning_rate=1e-3, logging_steps=10, save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    callback = MFUCallback()
    trainer = Trainer(
        model=get_peft_model(LlamaForCausalLM(config), adapters),
        args=arguments,
        train_dataset=standard_library(400_000),
        callbacks=[callback],
    )
    trainer.train()
    print(callback.summary())
    count = callback.meter.run.counts[0].count
    print(f"\nbackward / forward: {count.backward / count.forward:.2f}; 2 where all is trained")


if __name__ == "__main__":
    main()
