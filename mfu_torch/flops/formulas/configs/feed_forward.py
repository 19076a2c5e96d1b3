"""What follows attention in each layer of a decoder: an MLP, or experts."""

from __future__ import annotations

from collections.abc import Callable

from mfu_torch.flops.formulas.configs.families import Family, Sparse
from mfu_torch.flops.formulas.configs.fields import MOST_LAYERS, Fields
from mfu_torch.flops.formulas.parts import MLP, Experts


def feed_forward_layers(
    fields: Fields, family: Family, hidden: int, layers: int
) -> tuple[MLP | Experts, ...]:
    """The MLP or the experts of each layer."""
    if family.sparse is None:
        return (MLP(width=_width(fields, hidden), is_gated=family.is_gated),) * layers
    has_experts = _has_experts(fields, family.sparse, layers)
    which = [has_experts(i) for i in range(layers)]
    experts = _experts(fields, family) if any(which) else None
    dense = None
    if not all(which):
        field = "intermediate_size_mlp" if fields.kind == "llama4_text" else "intermediate_size"
        dense = MLP(width=fields.size(field), is_gated=family.is_gated)
    chosen = [experts if sparse else dense for sparse in which]
    return tuple(part for part in chosen if part is not None)


def _width(fields: Fields, hidden: int) -> int:
    if fields.kind == "bloom":
        return 4 * hidden
    if fields.kind == "mpt":
        ratio = fields.raw("expansion_ratio")
        if isinstance(ratio, bool) or not isinstance(ratio, (int, float)) or not 0 < ratio < 1e6:
            raise fields.error(f"expansion_ratio is {ratio!r}; expected a number above 0")
        if ratio != 4:
            fields.notes.append(
                f"expansion_ratio is {ratio:g}, and the MLPs are four times as wide as the hidden "
                "size all the same: transformers' mpt does not read it"
            )
        return 4 * hidden
    return fields.optional("intermediate_size") or 4 * hidden


def _experts(fields: Fields, family: Family) -> Experts:
    sparse = family.sparse
    assert sparse is not None
    experts, chosen = fields.size("num_experts"), fields.size("num_experts_per_tok")
    if chosen > experts:
        raise fields.error(f"{chosen} experts for a token of {experts}; expected at most all")
    width = fields.size(sparse.width)
    shared = fields.optional(sparse.shared, least=0) or 0 if sparse.shared else 0
    return Experts(
        experts=experts,
        chosen=chosen,
        width=width,
        is_gated=family.is_gated,
        shared_width=shared * width if sparse.shared_is_number else shared,
        shared_gate=sparse.shared_gate,
    )


def _has_experts(fields: Fields, sparse: Sparse, layers: int) -> Callable[[int], bool]:
    if sparse.layers == "first":
        first = fields.size("first_k_dense_replace", least=0, most=MOST_LAYERS)
        return lambda i: i >= first
    if sparse.layers == "step":
        step, dense = fields.size("decoder_sparse_step"), set(fields.numbers("mlp_only_layers"))
        return lambda i: i not in dense and (i + 1) % step == 0
    if sparse.layers == "start and end":
        start = fields.size("moe_layer_start_index", least=0)
        end = fields.optional("moe_layer_end_index", least=-1)
        end = layers - 1 if end is None or end < 0 else end
        step = fields.size("moe_layer_interval")
        return lambda i: (i + 1) % step == 0 and start <= i <= end
    if sparse.layers == "interleaved":
        listed = set(fields.numbers("moe_layers"))
        step = fields.size("interleave_moe_layer_step")
        return lambda i: i in listed if listed else (i + 1) % step == 0
    return lambda _: True
