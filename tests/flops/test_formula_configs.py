"""Configs as files: defaults, parts of other models, and what makes no model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from config_cases import DECODERS, OTHERS, written

from mfu_torch.flops.formulas import Decoder, ModelError, read_config
from mfu_torch.flops.formulas.configs.readers import READERS
from mfu_torch.integrations.configs import build

LLAMA: dict[str, Any] = {"model_type": "llama", **DECODERS["llama"]}
DEEPSEEK: dict[str, Any] = {"model_type": "deepseek_v3", **DECODERS["deepseek_v3"]}


def total(config: dict[str, Any], **options: Any) -> int:
    return read_config(config, **options).model.parameters.total


@pytest.mark.parametrize("kind", [kind for kind in READERS if kind not in ("palm", "mt5")])
def test_what_the_file_lacks_is_as_transformers_has_it(kind: str, tmp_path: Path) -> None:
    import transformers

    config = transformers.CONFIG_MAPPING[kind]()
    names = dict(getattr(config, "attribute_map", {}))
    essential = ("hidden_size", "num_hidden_layers", "num_attention_heads")
    fields = {names.get(name, name): getattr(config, name, None) for name in essential}
    fields = {name: value for name, value in fields.items() if value is not None}
    deep = names.get("num_hidden_layers", "num_hidden_layers")
    if kind not in ("t5", "bart", "mbart", "whisper", "gpt_neo"):
        fields[deep] = 4
    more = {"num_experts_per_tok": 6} if kind == "deepseek_v2" else {}  # it has no default
    more |= {"pad_token_id": 0} if kind in ("phi3", "glm", "glm4", "smollm3") else {}
    more |= {"head_dim": 128} if kind in ("ministral", "glm4_moe") else {}
    more |= {"num_key_value_heads": 8} if kind == "nemotron" else {}
    if kind == "nemotron_h":
        more["layers_block_type"] = ["linear_attention", "moe", "full_attention", "mlp"]
    path = written(tmp_path, kind, {**fields, **more})
    described = read_config(path)
    model = build(path).model
    assert described.model.parameters.total == sum(p.numel() for p in model.parameters())
    assert any("as transformers has it by default: " in note for note in described.notes)


def test_defaults_are_named_with_their_values() -> None:
    fields = {k: v for k, v in LLAMA.items() if k not in ("vocab_size", "intermediate_size")}
    assert read_config(fields).notes == (
        "not in the file, so as transformers has it by default: intermediate_size 11008, "
        "vocab_size 32000",
    )
    assert read_config(LLAMA).notes == ()


def test_a_config_is_read_from_its_file_and_its_folder(tmp_path: Path) -> None:
    path = written(tmp_path, "llama", DECODERS["llama"])
    of_file, of_folder = read_config(path), read_config(str(tmp_path))
    assert of_file == of_folder
    assert (of_file.name, of_file.source) == (tmp_path.name, str(path))
    assert of_file.seq is None  # max_position_embeddings is no length of training
    assert total(LLAMA) == of_file.model.parameters.total


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("gemma3", {"model_type": "gemma3_text", **DECODERS["gemma3_text"]}),
        ("llava", DECODERS["llama"]),  # its text part names no model_type
        ("mistral3", {"model_type": "mistral", **DECODERS["mistral"]}),
        ("qwen2_5_vl", {"model_type": "qwen2_5_vl_text", **DECODERS["qwen2"]}),
        ("kimi_k25", {"model_type": "kimi_k2", **DECODERS["deepseek_v3"]}),
        ("some_other_vl", {"model_type": "qwen3", **DECODERS["qwen3"]}),
    ],
)
def test_of_a_model_of_several_parts_the_text_is_read(outer: str, inner: dict[str, Any]) -> None:
    described = read_config(
        {"model_type": outer, "vision_config": {"hidden_size": 99}, "text_config": inner}
    )
    same = {"llava": "llama", "qwen2_5_vl": "qwen2", "kimi_k25": "deepseek_v3"}
    kind = same.get(outer, inner.get("model_type"))
    assert described.model == read_config({**inner, "model_type": kind}).model
    assert described.notes[0] == (
        f"the text part of a {outer} alone: nothing else of it is in here"
    )


def test_the_sizes_of_a_text_part_may_stand_at_the_top() -> None:
    # Qwen2-VL's files of before transformers 4.52.
    described = read_config({"model_type": "qwen2_vl", "vision_config": {}, **DECODERS["qwen2"]})
    assert described.model == read_config({"model_type": "qwen2", **DECODERS["qwen2"]}).model
    assert described.notes[0].startswith("the text part of a qwen2_vl alone")


def test_a_text_part_without_a_known_type_is_refused() -> None:
    with pytest.raises(ModelError, match="text_config has no model_type"):
        read_config({"model_type": "strange", "text_config": {"hidden_size": 4}})
    with pytest.raises(ModelError, match="'strange' is not known here"):
        read_config({"model_type": "strange", "text_config": {"model_type": "strange"}})


def test_a_head_that_is_not_read_is_named() -> None:
    described = read_config({**LLAMA, "architectures": ["LlamaForSequenceClassification"]})
    assert described.notes == (
        "read with the head of its pre-training, not with what a LlamaForSequenceClassification "
        "has",
    )
    assert read_config({**LLAMA, "architectures": "LlamaForCausalLM"}).notes == ()


def test_of_llama_4_a_note_says_that_transformers_runs_all_experts() -> None:
    described = read_config({"model_type": "llama4_text", **DECODERS["llama4_text"]})
    assert "transformers' code multiplies it with all of them" in described.notes[0]


def test_a_text_part_may_leave_its_sizes_to_the_family() -> None:
    # As of LLaVA: {"model_type": "llama", "vocab_size": 32064} and nothing else.
    described = read_config(
        {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    )
    assert described.model.parameters.total == 6738415616 + 2 * 64 * 4096
    assert "hidden_size 4096" in described.notes[1]


def test_layers_for_further_tokens_are_read_where_they_are_asked_for() -> None:
    import transformers

    fields = {**DEEPSEEK, "num_nextn_predict_layers": 1}
    left_out, with_them = read_config(fields), read_config(fields, mtp=True)
    assert left_out.notes[0].startswith("1 layer that predicts further tokens (MTP) left out")
    # One layer with experts, a projection of 2h to h, its two norms and that before the head.
    deeper = total({**DEEPSEEK, "num_hidden_layers": DEEPSEEK["num_hidden_layers"] + 1})
    layer = deeper - total(DEEPSEEK)
    assert with_them.model.parameters.total == total(DEEPSEEK) + layer + 2 * 64 * 64 + 3 * 64
    head = 2 * 24 * 64 * 100
    more = with_them.model.flops(seq=24).forward - left_out.model.flops(seq=24).forward
    per_layer = read_config({**DEEPSEEK, "num_hidden_layers": 5}).model.flops(seq=24).forward
    per_layer -= read_config(DEEPSEEK).model.flops(seq=24).forward
    assert more == per_layer + head + 2 * 24 * 2 * 64 * 64
    assert transformers.CONFIG_MAPPING["deepseek_v3"]().num_nextn_predict_layers == 1
    with pytest.raises(ModelError, match="has no num_nextn_predict_layers"):
        read_config(LLAMA, mtp=True)


def test_an_unknown_model_type_names_near_ones_and_what_counts_any() -> None:
    with pytest.raises(ModelError) as error:
        read_config({"model_type": "lama"})
    assert str(error.value) == (
        "config: model_type 'lama' is not known here; near it are llama, jamba, bamba; "
        "mfu-torch count CONFIG.json counts any model of transformers"
    )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"hidden_size": 0}, "hidden_size is 0; expected a whole number from 1 to 1000000000"),
        ({"hidden_size": -64}, "hidden_size is -64; expected a whole number"),
        ({"hidden_size": 64.0}, "hidden_size is 64.0; expected a whole number"),
        ({"hidden_size": float("nan")}, "hidden_size is NaN; expected a whole number"),
        ({"hidden_size": 1e400}, "hidden_size is Infinity; expected a whole number"),
        ({"hidden_size": "64"}, 'hidden_size is "64"; expected a whole number'),
        ({"hidden_size": [64]}, "hidden_size is [64]; expected a whole number"),
        ({"hidden_size": True}, "hidden_size is true; expected a whole number"),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; expected a whole number"),
        ({"num_hidden_layers": 10**6}, "num_hidden_layers is 1000000; expected a whole number"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": None}, "vocab_size is missing; expected a whole number above 0"),
        ({"num_attention_heads": 6}, "64 is no multiple of 6 attention heads"),
        ({"num_key_value_heads": 3}, "4 attention heads are no multiple of 3 key and value heads"),
        ({"attention_bias": "yes"}, 'attention_bias is "yes"; expected true or false'),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1; expected true or false"),
        ({"layer_types": ["full_attention"]}, "layer_types names 1 layers; expected 4"),
        ({"layer_types": ["rnn"] * 4}, "layer_types has rnn; expected full_attention"),
        ({"layer_types": ["sliding_attention"] * 4}, "and there is no sliding_window"),
        ({"layer_types": "full"}, 'layer_types is "full"; expected a list of names'),
    ],
)
def test_values_that_no_model_has_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError) as error:
        read_config({**LLAMA, **wrong})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        ("mixtral", {"num_experts_per_tok": 7}, "7 experts for a token of 6; expected at most all"),
        ("deepseek_v3", {"kv_lora_rank": 0}, "kv_lora_rank is 0"),
        ("gpt2", {"hidden_size": 65}, "n_embd is 64 and hidden_size 65; expected one of the two"),
        ("qwen3_moe", {"num_local_experts": 4}, "num_local_experts is 4 and num_experts 10"),
        ("opt", {"word_embed_proj_dim": 32}, "word_embed_proj_dim is 32; expected hidden_size, 64"),
        ("mpt", {"expansion_ratio": -1}, "expansion_ratio is -1; expected a number above 0"),
        ("mpt", {"attn_config": 3}, "attn_config is 3; expected a config within the config"),
        ("mpt", {"attn_config": {"attn_type": "grouped"}}, "attn_type is 'grouped'"),
        ("gpt_neo", {"attention_types": [[["global"], 3]]}, "attention_types has 3 layers"),
        ("gpt_neo", {"attention_types": [["far", 3]]}, "attention_types is not"),
        ("gpt_neo", {"attention_types": [[["local"], 10**12]]}, "attention_types is not"),
        ("deepseek_v3", {"moe_layer_freq": 2}, "moe_layer_freq is 2; expected 1"),
        ("phimoe", {"num_experts_per_tok": 3}, "num_experts_per_tok is 3; expected 2"),
        ("helium", {"head_dim": 32}, "4 heads of 32 are not hidden_size, 64"),
        ("olmoe", {"head_dim": 32}, "4 heads of 32 are not hidden_size, 64"),
        ("gpt2", {"resid_pdrop": 2}, "resid_pdrop is 2; expected a number from 0 to 1"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "expected a causal decoder"),
        ("llama4_text", {"no_rope_layers": [1]}, "no_rope_layers has 1 layers; expected 4"),
        ("qwen2_moe", {"mlp_only_layers": "none"}, "expected a list of whole numbers"),
    ],
)
def test_families_refuse_what_they_do_not_read(
    kind: str, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError) as error:
        read_config({"model_type": kind, **DECODERS[kind], **wrong})
    assert message in str(error.value)


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "num_attention_heads"])
def test_a_file_without_its_sizes_is_refused(name: str) -> None:
    fields = {key: value for key, value in LLAMA.items() if key != name}
    with pytest.raises(ModelError) as error:
        read_config(fields)
    assert str(error.value) == (
        f"config: {name} is missing; expected the sizes of a model, at least hidden_size, "
        "num_hidden_layers, num_attention_heads"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "holds a JSON list; expected an object with a model_type"),
        ("null", "holds a JSON null"),
        ("{", "is no JSON ("),
        ("", "is no JSON ("),
        ("[" * 100_000, "is no JSON ("),
        ('{"hidden_size": ' + "9" * 5000 + "}", "is no JSON ("),
        ("{}", "has no model_type"),
        ('{"model_type": 3}', "has no model_type"),
        ('{"model_type": "llama"}', "hidden_size is missing"),
    ],
)
def test_files_that_hold_no_config_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ModelError) as error:
        read_config(path)
    assert str(error.value).startswith(f"{path}: {message}")
    assert "\n" not in str(error.value)


def test_paths_without_a_config_are_refused(tmp_path: Path) -> None:
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ModelError, match=r"holds no config\.json"):
        read_config(tmp_path)
    with pytest.raises(ModelError, match="is no file; expected a config"):
        read_config(tmp_path / "none.json")
    with pytest.raises(ModelError, match="is no JSON"):
        read_config(tmp_path / "bytes.json")


def test_a_default_that_contradicts_the_file_is_named_as_a_default() -> None:
    # Mistral's default of 8 key and value heads, and 4 heads.
    fields = {k: v for k, v in DECODERS["mistral"].items() if k != "num_key_value_heads"}
    with pytest.raises(ModelError, match=r"8 key and value heads \(the family"):
        read_config({"model_type": "mistral", **fields})


def test_configs_are_read_without_torch_and_transformers(tmp_path: Path) -> None:
    path = written(tmp_path, "llama", DECODERS["llama"])
    code = (
        "import json, sys\n"
        "from mfu_torch.flops.formulas import read_config\n"
        f"total = read_config({str(path)!r}).model.parameters.total\n"
        "print(json.dumps([total, sorted({'torch', 'numpy', 'transformers'} & set(sys.modules))]))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(out.stdout) == [total(LLAMA), []]


def test_every_family_has_a_case() -> None:
    cases = {case.partition("/")[0] for case in (*DECODERS, *OTHERS)}
    assert cases == set(READERS) - {"palm"}


def test_the_biases_of_experts_are_idle_with_them() -> None:
    model = read_config({"model_type": "gpt_oss", **DECODERS["gpt_oss"]}).model
    assert isinstance(model, Decoder)
    # 4 layers, 2 of 6 experts idle: gate and up of 96, down of 64.
    assert model.parameters.idle == 4 * 2 * (96 + 96 + 64)


HOSTILE: tuple[Any, ...] = (
    *(0, -1, 1.5, 10**30, 1e400, float("nan"), "x", "", True),
    *([], [1], [None], {}, {"a": 1}, [["a"]], [[["a"], -3]], [[["global"], True]]),
)


@pytest.mark.parametrize("case", ["gpt_neo", "mpt", "qwen2_moe", "ernie4_5_moe", "deepseek_v3"])
def test_whatever_stands_in_a_field_there_is_a_model_or_one_line(case: str) -> None:
    for name in {*DECODERS[case], *READERS[case].defaults, "layer_types", "attn_config"}:
        for value in HOSTILE:
            try:
                model = read_config({"model_type": case, **DECODERS[case], name: value}).model
            except ModelError as error:
                assert "\n" not in str(error) and len(str(error)) < 300
            else:
                assert model.flops(seq=5).training > 0
                assert 0 < model.parameters.active <= model.parameters.total
