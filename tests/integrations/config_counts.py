"""A small Llama's config, and counts of configs, on the meta device or for real."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mfu_torch import count_flops
from mfu_torch.insight.count_table import ModelCount
from mfu_torch.integrations.configs import build
from mfu_torch.integrations.counting import count_model
from mfu_torch.integrations.meta_run import inputs_for

B, S, D, F, V, LAYERS = 2, 24, 64, 96, 512, 2
HEADS, KV_HEADS = 4, 2

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": V,
    "bos_token_id": 0,
    "eos_token_id": 0,
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_config(fields: object, **more: object) -> Path:
        path = tmp_path / "config.json"
        value = {**fields, **more} if isinstance(fields, dict) else fields
        path.write_text(value if isinstance(value, str) else json.dumps(value), encoding="utf-8")
        return path

    return write_config


def counted(
    path: Path,
    batch: int = B,
    seq: int | None = S,
    target_seq: int | None = None,
    *,
    attention: str | None = None,
    dtype: str = "bf16",
    **options: Any,
) -> ModelCount:
    built = build(path, dtype=dtype, attention=attention, train=options.get("train", False))
    inputs = inputs_for(built.model, batch, seq, target_seq)
    return count_model(built, inputs, dtype=dtype, **options)


def really_counted(path: Path, batch: int = B, seq: int = S) -> Any:
    """The same step on the CPU, with weights and data, by the plain public function."""
    import transformers

    fields = json.loads(path.read_text())
    config = transformers.CONFIG_MAPPING[fields["model_type"]].from_dict(fields)
    config.use_cache = False
    model = getattr(transformers, fields["architectures"][0])(config)
    inputs = {"input_ids": torch.randint(0, V, (batch, seq))}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(0, V, (batch, seq))
    return count_flops(lambda: model(**inputs).logits.sum().backward())
