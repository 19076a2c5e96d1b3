"""A decoder from the fields of its config: layers, head, and the parameters beside the weights."""

from __future__ import annotations

from itertools import groupby

from mfu_torch.flops.formulas.configs.families import Family
from mfu_torch.flops.formulas.configs.feed_forward import feed_forward_layers
from mfu_torch.flops.formulas.configs.fields import Fields
from mfu_torch.flops.formulas.configs.layers import COUNT_IT, attention_layers
from mfu_torch.flops.formulas.decoder import Block, Decoder
from mfu_torch.flops.formulas.parts import Attention, Experts, LatentAttention, Part


def read_decoder(fields: Fields, family: Family) -> Decoder:
    """The decoder that these fields describe.

    Raises:
        ModelError: If they describe none.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    if family.sparse is not None:
        _say_about_experts(fields)
    pairs = tuple(
        zip(
            attention_layers(fields, family, hidden, layers),
            feed_forward_layers(fields, family, hidden, layers),
            strict=True,
        )
    )
    drops = family.dropout is not None and fields.share(*family.dropout) > 0
    blocks = blocks_of(
        pairs,
        repeats_last=family.repeats_last or drops,
        shared_first=family.sparse is not None and family.sparse.shared_first,
    )
    vocab = fields.size("vocab_size")
    others = sum(b.count * layer_others(fields, family, hidden, b.parts) for b in blocks)
    idle = sum(b.count * _idle_biases(fields, family, hidden, b.parts) for b in blocks)
    return Decoder(
        hidden=hidden,
        vocab=vocab,
        blocks=blocks,
        is_tied=fields.flag("tie_word_embeddings"),
        learned_positions=_positions(fields, family),
        others=others + _outside(fields, family, hidden, vocab),
        idle=idle,
    )


def blocks_of(
    layers: tuple[tuple[Part, ...], ...], *, repeats_last: bool = False, shared_first: bool = False
) -> tuple[Block, ...]:
    """Layers that follow one another and are equal, as one block each.

    A factor for each token follows the experts, so what they return is needed again, unless shared
    ones come after them.
    """
    blocks = []
    for parts, equal in groupby(layers):
        last = parts[-1]
        factor = isinstance(last, Experts) and (
            not last.shared_width or last.shared_gate or shared_first
        )
        blocks.append(
            Block(parts=parts, count=len(list(equal)), repeats_last=repeats_last or factor)
        )
    return tuple(blocks)


def layer_others(fields: Fields, family: Family, hidden: int, parts: tuple[Part, ...]) -> int:
    """Biases and norms of a layer."""
    norms = _norms(fields, family) * family.norm * hidden
    has_qk_norm = family.qk_norm_field is None or fields.flag(family.qk_norm_field)
    for part in parts:
        if isinstance(part, LatentAttention):
            norms += part.kv_rank + (part.query_rank or 0)
        elif isinstance(part, Attention) and family.qk_norm and has_qk_norm:
            norms += _qk_norm(fields, family, part)
        if isinstance(part, Attention) and family.has_sinks:
            norms += part.heads
    return norms + sum(biases(fields, family, hidden, parts))


def biases(fields: Fields, family: Family, hidden: int, parts: tuple[Part, ...]) -> list[int]:
    """Of each product of a layer that has biases, how many."""
    names = _biased(fields, family)
    linears = [linear for part in parts for linear in part.linears(hidden)]
    return [linear.outputs * linear.stored for linear in linears if linear.name in names]


def _biased(fields: Fields, family: Family) -> set[str]:
    return {
        name
        for names, field in family.biases
        if field is None or fields.flag(field)
        for name in names.split()
    }


def _idle_biases(fields: Fields, family: Family, hidden: int, parts: tuple[Part, ...]) -> int:
    names = _biased(fields, family)
    linears = [linear for part in parts for linear in part.linears(hidden)]
    return sum(w.outputs * (w.stored - w.uses) for w in linears if w.name in names)


def _norms(fields: Fields, family: Family) -> int:
    if fields.kind == "falcon":
        if fields.flag("new_decoder_architecture"):
            number = fields.optional("num_ln_in_parallel_attn")
            return 2 if number in (None, 2) or not fields.flag("parallel_attn") else 1
        return 1 if fields.flag("parallel_attn") else 2
    if fields.kind == "stablelm" and fields.flag("use_parallel_residual"):
        return 1
    if fields.kind == "opt" and not fields.flag("layer_norm_elementwise_affine"):
        return 0
    return family.norms


def _qk_norm(fields: Fields, family: Family, part: Attention) -> int:
    if family.qk_norm == "all":
        return (part.heads + part.kv_heads) * part.head_dim
    return 2 * part.head_dim * family.norm


def _positions(fields: Fields, family: Family) -> int:
    if family.positions is None:
        return 0
    return fields.size("max_position_embeddings") + family.positions


def _outside(fields: Fields, family: Family, hidden: int, vocab: int) -> int:
    """Norms before and after the layers, and the head's biases."""
    norms = 1 + family.embedding_norm
    if fields.kind == "opt":
        projected = fields.optional("word_embed_proj_dim")
        if projected not in (None, hidden):
            raise fields.error(
                f"word_embed_proj_dim is {projected}; expected hidden_size, {hidden}: projections "
                f"of embeddings are not read; {COUNT_IT}"
            )
        before, no_final = fields.flag("do_layer_norm_before"), "_remove_final_layer_norm"
        norms = int(before and not fields.flag(no_final))
        norms *= fields.flag("layer_norm_elementwise_affine")
    named = family.head_bias
    has_bias = fields.flag(named) if isinstance(named, str) else named
    return norms * family.norm * hidden + (vocab if has_bias else 0)


def _say_about_experts(fields: Fields) -> None:
    if fields.raw("moe_layer_freq") not in (None, 1):
        raise fields.error(
            f"moe_layer_freq is {fields.raw('moe_layer_freq')!r}; expected 1, as transformers "
            "takes it"
        )
    if fields.kind == "phimoe" and fields.size("num_experts_per_tok") != 2:
        raise fields.error(
            f"num_experts_per_tok is {fields.raw('num_experts_per_tok')}; expected 2, as "
            "transformers' router of a phimoe takes them"
        )
    if fields.kind == "llama4_text":
        fields.notes.append(
            "a token's own experts are counted; transformers' code multiplies it with all of them"
        )
