"""The conventions behind published numbers, by name: what each counts for a token of training.

An MFU means nothing without its convention: for one run of Llama 3 70B they differ by 20 points.
``matmul`` is ours, and what the counter counts; the others are here so that a published number can
be recomputed, and as their sources print them, also where a model does not have the shape that
they presume.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, NamedTuple, Protocol

from mfu_torch.flops.formulas.decoder import Decoder, Parameters
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.flops.formulas.terms import ClosedForm


class Architecture(Protocol):
    """A model that is known by its sizes."""

    @property
    def per(self) -> Literal["token", "sample"]:
        """What its throughput is counted in."""
        ...

    @property
    def parameters(self) -> Parameters:
        """How many it has."""
        ...

    def flops(
        self, batch: int = 1, seq: int | None = None, *, attention: PairRule = "full"
    ) -> ClosedForm:
        """Its FLOPs for a batch."""
        ...


Formula = Callable[[Decoder, int, Fraction | int], Fraction | int]
"""(model, tokens of a sequence, N or N active) -> FLOPs for a token of training."""


class Convention(NamedTuple):
    """How somebody counts the FLOPs of training.

    Attributes:
        name: As on the command line.
        counts: ``model``: its ratio is an MFU; ``hardware``: what is computed again is in it, its
            ratio is an HFU.
        formula: For one token. N: parameters that a token meets, embeddings included; W: weights
            that it is multiplied with; L layers, h hidden, H heads of d, V vocabulary, s sequence.
        source: Who counts so.
        leaves_out: What it does not count, or presumes.
        per_token: The formula.
        is_general: Whether it is for any training: not for LoRA alone, nor for one paper's way to
            compute again.
    """

    name: str
    counts: Literal["model", "hardware"]
    formula: str
    source: str
    leaves_out: str
    per_token: Formula
    is_general: bool = True


def flops_per_token(
    convention: str, model: Decoder, seq: int, *, parameters: float | None = None
) -> Fraction:
    """FLOPs for a token of training, by a convention.

    Args:
        convention: One of :data:`CONVENTIONS`.
        model: The model.
        seq: Tokens of a sequence.
        parameters: N, where the source means another than the model's own (nominal sizes).

    Raises:
        ValueError: If there is no such convention, or the sizes are not valid.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"{convention!r} is no convention; expected {', '.join(CONVENTIONS)}")
    if parameters is not None and not 0 < parameters < float("inf"):
        raise ValueError(f"parameters is {parameters}; expected a number above 0")
    n = model.parameters.active if parameters is None else Fraction(parameters)
    return Fraction(CONVENTIONS[convention].per_token(model, seq, n))


def _matmul(rule: PairRule) -> Formula:
    def formula(model: Decoder, seq: int, _: Fraction | int) -> Fraction:
        return Fraction(model.flops(seq=seq, attention=rule).training, seq)

    return formula


def _full_recompute(model: Decoder, seq: int, _: Fraction | int) -> Fraction:
    return Fraction(4, 3) * _matmul("full")(model, seq, 0)


def _lora(model: Decoder, seq: int, _: Fraction | int) -> Fraction:
    return Fraction(2, 3) * _matmul("half")(model, seq, 0)


def _palm_attention(model: Decoder, seq: int) -> int:
    # 12 L H Q T, where keys and values are equally wide; else 6 L H (d + dv) T.
    return 6 * seq * sum(block.count * block.score_dim for block in model.blocks)


def _palm(model: Decoder, seq: int, n: Fraction | int) -> Fraction | int:
    return 6 * n + _palm_attention(model, seq)


def _palm_hardware(model: Decoder, seq: int, n: Fraction | int) -> Fraction:
    attention = _palm_attention(model, seq)
    return 6 * n + attention + Fraction(3, 4) * 2 * n + Fraction(attention, 3)


def _mosaic(model: Decoder, seq: int, n: Fraction | int) -> Fraction | int:
    return 6 * n + 12 * model.layers * model.hidden * seq


def _korthikanti(model: Decoder, seq: int, _: Fraction | int) -> int:
    layers, h = model.layers, model.hidden
    return 72 * layers * h * h + 12 * layers * seq * h + 6 * model.vocab * h


def _korthikanti_selective(model: Decoder, seq: int, _: Fraction | int) -> int:
    return _korthikanti(model, seq, 0) + 12 * model.layers * seq * model.hidden


def _megatron(model: Decoder, seq: int, _: Fraction | int) -> int:
    layers, h = model.layers, model.hidden
    return 96 * layers * h * h + 16 * layers * seq * h + 6 * model.vocab * h


def _6n(model: Decoder, seq: int, n: Fraction | int) -> Fraction | int:
    return 6 * n


def _6w(model: Decoder, seq: int, _: Fraction | int) -> int:
    return 6 * model.parameters.used


_GPT = "presumes as many key heads as heads and a plain MLP of 4h"

CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention(
            "matmul",
            "model",
            "6W + 6LH(d+dv)s",
            "mfu_torch (attention full); NeMo, torchtitan, OLMo-core",
            "norms, softmax, activations, embedding look-ups",
            _matmul("full"),
        ),
        Convention(
            "matmul-causal",
            "model",
            "6W + 3LH(d+dv)(s+1)",
            "mfu_torch (attention causal): the pairs that the mask keeps, s(s+1)/2",
            "as matmul, and scores that the mask hides",
            _matmul("causal"),
        ),
        Convention(
            "matmul-half",
            "model",
            "6W + 3LH(d+dv)s",
            "NeMo AutoModel; DeepSeek-V3 (ISCA 2025, Table 4); MegaScale's own rows",
            "as matmul, and half of the scores",
            _matmul("half"),
        ),
        Convention(
            "palm",
            "model",
            "6N + 12LHds",
            "Chowdhery et al. 2022 (PaLM), appendix B; nanoGPT",
            "nothing that matmul counts; counts the embedding, norms and biases as products",
            _palm,
        ),
        Convention(
            "korthikanti",
            "model",
            "72Lh²(1 + s/6h + V/12hL)",
            "Korthikanti et al. 2022, eq. 7",
            f"as matmul; {_GPT}",
            _korthikanti,
        ),
        Convention(
            "mosaic",
            "model",
            "6N + 12Lhs",
            "MosaicML llm-foundry, scripts/train/benchmarking",
            "nothing that matmul counts; counts position embeddings, norms and biases as "
            "products; presumes Hd = h",
            _mosaic,
        ),
        Convention("6n", "model", "6N", "Kaplan et al. 2020", "attention scores", _6n),
        Convention(
            "6w", "model", "6W", "6N without the embedding", "attention scores, the embedding", _6w
        ),
        Convention(
            "lora",
            "model",
            "4W + 2LH(d+dv)s",
            "NeMo AutoModel: 2/3 of matmul-half, since frozen weights have no gradient",
            "the adapters; and a third of attention that does run: its backward is whole in LoRA",
            _lora,
            is_general=False,
        ),
        Convention(
            "korthikanti-selective",
            "hardware",
            "72Lh²(1 + s/3h + V/12hL)",
            "Korthikanti et al. 2022, eq. 8",
            f"{_GPT}; adds 12Lhs where one forward of the scores, 4Lhs, is run again",
            _korthikanti_selective,
        ),
        Convention(
            "megatron",
            "hardware",
            "96Lh²(1 + s/6h + V/16Lh)",
            "Narayanan et al. 2021 (SC21), eq. 3: all layers computed again; MT-NLG, BLOOM",
            f"the head's second forward, which Megatron does not run; {_GPT}",
            _megatron,
        ),
        Convention(
            "full-recompute",
            "hardware",
            "8W + 8LH(d+dv)s",
            "4/3 of matmul: the whole forward again; the HFU of llm-foundry is 4/3 of its MFU",
            "as matmul; the head is rarely computed again",
            _full_recompute,
        ),
        Convention(
            "palm-hardware",
            "hardware",
            "6N + 12LHds + 1.5N + 4LHds",
            "Chowdhery et al. 2022, Table 22: PaLM 540B computes 75 % of the rest again, and "
            "attention",
            "as palm",
            _palm_hardware,
            is_general=False,
        ),
    )
}
"""By name, those of model FLOPs first."""
