"""The conventions behind published numbers, by name: what each counts for a token of training.

An MFU means nothing without its convention: for one run of Llama 3 70B they differ by 20 points.
``matmul`` is ours, and what the counter counts; the others are here so that a published number can
be recomputed, and as their sources print them, also where a model does not have the shape that
they presume.

Three kinds: those that add up products (``matmul`` and its kin) are for any architecture; those
that count parameters (``6n``) for any whose throughput is in tokens; those that take layers and
heads (``palm``, ``korthikanti``, ...) for decoders.
"""

from __future__ import annotations

from collections.abc import Collection
from fractions import Fraction
from typing import Literal, NamedTuple

from mfu_torch.flops.formulas import per_token as forms
from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.described import undescribed
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.encoders import Encoder
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, LatentAttention
from mfu_torch.flops.formulas.terms import Role

__all__ = ["CONVENTIONS", "Architecture", "Convention", "conventions_for", "flops_per_token"]


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
        takes: What it is computed from: ``products`` of any architecture, for each token or sample;
            ``parameters`` of one that is counted in tokens; the sizes of a ``decoder``.
        is_general: Whether it is for any training: not for LoRA alone, nor one source's variant of
            another convention.
        in_words: The formula without letters, of one that adds up products.
        presumes_gpt: Whether it is for models with as many key heads as heads and a plain MLP of
            4h alone; of others it gives a number that counts other sizes than theirs.
    """

    name: str
    counts: Literal["model", "hardware"]
    formula: str
    source: str
    leaves_out: str
    per_token: forms.Formula
    takes: Literal["products", "parameters", "decoder"] = "decoder"
    is_general: bool = True
    presumes_gpt: bool = False
    in_words: str = ""

    def formula_of(self, model: Architecture, *, training: bool = True) -> str:
        """For a token or a sample of this model: in words where the letters are not its own.

        W and H are those of layers of attention and MLPs; a convnet or a scan has neither.
        """
        if self.in_words and not _has_letters(model):
            return self.in_words if training else self.in_words.replace(_BOTH, "forward")
        return self.formula if training else f"({self.formula}) / 3"

    def why_not(self, model: Architecture) -> str:
        """Why it cannot be computed for a model; empty where it can."""
        model = undescribed(model)
        if self.takes == "decoder" and not isinstance(model, Decoder):
            return (
                f"{self.name} is for decoders ({self.formula}); the model is "
                f"{type(model).__name__}; take matmul"
            )
        if self.takes == "parameters" and model.per != "token":
            return (
                f"{self.name} is FLOPs for a token ({self.formula}); {type(model).__name__} is "
                "counted in samples, and its weights meet more than one token of each; take matmul"
            )
        return ""


def _has_letters(model: Architecture) -> bool:
    model = undescribed(model)
    if not isinstance(model, Decoder):
        return isinstance(model, Encoder)
    parts = (part for block in (*model.blocks, *model.mtp) for part in block.parts)
    return all(isinstance(part, Attention | LatentAttention | MLP | Experts) for part in parts)


def flops_per_token(
    convention: str,
    model: Architecture,
    seq: int | None = None,
    *,
    parameters: float | None = None,
    without: Collection[Role] = (),
) -> Fraction:
    """FLOPs for a token of training, by a convention; for a sample, of a model counted in samples.

    Args:
        convention: One of :data:`CONVENTIONS`.
        model: The model.
        seq: Tokens of a sequence; not needed by ``6n``, nor of a model counted in samples.
        parameters: N, where the source means another than the model's own (nominal sizes).
        without: Roles of products that the source leaves out: ``("router",)``.

    Raises:
        ValueError: If there is no such convention, it is not for such a model, or the sizes are
            not valid.
    """
    if convention not in CONVENTIONS:
        raise ValueError(f"{convention!r} is no convention; expected {', '.join(CONVENTIONS)}")
    if parameters is not None and not 0 < parameters < float("inf"):
        raise ValueError(f"parameters is {parameters}; expected a number above 0")
    chosen, model = CONVENTIONS[convention], undescribed(model)
    if reason := chosen.why_not(model):
        raise ValueError(reason)
    if without and chosen.takes != "products":
        raise ValueError(
            f"{convention} adds up no products, so {', '.join(without)} cannot be left out; take "
            "a convention of products, matmul or a variant, or give parameters"
        )
    if seq is None and model.per == "token" and chosen.takes != "parameters":
        raise ValueError(
            f"seq is missing; expected the tokens of a sequence, which {convention} uses"
        )
    n = model.parameters.active if parameters is None else Fraction(parameters)
    return Fraction(chosen.per_token(forms.Case(model, seq, n, without)))


def conventions_for(model: Architecture) -> tuple[Convention, ...]:
    """The conventions that can be computed for a model."""
    return tuple(one for one in CONVENTIONS.values() if not one.why_not(model))


_BOTH = "forward and backward"
_PRODUCTS = f"2mnk of products, {_BOTH}"
_GPT = "presumes as many key heads as heads and a plain MLP of 4h"

CONVENTIONS: dict[str, Convention] = {
    convention.name: convention
    for convention in (
        Convention(
            "matmul",
            "model",
            "6W + 6LH(d+dv)s",
            "mfu_torch (attention full); NeMo up to 25.07, MaxText's table",
            "norms, softmax, activations, embedding look-ups",
            forms.products("full"),
            takes="products",
            in_words=_PRODUCTS,
        ),
        Convention(
            "matmul-causal",
            "model",
            "6W + 3LH(d+dv)(s+1)",
            "mfu_torch (attention causal): the pairs that the mask keeps, s(s+1)/2",
            "what matmul does, and scores that the mask hides",
            forms.products("causal"),
            takes="products",
            in_words=f"{_PRODUCTS}, without masked scores",
        ),
        Convention(
            "matmul-half",
            "model",
            "6W + 3LH(d+dv)s",
            "NeMo AutoModel; Megatron-LM, Megatron Bridge and MaxText today; DeepSeek-V3 (ISCA "
            "2025, Table 4)",
            "what matmul does, and half of the scores",
            forms.products("half"),
            takes="products",
            in_words=f"{_PRODUCTS}, half of causal scores",
        ),
        Convention(
            "palm",
            "model",
            "6N + 12LHds",
            "Chowdhery et al. 2022 (PaLM), appendix B; torchtitan in 2024",
            "nothing that matmul counts; counts the embedding, norms and biases as products",
            forms.palm,
        ),
        Convention(
            "korthikanti",
            "model",
            "72Lh²(1 + s/6h + V/12hL)",
            "Korthikanti et al. 2022, eq. 7",
            f"what matmul does; {_GPT}",
            forms.korthikanti,
            presumes_gpt=True,
        ),
        Convention(
            "mosaic",
            "model",
            "6N + 12Lhs",
            "MosaicML llm-foundry, scripts/train/benchmarking",
            "nothing that matmul counts; counts position embeddings, norms and biases as "
            "products; presumes Hd = h",
            forms.mosaic,
        ),
        Convention(
            "6n",
            "model",
            "6N",
            "Kaplan et al. 2020",
            "attention scores; counts the embedding",
            forms.six_n,
            takes="parameters",
        ),
        Convention(
            "6w",
            "model",
            "6W",
            "6N without the embedding",
            "attention scores, the embedding",
            forms.products("full", weights=True),
            takes="products",
            in_words=f"{_PRODUCTS}, with weights alone",
        ),
        Convention(
            "lora",
            "model",
            "4W + 2LH(d+dv)s",
            "NeMo AutoModel: 2/3 of matmul-half, since frozen weights have no gradient",
            "the adapters; and a third of attention that does run: its backward is whole in LoRA",
            forms.products("half", Fraction(2, 3)),
            takes="products",
            is_general=False,
            in_words=f"2/3 of {_PRODUCTS}, half of causal scores",
        ),
        Convention(
            "nanogpt",
            "model",
            "6(N - positions) + 12LHds",
            "nanoGPT, model.py, estimate_mfu: palm without the learned positions",
            "nothing that palm counts but the learned positions",
            forms.nanogpt,
            is_general=False,
        ),
        Convention(
            "torchtitan",
            "model",
            "6(N - embedding) + 6LH(d+dv)s",
            "torchtitan, models/utils.py, get_dense_model_nparams_and_flops; OLMo-core",
            "nothing that matmul counts; counts norms and biases as products",
            forms.torchtitan,
            is_general=False,
        ),
        Convention(
            "megatron-model",
            "model",
            "72Lh²(1 + s/6h + V/16Lh)",
            "FlashAttention, training/README.md: 3/4 of eq. 3 of SC21",
            f"a quarter of the head; {_GPT}",
            forms.megatron_model,
            is_general=False,
            presumes_gpt=True,
        ),
        Convention(
            "korthikanti-selective",
            "hardware",
            "72Lh²(1 + s/3h + V/12hL)",
            "Korthikanti et al. 2022, eq. 8",
            f"what matmul does; {_GPT}; adds 12Lhs where one forward of the scores, 4Lhs, is run "
            "again",
            forms.korthikanti_selective,
            presumes_gpt=True,
        ),
        Convention(
            "megatron",
            "hardware",
            "96Lh²(1 + s/6h + V/16Lh)",
            "Narayanan et al. 2021 (SC21), eq. 3: all layers computed again; MT-NLG, BLOOM",
            f"the head's second forward, which Megatron does not run; {_GPT}",
            forms.megatron,
            presumes_gpt=True,
        ),
        Convention(
            "full-recompute",
            "hardware",
            "8W + 8LH(d+dv)s",
            "4/3 of matmul: the whole forward again",
            "what matmul does; the head is rarely computed again",
            forms.products("full", Fraction(4, 3)),
            takes="products",
            in_words=f"4/3 of {_PRODUCTS}",
        ),
        Convention(
            "palm-hardware",
            "hardware",
            "6N + 12LHds + 1.5N + 4LHds",
            "Chowdhery et al. 2022, Table 22: PaLM 540B computes 75 % of the rest again, and "
            "attention",
            "nothing that palm counts",
            forms.palm_hardware,
            is_general=False,
        ),
        Convention(
            "palm-selective",
            "hardware",
            "6N + 12LHds + 4LHds",
            "Chowdhery et al. 2022, Table 22: PaLM 8B and 62B compute attention again",
            "nothing that palm counts",
            forms.palm_selective,
            is_general=False,
        ),
        Convention(
            "mosaic-hardware",
            "hardware",
            "8N + 16Lhs",
            "MosaicML llm-foundry, scripts/train/benchmarking: 4/3 of mosaic where activations "
            "are computed again, else HFU = MFU",
            "nothing that mosaic counts",
            forms.mosaic_hardware,
            is_general=False,
        ),
        Convention(
            "8n",
            "hardware",
            "8N",
            "Narayanan et al. 2021 (SC21), eq. 4: days = 8TP/nX; BigScience, math/README.md",
            "attention scores; counts the embedding",
            forms.eight_n,
            takes="parameters",
            is_general=False,
        ),
    )
}
"""By name, those of model FLOPs first."""
