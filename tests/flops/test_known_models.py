"""Models by name: their parameters against totals that are published, to the digit."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from config_cases import DECODERS, written

from mfu_torch.flops.formulas import Decoder, ModelError, known_models, model_of, read_config

# As the checkpoints count them: the totals of their safetensors on the model hub, those of
# published tables (Pythia's appendix, llm-foundry's logs, torchvision's and timm's model cards).
EXACT = {
    "gpt2": 124439808, "gpt2-medium": 354823168, "gpt2-large": 774030080, "gpt2-xl": 1557611200,
    "bloom-560m": 559214592, "bloom-3b": 3002557440, "bloom-7b1": 7069016064,
    "bloom-176b": 176247271424,
    "opt-125m": 125239296, "opt-1.3b": 1315758080, "opt-13b": 12853473280, "opt-30b": 29974540288,
    "llama-7b": 6738415616, "llama-13b": 13015864320, "llama-33b": 32528943616,
    "llama-65b": 65285660672, "llama-2-7b": 6738415616, "llama-2-70b": 68976648192,
    "llama-3-8b": 8030261248, "llama-3-70b": 70553706496, "llama-3.1-405b": 405853388800,
    "llama-3.2-1b": 1235814400, "llama-3.2-3b": 3212749824,
    "mistral-7b": 7241732096, "mixtral-8x7b": 46702792704, "mixtral-8x22b": 140620634112,
    "qwen2.5-0.5b": 494032768, "qwen2.5-1.5b": 1543714304, "qwen2.5-3b": 3085938688,
    "qwen2.5-7b": 7615616512, "qwen2.5-14b": 14770033664, "qwen2.5-32b": 32763876352,
    "qwen2.5-72b": 72706203648,
    "qwen3-0.6b": 596049920, "qwen3-8b": 8190735360, "qwen3-32b": 32762123264,
    "qwen3-next-80b-a3b": 79674391296, "qwen3-30b-a3b": 30532122624,
    "qwen3-235b-a22b": 235093634560,
    "gemma-2b": 2506172416, "gemma-7b": 8537680896, "gemma-2-2b": 2614341888,
    "gemma-2-9b": 9241705984, "gemma-2-27b": 27227128320, "gemma-3-1b": 999885952,
    "deepseek-v2": 235741434880, "deepseek-v2-lite": 15706484224,
    "gpt-oss-20b": 20914757184, "gpt-oss-120b": 116829156672,
    "mpt-125m": 125311488, "mpt-760m": 760470528, "mpt-1b": 1315950592, "mpt-13b": 12853954560,
    "mpt-70b": 64862437376, "mpt-7b-benchmark": 6658859008, "mpt-30b-benchmark": 29975214080,
    "mpt-7b": 6649286656,
    "olmo-1b": 1176764416, "olmo-7b": 6888095744, "olmo-2-7b": 7298617344,
    "olmo-2-13b": 13716198400,
    "olmo-2-32b": 32234279936,
    "pythia-70m": 70426624, "pythia-160m": 162322944, "pythia-410m": 405334016,
    "pythia-1b": 1011781632, "pythia-1.4b": 1414647808, "pythia-2.8b": 2775208960,
    "pythia-6.9b": 6857302016, "pythia-12b": 11846072320,
    "gpt-neox-20b": 20554567680, "gpt-j-6b": 6050882784, "falcon-7b": 6921720704,
    "falcon-40b": 41303293952, "phi-2": 2779683840, "starcoder2-3b": 3030371328,
    "starcoder2-7b": 7173923840, "starcoder2-15b": 15957889024,
    "bert-base": 109514298, "bert-large": 335174458, "roberta-base": 124697433,
    "roberta-large": 355412057, "modernbert-base": 149655232,
    "t5-small": 60506624, "t5-base": 222903552, "t5-large": 737668096, "t5-3b": 2851598336,
    "t5-11b": 11307321344,
    "vit-b/16": 86567656, "vit-l/16": 304326632, "vit-h/14": 632045800,
    "resnet-18": 11689512, "resnet-34": 21797672, "resnet-50": 25557032, "resnet-101": 44549160,
    "resnet-152": 60192808,
    "whisper-tiny": 37760640, "whisper-small": 241734912, "whisper-large-v3": 1543490560,
    "mamba-130m": 129135360, "mamba-370m": 371516416, "mamba-790m": 793204224,
    "mamba-1.4b": 1372178432, "mamba-2.8b": 2768345600, "jamba-v0.1": 51570323328,
}  # fmt: skip

# N as papers print it, in billions, and how far off the last digit allows it to be: PaLM table 1,
# Megatron SC21 table 1, GPT-3 table 2.1 (13B: a hidden size of 5140 is printed), DiT table 1.
PRINTED = {
    "palm-8b": (8.63, 0.005), "palm-62b": (62.50, 0.005), "palm-540b": (540.35, 0.01),
    "megatron-1.7b": (1.7, 0.05), "megatron-3.6b": (3.6, 0.05), "megatron-7.5b": (7.5, 0.05),
    "megatron-18.4b": (18.4, 0.05), "megatron-39.1b": (39.1, 0.05),
    "megatron-76.1b": (76.1, 0.05), "megatron-145.6b": (145.6, 0.05),
    "megatron-310.1b": (310.1, 0.05), "megatron-529.6b": (529.6, 0.05),
    "megatron-1008b": (1008.0, 0.05), "megatron-22b": (22, 0.5), "megatron-175b": (175, 0.5),
    "gpt3-125m": (0.125, 0.0005), "gpt3-760m": (0.760, 0.0005), "gpt3-1.3b": (1.3, 0.05),
    "gpt3-2.7b": (2.7, 0.05), "gpt3-6.7b": (6.7, 0.05), "gpt3-13b": (13.0, 0.2),
    "gpt3-175b": (175, 0.5), "mt-nlg-530b": (530, 0.5), "glm-130b": (130, 1.5),
    "opt-66b": (66, 0.5), "opt-175b": (175, 0.5), "modernbert-large": (0.395, 0.001),
    "dit-s/2": (0.033, 0.0005), "dit-b/2": (0.130, 0.001), "dit-l/2": (0.458, 0.001),
    "dit-xl/2": (0.675, 0.001), "mamba2-2.7b": (2.7, 0.05), "mpt-30b": (30, 0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_the_parameters_of_a_checkpoint_come_out_to_the_digit(name: str) -> None:
    assert model_of(name).model.parameters.total == EXACT[name]


@pytest.mark.parametrize("name", PRINTED)
def test_the_parameters_that_a_paper_prints_come_out(name: str) -> None:
    printed, rounding = PRINTED[name]
    assert abs(model_of(name).model.parameters.total / 1e9 - printed) <= rounding


@pytest.mark.parametrize(
    ("name", "layers", "experts", "published", "active"),
    [
        ("deepseek-v3", 58, 256, 671026419200, 37e9),  # the paper: 37B active
        ("kimi-k2", 60, 384, 1026408232448, 32e9),  # the report: 32B active
    ],
)
def test_the_published_ones_have_biases_of_routers_beside(
    name: str, layers: int, experts: int, published: int, active: float
) -> None:
    described = model_of(name)
    assert described.model.parameters.total + layers * experts == published
    assert described.model.parameters.active == pytest.approx(active, rel=0.03)
    assert any(f"the {layers * experts} biases of its routers" in n for n in described.notes)


def test_layers_for_further_tokens_are_named_where_they_are_left_out() -> None:
    assert any("further tokens (MTP) left out" in note for note in model_of("deepseek-v3").notes)


def test_gemma_3_lacks_the_same_vision_tower_in_each_size() -> None:
    # Published: 4300079472, 12187325040, 27432406640, with a projection (1152, h) and its norm.
    published = {"4b": (4300079472, 2560), "12b": (12187325040, 3840), "27b": (27432406640, 5376)}
    towers = {
        total - 1152 * hidden - model_of(f"gemma-3-{size}").model.parameters.total
        for size, (total, hidden) in published.items()
    }
    assert len(towers) == 1


def test_of_mixtral_a_token_meets_two_experts() -> None:
    # Jiang et al. 2024: 13B active of 47B.
    assert model_of("mixtral-8x7b").model.parameters.active == 12879925248


def test_every_row_has_its_source_and_all_sizes_and_reasonable_parameters() -> None:
    for described in known_models():
        assert described.source
        assert not any("not in the file" in note for note in described.notes), described.name
        if described.stated_parameters:  # gemma-2b is one of 2.5e9
            ratio = described.model.parameters.total / described.stated_parameters
            assert 0.9 < ratio < 1.32, described.name


def test_every_row_gives_flops_and_encodes() -> None:
    for described in known_models():
        seq = None if described.model.per == "sample" else described.seq or 512
        assert described.model.flops(seq=seq).training > 0
        assert b'"name"' in msgspec.json.encode(described)


def test_names_are_unique_and_each_finds_its_own_model() -> None:
    names = [described.name for described in known_models()]
    assert len(set(names)) == len(names) > 150
    assert [model_of(name).name for name in names] == names
    assert [model_of(name.upper().replace("-", "_")).name for name in names] == names


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("GPT-3 175B", "gpt3-175b"),
        ("gpt3", "gpt3-175b"),
        ("gpt2-xl", "gpt2-xl"),
        ("llama3-70b", "llama-3-70b"),
        ("meta-llama/Llama-3-70B", "llama-3-70b"),
        ("meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Llama 3.1 405B", "llama-3.1-405b"),
        ("Qwen2.5 7B Instruct", "qwen2.5-7b"),
        ("DeepSeek V3", "deepseek-v3"),
        ("mixtral8x7b", "mixtral-8x7b"),
        ("ViT-B/16", "vit-b/16"),
        ("DiT-XL/2", "dit-xl/2"),
        ("ResNet50", "resnet-50"),
        ("bert_base_uncased", "bert-base"),
        ("MT-NLG 530B", "mt-nlg-530b"),
        ("bloom", "bloom-176b"),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"),
        ("Llama-2-7b-chat-hf", "llama-2-7b"),
    ],
)
def test_names_as_people_write_them(text: str, name: str) -> None:
    assert model_of(text).name == name


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("llama-3-71b", "llama-3-70b"),
        ("llama-31-8b", "llama-3.1-8b"),
        ("llama-3-1b", "llama-3.2-1b"),
        ("llama-3-7b", "llama-3-70b"),
        ("gpt3-17.5b", "gpt3-175b"),
        ("gpt-2-175b", "gpt3-175b"),
        ("qwen2.5", "qwen2.5-7b"),
    ],
)
def test_no_name_stands_for_another_size(text: str, near: str) -> None:
    with pytest.raises(ModelError, match="is no known model and no file; near it are") as error:
        model_of(text)
    assert near in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["", " ", "/", "zzzzzz", "x" * 5000, "a\0b", "none/of these"])
def test_what_is_no_name_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(ModelError) as error:
        model_of(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_a_path_of_a_config_is_read_and_comes_before_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gpt2"
    folder.mkdir()
    path = written(folder, "llama", DECODERS["llama"])
    monkeypatch.chdir(tmp_path)
    assert model_of(str(path)).model == read_config(path).model
    assert isinstance(model_of("gpt2").model, Decoder)
    assert model_of("gpt2").model == read_config(path).model
    (tmp_path / "llama-3-8b").mkdir()  # a folder without a config is no model
    assert model_of("llama-3-8b").model.parameters.total == 8030261248
    with pytest.raises(ModelError, match="is no file"):
        model_of("missing/config.json")


def test_what_a_source_does_not_state_is_none() -> None:
    assert model_of("llama-3-8b").seq == 8192
    assert model_of("mistral-7b").seq is None  # the paper states what it reads, not what it trained
    assert model_of("gpt2").stated_parameters is None
    assert model_of("gpt3-175b").stated_parameters == 175e9
