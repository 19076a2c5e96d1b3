"""Decoders of transformers: FLOPs and parameters from the config alone are those of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from config_cases import DECODERS, B, S, counted, kind_of, written

from mfu_torch import count_flops
from mfu_torch.flops.formulas import Attention, Decoder, LatentAttention, model_of, read_config
from mfu_torch.integrations.configs import build
from mfu_torch.integrations.counting import count_model
from mfu_torch.integrations.meta_run import inputs_for

# Families whose attention has no kernel, or hands its mask over as numbers: what is counted as
# causal is then all scores, and says so.
UNREAD = {"gpt_neo", "bloom", "mpt", "gemma2", "gpt_oss", "llama4_text"}


def is_unread(case: str) -> bool:
    return kind_of(case) in UNREAD or case == "falcon/one after the other"


def decoder(path: Path) -> Decoder:
    model = read_config(path).model
    assert isinstance(model, Decoder)
    return model


@pytest.mark.parametrize("case", DECODERS)
def test_what_the_config_says_is_what_the_model_does(case: str, tmp_path: Path) -> None:
    path = written(tmp_path, kind_of(case), DECODERS[case])
    model, count = decoder(path), counted(path)
    form, causal = model.flops(B, S), model.flops(B, S, attention="causal")
    assert model.parameters.total == count.parameters.total
    assert (form.forward, form.backward) == (
        count.count.forward + count.count.forward_no_grad,
        count.count.backward,
    )
    assert form.training == count.count.model
    assert form.recompute("checkpoint") == count.count.recompute
    assert bool(count.causal_bounds) == is_unread(case)
    if not count.causal_bounds:
        assert causal.training == count.count.model_causal
    if count.parameters.active is not None:
        assert model.parameters.active == count.parameters.active


@pytest.mark.parametrize(
    "case", ["gpt2", "llama", "gemma2", "mixtral", "qwen2_moe", "ernie4_5_moe", "deepseek_v3"]
)
def test_a_checkpoint_that_does_not_stop_early_repeats_whole_layers(
    case: str, tmp_path: Path
) -> None:
    path = written(tmp_path, kind_of(case), DECODERS[case])
    form = decoder(path).flops(B, S)
    assert form.recompute("full") == counted(path, stops_early=False).count.recompute
    assert form.recompute("full") == form.without("head").forward


@pytest.mark.parametrize(
    ("case", "windows"),
    [
        ("gpt_neo", [None, 7, None, 7]),
        ("mistral", [7, 7, 7, 7]),
        ("qwen2/window", [None, None, 7, 7]),
        ("gemma2", [7, None, 7, None]),
        ("gemma3_text", [7, 7, None, 7]),
        ("olmo3", [7, 7, 7, None]),
        ("cohere2", [7, 7, 7, None]),
        ("smollm3/window", [None, None, None, 7]),
        ("gpt_oss", [7, None, 7, None]),
        ("llama", [None] * 4),
    ],
)
def test_each_layer_has_the_window_that_its_family_gives_it(
    case: str, windows: list[int | None], tmp_path: Path
) -> None:
    import transformers

    path = written(tmp_path, kind_of(case), DECODERS[case])
    found = [
        part.mask.window
        for block in decoder(path).blocks
        for _ in range(block.count)
        for part in block.parts
        if isinstance(part, (Attention, LatentAttention))
    ]
    assert found == windows
    config = transformers.CONFIG_MAPPING[kind_of(case)](**DECODERS[case])
    types = getattr(config, "layer_types", None) or getattr(config, "attention_layers", None)
    if types:
        is_windowed = [each in ("sliding_attention", "local") for each in types]
        assert [window is not None for window in windows] == is_windowed


def test_of_llama_4_the_chunks_do_not_see_one_another(tmp_path: Path) -> None:
    # 24 tokens in chunks of 7: 3 * 28 + 6 = 90 pairs in each of three layers, 300 in the fourth.
    # Scores and values: 2 * 2 * 4 heads * 16 FLOPs for a pair, 2 sequences.
    model = decoder(written(tmp_path, "llama4_text", DECODERS["llama4_text"]))
    scores = model.flops(B, S, attention="causal").only("attention").forward
    assert scores == 2 * 2 * 2 * 4 * 16 * (3 * 90 + 300)
    halved = model.flops(B, S, attention="half").only("attention").forward
    assert halved == 2 * 2 * 4 * 16 * (3 * (3 * 49 + 9) + 576)
    whole = {**DECODERS["llama4_text"], "attention_chunk_size": None}
    of_all = decoder(written(tmp_path, "llama4_text", whole)).flops(B, S, attention="causal")
    assert of_all.only("attention").forward == 2 * 2 * 2 * 4 * 16 * 4 * 300


def test_llama_3_8b_and_gpt2_are_those_that_a_counter_of_torch_counts() -> None:
    # FlopCounterMode of torch over both models, 2 x 1024 tokens.
    llama = read_config(
        {
            "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256,
        }
    ).model  # fmt: skip
    assert llama.parameters.total == 8030261248
    assert llama.flops(2, 1024).forward == 31838592565248
    assert llama.flops(2, 1024).training == 95515777695744
    gpt2 = read_config({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12}).model
    assert gpt2.parameters.total == 124439808
    assert gpt2.flops(2, 1024).forward == 583296614400
    assert gpt2.flops(2, 1024).training == 1749889843200


@pytest.mark.parametrize("name", ["gemma-2-27b", "llama-3.1-405b", "deepseek-v3", "gpt-oss-120b"])
def test_models_of_real_size_are_what_transformers_builds(name: str, tmp_path: Path) -> None:
    from mfu_torch.flops.formulas.known import sizes_of

    kind, sizes = sizes_of(name)
    path = written(tmp_path, kind, sizes)
    described, built = model_of(name), build(path)
    count = count_model(built, inputs_for(built.model, 1, 64), dtype="bf16")
    assert described.model.parameters.total == count.parameters.total
    assert described.model.parameters.active == (count.parameters.active or count.parameters.total)
    assert described.model.flops(1, 64).forward == count.count.model


@pytest.mark.parametrize("case", ["llama/biases", "mixtral", "gemma2", "deepseek_v3"])
def test_a_step_with_weights_and_data_has_the_same_flops(case: str) -> None:
    import transformers

    kind = kind_of(case)
    config = transformers.CONFIG_MAPPING[kind](
        **DECODERS[case], bos_token_id=0, eos_token_id=0, use_cache=False
    )
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    ids = torch.randint(0, 100, (B, S))
    count = count_flops(lambda: model(ids).logits.sum().backward())
    form = read_config({"model_type": kind, **DECODERS[case]}).model.flops(B, S)
    assert (form.forward, form.backward) == (count.forward, count.backward)
