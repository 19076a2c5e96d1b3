"""What a config file leaves open is said: the class, default sizes, fields that nothing reads."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from config_counts import LLAMA, Write, counted
from config_counts import write as write

from mfu_torch.integrations.configs import build
from mfu_torch.integrations.counting import NOTHING_AGAIN, count_model
from mfu_torch.integrations.meta_run import inputs_for

STATE = "state-space and linear-attention layers"


def notes_of(write: Write, fields: dict[str, Any]) -> str:
    return "\n".join(build(write(fields)).notes)


# --- the class -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_type", "name", "kind"),
    [
        ("llama", "LlamaForCausalLM", "next token"),
        ("bert", "BertForMaskedLM", "masked text"),
        ("t5", "T5ForConditionalGeneration", "text to text"),
        ("qwen2_vl", "Qwen2VLForConditionalGeneration", "images and text to text"),
        ("clip", "CLIPModel", "images with texts"),
        ("whisper", "WhisperForConditionalGeneration", "speech to text"),
        ("vit", "ViTForImageClassification", "classes of images"),
        ("clap", "ClapModel", "no head"),
    ],
)
def test_without_architectures_the_class_is_chosen_by_a_stated_rule(
    write: Write, model_type: str, name: str, kind: str
) -> None:
    built = build(write({"model_type": model_type}))
    assert type(built.model).__name__ == name
    said = "\n".join(built.notes)
    assert f"architecture: {name} ({kind}), since the file names none. By the model_type it" in said
    assert "the first that transformers has for it of: speech to text, images and text" in said


def test_one_name_may_stand_without_its_list(write: Write) -> None:
    built = build(write(LLAMA, architectures="LlamaForCausalLM"))
    assert (type(built.model).__name__, built.notes) == ("LlamaForCausalLM", ())
    assert "since transformers has no MyLlama" in notes_of(
        write, LLAMA | {"architectures": "MyLlama"}
    )


def test_a_second_name_is_used_where_the_first_is_not_known(write: Write) -> None:
    built = build(write(LLAMA, architectures=["MyLlama", "LlamaModel"]))
    assert type(built.model).__name__ == "LlamaModel"
    assert built.notes == ("architecture: LlamaModel, since transformers has no MyLlama",)


# --- sizes that the file lacks ---------------------------------------------------------------


def test_default_sizes_of_nested_parts_are_noted(write: Write) -> None:
    said = notes_of(write, {"model_type": "clip"})
    assert "text_config.hidden_size 512" in said
    assert "text_config.num_hidden_layers 12" in said
    assert "vision_config.hidden_size 768" in said
    assert "vision_config.patch_size 32" in said
    given = notes_of(write, {"model_type": "clip", "text_config": {"hidden_size": 512}})
    assert "text_config.hidden_size" not in given
    assert "text_config.num_hidden_layers 12" in given


def test_text_fields_at_the_top_of_a_file_of_several_parts_are_given(write: Write) -> None:
    fields = {name: LLAMA[name] for name in LLAMA if name not in ("architectures", "model_type")}
    # as large as the default of its class
    said = notes_of(write, {"model_type": "qwen2_vl", "vocab_size": 152_064} | fields)
    assert "text_config.hidden_size" not in said
    assert "vision_config.embed_dim 1280" in said


def test_a_part_that_the_file_lacks_has_the_sizes_that_its_model_gives_it(write: Write) -> None:
    fields = {"model_type": "llava", "text_config": dict(LLAMA)}
    assert "vision_config.hidden_size 1024" in notes_of(write, fields)  # CLIP's own is 768


def test_names_that_a_model_has_besides_are_given(write: Write) -> None:
    sizes = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 512}
    assert "default" not in notes_of(write, {"model_type": "gpt2"} | sizes)


# --- fields that nothing reads ---------------------------------------------------------------


def test_a_misspelt_field_is_named_with_the_one_that_was_meant(write: Write) -> None:
    found = counted(write(LLAMA, hiden_size=128, of_my_trainer={"a": 1}))
    assert found.notes == (
        "of the file, transformers does not read: hiden_size (is it hidden_size?), of_my_trainer",
    )
    nested = {"model_type": "clip", "text_config": {"num_hiden_layers": 2}}
    assert "text_config.num_hiden_layers (is it num_hidden_layers?)" in notes_of(write, nested)


def test_fields_that_files_on_the_hub_have_are_no_news(write: Write) -> None:
    usual = {
        "torch_dtype": "bfloat16",
        "transformers_version": "4.40.0",
        "_name_or_path": "meta-llama/Llama",
        "rope_theta": 500_000.0,
        "rope_scaling": None,
        "pretraining_tp": 1,
        "attention_bias": False,
        "use_cache": True,
        "max_length": 20,
        "temperature": 0.6,
    }
    assert build(write(LLAMA, **usual)).notes == ()


# --- layers ----------------------------------------------------------------------------------


def test_layers_with_a_state_are_told_from_names_that_only_look_like_one(write: Write) -> None:
    mamba = LLAMA | {"architectures": ["MambaForCausalLM"], "model_type": "mamba"}
    assert STATE in "\n".join(counted(write(mamba, state_size=8)).notes)
    sparse = {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16}
    oss = LLAMA | {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"} | sparse
    assert STATE not in "\n".join(counted(write(oss)).notes)  # it has a GptOssMLP


def test_a_checkpoint_that_repeats_nothing_is_told(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert NOTHING_AGAIN not in counted(write(LLAMA), train=True, checkpoint=True).notes
    built = build(write(LLAMA), train=True)
    enable = "activation_checkpointing_enable"
    monkeypatch.setattr(type(built.model), enable, lambda self: None, raising=False)
    inputs = inputs_for(built.model, 1, 8)
    found = count_model(built, inputs, dtype="bf16", train=True, checkpoint=True)
    assert NOTHING_AGAIN in found.notes
