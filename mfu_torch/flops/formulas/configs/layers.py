"""The layers of a decoder, one by one: what attention each has, and which keys it sees."""

from __future__ import annotations

from collections.abc import Callable

from mfu_torch.flops.formulas.configs.families import Family
from mfu_torch.flops.formulas.configs.fields import MOST_LAYERS, Fields
from mfu_torch.flops.formulas.pairs import Mask
from mfu_torch.flops.formulas.parts import Attention, LatentAttention

# What says the same as layer_types, in a file that has it.
_PATTERNS = (
    *("sliding_window_pattern", "max_window_layers", "no_rope_layers", "no_rope_layer_interval"),
    *("attention_types", "attention_layers"),
)

COUNT_IT = "mfu-torch count CONFIG.json counts any model of transformers"

# Families in which each head has a key and a value of its own, and no field says so.
_UNGROUPED = ("gpt2", "gpt_neo", "gptj", "codegen", "gpt_neox", "bloom", "opt", "mpt")

# Families whose heads together are as wide as the hidden size, whatever head_dim says.
_FILLED = ("helium", "olmoe")

# Families in which sliding windows have to be switched on.
_SWITCHED = ("qwen2", "qwen3", "smollm3", "qwen2_moe", "qwen3_moe")


def attention_layers(
    fields: Fields, family: Family, hidden: int, layers: int
) -> tuple[Attention | LatentAttention, ...]:
    """The attention of each layer."""
    heads = fields.size("num_attention_heads")
    made = _latent(fields, heads) if family.is_latent else _plain(fields, hidden, heads)
    return tuple(made(mask) for mask in masks(fields, family, layers))


def _plain(fields: Fields, hidden: int, heads: int) -> Callable[[Mask], Attention]:
    kv_heads = _kv_heads(fields, heads)
    if heads % kv_heads:
        given = fields.has("num_key_value_heads")
        default = "" if given else " (the family's default, since the file has none)"
        raise fields.error(
            f"{heads} attention heads are no multiple of {kv_heads} key and value heads{default}; "
            "expected each of these to serve equally many"
        )
    head_dim = fields.optional("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise fields.error(
                f"hidden size {hidden} is no multiple of {heads} attention heads; expected one, "
                "or a head_dim"
            )
        head_dim = hidden // heads
    if fields.kind in _FILLED and heads * head_dim != hidden:
        raise fields.error(
            f"{heads} heads of {head_dim} are not hidden_size, {hidden}; expected that of a "
            f"{fields.kind}"
        )
    return lambda mask: Attention(heads=heads, kv_heads=kv_heads, head_dim=head_dim, mask=mask)


def _kv_heads(fields: Fields, heads: int) -> int:
    if fields.kind == "gpt_bigcode":
        return 1 if fields.flag("multi_query") else heads
    is_new = fields.flag("new_decoder_architecture")
    if fields.kind == "falcon" and not is_new and fields.flag("multi_query"):
        return 1
    if fields.kind == "mpt":
        kind = fields.inside("attn_config").raw("attn_type")
        if kind not in (None, "multihead_attention"):
            raise fields.error(f"attn_type is {kind!r}; expected multihead_attention; {COUNT_IT}")
    if fields.kind in _UNGROUPED:
        return heads
    return fields.optional("num_key_value_heads") or heads


def _latent(fields: Fields, heads: int) -> Callable[[Mask], LatentAttention]:
    query, kv = fields.optional("q_lora_rank"), fields.size("kv_lora_rank")
    nope, rope = fields.size("qk_nope_head_dim"), fields.size("qk_rope_head_dim")
    value = fields.size("v_head_dim")
    return lambda mask: LatentAttention(
        heads=heads,
        query_rank=query,
        kv_rank=kv,
        nope_dim=nope,
        rope_dim=rope,
        value_dim=value,
        mask=mask,
    )


def masks(fields: Fields, family: Family, layers: int) -> tuple[Mask, ...]:
    """Which keys each layer sees."""
    if fields.flag("use_bidirectional_attention"):
        raise fields.error(
            f"use_bidirectional_attention is true; expected a causal decoder; {COUNT_IT}"
        )
    window = fields.optional("sliding_window", least=0) or None
    if fields.kind in _SWITCHED and not fields.flag("use_sliding_window"):
        window = None
    types = _types(fields, family, layers, window)
    unknown = sorted(set(types) - {"full_attention", "sliding_attention", "chunked_attention"})
    if unknown:
        raise fields.error(
            f"layer_types has {', '.join(unknown)}; expected full_attention, sliding_attention or "
            f"chunked_attention; {COUNT_IT}"
        )
    if "sliding_attention" in types and window is None:
        raise fields.error(
            "layer_types has sliding_attention and there is no sliding_window (or "
            "use_sliding_window is false); expected its tokens"
        )
    kinds = {"full_attention": Mask(), "sliding_attention": Mask(window=window)}
    if "chunked_attention" in types:
        kinds["chunked_attention"] = Mask(chunk=fields.size("attention_chunk_size"))
    return tuple(kinds[each] for each in types)


def _types(fields: Fields, family: Family, layers: int, window: int | None) -> tuple[str, ...]:
    given = fields.texts("layer_types", layers)
    if given is not None:
        fields.asked.update(_PATTERNS)
        return given
    if fields.kind == "llama4_text":
        return _of_llama4(fields, layers)
    if fields.kind == "gpt_neo" and fields.has("attention_types"):
        fields.asked.add("attention_layers")  # the same once more, layer by layer
        return _of_gpt_neo(fields, layers)
    if window is None or (family.full_every == 1 and fields.kind not in _SWITCHED):
        return ("full_attention",) * layers
    slides = _slides(fields, family)
    return tuple("sliding_attention" if slides(i) else "full_attention" for i in range(layers))


def _slides(fields: Fields, family: Family) -> Callable[[int], bool]:
    """Whether the i-th layer has a window, where the file does not say it of each layer."""
    kind = fields.kind
    if kind == "smollm3":  # those that have no positions
        ropes, every = fields.numbers("no_rope_layers"), fields.size("no_rope_layer_interval")
        return lambda i: not (ropes[i] if i < len(ropes) else (i + 1) % every)
    if kind == "qwen2_moe":
        last = fields.size("max_window_layers", least=0)
        return lambda i: i % 2 == 0 and i < last
    if kind in ("qwen2", "qwen3"):
        first = fields.size("max_window_layers", least=0)
        return lambda i: i >= first
    if kind == "gpt_neo":  # global, local, global, ...
        return lambda i: i % 2 == 1
    every = 0 if kind == "qwen3_moe" else family.full_every
    if every > 2 and fields.has("sliding_window_pattern"):
        every = fields.size("sliding_window_pattern", least=0)
    return lambda i: every == 0 or (i + 1) % every != 0


def _of_llama4(fields: Fields, layers: int) -> tuple[str, ...]:
    ropes = fields.numbers("no_rope_layers")
    every = fields.optional("no_rope_layer_interval", most=MOST_LAYERS) or 4
    if ropes and len(ropes) != layers:
        raise fields.error(f"no_rope_layers has {len(ropes)} layers; expected {layers}")
    ropes = ropes or tuple((i + 1) % every for i in range(layers))
    if fields.optional("attention_chunk_size") is None:
        return ("full_attention",) * layers
    return tuple("chunked_attention" if rope else "full_attention" for rope in ropes)


def _of_gpt_neo(fields: Fields, layers: int) -> tuple[str, ...]:
    names = {"global": "full_attention", "local": "sliding_attention"}
    try:
        groups = [(list(each), int(count)) for each, count in fields.raw("attention_types")]
        if sum(len(each) * count for each, count in groups) > MOST_LAYERS:
            raise ValueError("more layers than any model has")
        types = [names[n] for each, count in groups for n in each * count]
    except (KeyError, TypeError, ValueError):
        raise fields.error(
            'attention_types is not [[["global", "local"], 12]] or the like; expected such a list'
        ) from None
    if len(types) != layers:
        raise fields.error(f"attention_types has {len(types)} layers; expected {layers}")
    return tuple(types)
