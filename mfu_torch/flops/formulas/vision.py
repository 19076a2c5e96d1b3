"""Vision transformers: ViT (Dosovitskiy et al. 2020, arXiv:2010.11929) and Swin.

    image of n = (side / p)² patches of p x p x c, s = n + class tokens, hidden h, L layers, MLP f
    patches       2 B n c p² h           the pixels need no gradient: as much again backward
    layers        2 B s L (4 h² + 2 h f)
    attention     4 B L h s²
    classifier    2 B h C                one token (or the mean of all)

ViT-B/16 at 224 x 224: 35.13 GFLOP, which tables print as 17.6 "GFLOPs", a multiply-add being one.

Swin (Liu et al. 2021, arXiv:2103.14030, sections 3.1 and 3.2): attention within windows of M x M
tokens, 4 M² h for a token instead of 4 s h; between stages four tokens of c become one of 2c, a
product (4c, 2c). Swin-T: 8.98 GFLOP.
"""

from __future__ import annotations

from typing import Literal

from mfu_torch.flops.formulas.convnets import no_seq
from mfu_torch.flops.formulas.decoder import Block, Parameters, check_blocks
from mfu_torch.flops.formulas.encoders import encoder_block
from mfu_torch.flops.formulas.layers import block_terms, block_weights, none_or_whole
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added
from mfu_torch.records import Record


class VisionTransformer(Record, frozen=True, kw_only=True):
    """A vision transformer.

    Attributes:
        image: (height, width) in pixels.
        patch: (height, width) in pixels; or a third number first, frames (ViViT's tubelets), and
            then in ``image``, too.
        channels: c.
        hidden: h.
        blocks: Its layers; their masks are not causal.
        class_tokens: Tokens beside the patches: 1 in ViT, 0 where the mean is taken, 2 in DeiT,
            1 and 4 registers in DINOv2.
        classes: C; 0: no classifier.
        has_pooler: Whether the class token runs through (h, h) first.
        positions: Learned position embeddings.
        others: Parameters that multiply no token: biases, norms, class tokens.

    Raises:
        ValueError: If a size is no whole number above 0, or the patches do not fill the image.
    """

    image: tuple[int, ...]
    patch: tuple[int, ...]
    channels: int = 3
    hidden: int
    blocks: tuple[Block, ...]
    class_tokens: int = 1
    classes: int = 0
    has_pooler: bool = False
    positions: int = 0
    others: int = 0

    def __post_init__(self) -> None:
        for name in ("hidden", "channels"):
            whole(name, getattr(self, name))
        none_or_whole(self, "class_tokens", "classes", "positions", "others")
        check_blocks(*self.blocks)
        patches_of(self.image, self.patch)

    @property
    def per(self) -> Literal["sample"]:
        """What its throughput is counted in."""
        return "sample"

    @property
    def patches(self) -> int:
        """Patches of a sample: n."""
        return patches_of(self.image, self.patch)

    @property
    def seq(self) -> int:
        """Tokens of a sample: s."""
        return self.patches + self.class_tokens

    @property
    def _embedding(self) -> Linear:
        return patch_embedding(self.patch, self.channels, self.hidden)

    def _heads(self) -> tuple[Linear, ...]:
        h = self.hidden
        pooler = Linear(name="pooler", inputs=h, outputs=h, role="head")
        classifier = Linear(name="classifier", inputs=h, outputs=self.classes, role="head")
        return (*((pooler,) if self.has_pooler else ()), *((classifier,) if self.classes else ()))

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """FLOPs of ``batch`` images.

        Raises:
            ValueError: If ``batch`` is no whole number above 0, or a ``seq`` is given.
        """
        no_seq(seq)
        sequences = Sequences.of(batch, self.seq)
        first = self._embedding.term(batch * self.patches, in_layer=False, input_gradient=False)
        terms = [first, *block_terms(self.blocks, self.hidden, sequences, attention)]
        terms += [head.term(batch, in_layer=False) for head in self._heads()]
        return ClosedForm(terms=added(terms))

    @property
    def parameters(self) -> Parameters:
        """How many it has."""
        held, used = block_weights(self.blocks, self.hidden)
        rest = self._embedding.weights + sum(head.weights for head in self._heads())
        return Parameters(
            weights=held + rest,
            used=used + rest,
            embedding=0,
            positions=self.positions * self.hidden,
            others=self.others,
        )


def vit(
    *,
    image: int = 224,
    patch: int = 16,
    layers: int,
    hidden: int,
    heads: int,
    ffn: int,
    channels: int = 3,
    classes: int = 1000,
) -> VisionTransformer:
    """ViT with its biases and norms; ViT-B/16 has 86567656 parameters.

    Args:
        image: Pixels of a side.
        patch: Pixels of a patch's side.
        layers: L.
        hidden: h.
        heads: H.
        ffn: f.
        channels: c.
        classes: C; 0: no classifier.

    Raises:
        ValueError: If a size is no whole number above 0, or the patches do not fill the image.
    """
    # Biases of the patches, q, k, v, o, up and down; two norms a layer and the last one; the
    # class token.
    others = layers * (9 * hidden + ffn) + 4 * hidden + classes
    return VisionTransformer(
        image=(image, image),
        patch=(patch, patch),
        channels=channels,
        hidden=hidden,
        blocks=(encoder_block(layers=layers, hidden=hidden, heads=heads, ffn=ffn),),
        classes=classes,
        positions=patches_of((image, image), (patch, patch)) + 1,
        others=others,
    )


class Swin(Record, frozen=True, kw_only=True):
    """A Swin transformer; the windows are moved, not cut, and each stage is filled by them.

    Attributes:
        image: Pixels of a side.
        patch: Pixels of a patch's side.
        channels: Of the image.
        hidden: c of the first stage; each further one has twice as many.
        depths: Layers of each stage.
        heads: Of each stage.
        window: M, tokens of a window's side.
        mlp_ratio: f / h.
        classes: C; 0: no classifier.
        others: Parameters that multiply no token.

    Raises:
        ValueError: If a size is no whole number above 0, or windows do not fill a stage.
    """

    image: int = 224
    patch: int = 4
    channels: int = 3
    hidden: int
    depths: tuple[int, ...]
    heads: tuple[int, ...]
    window: int = 7
    mlp_ratio: int = 4
    classes: int = 1000
    others: int = 0

    def __post_init__(self) -> None:
        for name in ("image", "patch", "channels", "hidden", "window", "mlp_ratio"):
            whole(name, getattr(self, name))
        none_or_whole(self, "classes", "others")
        if len(self.depths) != len(self.heads) or not self.depths:
            raise ValueError(
                f"depths are {self.depths} and heads {self.heads}; expected one of each for a stage"
            )
        for side, _, _ in self.stages():
            if side % self.window:
                raise ValueError(f"windows of {self.window} do not fill a stage of side {side}")

    @property
    def per(self) -> Literal["sample"]:
        """What its throughput is counted in."""
        return "sample"

    def stages(self) -> tuple[tuple[int, int, Block], ...]:
        """(tokens of a side, h, layers) of each."""
        patches_of((self.image, self.image), (self.patch, self.patch))
        side, found = self.image // self.patch, []
        for i, (depth, heads) in enumerate(zip(self.depths, self.heads, strict=True)):
            h = self.hidden * 2**i
            block = encoder_block(layers=depth, hidden=h, heads=heads, ffn=self.mlp_ratio * h)
            found.append((side // 2**i, h, block))
            if i + 1 < len(self.depths) and side // 2**i % 2:
                raise ValueError(f"a stage of side {side // 2**i} is not halved; expected even")
        return tuple(found)

    def _merging(self, h: int) -> Linear:
        return Linear(name="merging", inputs=4 * h, outputs=2 * h)

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """FLOPs of ``batch`` images. Windows are sequences of M² tokens.

        Raises:
            ValueError: If ``batch`` is no whole number above 0, or a ``seq`` is given.
        """
        no_seq(seq)
        whole("batch", batch)
        stages = self.stages()
        first = patch_embedding((self.patch, self.patch), self.channels, self.hidden)
        terms: list[Term] = [
            first.term(batch * stages[0][0] ** 2, in_layer=False, input_gradient=False)
        ]
        for i, (side, h, block) in enumerate(stages):
            windows = batch * (side // self.window) ** 2
            terms += block_terms((block,), h, Sequences.of(windows, self.window**2), attention)
            if i + 1 < len(stages):
                terms.append(self._merging(h).term(batch * side * side // 4, in_layer=False))
        if self.classes:
            terms.append(self._classifier().term(batch, in_layer=False))
        return ClosedForm(terms=added(terms))

    def _classifier(self) -> Linear:
        h = self.stages()[-1][1]
        return Linear(name="classifier", inputs=h, outputs=self.classes, role="head")

    @property
    def parameters(self) -> Parameters:
        """How many it has."""
        stages = self.stages()
        weights = patch_embedding((self.patch, self.patch), self.channels, self.hidden).weights
        weights += sum(block_weights((block,), h)[0] for _, h, block in stages)
        weights += sum(self._merging(h).weights for _, h, _ in stages[:-1])
        weights += self._classifier().weights if self.classes else 0
        return Parameters(weights=weights, used=weights, embedding=0, others=self.others)


def patches_of(image: tuple[int, ...], patch: tuple[int, ...]) -> int:
    """How many patches an image has.

    Raises:
        ValueError: If they do not fill it, or a size is no whole number above 0.
    """
    if len(image) != len(patch):
        raise ValueError(f"image is {image} and patch {patch}; expected as many dimensions")
    count = 1
    for side, p in zip(image, patch, strict=True):
        if whole("image", side) % whole("patch", p):
            raise ValueError(f"patches of {patch} do not fill an image of {image}")
        count *= side // p
    return count


def patch_embedding(patch: tuple[int, ...], channels: int, hidden: int) -> Linear:
    """(n, c p²) @ (c p², h): a convolution whose step is its kernel."""
    inputs = channels
    for p in patch:
        inputs *= p
    return Linear(name="patches", inputs=inputs, outputs=hidden)
