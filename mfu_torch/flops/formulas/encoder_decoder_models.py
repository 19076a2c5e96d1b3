"""Encoder-decoders by name: T5 and Whisper."""

from __future__ import annotations

from mfu_torch.flops.formulas.convnets import Conv
from mfu_torch.flops.formulas.encoder_decoder import EncoderDecoder, encoder_decoder


def t5(
    *,
    hidden: int,
    heads: int,
    head_dim: int,
    ffn: int,
    layers: int,
    vocab: int,
    decoder_layers: int | None = None,
    is_gated: bool = False,
    is_tied: bool = True,
    buckets: int = 32,
) -> EncoderDecoder:
    """T5 with its norms and relative position biases; T5-small has 60506624 parameters.

    Args:
        hidden: h, d_model.
        heads: H.
        head_dim: d, d_kv: not always hidden / heads.
        ffn: f, d_ff.
        layers: Of the encoder.
        vocab: V.
        decoder_layers: As ``layers`` by default.
        is_gated: T5 v1.1 and its followers: three products.
        is_tied: T5 v1.0: the head is the embedding.
        buckets: Distances with a bias of their own for each head, on both sides.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    behind = layers if decoder_layers is None else decoder_layers
    return encoder_decoder(
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        ffn=ffn,
        encoder_layers=layers,
        decoder_layers=behind,
        head_dim=head_dim,
        is_gated=is_gated,
        is_tied=is_tied,
        others=(2 * layers + 3 * behind + 2) * hidden + 2 * buckets * heads,
    )


def whisper(
    *,
    hidden: int,
    heads: int,
    ffn: int,
    encoder_layers: int,
    decoder_layers: int,
    vocab: int,
    mel_bins: int = 80,
    frames: int = 3000,
    positions: int = 448,
) -> EncoderDecoder:
    """Whisper (Radford et al. 2022, arXiv:2212.04356); tiny trains 37184640 parameters.

    Args:
        hidden: h.
        heads: H.
        ffn: f.
        encoder_layers: Le.
        decoder_layers: Ld.
        vocab: V.
        mel_bins: Channels of the spectrogram.
        frames: Of it, two for a position of the encoder.
        positions: Learned ones of the decoder; those of the encoder are fixed waves.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    stem = (
        Conv(inputs=mel_bins, outputs=hidden, kernel=3, padding=1, has_bias=True),
        Conv(inputs=hidden, outputs=hidden, kernel=3, stride=2, padding=1, has_bias=True),
    )
    # Biases of q, v, o (not k), up and down; norms: two for a layer, three in the decoder, and
    # the last one of each side.
    encoder = encoder_layers * (3 * hidden + ffn + hidden + 4 * hidden)
    decoder = decoder_layers * (6 * hidden + ffn + hidden + 6 * hidden)
    return encoder_decoder(
        hidden=hidden,
        vocab=vocab,
        heads=heads,
        ffn=ffn,
        encoder_layers=encoder_layers,
        decoder_layers=decoder_layers,
        stem=stem,
        source_length=frames,
        positions=positions,
        others=encoder + decoder + 4 * hidden,
    )
