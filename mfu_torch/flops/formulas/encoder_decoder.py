"""Encoder and decoder as T5 (Raffel et al. 2019, arXiv:1910.10683), BART and Whisper have them.

    encoder of se tokens, decoder of sd, batch B, hidden h, inner i = H d, MLP of m products, f wide
    encoder layers    2 B se Le (4 h i + m h f)
    decoder layers    2 B sd Ld (6 h i + m h f)      self-attention; q and o of the cross attention
                      2 B se Ld 2 h i                its k and v run on the encoder's output
    attention         4 B i (Le se² + Ld sd² + Ld sd se)
    head              2 B sd h V

T5-small with 512 and 114 tokens: 35.42 GFLOP forward. Whisper large-v3 with its 3000 frames and
448 tokens: 3.448 TFLOP.

The encoder and the cross attention have no causal mask, so that only Ld sd² is ever halved. The
encoder's last norm and its k and v need gradients as any layer does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal

from mfu_torch.flops.formulas.convnets import Conv
from mfu_torch.flops.formulas.decoder import Block, Parameters, check_blocks
from mfu_torch.flops.formulas.encoders import encoder_block
from mfu_torch.flops.formulas.layers import block_terms, block_weights, none_or_whole
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import MLP, Attention, scores_and_values
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added, times
from mfu_torch.records import Record


class EncoderDecoder(Record, frozen=True, kw_only=True):
    """A sequence to sequence model; its throughput is counted in tokens of the decoder.

    Attributes:
        hidden: h, of both.
        vocab: V.
        encoder: Its layers; their masks are not causal.
        decoder: Its layers without their cross attention.
        cross: The cross attention, in each of the decoder's layers behind its first part.
        stem: Convolutions over time in front of the encoder (Whisper), whose input needs no
            gradient. The encoder's length is then given as theirs: frames.
        source_length: Length of the encoder where none is given: Whisper's 3000 frames, always.
        is_tied: Whether the head is the input embedding used again.
        positions: Learned position embeddings of both.
        others: Parameters that multiply no token: biases, norms, relative position biases.

    Raises:
        ValueError: If a size is no whole number above 0, or a mask of the encoder is causal.
    """

    hidden: int
    vocab: int
    encoder: tuple[Block, ...]
    decoder: tuple[Block, ...]
    cross: Attention
    stem: tuple[Conv, ...] = ()
    source_length: int | None = None
    is_tied: bool = True
    positions: int = 0
    others: int = 0

    def __post_init__(self) -> None:
        whole("hidden", self.hidden)
        whole("vocab", self.vocab)
        if self.source_length is not None:
            whole("source_length", self.source_length)
        none_or_whole(self, "positions", "others")
        check_blocks(*self.encoder, *self.decoder)
        if any(not isinstance(conv, Conv) for conv in self.stem):
            raise TypeError(f"stem is {self.stem!r}; expected convolutions")
        masks = (getattr(part, "mask", None) for block in self.encoder for part in block.parts)
        if any(mask is not None and mask.causal for mask in masks):
            raise ValueError("a mask of the encoder is causal; expected Mask(causal=False)")

    @property
    def per(self) -> Literal["token"]:
        """What its throughput is counted in: tokens of the decoder."""
        return "token"

    @property
    def head(self) -> Linear:
        """The product that gives the logits."""
        return Linear(name="head", inputs=self.hidden, outputs=self.vocab, role="head")

    def flops(
        self,
        batch: int = 1,
        seq: int | None = None,
        *,
        source: int | None = None,
        lengths: Iterable[tuple[int, int]] | None = None,
        attention: PairRule = "full",
    ) -> ClosedForm:
        """FLOPs of ``batch`` pairs: ``source`` tokens for the encoder, ``seq`` for the decoder.

        Args:
            batch: Pairs.
            seq: Tokens of the decoder.
            source: Tokens of the encoder, or frames of its stem; ``source_length`` by default, or
                else as many as ``seq``.
            lengths: Instead of these: (tokens of the encoder, of the decoder) of each pair.
            attention: Which scores count.

        Raises:
            ValueError: If the sizes are no whole numbers above 0.
        """
        pairs = self._pairs(batch, seq, source, lengths)
        stem = [t for (frames, _), n in pairs.items() for t in self._stem(n, frames)[0]]
        inner = [(self._stem(n, source)[1], target, n) for (source, target), n in pairs.items()]
        sources = Sequences(lengths=tuple((n, source) for source, _, n in inner))
        targets = Sequences(lengths=tuple((n, target) for _, target, n in inner))
        met = 0 if attention == "none" else sum(n * source * target for source, target, n in inner)
        terms = [*stem, *block_terms(self.encoder, self.hidden, sources, attention)]
        for block in self.decoder:
            first, *rest = block.parts
            itself = Block(parts=(first,), repeats_last=True)  # it is not the layer's last part
            behind = Block(parts=tuple(rest), repeats_last=block.repeats_last)
            layer = (
                *itself.terms(self.hidden, targets, attention),
                *self._cross_terms(sources.tokens, targets.tokens, 2 * met),
                *behind.terms(self.hidden, targets, attention),
            )
            terms += times(block.count, layer)
        terms.append(self.head.term(targets.tokens, in_layer=False))
        return ClosedForm(terms=added(terms))

    def _pairs(
        self,
        batch: int,
        seq: int | None,
        source: int | None,
        lengths: Iterable[tuple[int, int]] | None,
    ) -> dict[tuple[int, int], int]:
        if lengths is None:
            if seq is None:
                raise ValueError("give either seq, the tokens of the decoder, or lengths, pairs")
            start = source if source is not None else self.source_length
            start = seq if start is None else start
            return {(whole("source", start), whole("seq", seq)): whole("batch", batch)}
        if seq is not None or source is not None:
            raise ValueError("lengths are given beside seq or source; expected either")
        counted = Counter((whole("lengths", a), whole("lengths", b)) for a, b in lengths)
        if not counted:
            raise ValueError("lengths is empty; expected (encoder, decoder) of at least one pair")
        return dict(sorted(counted.items()))

    def _stem(self, batch: int, frames: int) -> tuple[list[Term], int]:
        terms: list[Term] = []
        size: tuple[int, ...] = (frames,)
        for conv in self.stem:
            terms.append(conv.term(batch, size, in_layer=False, input_gradient=bool(terms)))
            size = conv.out(size)
        return terms, size[0]

    def _cross_terms(self, sources: int, targets: int, twice_met: int) -> list[Term]:
        value = self.cross.value_dim or self.cross.head_dim
        found = [  # (B sd, h) @ (h, Hd); k and v: (B se, h) @ (h, Kd)
            linear.term(sources if linear.name in ("k", "v") else targets)
            for linear in self.cross.linears(self.hidden)
        ]
        cores = scores_and_values(self.cross.heads, self.cross.head_dim, value, twice_met)
        return [*found[:-1], *cores, found[-1]]

    @property
    def parameters(self) -> Parameters:
        """How many it has. No token meets all of them: an encoder's meets no decoder."""
        held, used = block_weights((*self.encoder, *self.decoder), self.hidden)
        layers = sum(block.count for block in self.decoder)
        rest = layers * sum(linear.weights for linear in self.cross.linears(self.hidden))
        rest += self.head.weights + sum(conv.weights(1) for conv in self.stem)
        return Parameters(
            weights=held + rest,
            used=used + rest,
            embedding=0 if self.is_tied else self.vocab * self.hidden,
            positions=self.positions * self.hidden,
            others=self.others + sum(conv.outputs for conv in self.stem if conv.has_bias),
        )


def encoder_decoder(
    *,
    hidden: int,
    vocab: int,
    heads: int,
    ffn: int,
    encoder_layers: int,
    decoder_layers: int,
    decoder_heads: int | None = None,
    decoder_ffn: int | None = None,
    head_dim: int | None = None,
    is_gated: bool = False,
    repeats_last: bool = False,
    stem: tuple[Conv, ...] = (),
    source_length: int | None = None,
    is_tied: bool = True,
    positions: int = 0,
    others: int = 0,
) -> EncoderDecoder:
    """Equal layers on either side.

    Args:
        hidden: h.
        vocab: V.
        heads: H, of the encoder, and of the decoder where none are given for it.
        ffn: f, likewise.
        encoder_layers: Le.
        decoder_layers: Ld.
        decoder_heads: As ``heads`` by default.
        decoder_ffn: As ``ffn`` by default.
        head_dim: d; hidden / heads by default.
        is_gated: Whether the MLPs have three products.
        repeats_last: Whether norms come behind the sums, as in BART (see :class:`Block`).
        stem: As in :class:`EncoderDecoder`.
        source_length: As in :class:`EncoderDecoder`.
        is_tied: As in :class:`EncoderDecoder`.
        positions: As in :class:`EncoderDecoder`.
        others: As in :class:`EncoderDecoder`.

    Raises:
        ValueError: If a size is no whole number above 0, or heads do not divide hidden where
            ``head_dim`` is not given.
    """
    whole("decoder_layers", decoder_layers)
    encoder = encoder_block(
        layers=encoder_layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        head_dim=head_dim,
        is_gated=is_gated,
        repeats_last=repeats_last,
    )
    shape = encoder_block(
        layers=decoder_layers,
        hidden=hidden,
        heads=decoder_heads or heads,
        ffn=decoder_ffn or ffn,
        head_dim=head_dim,
    ).parts[0]
    assert isinstance(shape, Attention)
    itself = Attention(heads=shape.heads, kv_heads=shape.kv_heads, head_dim=shape.head_dim)
    cross = Attention(
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        mask=Mask(causal=False),
    )
    mlp = MLP(width=decoder_ffn or ffn, is_gated=is_gated)
    return EncoderDecoder(
        hidden=hidden,
        vocab=vocab,
        encoder=(encoder,),
        decoder=(Block(parts=(itself, mlp), count=decoder_layers, repeats_last=repeats_last),),
        cross=cross,
        stem=stem,
        source_length=source_length,
        is_tied=is_tied,
        positions=positions,
        others=others,
    )
