"""Memory of the fullest device: parameters, gradients, optimizer state, activations.

    parameters   2 bytes each, bf16
    gradients    4, accumulated in fp32
    optimizer    12: fp32 copy and two moments (Adam)

18 bytes together, as Megatron-LM holds them (Korthikanti et al. 2022, figure 1). ZeRO
(Rajbhandari et al. 2020) spreads the optimizer state (1), the gradients (2) and the parameters (3)
over the data-parallel ranks. Activations are those of Korthikanti et al. 2022, equations 1 to 5,
written for any widths: sbh(34 + 5as/h) for a layer of GPT without parallelism.
"""

from __future__ import annotations

import math

import msgspec

from mfu_torch.calculator.plan.layout import Layout
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, LatentAttention, Part
from mfu_torch.records import Record

PARAMETER_BYTES = 2
GRADIENT_BYTES = 4
OPTIMIZER_BYTES = 12

KNOWN = (Attention, LatentAttention, MLP, Experts)
"""Parts whose activations, and operations without a product, are known here."""


class Memory(Record, frozen=True, kw_only=True):
    """Bytes of one device.

    Attributes:
        parameters: bf16.
        gradients: fp32.
        optimizer: Adam.
        activations: Kept for the backward, of all micro-batches in flight.
        available: What the device has; ``None`` where that is not known.
        is_whole: Whether every part's activations are in it.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    available: float | None = None
    is_whole: bool = True

    @property
    def total(self) -> float:
        """All of them."""
        return self.parameters + self.gradients + self.optimizer + self.activations

    @property
    def fits(self) -> bool | None:
        """Whether the device has so much; ``None`` where that is not known."""
        if self.available is None:
            return None
        if self.total > self.available:
            return False
        return True if self.is_whole else None


def memory_of(model: Decoder, layout: Layout, available: float | None) -> Memory:
    """Of a device of the first stage, which holds the embedding and most activations."""
    dense, experts = parameters_on_rank(model, layout)
    return Memory(
        parameters=_spread(PARAMETER_BYTES, dense, experts, layout, from_level=3),
        gradients=_spread(GRADIENT_BYTES, dense, experts, layout, from_level=2),
        optimizer=_spread(OPTIMIZER_BYTES, dense, experts, layout, from_level=1),
        activations=activation_bytes(model, layout),
        available=available,
        is_whole=all(isinstance(part, KNOWN) for block in model.blocks for part in block.parts),
    )


def largest_micro_batch(model: Decoder, layout: Layout, available: float | None) -> int | None:
    """Sequences of a micro-batch that fit: activations are proportional to them.

    0 where not even one fits; ``None`` where that is not known.
    """
    one = memory_of(model, msgspec.structs.replace(layout, micro_batch_size=1), available)
    if available is None or not one.is_whole or one.activations == 0:
        return None
    return max(0, math.floor((available - one.total + one.activations) / one.activations))


def parameters_on_rank(model: Decoder, layout: Layout) -> tuple[float, float]:
    """Of the first stage, on one of its tensor-parallel ranks: all but experts, and experts.

    Layers are spread evenly over stages; the first has the embedding, a single one the head, too.
    """
    held = model.parameters
    experts = sum(
        block.count * weight.weights
        for block in (*model.blocks, *model.mtp)
        for weight in block.linears(model.hidden)
        if weight.stored > 1
    )
    head = model.head.weights if model.has_head else 0
    layers = held.weights - experts - head + held.others
    ends = held.embedding + held.positions + (head if layout.pp == 1 else 0)
    if not held.embedding:
        ends += head if layout.pp > 1 else 0  # tied: the first stage holds the same matrix
    share = layout.tp * layout.pp
    return layers / share + ends / layout.tp, experts / (share * layout.ep)


def owned_by_optimizer(model: Decoder, layout: Layout) -> float:
    """Parameters that one device updates."""
    return _spread(1, *parameters_on_rank(model, layout), layout, from_level=1)


def activation_bytes(model: Decoder, layout: Layout) -> float:
    """Of all micro-batches that the first stage has in flight.

    1F1B keeps at most pp micro-batches of L/pp layers; the interleaved schedule keeps
    1 + (p-1)/(pv) times that (Korthikanti et al. 2022, section 4.2.3).
    """
    layer = sum(
        block.count * sum(_stored(part, model.hidden, layout) for part in block.parts)
        for block in model.blocks
    )
    if layout.recompute == "full":
        split = layout.tp if layout.sequence_parallel else 1
        layer = model.layers * 2 * model.hidden / split
    in_flight = min(1.0, layout.micro_batches / layout.pp)
    if layout.virtual_stages > 1:
        in_flight = 1 + (layout.pp - 1) / (layout.pp * layout.virtual_stages)
    kept = layer * in_flight
    if layout.pp == 1 and model.has_head:
        kept += 4 * model.vocab / layout.tp  # the logits, in fp32
    return kept * layout.tokens


def _spread(each: float, dense: float, experts: float, layout: Layout, *, from_level: int) -> float:
    if layout.zero < from_level:
        return each * (dense + experts)
    ranks = layout.dp * layout.cp
    return each * (dense / ranks + experts / (ranks / layout.ep))


def _stored(part: Part, hidden: int, layout: Layout) -> float:
    """Bytes for a token of one part: what tensor parallelism splits, and what it does not.

    Of GPT's attention 2h + 8h + 1h (input; q, k, v and result; mask), of its MLP 2h + 16h + 1h,
    of each norm 2h; 5as of scores, softmax and dropout.
    """
    has_dropout = layout.attention == "unfused"
    whole_bytes = (2 + 2 + (1 if has_dropout else 0)) * hidden  # norm, input, mask
    split_bytes = _wide(part)
    if has_dropout and layout.recompute == "none" and hasattr(part, "score_dim"):
        split_bytes += 5 * getattr(part, "heads", 0) * layout.seq
    if layout.sequence_parallel:
        return (whole_bytes + split_bytes) / layout.tp
    return whole_bytes + split_bytes / layout.tp


def _wide(part: Part) -> float:
    if isinstance(part, Attention):
        value = part.value_dim or part.head_dim
        return 2 * (part.heads * (part.head_dim + value) + part.cached)
    if isinstance(part, LatentAttention):
        return 2 * (part.score_dim + part.heads * (part.nope_dim + part.rope_dim + part.value_dim))
    if isinstance(part, MLP):
        return (6 if part.is_gated else 4) * part.width
    if isinstance(part, Experts):
        each = 6 if part.is_gated else 4
        return each * (part.chosen * part.width + part.shared_width)
    return 0.0
