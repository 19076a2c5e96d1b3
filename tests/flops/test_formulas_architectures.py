"""What holds for every architecture, whatever it consists of."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from mfu_torch.flops import formulas as f

MIXER = f.Mamba2(heads=4, head_dim=8, state=6, chunk=4)
ALL: dict[str, Any] = {
    "bert": f.bert(layers=2, hidden=16, heads=4, ffn=24, vocab=50, has_pooler=True, labels=3),
    "t5": f.t5(hidden=16, heads=4, head_dim=4, ffn=24, layers=2, vocab=50),
    "whisper": f.whisper(
        hidden=16, heads=4, ffn=24, encoder_layers=2, decoder_layers=2, vocab=50, frames=20
    ),
    "vit": f.vit(image=8, patch=4, layers=2, hidden=16, heads=4, ffn=24),
    "swin": f.Swin(image=16, patch=2, hidden=8, depths=(2, 2), heads=(2, 2), window=4),
    "dit": f.dit(size=8, layers=2, hidden=16, heads=4),
    "mamba": f.mamba(layers=2, hidden=16, vocab=50),
    "mamba2": f.mamba2(layers=2, hidden=16, vocab=50, heads=4, head_dim=8, state=6),
    "linear": f.Decoder(
        hidden=16,
        vocab=50,
        blocks=(f.Block(parts=(f.LinearAttention(heads=2, key_dim=4, value_dim=4),)),),
    ),
    "delta": f.Decoder(
        hidden=16,
        vocab=50,
        blocks=(
            f.Block(parts=(f.GatedDeltaNet(key_heads=2, value_heads=2, key_dim=4, value_dim=4),)),
        ),
    ),
    "kimi": f.Decoder(
        hidden=16,
        vocab=50,
        blocks=(f.Block(parts=(f.KimiDeltaAttention(heads=2, head_dim=4),)),),
    ),
    "lstm": f.Recurrent(cell="lstm", inputs=8, hidden=16, layers=2, is_bidirectional=True),
    "dlrm": f.DLRM(dense=5, bottom=(8,), rows=(9, 9), top=(4, 1)),
    "hstu": f.SequenceRecommender(
        hidden=8, items=30, blocks=(f.Block(parts=(f.HSTU(heads=2, qk_dim=3, value_dim=5),)),)
    ),
    "resnet": f.resnet(18, size=64),
    "lora": f.LoRA(
        model=f.dense_decoder(layers=2, hidden=16, heads=4, ffn=24, vocab=50), rank=2
    ),
}  # fmt: skip


def flops_of(model: Any, batch: int) -> f.ClosedForm:
    return model.flops(batch, 12 if model.per == "token" else None)


@pytest.mark.parametrize("name", ALL)
def test_flops_grow_with_the_batch_and_nothing_else(name: str) -> None:
    one, three = flops_of(ALL[name], 1), flops_of(ALL[name], 3)
    assert ALL[name].flops(seq=12 if ALL[name].per == "token" else None) == one
    assert 0 < one.forward <= one.backward
    # A triangular system's backward is one more, and a product.
    assert all(t.backward <= 2 * t.forward for t in one.terms if t.name != "solved")
    assert three.training == 3 * one.training
    for policy in f.terms.RECOMPUTE:
        assert three.recompute(policy) == 3 * one.recompute(policy)


@pytest.mark.parametrize("name", ALL)
def test_a_policy_that_saves_less_memory_repeats_less(name: str) -> None:
    form = flops_of(ALL[name], 2)
    none, selective, full, checkpoint = (
        form.recompute(policy) for policy in ("none", "selective", "full", "checkpoint")
    )
    assert none == 0
    assert selective <= checkpoint <= full <= form.forward
    assert form.hardware("full") == form.training + full


@pytest.mark.parametrize("name", ALL)
def test_attention_rules_change_attention_alone(name: str) -> None:
    model, seq = ALL[name], 12 if ALL[name].per == "token" else None
    full = model.flops(2, seq)
    for rule in ("causal", "half", "none"):
        other = model.flops(2, seq, attention=rule)
        assert other.without("attention") == full.without("attention")
        assert other.only("attention").forward <= full.only("attention").forward
    assert not model.flops(2, seq, attention="none").only("attention").training


@pytest.mark.parametrize("name", ALL)
def test_parameters_and_what_a_batch_of_none_says(name: str) -> None:
    parameters = ALL[name].parameters
    assert 0 < parameters.used <= parameters.weights <= parameters.total
    with pytest.raises(ValueError, match="batch is 0; expected a whole number above 0"):
        flops_of(ALL[name], 0)
    assert msgspec.json.encode(ALL[name])


def test_what_is_not_given_is_not_there() -> None:
    block = f.encoders.encoder_block(layers=1, hidden=4, heads=1, ffn=5)
    of_block = 4 * 16 + 2 * 20
    bare: tuple[tuple[Any, int], ...] = (
        (f.Encoder(hidden=4, vocab=6, blocks=(block,)), of_block + 16 + 24),
        (f.VisionTransformer(image=(2, 2), patch=(1, 1), hidden=4, blocks=(block,)), of_block + 12),
        (
            f.EncoderDecoder(
                hidden=4, vocab=6, encoder=(block,), decoder=(block,), cross=block.parts[0]
            ),
            2 * of_block + 64 + 24,
        ),
        # Patches of 4 numbers, 3 and 2 vectors of the time, the head of 8 numbers
        (
            f.DiffusionTransformer(size=(2, 2), patch=(1, 1), hidden=4, blocks=(block,)),
            of_block + 16 + 256 * 4 + 16 + 4 * 6 * 4 + 4 * 2 * 4 + 4 * 8,
        ),
        (f.Swin(image=14, patch=2, hidden=4, depths=(1,), heads=(1,)), 48 + 64 + 2 * 64 + 4000),
        (f.SequenceRecommender(hidden=4, items=6, blocks=(block,)), of_block + 24),
    )
    for model, total in bare:
        assert model.parameters.total == total, model


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("bert", "labels"), ("t5", "positions"), ("vit", "classes"), ("vit", "class_tokens"),
        ("swin", "classes"), ("dit", "labels"), ("lstm", "outputs"), ("lstm", "vocab"),
        ("hstu", "positions"), ("resnet", "others"),
    ],
)  # fmt: skip
def test_less_than_nothing_is_one_clear_line(name: str, field: str) -> None:
    fields = {key: getattr(ALL[name], key) for key in ALL[name].__struct_fields__}
    with pytest.raises(ValueError, match=f"{field} is -1; expected a whole number above 0"):
        type(ALL[name])(**{**fields, field: -1})


def test_they_need_no_torch() -> None:
    code = (
        "import sys; from mfu_torch.flops import formulas as f; f.resnet(50).flops();"
        "sys.exit(sum(m in sys.modules for m in ('torch', 'numpy', 'transformers')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def of_transformers(name: str, **sizes: Any) -> int:
    """Trained parameters of a model of published size, without its numbers."""
    import transformers

    head, config = name.split("/")
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, head)(getattr(transformers, config)(**sizes))
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def test_parameters_of_published_sizes() -> None:
    bert = f.bert(layers=24, hidden=1024, heads=16, ffn=4096, vocab=30522)
    assert bert.parameters.total == of_transformers(
        "BertForMaskedLM/BertConfig", hidden_size=1024, num_hidden_layers=24,
        num_attention_heads=16, intermediate_size=4096,
    )  # fmt: skip
    vit = f.vit(patch=14, layers=32, hidden=1280, heads=16, ffn=5120)
    assert vit.parameters.total == of_transformers(
        "ViTForImageClassification/ViTConfig", hidden_size=1280, num_hidden_layers=32,
        num_attention_heads=16, intermediate_size=5120, patch_size=14, num_labels=1000,
    )  # fmt: skip
    whisper = f.whisper(
        hidden=1280, heads=20, ffn=5120, encoder_layers=32, decoder_layers=32, vocab=51866,
        mel_bins=128,
    )  # fmt: skip
    assert whisper.parameters.total == of_transformers(
        "WhisperForConditionalGeneration/WhisperConfig", d_model=1280, encoder_layers=32,
        decoder_layers=32, encoder_attention_heads=20, decoder_attention_heads=20,
        encoder_ffn_dim=5120, decoder_ffn_dim=5120, vocab_size=51866, num_mel_bins=128,
    )  # fmt: skip
    mamba = f.mamba(layers=64, hidden=2560, vocab=50280)
    assert mamba.parameters.total == of_transformers(
        "MambaForCausalLM/MambaConfig", hidden_size=2560, num_hidden_layers=64, vocab_size=50280
    )
    mamba2 = f.mamba2(layers=64, hidden=2560, vocab=50288)
    assert mamba2.parameters.total == of_transformers(
        "Mamba2ForCausalLM/Mamba2Config", hidden_size=2560, num_hidden_layers=64, num_heads=80,
        head_dim=64, n_groups=1, vocab_size=50288, tie_word_embeddings=True,
    )  # fmt: skip
