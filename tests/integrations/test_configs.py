"""A transformers config to a count: against closed forms, and against models that really run."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from config_counts import (
    HEADS,
    KV_HEADS,
    LAYERS,
    LLAMA,
    B,
    D,
    F,
    S,
    V,
    Write,
    counted,
    really_counted,
)
from config_counts import write as write

from mfu_torch.flops.ops.attention import MASK_NOT_READ, PLAIN_SCORES
from mfu_torch.integrations.configs import build, offline
from mfu_torch.integrations.meta_run import WrongSize

# --- language models -------------------------------------------------------------------------

D_KV = D * KV_HEADS // HEADS
DENSE = LAYERS * 2 * B * S * (2 * D * D + 2 * D * D_KV + 3 * D * F) + 2 * B * S * D * V
SCORES = LAYERS * 4 * B * S * S * D  # both products
KEPT = LAYERS * 4 * B * (S * (S + 1) // 2) * D


def test_a_forward_of_llama(write: Write) -> None:
    found = counted(write(LLAMA))
    assert found.count.model == found.count.forward_no_grad == DENSE + SCORES
    assert found.count.model_causal == DENSE + KEPT
    assert found.count.hardware == found.count.model
    assert (found.tokens, found.samples) == (B * S, B)
    assert found.count.uncounted == {}
    assert found.notes == ()
    assert found.causal_bounds == ()


def test_a_training_step_of_llama(write: Write) -> None:
    found = counted(write(LLAMA), train=True)
    assert found.count.forward == DENSE + SCORES
    assert found.count.backward == 2 * (DENSE + SCORES)
    assert found.count.kernel_recompute == SCORES // 2  # the scores once more, in the kernel
    assert found.count.model_causal == 3 * (DENSE + KEPT)
    assert found.count.by_dtype == {"bf16": found.count.hardware}


def test_checkpointed_layers_run_again_up_to_the_last_tensor_that_is_saved(write: Write) -> None:
    found = counted(write(LLAMA), train=True, checkpoint=True)
    down = LAYERS * 2 * B * S * F * D  # nothing after it needs what it computes
    head = 2 * B * S * D * V
    assert found.count.model == 3 * (DENSE + SCORES)
    assert found.count.recompute == DENSE - head - down + SCORES


def test_eager_attention_has_the_same_model_flops_and_a_mask_not_told(
    write: Write,
) -> None:
    found = counted(write(LLAMA), train=True, attention="eager")
    assert found.count.model == found.count.hardware == 3 * (DENSE + SCORES)
    assert found.count.model_causal == found.count.model
    assert found.causal_bounds == (PLAIN_SCORES,)


def test_modules_add_up_and_have_their_own(write: Write) -> None:
    found = counted(write(LLAMA), train=True)
    parts = found.modules
    assert sum(part.hardware for part in parts.values()) == found.count.hardware
    assert parts["model.layers.1.self_attn.q_proj"].forward == 2 * B * S * D * D
    assert parts["model.layers.1.self_attn.q_proj"].backward == 4 * B * S * D * D
    assert parts["model.layers.0.self_attn"].forward == SCORES // LAYERS
    assert parts["lm_head"].forward == 2 * B * S * D * V


def test_parameters_are_counted_once(write: Write) -> None:
    layer = 2 * D * D + 2 * D * D_KV + 3 * D * F + 2 * D
    body = LAYERS * layer + D
    untied = counted(write(LLAMA)).parameters
    assert (untied.total, untied.embedding) == (body + 2 * V * D, V * D)
    assert untied.trainable == untied.total
    assert (untied.active, untied.active_unknown) == (None, "")
    tied = counted(write(LLAMA, tie_word_embeddings=True)).parameters
    assert (tied.total, tied.embedding) == (body + V * D, V * D)


def test_the_rule_of_thumb_is_6n(write: Write) -> None:
    found = counted(write(LLAMA), train=True)
    assert found.rule_of_thumb == 6 * found.parameters.total * B * S
    assert counted(write(LLAMA)).rule_of_thumb == 2 * found.parameters.total * B * S


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_the_dtype_is_that_of_the_products(write: Write, dtype: str) -> None:
    assert counted(write(LLAMA), dtype=dtype).count.by_dtype == {dtype: DENSE + SCORES}


def test_a_sliding_window_keeps_exactly_its_scores(write: Write) -> None:
    fields = LLAMA | {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    window = 5
    found = counted(write(fields, sliding_window=window))
    rows = sum(min(i + 1, window) for i in range(S))
    assert found.count.model == DENSE + SCORES
    assert found.count.model_causal == DENSE + LAYERS * 4 * B * rows * D
    assert found.causal_bounds == ()


def test_mixture_of_experts_is_counted_for_the_experts_that_a_token_is_sent_to(
    write: Write,
) -> None:
    experts, top_k = 4, 2
    fields = LLAMA | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    path = write(fields, num_local_experts=experts, num_experts_per_tok=top_k)
    found = counted(path, train=True)
    gate = LAYERS * 2 * B * S * D * experts
    mlp = LAYERS * 2 * B * S * 3 * D * F
    assert found.count.model == 3 * (DENSE + SCORES + gate + (top_k - 1) * mlp)
    idle = LAYERS * (experts - top_k) * 3 * D * F
    assert found.parameters.active == found.parameters.total - idle
    assert found.rule_of_thumb == 6 * found.parameters.active * B * S


def test_latent_attention_with_keys_wider_than_values(write: Write) -> None:
    q_rank, kv_rank, rope, nope, d_v = 16, 24, 8, 16, 12
    fields = LLAMA | {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3"}
    path = write(
        fields,
        num_key_value_heads=HEADS,
        q_lora_rank=q_rank,
        kv_lora_rank=kv_rank,
        qk_rope_head_dim=rope,
        qk_nope_head_dim=nope,
        v_head_dim=d_v,
        first_k_dense_replace=LAYERS,  # no experts
    )
    found = counted(path, train=True)
    d_qk = rope + nope
    weights = D * q_rank + q_rank * HEADS * d_qk + D * (kv_rank + rope)
    weights += kv_rank * HEADS * (nope + d_v) + HEADS * d_v * D + 3 * D * F
    scores = 2 * B * HEADS * S * S * (d_qk + d_v)
    flops = LAYERS * (2 * B * S * weights + scores) + 2 * B * S * D * V
    assert found.count.forward == flops
    assert found.count.backward == 2 * flops
    kept = LAYERS * 2 * B * HEADS * (S * (S + 1) // 2) * (d_qk + d_v)
    assert found.count.model_causal == 3 * (flops - LAYERS * scores + kept)


T5 = {
    "architectures": ["T5ForConditionalGeneration"],
    "model_type": "t5",
    "d_model": D,
    "d_kv": 16,
    "d_ff": F,
    "num_layers": LAYERS,
    "num_heads": HEADS,
    "vocab_size": V,
    "decoder_start_token_id": 0,
}
SMALL: list[dict[str, Any]] = [
    LLAMA,
    LLAMA | {"architectures": ["GemmaForCausalLM"], "model_type": "gemma", "head_dim": 16},
    LLAMA | {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "head_dim": 16},
    LLAMA | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"},
    LLAMA | {"architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2"},
    LLAMA | {"architectures": ["BertForMaskedLM"], "model_type": "bert"},
    LLAMA | {"architectures": ["MambaForCausalLM"], "model_type": "mamba", "state_size": 8},
    T5,
]


@pytest.mark.parametrize("fields", SMALL, ids=lambda fields: fields["model_type"])
def test_the_count_is_that_of_a_model_that_really_runs(
    write: Write, fields: dict[str, Any]
) -> None:
    path = write(fields)
    found, real = counted(path, train=True).count, really_counted(path)
    assert (found.forward, found.backward) == (real.forward, real.backward)


def test_an_encoder_and_its_decoder_have_lengths_of_their_own(write: Write) -> None:
    target = 7
    found = counted(write(T5), target_seq=target)
    inner = HEADS * 16
    encoder = 2 * B * S * (4 * D * inner + 2 * D * F) + 4 * B * S * S * inner
    decoder = 2 * B * target * (4 * D * inner + 2 * D * F) + 4 * B * target * target * inner
    cross = 2 * B * (2 * target + 2 * S) * D * inner + 4 * B * target * S * inner
    head = 2 * B * target * D * V
    assert found.count.model == LAYERS * (encoder + decoder + cross) + head
    assert found.tokens == B * (S + target)
    assert found.rule_of_thumb is None  # no token goes through all of the model
    assert found.causal_bounds == (MASK_NOT_READ,)  # its position bias is a mask without data


# --- images and sound ------------------------------------------------------------------------


def test_an_image_model_takes_its_size_from_the_config(write: Write) -> None:
    image, patch = 32, 8
    path = write(
        {
            "architectures": ["ViTForImageClassification"],
            "model_type": "vit",
            "hidden_size": D,
            "intermediate_size": F,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "image_size": image,
            "patch_size": patch,
            "num_labels": 10,
        }
    )
    found = counted(path, seq=None, train=True)
    patches = (image // patch) ** 2
    seq = patches + 1
    embed = 2 * B * patches * 3 * patch * patch * D
    layer = 2 * B * seq * (4 * D * D + 2 * D * F) + 4 * B * seq * seq * D
    flops = embed + LAYERS * layer + 2 * B * D * len(build(path).model.config.id2label)
    assert found.count.forward == flops
    assert found.count.backward == 2 * flops - embed  # an image needs no gradient
    assert found.count.model_causal == found.count.model  # every patch sees every other
    assert (found.tokens, found.rule_of_thumb) == (None, None)


def test_a_spectrogram_and_its_text(write: Write) -> None:
    positions, bins, target = 20, 8, 6
    path = write(
        {
            "architectures": ["WhisperForConditionalGeneration"],
            "model_type": "whisper",
            "d_model": D,
            "encoder_layers": 1,
            "decoder_layers": 1,
            "encoder_attention_heads": HEADS,
            "decoder_attention_heads": HEADS,
            "encoder_ffn_dim": F,
            "decoder_ffn_dim": F,
            "num_mel_bins": bins,
            "max_source_positions": positions,
            "vocab_size": V,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "decoder_start_token_id": 0,
        }
    )
    found = counted(path, seq=None, target_seq=target)
    convolutions = 2 * B * (2 * positions * 3 * bins * D + positions * 3 * D * D)
    encoder = 2 * B * positions * (4 * D * D + 2 * D * F) + 4 * B * positions**2 * D
    decoder = 2 * B * target * (4 * D * D + 2 * D * F) + 4 * B * target**2 * D
    cross = 2 * B * (2 * target + 2 * positions) * D * D + 4 * B * target * positions * D
    assert found.count.model == convolutions + encoder + decoder + cross + 2 * B * target * D * V
    with pytest.raises(WrongSize, match="--target-seq"):
        counted(path, seq=None)


# --- what is said besides --------------------------------------------------------------------


def test_departures_from_the_file_are_noted(write: Write) -> None:
    fields = {key: value for key, value in LLAMA.items() if key != "num_hidden_layers"}
    path = write(
        fields,
        architectures=["MyLlama"],
        auto_map={"AutoModelForCausalLM": "my.MyLlama"},
        quantization_config={"quant_method": "fp8"},
        max_position_embeddings=16,
    )
    notes = "\n".join(counted(path, batch=1).notes)
    assert "auto_map), which was not run: this is transformers' own llama" in notes
    assert "the quantization in the config is not applied" in notes
    assert "architecture: LlamaForCausalLM" in notes
    assert "since transformers has no MyLlama" in notes
    assert "by default: num_hidden_layers 32" in notes
    assert "24 tokens are more than the 16 positions" in notes


def test_a_folder_is_as_good_as_the_file_in_it(write: Write) -> None:
    path = write(LLAMA)
    assert counted(path.parent).count == counted(path).count


def test_nothing_stays_behind(write: Write) -> None:
    from transformers import masking_utils

    from mfu_torch.integrations.meta_masks import without_data

    before = (
        dict(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping),
        masking_utils.find_packed_sequence_indices,
        dict(os.environ),
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
    )
    counted(write(LLAMA), train=True, checkpoint=True)
    with pytest.raises(KeyError), without_data():
        raise KeyError
    assert before == (
        dict(masking_utils.ALL_MASK_ATTENTION_FUNCTIONS._global_mapping),
        masking_utils.find_packed_sequence_indices,
        dict(os.environ),
        torch.get_rng_state().tolist(),
        torch.get_default_dtype(),
    )


def test_no_hub_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with offline():
        assert constants.HF_HUB_OFFLINE is True
        assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert constants.HF_HUB_OFFLINE is False
