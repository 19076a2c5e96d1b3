"""Mamba, Mamba-2 and decoders that mix them with attention, from their configs."""

from __future__ import annotations

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.decoders import blocks_of
from mfu_torch.flops.formulas.configs.fields import MOST_LAYERS, Fields
from mfu_torch.flops.formulas.configs.layers import COUNT_IT
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, Part
from mfu_torch.flops.formulas.state_space import Mamba, Mamba2

KERNEL_NOTE = "scans are counted as the kernel packages run them, not as transformers' torch code"


def read_mamba(fields: Fields) -> Architecture:
    """Mamba and Falcon Mamba.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    mixer, others = _mamba(fields, hidden, "state_size", "conv_kernel", "expand", "time_step_rank")
    if fields.flag("use_bias"):
        others += 2 * mixer.inner + hidden
    if not fields.flag("use_conv_bias"):
        others -= mixer.inner
    fields.notes.append(KERNEL_NOTE)
    return Decoder(
        hidden=hidden,
        vocab=fields.size("vocab_size"),
        blocks=blocks_of(((mixer,),) * layers),
        is_tied=fields.flag("tie_word_embeddings"),
        others=layers * (others + hidden) + hidden,
    )


def read_mamba2(fields: Fields) -> Architecture:
    """Mamba-2.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    mixer = mamba2_of(
        fields,
        hidden,
        heads="num_heads",
        head_dim="head_dim",
        state="state_size",
        groups="n_groups",
        chunk="chunk_size",
        kernel="conv_kernel",
        expand="expand",
    )
    biases = mixer.linears(hidden)[0].outputs + hidden if fields.flag("use_bias") else 0
    biases -= 0 if fields.flag("use_conv_bias") else mixer.filtered
    fields.notes.append(KERNEL_NOTE)
    return Decoder(
        hidden=hidden,
        vocab=fields.size("vocab_size"),
        blocks=blocks_of(((mixer,),) * layers),
        is_tied=fields.flag("tie_word_embeddings"),
        others=layers * (mixer.others + biases + hidden) + hidden,
    )


def read_jamba(fields: Fields) -> Architecture:
    """Jamba (arXiv:2403.19887): Mamba with attention in some layers, experts in some.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    mixer, mamba_others = _mamba(
        fields, hidden, "mamba_d_state", "mamba_d_conv", "mamba_expand", "mamba_dt_rank"
    )
    mamba_others += mixer.rank + 2 * mixer.state  # norms of the time step, B and C
    if fields.flag("mamba_proj_bias"):
        mamba_others += 2 * mixer.inner + hidden
    if not fields.flag("mamba_conv_bias"):
        mamba_others -= mixer.inner
    attention, width = _attention(fields, hidden), fields.size("intermediate_size")
    number, chosen = fields.size("num_experts"), fields.size("num_experts_per_tok")
    if chosen > number:
        raise fields.error(f"{chosen} experts for a token of {number}; expected at most all")
    period, offset = _period(fields, "attn_layer")
    expert_period, expert_offset = _period(fields, "expert_layer")
    made: list[tuple[Part, ...]] = []
    for i in range(layers):
        mixes: Part = attention if i % period == offset else mixer
        sparse = i % expert_period == expert_offset and number > 1
        follows = (
            Experts(experts=number, chosen=chosen, width=width) if sparse else MLP(width=width)
        )
        made.append((mixes, follows))
    mambas = sum(parts[0] is mixer for parts in made)
    fields.notes.append(KERNEL_NOTE)
    return Decoder(
        hidden=hidden,
        vocab=fields.size("vocab_size"),
        blocks=blocks_of(tuple(made)),
        is_tied=fields.flag("tie_word_embeddings"),
        others=mambas * mamba_others + layers * 2 * hidden + hidden,
    )


def read_bamba(fields: Fields) -> Architecture:
    """Bamba: Mamba-2 with attention in some layers.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    for name in ("attention_bias", "mlp_bias", "mamba_proj_bias"):
        if fields.flag(name):
            raise fields.error(f"{name} is true; expected Bamba without it; {COUNT_IT}")
    mixer = mamba2_of(
        fields,
        hidden,
        heads="mamba_n_heads",
        head_dim="mamba_d_head",
        state="mamba_d_state",
        groups="mamba_n_groups",
        chunk="mamba_chunk_size",
        kernel="mamba_d_conv",
        expand="mamba_expand",
    )
    attention, mlp = _attention(fields, hidden), MLP(width=fields.size("intermediate_size"))
    attends = set(fields.numbers("attn_layer_indices"))
    made = tuple((attention if i in attends else mixer, mlp) for i in range(layers))
    mambas = sum(parts[0] is mixer for parts in made)
    conv = 0 if fields.flag("mamba_conv_bias") else mixer.filtered
    fields.notes.append(KERNEL_NOTE)
    return Decoder(
        hidden=hidden,
        vocab=fields.size("vocab_size"),
        blocks=blocks_of(made),
        is_tied=fields.flag("tie_word_embeddings"),
        others=mambas * (mixer.others - conv) + layers * 2 * hidden + hidden,
    )


def _mamba(
    fields: Fields, hidden: int, state: str, kernel: str, expand: str, rank: str
) -> tuple[Mamba, int]:
    given = fields.raw(rank)
    mixer = Mamba(
        inner=fields.size(expand) * hidden,
        state=fields.size(state),
        rank=-(-hidden // 16) if given in (None, "auto") else fields.size(rank),
        kernel=fields.size(kernel),
    )
    return mixer, mixer.others


def mamba2_of(
    fields: Fields,
    hidden: int,
    *,
    heads: str,
    head_dim: str,
    state: str,
    groups: str,
    chunk: str,
    kernel: str,
    expand: str | None,
) -> Mamba2:
    """Its mixer, from the family's names of the fields; no ``expand``: any width.

    Raises:
        ModelError: If the fields make none.
    """
    number = fields.size(heads)
    inner = number * fields.size(head_dim) if expand is None else fields.size(expand) * hidden
    is_auto = fields.raw(head_dim) in (None, "auto")
    each = inner // number if is_auto else fields.size(head_dim)
    if number * each != inner:
        raise fields.error(
            f"{number} heads of {each} are not {inner}, {expand} times the hidden size"
        )
    shared = fields.size(groups)
    if number % shared:
        raise fields.error(f"{number} heads are no multiple of {shared} groups; expected one")
    return Mamba2(
        heads=number,
        head_dim=each,
        state=fields.size(state),
        groups=shared,
        chunk=fields.size(chunk),
        kernel=fields.size(kernel),
    )


def _attention(fields: Fields, hidden: int) -> Attention:
    heads = fields.size("num_attention_heads")
    kv_heads = fields.optional("num_key_value_heads") or heads
    each = fields.optional("head_dim")
    if heads % kv_heads or (each is None and hidden % heads):
        raise fields.error(
            f"{heads} attention heads, {kv_heads} key and value heads, hidden size {hidden}; "
            "expected each to divide the other"
        )
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=each or hidden // heads)


def _period(fields: Fields, name: str) -> tuple[int, int]:
    period = fields.size(f"{name}_period", most=MOST_LAYERS)
    offset = fields.size(f"{name}_offset", least=0, most=MOST_LAYERS)
    if offset >= period:
        raise fields.error(f"{name}_offset is {offset}; expected less than the period, {period}")
    return period, offset
