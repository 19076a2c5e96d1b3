"""Decoders whose layers are listed one by one: scans here, attention there, experts or an MLP."""

from __future__ import annotations

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.decoders import blocks_of
from mfu_torch.flops.formulas.configs.fields import Fields
from mfu_torch.flops.formulas.configs.layers import COUNT_IT
from mfu_torch.flops.formulas.configs.state_spaces import KERNEL_NOTE, mamba2_of
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.linear_attention import GatedDeltaNet
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, Part
from mfu_torch.flops.formulas.state_space import Mamba2

_MAMBA, _ATTENTION, _MLP, _EXPERTS = "linear_attention", "full_attention", "mlp", "moe"
_OLD_NAMES = {"mamba": _MAMBA, "attention": _ATTENTION}
_LETTERS = {"M": _MAMBA, "*": _ATTENTION, "-": _MLP, "E": _EXPERTS}


def read_qwen3_next(fields: Fields) -> Architecture:
    """Qwen3-Next: gated delta rules, gated attention in every fourth layer, many experts.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    attention = _attention(fields, head_dim=fields.size("head_dim"), is_gated=True)
    keys, values = fields.size("linear_num_key_heads"), fields.size("linear_num_value_heads")
    if values % keys:
        raise fields.error(f"{values} value heads are no multiple of {keys} key heads")
    delta = GatedDeltaNet(
        key_heads=keys,
        value_heads=values,
        key_dim=fields.size("linear_key_head_dim"),
        value_dim=fields.size("linear_value_head_dim"),
        kernel=fields.size("linear_conv_kernel_dim"),
    )
    every = fields.size("full_attention_interval")
    pattern = tuple(_MAMBA if (i + 1) % every else _ATTENTION for i in range(layers))
    mixers: dict[str, Part] = {_MAMBA: delta, _ATTENTION: attention}
    step, dense = fields.size("decoder_sparse_step"), set(fields.numbers("mlp_only_layers"))
    experts = _experts(fields, shared="shared_expert_intermediate_size", shared_gate=True)
    mlp = MLP(width=fields.size("intermediate_size"))
    made: list[tuple[Part, ...]] = []
    for i, kind in enumerate(_listed(fields, layers) or pattern):
        sparse = i not in dense and (i + 1) % step == 0
        made.append((_of(fields, mixers, kind), experts if sparse else mlp))
    biases = _attention_biases(attention, hidden) if fields.flag("attention_bias") else 0
    of_part: dict[Part, int] = {delta: delta.others, attention: 2 * attention.head_dim + biases}
    return _decoder(fields, made, norms=2, others=of_part)


def read_granite_hybrid(fields: Fields) -> Architecture:
    """Granite 4: Mamba-2 or attention, then experts beside a shared MLP, or that alone.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden, layers = fields.size("hidden_size"), fields.size("num_hidden_layers")
    heads = fields.size("num_attention_heads")
    each = fields.optional("head_dim")
    if each is None and hidden % heads:
        raise fields.error(f"hidden size {hidden} is no multiple of {heads} attention heads")
    attention = _attention(fields, head_dim=each or hidden // heads)
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
    follows: Part = MLP(width=fields.size("shared_intermediate_size"))
    if fields.optional("num_experts", least=0):
        follows = _experts(fields, width="intermediate_size", shared="shared_intermediate_size")
    mixers: dict[str, Part] = {_MAMBA: mixer, _ATTENTION: attention}
    kinds = _listed(fields, layers) or (_MAMBA,) * layers
    made: list[tuple[Part, ...]] = [(_of(fields, mixers, kind), follows) for kind in kinds]
    of_part: dict[Part, int] = {
        mixer: _mamba2_others(fields, mixer, hidden, "mamba_proj_bias", "mamba_conv_bias"),
        attention: _attention_biases(attention, hidden) if fields.flag("attention_bias") else 0,
    }
    return _decoder(fields, made, norms=2, others=of_part)


def read_nemotron_h(fields: Fields) -> Architecture:
    """Nemotron-H (arXiv:2504.03624): each layer is one of Mamba-2, attention, MLP, experts.

    Raises:
        ModelError: If the fields make no such model.
    """
    hidden = fields.size("hidden_size")
    if fields.raw("moe_latent_size") is not None:
        raise fields.error(f"moe_latent_size is given; expected experts without it; {COUNT_IT}")
    kinds = _nemotron_layers(fields)
    attention = _attention(fields, head_dim=fields.size("head_dim"))
    mixer = mamba2_of(
        fields,
        hidden,
        heads="mamba_num_heads",
        head_dim="mamba_head_dim",
        state="ssm_state_size",
        groups="n_groups",
        chunk="chunk_size",
        kernel="conv_kernel",
        expand=None,
    )
    mlp = MLP(width=fields.size("intermediate_size"), is_gated=False)
    parts: dict[str, Part] = {_MAMBA: mixer, _ATTENTION: attention, _MLP: mlp}
    if _EXPERTS in kinds:
        number = fields.size("n_shared_experts", least=0)
        if number > 1:
            raise fields.error(f"n_shared_experts is {number}; expected one at most; {COUNT_IT}")
        shared = "moe_shared_expert_intermediate_size" if number else None
        parts[_EXPERTS] = _experts(fields, shared=shared, is_gated=False)
    made: list[tuple[Part, ...]] = [(_of(fields, parts, kind),) for kind in kinds]
    of_part: dict[Part, int] = {
        mixer: _mamba2_others(fields, mixer, hidden, "use_bias", "use_conv_bias")
    }
    if fields.flag("mlp_bias"):
        of_part[mlp] = mlp.width + hidden
        experts = parts.get(_EXPERTS)
        if isinstance(experts, Experts) and experts.shared_width:
            of_part[experts] = experts.shared_width + hidden
    return _decoder(fields, made, norms=1, others=of_part)


def _nemotron_layers(fields: Fields) -> tuple[str, ...]:
    pattern = fields.raw("hybrid_override_pattern")
    if pattern is None:
        kinds = _listed(fields)
        if not kinds:
            raise fields.error("layers_block_type is missing; expected the kind of each layer")
        return kinds
    if not isinstance(pattern, str) or not pattern or set(pattern) - set(_LETTERS):
        raise fields.error(
            f"hybrid_override_pattern is {str(pattern)[:40]!r}; expected letters of "
            f"{' '.join(_LETTERS)}, one for each layer"
        )
    return tuple(_LETTERS[letter] for letter in pattern)


def _listed(fields: Fields, layers: int | None = None) -> tuple[str, ...]:
    kinds = fields.texts("layer_types", layers) or ()
    return tuple(_OLD_NAMES.get(kind, kind) for kind in kinds)


def _of(fields: Fields, parts: dict[str, Part], kind: str) -> Part:
    if kind not in parts:
        raise fields.error(f"a layer is {kind!r}; expected {', '.join(parts)}; {COUNT_IT}")
    return parts[kind]


def _attention(fields: Fields, *, head_dim: int, is_gated: bool = False) -> Attention:
    heads = fields.size("num_attention_heads")
    kv_heads = fields.optional("num_key_value_heads") or heads
    if heads % kv_heads:
        raise fields.error(
            f"{heads} attention heads are no multiple of {kv_heads} key and value heads; expected "
            "each of these to serve equally many"
        )
    return Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, is_gated=is_gated)


def _experts(
    fields: Fields,
    *,
    width: str = "moe_intermediate_size",
    shared: str | None,
    shared_gate: bool = False,
    is_gated: bool = True,
) -> Experts:
    experts, chosen = fields.size("num_experts"), fields.size("num_experts_per_tok")
    if chosen > experts:
        raise fields.error(f"{chosen} experts for a token of {experts}; expected at most all")
    return Experts(
        experts=experts,
        chosen=chosen,
        width=fields.size(width),
        is_gated=is_gated,
        shared_width=fields.size(shared, least=0) if shared else 0,
        shared_gate=shared_gate,
    )


def _attention_biases(attention: Attention, hidden: int) -> int:
    return sum(linear.outputs for linear in attention.linears(hidden))


def _mamba2_others(fields: Fields, mixer: Mamba2, hidden: int, linear: str, conv: str) -> int:
    biases = mixer.linears(hidden)[0].outputs + hidden if fields.flag(linear) else 0
    return mixer.others + biases - (0 if fields.flag(conv) else mixer.filtered)


def _decoder(
    fields: Fields, layers: list[tuple[Part, ...]], *, norms: int, others: dict[Part, int]
) -> Decoder:
    hidden = fields.size("hidden_size")
    fields.notes.append(KERNEL_NOTE)
    is_tied = fields.flag("tie_word_embeddings")
    if is_tied and fields.kind == "nemotron_h":
        fields.notes.append("tie_word_embeddings is true; transformers' nemotron_h does not tie")
        is_tied = False
    return Decoder(
        hidden=hidden,
        vocab=fields.size("vocab_size"),
        blocks=blocks_of(tuple(layers)),
        is_tied=is_tied,
        others=sum(others.get(part, 0) for layer in layers for part in layer)
        + (norms * len(layers) + 1) * hidden,
    )
