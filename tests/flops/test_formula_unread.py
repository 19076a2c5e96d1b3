"""What a config says and its family does not read is named; what changes nothing is not."""

from __future__ import annotations

from typing import Any

import pytest
from config_cases import DECODERS, OTHERS

from mfu_torch.flops.formulas import Described, read_config
from mfu_torch.flops.formulas.configs.readers import READERS

CASES = {**DECODERS, **OTHERS}


def of(kind: str, **more: Any) -> Described:
    return read_config({"model_type": kind, **CASES[kind], **more})


def unread(kind: str, **more: Any) -> list[str]:
    return [note for note in of(kind, **more).notes if " reads no " in note]


def test_experts_of_a_dense_family_are_not_passed_over() -> None:
    notes = unread("llama", num_experts=64, num_experts_per_tok=6)
    assert notes == ["llama reads no num_experts (64), num_experts_per_tok (6): not in here"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"n_routed_experts": 8}),
        ("llama", {"sliding_window_pattern": 4}),
        ("llama", {"q_lora_rank": 64}),
        ("llama", {"kv_lora_rank": 64}),
        ("llama", {"vision_config": {"hidden_size": 64}}),
        ("llama", {"qk_layernorm": True}),
        ("llama", {"cross_attention_layers": [3, 8]}),
        ("gpt2", {"add_cross_attention": True}),
        ("gpt2", {"num_key_value_heads": 2}),
        ("gpt2", {"head_dim": 32}),
        ("qwen2", {"attention_bias": True}),
        ("qwen2", {"moe_intermediate_size": 40}),
        ("mistral", {"num_mtp_modules": 3}),
        ("mixtral", {"n_shared_experts": 2}),
        ("mixtral", {"first_k_dense_replace": 1}),
        ("deepseek_v3", {"index_n_heads": 64}),
        ("bert", {"position_embedding_type": "relative_key"}),
        ("bert", {"embedding_size": 128}),
        ("vit", {"num_register_tokens": 4}),
        ("mamba", {"num_attention_heads": 4}),
    ],
)
def test_what_would_change_the_work_elsewhere_is_named(kind: str, fields: dict[str, Any]) -> None:
    (note,) = unread(kind, **fields)
    assert note.startswith(f"{kind} reads no {next(iter(fields))} (")
    assert of(kind, **fields).model == of(kind).model


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("llama", {"torch_dtype": "bfloat16", "bos_token_id": 1, "use_cache": True}),
        ("llama", {"attention_dropout": 0.1, "initializer_range": 0.02, "pretraining_tp": 2}),
        ("llama", {"num_experts": 0, "sliding_window": None, "q_lora_rank": None}),
        ("llama", {"quantization_config": {"bits": 4}, "rope_scaling": {"rope_type": "llama3"}}),
        ("gpt2", {"num_key_value_heads": 4, "head_dim": 16}),  # so it is in any case
        ("gpt2", {"n_ctx": 64, "summary_use_proj": True, "task_specific_params": {"a": 1}}),
        ("deepseek_v3", {"n_group": 2, "topk_method": "noaux_tc", "ep_size": 1, "seq_aux": True}),
        ("gpt_oss", {"experts_per_token": 4, "swiglu_limit": 7.0}),
        ("bert", {"pooler_fc_size": 768, "position_embedding_type": "absolute"}),
        ("mamba", {"d_inner": 128, "intermediate_size": 128, "n_layer": 3, "fused_add_norm": True}),
        ("whisper", {"num_hidden_layers": 2, "median_filter_width": 7}),
        ("minimax_m2", {"use_qk_norm": True, "use_routing_bias": True}),
    ],
)
def test_what_changes_no_work_gives_no_note(kind: str, fields: dict[str, Any]) -> None:
    assert unread(kind, **fields) == []


def test_a_misspelt_name_is_offered_the_right_one() -> None:
    fields = {k: v for k, v in DECODERS["llama"].items() if k != "intermediate_size"}
    notes = read_config({"model_type": "llama", **fields, "intermedate_size": 96}).notes
    assert "llama reads no intermedate_size (96; is it intermediate_size?): not in here" in notes


def test_many_unread_fields_are_counted() -> None:
    (note,) = unread("llama", **{f"expert_{i}": i + 1 for i in range(11)})
    assert note.endswith("expert_7 (8) and 3 more: not in here")


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind != "palm"])
def test_a_file_that_transformers_writes_itself_has_no_unread_field(kind: str) -> None:
    import transformers

    fields = transformers.CONFIG_MAPPING[kind]().to_dict()
    fields |= {"num_experts_per_tok": 6} if kind == "deepseek_v2" else {}  # it has no default
    fields |= {"head_dim": 128} if kind == "glm4_moe" else {}
    assert [note for note in read_config(fields).notes if " reads no " in note] == []


@pytest.mark.parametrize(
    ("kind", "fields", "most"),
    [
        ("llama", {"max_position_embeddings": 4096}, 4096),
        ("llama", {}, None),
        ("gpt2", {}, 64),
        ("opt", {}, 64),
        ("bert", {}, 512),
        ("roberta", {"max_position_embeddings": 514}, 512),  # two before the padding's end
        ("t5", {"n_positions": 512}, None),  # distances have no end
        ("bloom", {"seq_length": 2048}, None),
        ("mamba", {"max_position_embeddings": 2048}, None),
        ("whisper", {}, 64),
        ("vit", {}, None),
    ],
)
def test_the_most_positions_are_those_that_the_config_states(
    kind: str, fields: dict[str, Any], most: int | None
) -> None:
    assert of(kind, **fields).max_seq == most


@pytest.mark.parametrize(
    ("stated", "scaling", "most"),
    [
        (131072, {"rope_type": "llama3", "factor": 8.0, "original": 8192}, 131072),
        (32768, {"type": "yarn", "factor": 4.0, "original": 32768}, 131072),
        (4096, {"type": "linear", "factor": 4.0}, None),  # which of the two it is, nobody says
        (4096, {"rope_type": "default"}, 4096),
        (131072, {"type": "longrope", "short_factor": [1.0]}, 131072),
        (4096, "strange", 4096),
        (4096, {"factor": "x"}, 4096),
    ],
)
def test_stretched_positions_count_where_it_is_certain(
    stated: int, scaling: Any, most: int | None
) -> None:
    if isinstance(scaling, dict) and "original" in scaling:
        scaling = {**scaling, "original_max_position_embeddings": scaling["original"]}
    described = of("llama", max_position_embeddings=stated, rope_scaling=scaling)
    assert described.max_seq == most


@pytest.mark.parametrize(
    ("outer", "inner", "is_tied"),
    [(True, None, True), (None, True, True), (False, True, True), (False, False, False)],
)
def test_either_part_may_say_that_the_head_is_the_embedding(
    outer: bool | None, inner: bool | None, is_tied: bool
) -> None:
    text = {"model_type": "qwen2_vl_text", **DECODERS["qwen2"]}
    fields: dict[str, Any] = {"model_type": "qwen2_vl", "text_config": text}
    if outer is not None:
        fields["tie_word_embeddings"] = outer
    if inner is not None:
        text["tie_word_embeddings"] = inner
    described = read_config(fields)
    assert (described.model.parameters.embedding == 0) == is_tied
    assert not any("whether the head" in note for note in described.notes)


def test_where_no_part_says_it_a_note_does() -> None:
    text = {"model_type": "mistral", **DECODERS["mistral"]}
    described = read_config({"model_type": "mistral3", "text_config": text})
    assert described.notes[-1] == (
        "whether the head is the embedding is not in the file; read with a head of its own"
    )


@pytest.mark.parametrize("kind", ["gpt2", "gpt_neox", "gptj", "bloom", "opt", "mpt", "falcon"])
def test_a_size_of_heads_is_not_taken_where_the_class_takes_none(kind: str) -> None:
    described = of(kind, head_dim=32)
    assert described.model == of(kind).model
    assert unread(kind, head_dim=32) == [f"{kind} reads no head_dim (32): not in here"]


def test_a_common_name_is_not_taken_where_the_class_has_its_own() -> None:
    assert of("gpt2", intermediate_size=40).model == of("gpt2").model
    assert of("phimoe", num_experts=40).model == of("phimoe").model
    assert unread("phimoe", num_experts=40) == ["phimoe reads no num_experts (40): not in here"]
    assert of("gpt2", n_inner=40).model != of("gpt2").model
