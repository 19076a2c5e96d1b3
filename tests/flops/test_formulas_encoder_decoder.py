"""Closed forms of T5, BART and Whisper against what the counter counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_models import assert_counted, assert_recomputed, selective, trained
from torch import nn

from mfu_torch.flops.formulas import EncoderDecoder, encoder_decoder, t5, whisper

B, SE, SD, H, HEADS, D, FFN, V = 2, 12, 7, 16, 4, 8, 24, 50


def tokens(length: int, batch: int = B) -> torch.Tensor:
    return torch.randint(3, V, (batch, length))


def parameters_of(model: nn.Module, *, trained_only: bool = False) -> int:
    return sum(p.numel() for p in model.parameters() if p.requires_grad or not trained_only)


def t5_model(**changes: Any) -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            d_model=H, d_kv=D, num_heads=HEADS, d_ff=FFN, num_layers=2, num_decoder_layers=3,
            vocab_size=V, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
            attn_implementation="eager", **changes,
        )
    )  # fmt: skip


def t5_form(**changes: Any) -> EncoderDecoder:
    return t5(
        hidden=H, heads=HEADS, head_dim=D, ffn=FFN, layers=2, decoder_layers=3, vocab=V, **changes
    )


def test_t5_by_hand() -> None:
    form = t5(hidden=2, heads=1, head_dim=4, ffn=3, layers=1, vocab=5).flops(1, 2, source=3)
    # Encoder, 3 tokens x (4 x 8 + 2 x 6) weights; decoder, 2 x (6 x 8 + 2 x 6), and k and v of
    # the cross attention, 3 x 2 x 8.
    assert form.only("linear").forward == 2 * (3 * 44 + 2 * 60 + 3 * 16)
    assert form.only("attention").forward == 4 * 4 * (9 + 4 + 6)
    assert form.only("head").forward == 2 * 2 * 2 * 5


@pytest.mark.parametrize("is_gated", [False, True])
def test_t5(is_gated: bool) -> None:
    model = t5_model(feed_forward_proj="gated-gelu" if is_gated else "relu")
    closed = t5_form(is_gated=is_gated)
    form, batch = closed.flops(B, SD, source=SE), (tokens(SE), None, tokens(SD))
    assert_counted(form, trained(model, *batch))
    assert closed.parameters.total == parameters_of(model)
    layers = nn.ModuleList([*model.encoder.block, *model.decoder.block])
    assert_recomputed(form, model, layers, *batch)


def test_a_head_of_its_own_is_one_more_embedding() -> None:
    tied, untied = t5_form(), t5_form(is_tied=False)
    assert untied.parameters.total - tied.parameters.total == V * H
    assert untied.flops(B, SD) == tied.flops(B, SD)


def test_only_the_decoder_is_causal() -> None:
    closed = t5_form()
    full, causal, half, none = (
        closed.flops(B, SD, source=SE, attention=rule).only("attention").forward
        for rule in ("full", "causal", "half", "none")  # type: ignore[arg-type]
    )
    inner = 4 * B * HEADS * D
    assert full == inner * (2 * SE * SE + 3 * (SD * SD + SD * SE))
    assert causal == inner * (2 * SE * SE + 3 * (SD * (SD + 1) // 2 + SD * SE))
    assert half == inner * (2 * SE * SE + 3 * SD * SE) + inner * 3 * SD * SD // 2
    assert none == 0


def test_pairs_of_lengths_are_counted_each_for_itself() -> None:
    closed = t5_form()
    together = closed.flops(lengths=[(12, 7), (5, 3), (12, 7)])
    one, other = closed.flops(2, 7, source=12), closed.flops(1, 3, source=5)
    assert together.forward == one.forward + other.forward
    assert closed.flops(1, 6) == closed.flops(1, 6, source=6)


def bart_model() -> Any:
    from transformers import BartConfig, BartForConditionalGeneration

    return BartForConditionalGeneration(
        BartConfig(
            d_model=H, encoder_layers=2, decoder_layers=3, encoder_attention_heads=HEADS,
            decoder_attention_heads=2, encoder_ffn_dim=FFN, decoder_ffn_dim=2 * FFN, vocab_size=V,
            max_position_embeddings=32, dropout=0.0, use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip


def test_bart_has_norms_behind_its_sums() -> None:
    model = bart_model()
    # Biases of q, k, v, o, up, down; norms: two or three of a layer, and of both embeddings.
    encoder, decoder = 2 * (9 * H + FFN), 3 * (15 * H + 2 * FFN)
    closed = encoder_decoder(
        hidden=H, vocab=V, heads=HEADS, ffn=FFN, encoder_layers=2, decoder_layers=3,
        decoder_heads=2, decoder_ffn=2 * FFN, repeats_last=True, positions=2 * (32 + 2),
        others=encoder + decoder + 4 * H,
    )  # fmt: skip
    form = closed.flops(B, SD, source=SE)
    batch = {"input_ids": tokens(SE), "decoder_input_ids": tokens(SD)}
    assert_counted(form, trained(model, **batch))
    assert closed.parameters.total == parameters_of(model)
    layers = nn.ModuleList([*model.model.encoder.layers, *model.model.decoder.layers])
    assert_recomputed(form, model, layers, **batch)
    with selective(model):
        assert trained(model, **batch).recompute == form.recompute("selective")


def test_what_a_causal_mask_keeps_is_what_the_counter_says_it_keeps() -> None:
    model = bart_model()
    model.set_attn_implementation("sdpa")
    closed = encoder_decoder(
        hidden=H, vocab=V, heads=HEADS, ffn=FFN, encoder_layers=2, decoder_layers=3,
        decoder_heads=2, decoder_ffn=2 * FFN, repeats_last=True,
    )  # fmt: skip
    count = trained(model, input_ids=tokens(SE), decoder_input_ids=tokens(SD))
    assert count.model == closed.flops(B, SD, source=SE).training
    assert count.model_causal == closed.flops(B, SD, source=SE, attention="causal").training
    assert count.model_causal < count.model


def test_whisper_has_two_convolutions_in_front() -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    model = WhisperForConditionalGeneration(
        WhisperConfig(
            d_model=H, encoder_layers=2, decoder_layers=2, encoder_attention_heads=HEADS,
            decoder_attention_heads=HEADS, encoder_ffn_dim=FFN, decoder_ffn_dim=FFN, vocab_size=V,
            num_mel_bins=6, max_source_positions=10, max_target_positions=32, dropout=0.0,
            pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
            use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip
    closed = whisper(
        hidden=H, heads=HEADS, ffn=FFN, encoder_layers=2, decoder_layers=2, vocab=V, mel_bins=6,
        frames=20, positions=32,
    )  # fmt: skip
    form = closed.flops(B, SD)
    batch = {"input_features": torch.randn(B, 6, 20), "decoder_input_ids": tokens(SD)}
    assert_counted(form, trained(model, **batch))
    # 20 positions of the first, 10 of the second; the spectrogram needs no gradient.
    first, second = 2 * B * 20 * 6 * H * 3, 2 * B * 10 * H * H * 3
    assert form.only("convolution").forward == first + second
    assert form.only("convolution").backward == first + 2 * second
    assert closed.parameters.total == parameters_of(model, trained_only=True)
    layers = nn.ModuleList([*model.model.encoder.layers, *model.model.decoder.layers])
    assert_recomputed(form, model, layers, **batch)


def test_published_sizes() -> None:
    small = t5(hidden=512, heads=8, head_dim=64, ffn=2048, layers=6, vocab=32128)
    base = t5(hidden=768, heads=12, head_dim=64, ffn=3072, layers=12, vocab=32128)
    assert small.flops(1, 114, source=512).forward == 35_417_800_704
    assert small.parameters.total == 60_506_624  # "60 million", arXiv:1910.10683, section 3.7
    assert base.parameters.total == 222_903_552  # "220 million", section 3.1.1
    tiny = whisper(
        hidden=384, heads=6, ffn=1536, encoder_layers=4, decoder_layers=4, vocab=51865
    )  # "39M", arXiv:2212.04356, table 1, with the encoder's 1500 fixed positions
    assert tiny.parameters.total == 37_184_640


def test_absurd_lengths_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="source is 0; expected a whole number above 0"):
        t5_form().flops(1, 3, source=0)
    with pytest.raises(ValueError, match="give either seq"):
        t5_form().flops(1)
    with pytest.raises(ValueError, match="lengths are given beside seq"):
        t5_form().flops(1, 3, lengths=[(1, 1)])
    with pytest.raises(ValueError, match="lengths is empty"):
        t5_form().flops(lengths=[])
