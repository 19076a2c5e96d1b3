"""Every size that is given is used or refused, and no text is longer than its positions."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from config_counts import HEADS, LLAMA, B, D, F, Write, counted
from config_counts import write as write

from mfu_torch.integrations.configs import build
from mfu_torch.integrations.counting import count_model
from mfu_torch.integrations.meta_run import Inputs, WrongSize, inputs_for

VIT = {
    "model_type": "vit",
    "hidden_size": D,
    "intermediate_size": F,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "image_size": 32,
    "patch_size": 8,
}
WHISPER = {
    "model_type": "whisper",
    "d_model": D,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "max_source_positions": 20,
    "max_target_positions": 12,
    "vocab_size": 512,
    "pad_token_id": 0,
}
SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "hidden_size": D, "num_attention_heads": HEADS}
BART = {
    "model_type": "bart",
    "d_model": D,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "max_position_embeddings": 16,
    "vocab_size": 64,
}
CNN = {"model_type": "resnet", "hidden_sizes": [8, 8], "depths": [1, 1], "embedding_size": 8}


def inputs(write: Write, fields: dict[str, Any], **sizes: Any) -> Inputs:
    return inputs_for(build(write(fields)).model, 1, **sizes)


@pytest.mark.parametrize(
    ("fields", "sizes", "said"),
    [
        (VIT, {"seq": 8}, "--seq has no use for a ViTForImageClassification, which is called"),
        (VIT, {"target_seq": 8}, "--target-seq has no use for a ViTForImageClassification"),
        (LLAMA, {"seq": 8, "target_seq": 8}, "--target-seq has no use for a LlamaForCausalLM"),
        (LLAMA, {"seq": 8, "image_size": (8, 8)}, "--image-size has no use for a LlamaForCausalLM"),
        ({"model_type": "clip"}, {"seq": 8, "target_seq": 8}, "--target-seq has no use for"),
        ({"model_type": "qwen2_vl"}, {"seq": 8, "image_size": (8, 8)}, "--image-size has no use"),
        (WHISPER, {"seq": 10, "target_seq": 8}, "reads 40 frames of sound, not more and not fewer"),
        (WHISPER, {"seq": 40, "target_seq": 8, "image_size": (8, 8)}, "--image-size has no use"),
        (CNN, {}, "its config has no image_size; give it, --image-size HxW"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_size_that_has_no_use_is_refused(
    write: Write, fields: dict[str, Any], sizes: dict[str, Any], said: str
) -> None:
    with pytest.raises(WrongSize) as caught:
        inputs(write, fields, **sizes)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_one_length_that_a_model_takes_may_be_given(write: Write) -> None:
    given = inputs(write, WHISPER, seq=40, target_seq=8)
    assert given.shapes == "input_features 1 x 80 x 40, decoder_input_ids 1 x 8"
    assert given.shapes == inputs(write, WHISPER, target_seq=8).shapes


# --- positions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "sizes", "most"),
    [
        ({"model_type": "bert", "max_position_embeddings": 16} | SMALL, {"seq": 17}, 16),
        ({"model_type": "gpt2", "n_positions": 16} | SMALL, {"seq": 17}, 16),
        # fairseq's: two rows of the table stand before the first position
        ({"model_type": "opt", "max_position_embeddings": 16} | SMALL, {"seq": 17}, 16),
        ({"model_type": "roberta", "max_position_embeddings": 18} | SMALL, {"seq": 17}, 16),
        (BART, {"seq": 17, "target_seq": 3}, 16),
        (BART, {"seq": 3, "target_seq": 17}, 16),
        (WHISPER, {"target_seq": 13}, 12),
        ({"model_type": "clip"}, {"seq": 78}, 77),
    ],
    ids=lambda value: str(value)[:24],
)
def test_a_text_that_is_longer_than_its_table_of_positions_is_refused(
    write: Write, fields: dict[str, Any], sizes: dict[str, int], most: int
) -> None:
    with pytest.raises(WrongSize, match=rf"{most + 1} is more than the {most} positions of this"):
        inputs(write, fields, **sizes)
    (name,) = [name for name in sizes if sizes[name] == most + 1]
    inputs(write, fields, **(sizes | {name: most}))


def test_rotary_positions_have_no_end_and_a_note(write: Write) -> None:
    found = counted(write(LLAMA, max_position_embeddings=16))
    assert found.notes == ("24 tokens are more than the 16 positions that the config is made for",)


# --- images ----------------------------------------------------------------------------------


def test_a_model_without_an_image_size_takes_a_given_one(write: Write) -> None:
    model = build(write(CNN)).model
    made = inputs_for(model, B, image_size=(32, 64))
    assert made.shapes == f"pixel_values {B} x 3 x 32 x 64"


def test_positions_of_another_image_size_are_interpolated_and_it_is_said(write: Write) -> None:
    own = inputs(write, VIT, image_size=(32, 32))
    assert (own.notes, own.shapes) == ((), "pixel_values 1 x 3 x 32 x 32")
    other = inputs(write, VIT, image_size=(48, 64))
    assert other.kwargs["interpolate_pos_encoding"] is True
    assert other.shapes == "pixel_values 1 x 3 x 48 x 64"
    assert other.notes == (
        "images of 48 x 64, not the config's 32 x 32: its position embeddings are interpolated",
    )


def test_an_image_of_another_size_has_the_patches_of_it(write: Write) -> None:
    built = build(write(VIT))
    found = count_model(built, inputs_for(built.model, B, image_size=(48, 64)), dtype="bf16")
    patches = (48 // 8) * (64 // 8)
    seq = patches + 1
    embed = 2 * B * patches * 3 * 8 * 8 * D
    layer = 2 * B * seq * (4 * D * D + 2 * D * F) + 4 * B * seq * seq * D
    head = 2 * B * D * built.model.config.num_labels
    assert found.count.model == embed + layer + head
