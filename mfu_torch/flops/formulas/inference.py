"""What inference computes and moves: a prompt (prefill), and one more token of each sequence.

    prefill   FLOPs of a forward; every weight is read once, the cache is written
    decode    2W + 2LH(d + dv)c FLOPs for a token that sees c keys, itself among them
              every weight that a token of the batch meets is read once for the whole batch,
              the cache of each sequence is read once

Counts here are numbers (weights, cached values), not bytes: what one takes is up to its dtype.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.described import undescribed
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.linear_attention import GatedDeltaNet, LinearAttention
from mfu_torch.flops.formulas.pairs import Mask, PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import Experts, LatentAttention, Part
from mfu_torch.flops.formulas.state_space import Mamba, Mamba2
from mfu_torch.flops.formulas.terms import Linear
from mfu_torch.records import Record

Latent = Literal["absorbed", "expanded", "recomputed"]
"""How multi-head latent attention decodes.

absorbed: the cache holds the latents, and the up-projection is applied to the query and to the
result (DeepSeek-V2, arXiv:2405.04434, section 2.1.2): scores over kv_rank + rope_dim, values over
kv_rank. expanded: the cache holds the keys and values of all heads. recomputed: it holds the
latents, and each step computes the keys and values of all heads from them, as ``transformers`` 5
does.
"""

LATENT: tuple[Latent, ...] = ("absorbed", "expanded", "recomputed")


WITHIN_A_CHUNK = frozenset({"chunk_scores", "chunk_outputs", "chunk_values", "solved"})
"""Products of a scan in chunks that one step of its recurrence does not have."""


class Work(Record, frozen=True, kw_only=True):
    """What one step of inference does.

    Attributes:
        flops: Of its products.
        weights_read: Weights that its tokens meet, each once; not whole where experts are chosen:
            their expected number.
        cache_moved: Cached numbers that are read or written.
        cache_held: Numbers that the cache of the whole batch holds after it.
        tokens: Of all sequences: read by a prefill, made by a decoding step.
    """

    flops: int
    weights_read: float
    cache_moved: int
    cache_held: int
    tokens: int


def prefill(
    model: Architecture, *, batch: int = 1, context: int = 1, attention: PairRule = "full"
) -> Work:
    """A forward of ``batch`` prompts of ``context`` tokens (samples, where there are no tokens).

    The head runs for every token, as in a forward; layers for further tokens (MTP) do not run.

    Raises:
        ValueError: If a size is no whole number above 0.
    """
    whole("batch", batch)
    whole("context", context)
    model = undescribed(model)
    if not isinstance(model, Decoder):
        held, seq = model.parameters, context if model.per == "token" else None
        return Work(
            flops=model.flops(batch, seq, attention=attention).forward,
            weights_read=float(held.weights + held.others + held.positions),
            cache_moved=0,
            cache_held=0,
            tokens=batch * (seq or 1),
        )
    model = without_mtp(model)
    tokens = batch * context
    cache = batch * cached_numbers(model, context)
    return Work(
        flops=model.flops(batch, context, attention=attention).forward,
        weights_read=weights_met(model, tokens),
        cache_moved=cache,
        cache_held=cache,
        tokens=tokens,
    )


def decode(
    model: Architecture, *, batch: int = 1, context: int = 1, latent: Latent = "absorbed"
) -> Work:
    """One more token for each of ``batch`` sequences, which sees ``context`` keys.

    Llama 3 8B, one sequence, 8192 keys: 2 · 7504658432 + 2 · 32 · 8192 · 8192 = 19.3e9 FLOPs;
    7.5e9 weights and 8192 · 65536 = 0.54e9 cached numbers move.

    Args:
        model: A :class:`Decoder`. Its layers for further tokens (MTP) do not run.
        batch: Sequences.
        context: Keys that a token sees, itself among them; a window sees fewer.
        latent: How multi-head latent attention decodes.

    Raises:
        ValueError: If a size is no whole number above 0, there is no such ``latent``, or the model
            is no decoder.
    """
    if latent not in LATENT:
        raise ValueError(f"latent is {latent!r}; expected one of {', '.join(LATENT)}")
    decoder = undescribed(model)
    if not isinstance(decoder, Decoder):
        raise ValueError(f"model is of kind {type(decoder).__name__}; expected a Decoder")
    model = without_mtp(decoder)
    whole("batch", batch)
    whole("context", context)
    products = sum(count * weight.weights_used for count, weight in model.linears())
    cores = sum(count * _core_flops(part, context, latent) for count, part in _parts(model))
    held = cached_numbers(model, context, latent=latent)
    # A state is read and written whole; of keys and values, one token's are written, the others
    # read.
    moved = held + sum(count * _state(part) for count, part in _parts(model))
    return Work(
        flops=batch * (2 * products + cores),
        weights_read=weights_met(model, batch),
        cache_moved=batch * moved,
        cache_held=batch * held,
        tokens=batch,
    )


def without_mtp(model: Decoder) -> Decoder:
    """The model without the layers that only training uses."""
    return msgspec.structs.replace(model, mtp=())


def weights_met(model: Decoder, tokens: int) -> float:
    """Parameters that are read for ``tokens`` tokens: all but unused rows and unchosen experts.

    Of E experts of which each token goes to k, a batch of B tokens meets E(1 - (1 - k/E)^B), if
    the router sends tokens evenly and independently; for one token that is k.
    """
    found = sum(
        count * weight.inputs * weight.outputs * _met(weight, tokens)
        for count, weight in model.linears()
    )
    rows = 0 if model.is_tied and model.has_head else min(tokens, model.vocab)
    rows += min(tokens, model.learned_positions)
    return found + model.others - _unmet_biases(model, tokens) + rows * model.hidden


def expected_experts(experts: int, chosen: int, tokens: int) -> float:
    """E(1 - (1 - k/E)^B): how many experts a batch meets. 8 experts, 2 chosen, 2 tokens: 3.5."""
    if tokens == 1 or chosen == experts:
        return float(chosen)
    return -experts * math.expm1(tokens * math.log1p(-chosen / experts))


def cached_numbers(model: Decoder, context: int, *, latent: Latent = "absorbed") -> int:
    """Numbers that the cache of one sequence holds: keys and values, latents, states."""
    return sum(
        count * (_kept(part, context) * _cached(part, latent) + _state(part))
        for count, part in _parts(model)
    )


def _unmet_biases(model: Decoder, tokens: int) -> float:
    """Biases of experts that no token goes to, which are those of one layer's kind."""
    for _, part in _parts(model):
        if isinstance(part, Experts) and part.experts > part.chosen:
            unmet = part.experts - expected_experts(part.experts, part.chosen, tokens)
            return model.idle * unmet / (part.experts - part.chosen)
    return 0.0


def _met(weight: Linear, tokens: int) -> float:
    if weight.stored == 1:
        return 1.0
    return expected_experts(weight.stored, weight.uses, tokens)


def _core_flops(part: Part, context: int, latent: Latent) -> int:
    """Of one token in one layer: scores and values, or what else runs without weights."""
    if isinstance(part, LatentAttention) and latent == "absorbed":
        # scores (H, 1, r + rope) @ (H, r + rope, c), values (H, 1, c) @ (H, c, r)
        width = part.heads * (2 * part.kv_rank + part.rope_dim)
        return 2 * width * _kept(part, context)
    score_dim: int = getattr(part, "score_dim", 0)
    if score_dim:
        again = 0
        if isinstance(part, LatentAttention) and latent == "recomputed":
            # (c - 1, r) @ (r, H (n + dv)): the token's own is among the weights' products
            up = part.kv_rank * part.heads * (part.nope_dim + part.value_dim)
            again = 2 * up * (_kept(part, context) - 1)
        return again + 2 * score_dim * _kept(part, context)
    if hasattr(part, "form"):
        part = msgspec.structs.replace(part, form="kernel")  # type: ignore[type-var]
    terms = part.cores(Sequences.of(1, 1), "full")
    return sum(term.forward for term in terms if term.name not in WITHIN_A_CHUNK)


def _cached(part: Part, latent: Latent) -> int:
    if isinstance(part, LatentAttention) and latent == "expanded":
        return part.score_dim
    cached: int = getattr(part, "cached", 0)
    return cached


def _state(part: Part) -> int:
    """Numbers that a layer keeps of a sequence however long it is: states, inputs of filters."""
    if isinstance(part, Mamba):
        return part.inner * (part.state + part.kernel - 1)
    if isinstance(part, Mamba2):
        return part.inner * part.state + part.filtered * (part.kernel - 1)
    if isinstance(part, LinearAttention):
        return part.heads * part.key_dim * part.value_dim
    if isinstance(part, GatedDeltaNet):
        states = part.value_heads * part.key_dim * part.value_dim
        return states + part.filtered * (part.kernel - 1)
    return 0


def _kept(part: Part, context: int) -> int:
    mask: Any = getattr(part, "mask", None)
    if not isinstance(mask, Mask) or mask.window is None:
        return context
    return min(context, mask.window)


def _parts(model: Decoder) -> Iterator[tuple[int, Part]]:
    return ((block.count, part) for block in model.blocks for part in block.parts)
