"""Encoders, state spaces and hybrids of transformers from the config alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from config_cases import OTHERS, B, S, counted, kind_of, written

from mfu_torch.flops.formulas import Decoder, Encoder, read_config

FRAMES = 40  # of Whisper's spectrogram: two for each of 20 positions

# Families whose attention has no kernel, or hands its mask over as numbers, and those with scans.
UNREAD = {"t5", "mt5", "mamba", "falcon_mamba", "mamba2"}


def as_transformers_runs_it(model: Any) -> Any:
    """Scans as transformers' torch code has them, not as the kernel packages."""
    if not isinstance(model, Decoder):
        return model
    replace = msgspec.structs.replace
    blocks = [
        replace(
            block,
            parts=tuple(
                replace(part, form="torch") if hasattr(part, "form") else part
                for part in block.parts
            ),
        )
        for block in model.blocks
    ]
    return replace(model, blocks=tuple(blocks))


@pytest.mark.parametrize("case", OTHERS)
def test_what_the_config_says_is_what_the_model_does(case: str, tmp_path: Path) -> None:
    kind = kind_of(case)
    path = written(tmp_path, kind, OTHERS[case])
    model = as_transformers_runs_it(read_config(path).model)
    target = S if kind in ("t5", "mt5", "bart", "mbart", "whisper") else None
    seq = {"vit": None, "whisper": FRAMES}.get(kind, S)
    count = counted(path, seq=seq, target=target)
    length = None if model.per == "sample" else S
    form, causal = model.flops(B, length), model.flops(B, length, attention="causal")
    assert model.parameters.total == count.parameters.total
    assert form.forward == count.count.forward + count.count.forward_no_grad
    assert form.training == count.count.model
    assert form.recompute("checkpoint") == count.count.recompute
    assert bool(count.causal_bounds) == (kind in UNREAD)
    if not count.causal_bounds:
        assert causal.training == count.count.model_causal


def test_the_head_of_another_task_is_left_out_and_named(tmp_path: Path) -> None:
    fields = {**OTHERS["bert"], "architectures": ["BertForMultipleChoice"]}
    described = read_config(written(tmp_path, "bert", fields))
    assert isinstance(described.model, Encoder)
    assert "the head of BertForMultipleChoice is not in here" in described.notes[0]


def test_the_head_of_t5_1_1_is_not_its_embedding(tmp_path: Path) -> None:
    # As published; transformers 5 shares them whatever the file says, so it has 100 * 64 fewer.
    fields = {**OTHERS["t5/gated"], "tie_word_embeddings": False}
    described = read_config(written(tmp_path, "t5", fields))
    shared = read_config({"model_type": "t5", **OTHERS["t5/gated"]})
    assert described.model.parameters.total == shared.model.parameters.total + 100 * 64
    assert "transformers 5 shares them even so" in described.notes[0]


def test_scans_are_those_of_the_kernel_packages_and_a_note_says_so() -> None:
    described = read_config({"model_type": "mamba2", **OTHERS["mamba2"]})
    assert isinstance(described.model, Decoder)
    assert described.model.blocks[0].parts[0].form == "kernel"  # type: ignore[attr-defined]
    assert "as the kernel packages run them" in described.notes[0]


@pytest.mark.parametrize(
    ("kind", "wrong", "message"),
    [
        ("bert", {"num_attention_heads": 5}, "64 is no multiple of 5 attention heads"),
        ("bert", {"is_decoder": True}, "is_decoder is true; expected an encoder"),
        ("roberta", {"add_cross_attention": True}, "add_cross_attention is true"),
        ("modernbert", {"attention_bias": True}, "attention_bias is true"),
        ("vit", {"patch_size": 7}, "patches of 7 do not fill an image of 32 x 32"),
        ("vit", {"id2label": 3}, "id2label is no object"),
        ("bert", {"architectures": 3}, "architectures is 3; expected a list of names"),
        ("vit", {"qkv_bias": False}, "qkv_bias is false"),
        ("t5", {"feed_forward_proj": 3}, "feed_forward_proj is 3"),
        ("whisper", {"decoder_ffn_dim": 100}, "of the two sides differ"),
        ("bart", {"encoder_attention_heads": 7}, "64 is no multiple of 7 attention heads"),
        ("mamba2", {"num_heads": 7}, "7 heads of 16 are not 128"),
        ("mamba2", {"n_groups": 3}, "8 heads are no multiple of 3 groups"),
        ("mamba", {"state_size": 0}, "state_size is 0"),
        ("jamba", {"num_experts_per_tok": 5}, "5 experts for a token of 4"),
        ("jamba", {"attn_layer_offset": 9}, "attn_layer_offset is 9"),
        ("jamba", {"num_key_value_heads": 3}, "4 attention heads, 3 key and value heads"),
        ("bamba", {"mamba_proj_bias": True}, "mamba_proj_bias is true"),
        ("nemotron_h", {"layers_block_type": ["mamba", "rnn"]}, "a layer is 'rnn'"),
        ("nemotron_h", {"layers_block_type": None}, "layers_block_type is missing"),
        ("nemotron_h", {"hybrid_override_pattern": "M?"}, "expected letters of M * - E"),
        ("nemotron_h", {"n_shared_experts": 2}, "n_shared_experts is 2"),
        ("qwen3_next", {"linear_num_key_heads": 3}, "4 value heads are no multiple of 3 key"),
        ("qwen3_next", {"num_experts_per_tok": 9}, "9 experts for a token of 8"),
        ("granitemoehybrid", {"layer_types": ["mamba"]}, "layer_types names 1 layers"),
        ("mamba", {"expand": 1e400}, "expand is Infinity"),
    ],
)
def test_sizes_that_make_no_model_are_refused(
    kind: str, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^config: ") as error:
        read_config({"model_type": kind, **OTHERS[kind], **wrong})
    assert message in str(error.value)
    assert "\n" not in str(error.value)
