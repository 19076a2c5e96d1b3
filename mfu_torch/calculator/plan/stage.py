"""Seconds of one micro-batch on a pipeline stage, by what they go to, and of the gradients.

A stage holds its share of the layers; tensor- and context-parallel ranks share each product.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from mfu_torch.calculator.plan.collectives import (
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    reduce_scatter_s,
    send_s,
)
from mfu_torch.calculator.plan.layout import Hidden, Layout
from mfu_torch.calculator.plan.machine import Machine
from mfu_torch.calculator.plan.memory import (
    GRADIENT_BYTES,
    PARAMETER_BYTES,
    parameters_on_rank,
)
from mfu_torch.calculator.plan.traffic import traffic_of
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.flops.formulas.parts import Attention, Experts, LatentAttention, Part
from mfu_torch.flops.formulas.terms import ClosedForm
from mfu_torch.records import Record

ACTIVATION_BYTES = 2


class Stage(Record, frozen=True, kw_only=True):
    """Seconds for one micro-batch on a mean stage, and what the last one has besides.

    Attributes:
        matmuls_s: Of its layers, forward and backward.
        recompute_s: What the backward computes again.
        other_operations_s: Those without a product.
        tensor_s: Collectives of the tensor-parallel ranks.
        context_s: Of the context-parallel ranks.
        expert_s: Of the expert-parallel ranks.
        gathers_s: Of parameters (ZeRO 3).
        sends_s: To the neighbouring stages.
        head_s: The head, and layers for further tokens, on the last stage.
    """

    matmuls_s: float
    recompute_s: float
    other_operations_s: float
    tensor_s: float
    context_s: float
    expert_s: float
    gathers_s: float
    sends_s: float
    head_s: float

    @property
    def layers_s(self) -> float:
        """All of it but sends and head."""
        return (
            self.matmuls_s
            + self.recompute_s
            + self.other_operations_s
            + self.tensor_s
            + self.context_s
            + self.expert_s
            + self.gathers_s
        )


def scores_rule(layout: Layout) -> PairRule:
    """Which scores the kernels compute."""
    return "causal" if layout.attention == "fused" else "full"


def stage_of(model: Decoder, layout: Layout, machine: Machine) -> Stage:
    """Of a mean stage."""
    main = msgspec.structs.replace(model, mtp=())
    rule, size, seq = scores_rule(layout), layout.micro_batch_size, layout.seq
    whole = model.flops(batch=size, seq=seq, attention=rule)
    layers = main.flops(batch=size, seq=seq, attention=rule).without("head")
    # Tensor and context ranks share each product; stages share the layers.
    shared = layout.tp * layout.cp * machine.matmul_flops_per_s
    matmuls_s = layers.training / (shared * layout.pp)
    traffic = _other_operations_s(model, layout, machine)
    shown = _exposed(
        {
            "tp": _tensor_s(model, layout, machine),
            "cp": _context_s(model, layout, machine),
            "ep": _expert_s(model, layout, machine),
            "pp": _sends_s(model, layout, machine),
            "dp": _gathers_s(model, layout, machine),
        },
        matmuls_s,
        layout,
    )
    return Stage(
        matmuls_s=matmuls_s,
        recompute_s=_recomputed_flops(layers, layout) / (shared * layout.pp),
        other_operations_s=traffic,
        tensor_s=shown["tp"],
        context_s=shown["cp"],
        expert_s=shown["ep"],
        gathers_s=shown["dp"],
        sends_s=shown["pp"],
        head_s=(whole.training - layers.training) / shared,
    )


def mean_and_slowest(model: Decoder, layout: Layout, stage: Stage) -> tuple[float, float]:
    """Seconds for a micro-batch on a mean stage, and on the slowest.

    The head is on the last stage, beside as many layers as the others have, or one fewer where it
    takes the place of a layer.
    """
    mean_s = stage.layers_s + stage.sends_s + stage.head_s / layout.pp
    if layout.pp == 1:
        return mean_s, mean_s
    layer_s = stage.layers_s * layout.pp / model.layers
    most = layout.slots(model) // layout.pp
    last = most - (1 if layout.ends_as_layers else 0)
    slowest_s = max(
        most * layer_s if layout.pp > 2 or last == most else 0.0, last * layer_s + stage.head_s
    )
    return mean_s, slowest_s + stage.sends_s


def _recomputed_flops(layers: ClosedForm, layout: Layout) -> float:
    flops = layers.recompute(layout.recompute)
    if layout.attention == "fused":
        if layout.recompute == "selective":
            flops = 0  # what it would compute again is not stored in the first place
        # The backward of a fused kernel computes the scores again (Dao et al. 2022).
        flops += sum(term.forward for term in layers.terms if term.name == "scores")
    return float(flops)


def layer_parts(model: Decoder) -> list[tuple[int, Part]]:
    """Each part with how many layers have it, without those that predict further tokens."""
    return [(block.count, part) for block in model.blocks for part in block.parts]


def _other_operations_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    moved = 0.0
    for count, part in layer_parts(model):
        one = traffic_of(
            part,
            model.hidden,
            layout.seq,
            tp=layout.tp,
            is_split_by_tokens=layout.sequence_parallel,
            is_fused=layout.attention == "fused",
        )
        moved += count * (one.forward + one.backward)
        if layout.recompute == "full":
            moved += count * one.forward
        elif layout.recompute == "selective":
            moved += count * one.scores
    return moved * layout.tokens / (layout.pp * machine.bytes_per_s)


def _message_bytes(model: Decoder, layout: Layout) -> float:
    """Of the activations between two parts of a layer, of one micro-batch."""
    return float(layout.tokens * model.hidden * ACTIVATION_BYTES)


def _tensor_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    """An all-reduce for each part, in the forward and in the backward (Shoeybi et al. 2019)."""
    times = 3 if layout.recompute == "full" else 2
    calls = times * sum(count for count, _ in layer_parts(model)) / layout.pp
    link = machine.tensor_link(layout)
    return calls * all_reduce_s(layout.tp, _message_bytes(model, layout), link)


def _context_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    """Keys and values of all tokens are gathered, and their gradients scattered.

    As in Llama 3 (arXiv:2407.21783, section 3.3.2): an all-gather in the forward, one more and a
    reduce-scatter in the backward.
    """
    if layout.cp == 1:
        return 0.0
    link, total = machine.context_link(layout), 0.0
    for count, part in layer_parts(model):
        if isinstance(part, Attention):
            numbers = part.cached / min(layout.tp, part.kv_heads)
        elif isinstance(part, LatentAttention):
            numbers = part.score_dim / layout.tp
        else:
            continue
        buffer = layout.micro_batch_size * layout.seq * numbers * ACTIVATION_BYTES
        gather = all_gather_s(layout.cp, buffer, link)
        again = 3 if layout.recompute == "full" else 2
        total += count * (again * gather + reduce_scatter_s(layout.cp, buffer, link))
    return total / layout.pp


def _expert_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    """Tokens go to their experts and back: two all-to-alls in the forward, two in the backward."""
    if layout.ep == 1:
        return 0.0
    link, total = machine.expert_link(layout), 0.0
    split = layout.tp if layout.sequence_parallel else 1
    for count, part in layer_parts(model):
        if isinstance(part, Experts):
            buffer = part.chosen * _message_bytes(model, layout) / split
            calls = 6 if layout.recompute == "full" else 4
            total += count * calls * all_to_all_s(layout.ep, buffer, link)
    return total / layout.pp


def _sends_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    """Of one stage: a send in the forward and one in the backward, for each chunk of layers.

    Tensor-parallel ranks send a share each (scatter/gather, Narayanan et al. 2021, section 4.1),
    which is gathered inside the node unless the next layer takes it split by tokens.
    """
    if layout.pp == 1:
        return 0.0
    message = _message_bytes(model, layout)
    one = send_s(message / layout.tp, machine.pipeline_link(layout))
    if not layout.sequence_parallel:
        one += all_gather_s(layout.tp, message, machine.tensor_link(layout))
    return 2 * layout.virtual_stages * one


def _gathers_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    """ZeRO 3: parameters are gathered for the forward and for the backward, gradients scattered."""
    if layout.zero < 3:
        return 0.0
    link, total = machine.data_link(layout), 0.0
    for numbers, group in _groups(model, layout):
        total += 2 * all_gather_s(group, numbers * PARAMETER_BYTES, link)
        total += reduce_scatter_s(group, numbers * GRADIENT_BYTES, link)
    return total


def data_parallel_s(model: Decoder, layout: Layout, machine: Machine, stage: Stage) -> float:
    """Once a step; hidden, if at all, behind one micro-batch: the gradients are not done before."""
    gradients_s = _gradients_s(model, layout, machine)
    return _exposed({"dp": gradients_s}, stage.matmuls_s, layout)["dp"]


def _gradients_s(model: Decoder, layout: Layout, machine: Machine) -> float:
    if layout.zero == 3:
        return 0.0
    link, total = machine.data_link(layout), 0.0
    for numbers, group in _groups(model, layout):
        if layout.zero == 0:
            total += all_reduce_s(group, numbers * GRADIENT_BYTES, link)
        else:
            total += reduce_scatter_s(group, numbers * GRADIENT_BYTES, link)
            total += all_gather_s(group, numbers * PARAMETER_BYTES, link)
    return total


def hidden_s(model: Decoder, layout: Layout, machine: Machine, stage: Stage) -> dict[str, float]:
    """Seconds of a step that communication runs beside compute, by what it is; none that is 0.

    What :func:`stage_of` and :func:`data_parallel_s` left out of what the links take.
    """
    m = layout.micro_batches
    whole_s = {
        "tensor parallel": m * (_tensor_s(model, layout, machine) - stage.tensor_s),
        "context parallel": m * (_context_s(model, layout, machine) - stage.context_s),
        "expert parallel": m * (_expert_s(model, layout, machine) - stage.expert_s),
        "parameter gathers": m * (_gathers_s(model, layout, machine) - stage.gathers_s),
        "pipeline sends": m * (_sends_s(model, layout, machine) - stage.sends_s),
        "data parallel": _gradients_s(model, layout, machine)
        - data_parallel_s(model, layout, machine, stage),
    }
    return {name: seconds for name, seconds in whole_s.items() if seconds > 0}


def _groups(model: Decoder, layout: Layout) -> list[tuple[float, int]]:
    """Parameters of a rank, and how many ranks hold the same: all but experts, and experts."""
    dense, experts = parameters_on_rank(model, layout)
    ranks = layout.dp * layout.cp
    held = ((dense, ranks), (experts, ranks // layout.ep))
    return [(numbers, group) for numbers, group in held if numbers]


def _exposed(
    whole_s: Mapping[Hidden, float], beside_s: float, layout: Layout
) -> dict[Hidden, float]:
    """What is left of communication where some of it runs beside so much compute.

    All of it together hides behind no more than that.
    """
    left_s, found = beside_s, {}
    for what, seconds in whole_s.items():
        covered_s = min(seconds, left_s) if what in layout.overlap else 0.0
        left_s -= covered_s
        found[what] = seconds - covered_s
    return found
