"""What cannot be counted is said in one line: bad files, absurd sizes, models that need data."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")

from config_counts import HEADS, LLAMA, D, F, V, Write, counted
from config_counts import write as write

from mfu_torch import MFUError
from mfu_torch.integrations.configs import ConfigError, build
from mfu_torch.integrations.counting import CountError, count_model
from mfu_torch.integrations.meta_masks import without_data
from mfu_torch.integrations.meta_run import InputsError, WrongSize, inputs_for


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON (JSONDecodeError: Expecting property name"),
        ("", "is no JSON"),
        ("[" * 100_000, "is no JSON (RecursionError"),
        ([1], "holds a JSON list; expected an object"),
        ("null", "holds a JSON null; expected an object"),
        ({}, "has no model_type; expected a transformers config"),
        ({"hidden_size": 8}, "has no model_type"),
        ({"model_type": 3}, "has no model_type"),
        ({"model_type": "lama"}, "has no model_type 'lama'; near it are "),
        ({"model_type": "own", "auto_map": {}}, "the code that auto_map names is never run"),
        (LLAMA | {"hidden_size": -64}, "hidden_size is -64; expected a whole number from 1 to"),
        (LLAMA | {"hidden_size": 0}, "hidden_size is 0; expected a whole number"),
        (LLAMA | {"hidden_size": "64"}, 'hidden_size is "64"; expected a whole number'),
        (LLAMA | {"hidden_size": 1.5}, "hidden_size is 1.5; expected a whole number"),
        (LLAMA | {"hidden_size": True}, "hidden_size is true; expected a whole number"),
        (LLAMA | {"vocab_size": 10**30}, "vocab_size is 1000000000000000000000000000000; expected"),
        (LLAMA | {"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; expected"),
        (LLAMA | {"num_attention_heads": 5}, "is no config of a llama"),
        (
            LLAMA | {"num_key_value_heads": 3},
            "num_attention_heads is 4, which is no multiple of num_key_value_heads, 3;",
        ),
        (LLAMA | {"num_attention_heads": 8, "num_key_value_heads": 3}, "no multiple of"),
        (LLAMA | {"num_attention_heads": 2, "num_key_value_heads": 4}, "no multiple of"),
        (
            {"model_type": "llava", "text_config": LLAMA | {"num_key_value_heads": 3}},
            "text_config.num_attention_heads is 4, which is no multiple of",
        ),
        (
            {"model_type": "mistral", "hidden_size": 64, "num_attention_heads": 4},
            "num_key_value_heads, 8 (transformers' default, since the file has none)",
        ),
        (
            LLAMA | {"model_type": "mixtral", "architectures": None, "num_experts_per_tok": 9},
            "num_experts_per_tok is 9, which is more than num_local_experts, 8",
        ),
        (LLAMA | {"architectures": 7}, "architectures is 7; expected names of classes"),
        (LLAMA | {"architectures": {"a": 1}}, "architectures is {'a': 1}; expected names"),
        (LLAMA | {"architectures": ["LlamaForCausalLM", 3]}, "expected names of classes"),
        (
            LLAMA | {"architectures": ["BertForMaskedLM"]},
            "names BertForMaskedLM, a model of BertConfig, and the model_type 'llama' gives",
        ),
        (LLAMA | {"hidden_act": "nothing"}, "transformers cannot build a LlamaForCausalLM"),
        (
            {"model_type": "llava", "text_config": LLAMA | {"hidden_size": -1}},
            "text_config.hidden_size is -1; expected",
        ),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_bad_config_is_one_line(write: Write, content: object, said: str) -> None:
    path = write(content)
    with pytest.raises(MFUError) as caught:
        counted(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith((str(path), "LlamaForCausalLM"))


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ConfigError, match="is no JSON"):
        build(path)


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no config\.json"):
        build(tmp_path)


def test_a_model_whose_routing_depends_on_data_is_not_guessed(write: Write) -> None:
    path = write(
        {
            "architectures": ["SwitchTransformersForConditionalGeneration"],
            "model_type": "switch_transformers",
            "d_model": D,
            "d_kv": 16,
            "d_ff": F,
            "num_layers": 2,
            "num_heads": HEADS,
            "num_experts": 4,
            "vocab_size": V,
            "decoder_start_token_id": 0,
        }
    )
    with pytest.raises(CountError, match="reads the values of tensors, so what runs depends on"):
        counted(path)


def test_a_model_that_cannot_checkpoint(write: Write) -> None:
    fields = {"architectures": ["SwinForImageClassification"], "model_type": "swin"}
    path = write(fields | {"depths": [1], "num_heads": [2], "embed_dim": 16, "image_size": 32})
    built = build(path, train=True)
    built.model.supports_gradient_checkpointing = False
    with pytest.raises(CountError, match="cannot checkpoint its layers"):
        count_model(built, inputs_for(built.model, 1), dtype="bf16", train=True, checkpoint=True)


def test_a_length_that_is_needed_is_asked_for(write: Write) -> None:
    with pytest.raises(WrongSize, match="reads text; give the length of it, --seq N"):
        counted(write(LLAMA), seq=None)


def test_an_input_that_cannot_be_made_is_named(write: Write) -> None:
    model = build(write(LLAMA)).model
    model.main_input_name = "point_clouds"
    with pytest.raises(InputsError, match="reads point_clouds, for which no inputs can be made"):
        inputs_for(model, 1, 8)


def test_a_mask_rule_that_needs_data_is_not_evaluated() -> None:
    from transformers import masking_utils

    with without_data():
        mask_of = masking_utils.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"]
        blocks = torch.zeros(1, 8, dtype=torch.long, device="meta")
        mask = mask_of(
            batch_size=1,
            q_length=8,
            kv_length=8,
            mask_function=lambda b, h, q, k: blocks[b, q] == blocks[b, k],
            allow_is_causal_skip=False,
            device="meta",
        )
    assert not hasattr(mask, "_mfu_torch_kept")
