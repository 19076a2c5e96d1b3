"""Diffusion transformers: DiT (Peebles and Xie 2022, arXiv:2212.09748), adaLN-Zero.

    latent of n = (side / p)² patches of p x p x c, hidden h, L layers, MLP f, batch B
    patches       2 B n c p² h           the latent needs no gradient
    time          2 B (256 h + h²)       of each sample; the waves of 256 need no gradient
    layers        2 B n L (4 h² + 2 h f) and 4 B L h n²
    modulation    2 B L 6 h²             shifts, scales and gates: of each sample, not of a token
    last layer    2 B 2 h² and 2 B n h p² c_out, c_out = 2 c where the variance is learned

DiT-XL/2 at 256 x 256 (a latent of 32 x 32 x 4): the paper's table 4 prints 118.6 "Gflops", a
multiply-add being one: 237.29 GFLOP.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from mfu_torch.flops.formulas.convnets import no_seq
from mfu_torch.flops.formulas.decoder import Block, Parameters, check_blocks
from mfu_torch.flops.formulas.encoders import encoder_block
from mfu_torch.flops.formulas.layers import block_terms, block_weights, none_or_whole
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added, times
from mfu_torch.flops.formulas.vision import patch_embedding, patches_of
from mfu_torch.records import Record


class DiffusionTransformer(Record, frozen=True, kw_only=True):
    """A diffusion transformer, modulated by the time step and a label, which is looked up.

    Attributes:
        size: (height, width) of the latent, or with frames first.
        patch: Of a patch, likewise.
        channels: c.
        out_channels: c_out: 2c where the variance is learned.
        hidden: h.
        blocks: Its layers without their modulation.
        frequencies: Waves of the time step.
        modulations: Vectors of h that a layer gets from it: 6 in adaLN-Zero.
        labels: Embeddings of labels, that of none included.
        others: Parameters that multiply nothing: biases. Positions are fixed waves.

    Raises:
        ValueError: If a size is no whole number above 0, or the patches do not fill the latent.
    """

    size: tuple[int, ...]
    patch: tuple[int, ...]
    channels: int = 4
    out_channels: int = 8
    hidden: int
    blocks: tuple[Block, ...]
    frequencies: int = 256
    modulations: int = 6
    labels: int = 0
    others: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "channels", "out_channels", "frequencies", "modulations"):
            whole(name, getattr(self, name))
        none_or_whole(self, "labels", "others")
        check_blocks(*self.blocks)
        patches_of(self.size, self.patch)

    @property
    def per(self) -> Literal["sample"]:
        """What its throughput is counted in."""
        return "sample"

    @property
    def patches(self) -> int:
        """Tokens of a sample: n."""
        return patches_of(self.size, self.patch)

    @property
    def layers(self) -> int:
        """Of all blocks: L."""
        return sum(block.count for block in self.blocks)

    def _time(self) -> tuple[Linear, Linear]:
        return (
            Linear(name="time_up", inputs=self.frequencies, outputs=self.hidden),
            Linear(name="time_down", inputs=self.hidden, outputs=self.hidden),
        )

    @property
    def _modulation(self) -> Linear:
        h = self.hidden
        return Linear(name="modulation", inputs=h, outputs=self.modulations * h)

    @property
    def _last(self) -> tuple[Linear, Linear]:
        h, out = self.hidden, patch_embedding(self.patch, self.out_channels, self.hidden).inputs
        return (
            Linear(name="last_modulation", inputs=h, outputs=2 * h, role="head"),
            Linear(name="head", inputs=h, outputs=out, role="head"),
        )

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """FLOPs of ``batch`` samples at one time step each.

        Raises:
            ValueError: If ``batch`` is no whole number above 0, or a ``seq`` is given.
        """
        no_seq(seq)
        tokens = whole("batch", batch) * self.patches
        embedding = patch_embedding(self.patch, self.channels, self.hidden)
        up, down = self._time()
        terms: list[Term] = [
            embedding.term(tokens, in_layer=False, input_gradient=False),
            up.term(batch, in_layer=False, input_gradient=False),
            down.term(batch, in_layer=False),
        ]
        sequences = Sequences.of(batch, self.patches)
        terms += times(self.layers, [self._modulation.term(batch)])
        terms += block_terms(self.blocks, self.hidden, sequences, attention)
        modulation, head = self._last
        terms += [modulation.term(batch, in_layer=False), head.term(tokens, in_layer=False)]
        return ClosedForm(terms=added(terms))

    @property
    def parameters(self) -> Parameters:
        """How many are trained."""
        held, used = block_weights(self.blocks, self.hidden)
        embedding = patch_embedding(self.patch, self.channels, self.hidden)
        rest = self.layers * self._modulation.weights
        rest += sum(linear.weights for linear in (embedding, *self._time(), *self._last))
        return Parameters(
            weights=held + rest,
            used=used + rest,
            embedding=self.labels * self.hidden,
            others=self.others,
        )


def dit(
    *,
    size: int = 32,
    patch: int = 2,
    layers: int,
    hidden: int,
    heads: int,
    mlp_ratio: int = 4,
    channels: int = 4,
    labels: int = 1001,
    learns_variance: bool = True,
) -> DiffusionTransformer:
    """DiT with its biases; its norms have no parameters.

    Args:
        size: Of the latent's side.
        patch: Of a patch's side.
        layers: L.
        hidden: h.
        heads: H.
        mlp_ratio: f / h.
        channels: c.
        labels: Embeddings of labels.
        learns_variance: Whether twice as many channels come out.

    Raises:
        ValueError: If a size is no whole number above 0, or the patches do not fill the latent.
    """
    ffn = whole("mlp_ratio", mlp_ratio) * hidden
    # A gate follows the MLP.
    block = encoder_block(layers=layers, hidden=hidden, heads=heads, ffn=ffn, repeats_last=True)
    model = DiffusionTransformer(
        size=(size, size),
        patch=(patch, patch),
        channels=channels,
        out_channels=2 * channels if learns_variance else channels,
        hidden=hidden,
        blocks=(block,),
        labels=labels,
    )
    # Biases of patches and both of the time's; of qkv, o, up, down and 6 modulations; of the last
    # modulation and the head.
    others = 3 * hidden + layers * (5 * hidden + ffn + 6 * hidden) + 2 * hidden
    others += patch * patch * model.out_channels
    return msgspec.structs.replace(model, others=others)
