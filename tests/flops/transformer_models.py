"""Attention, checkpoints and small transformers with closed forms; they join the same zoo."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from models import ZOO, Case, case
from torch import nn
from torch.utils.checkpoint import checkpoint


class Attention(nn.Module):
    """q, k and v are slices of one tensor times a scalar parameter, which costs no FLOPs."""

    def __init__(self, kv_heads: int = 4, d_v: int = 16, **options: object) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.kv_heads, self.d_v, self.options = kv_heads, d_v, options

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = x * self.scale
        k, v = q[:, : self.kv_heads], q[:, : self.kv_heads, :, : self.d_v]
        return F.scaled_dot_product_attention(q, k, v, **self.options)


# 2 x 4 heads, 32 x 32 scores, 16 wide: two products forward, four backward, one again.
SCORES = 2 * 2 * 4 * 32 * 32 * 16


@case
def attention() -> Case:
    x = (torch.randn(2, 4, 32, 16),)
    return Case(Attention(), x, 2 * SCORES, 6 * SCORES, 7 * SCORES)


@case
def causal_attention() -> Case:
    return attention()._replace(model=Attention(is_causal=True))


@case
def grouped_query_attention() -> Case:
    return attention()._replace(model=Attention(kv_heads=2, enable_gqa=True))


@case
def attention_with_dropout() -> Case:
    # No fused kernel on the CPU: nothing is computed twice.
    return attention()._replace(model=Attention(dropout_p=0.5), hardware=6 * SCORES)


@case
def attention_with_narrow_values() -> Case:
    # d_v is half of d_qk: the products with v cost half. Not fused on the CPU either.
    flops = SCORES + SCORES // 2
    x = (torch.randn(2, 4, 32, 16),)
    return Case(Attention(d_v=8), x, flops, 3 * flops, 3 * flops)


@case
def multi_head_attention() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(64, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.attention(x, x, x, need_weights=False)[0]

    b, s, d = 2, 32, 64
    project = 2 * b * s * 3 * d * d
    flops = project + 2 * b * s * d * d + 4 * b * s * s * d
    step = 3 * flops - project
    return Case(Model(), (torch.randn(b, s, d),), flops, step, step + 2 * b * s * s * d)


@case
def encoder_layer() -> Case:
    b, s, d = 2, 32, 64
    model = nn.TransformerEncoderLayer(d, 4, 256, batch_first=True, dropout=0.0)
    project = 2 * b * s * 3 * d * d
    flops = project + 2 * b * s * d * d + 4 * b * s * s * d + 2 * b * s * 2 * d * 256
    step = 3 * flops - project
    return Case(model, (torch.randn(b, s, d),), flops, step, step + 2 * b * s * s * d)


# --- checkpointing ---------------------------------------------------------------------------


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant: bool) -> None:
        super().__init__()
        self.stem, self.use_reentrant = nn.Linear(64, 128), use_reentrant
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(4)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return x


@case
def reentrant_checkpoint() -> Case:
    stem, half_block = 2 * 16 * 64 * 128, 2 * 16 * 128 * 256
    flops = stem + 4 * 2 * half_block
    step = 3 * flops - stem
    x = (torch.randn(16, 64),)
    again = 4 * 2 * half_block
    return Case(Checkpointed(use_reentrant=True), x, flops, step, step + again, recompute=again)


@case
def checkpoint_that_stops_early() -> Case:
    # The recomputation ends with the last tensor that is needed: the input of the last layer.
    model = Checkpointed(use_reentrant=False)
    case = reentrant_checkpoint()
    again = 4 * 2 * 16 * 128 * 256
    return case._replace(model=model, hardware=case.step + again, recompute=again)


# --- transformers ----------------------------------------------------------------------------


def gpt2(attn: str, layers: int = 2, seq: int = 32) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    b, d, vocab = 2, 64, 1000
    config = GPT2Config(
        n_embd=d, n_layer=layers, n_head=4, vocab_size=vocab, n_positions=64, use_cache=False,
        bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=attn,
    )  # fmt: skip
    tokens = b * seq
    per_layer = 2 * tokens * (3 * d * d + d * d + 8 * d * d) + 4 * b * seq * seq * d
    flops = layers * per_layer + 2 * tokens * d * vocab
    again = layers * 2 * b * seq * seq * d if attn == "sdpa" else 0
    ids = torch.randint(0, vocab, (b, seq))
    return Case(GPT2LMHeadModel(config), (ids,), flops, 3 * flops, 3 * flops + again)


def llama(attn: str, layers: int = 4, seq: int = 32) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    b, d, ffn, heads, kv_heads, vocab = 2, 64, 176, 8, 2, 1000
    config = LlamaConfig(
        hidden_size=d, intermediate_size=ffn, num_hidden_layers=layers, vocab_size=vocab,
        num_attention_heads=heads, num_key_value_heads=kv_heads, attn_implementation=attn,
        use_cache=False, pad_token_id=0,
    )  # fmt: skip
    tokens, d_kv = b * seq, d * kv_heads // heads
    per_layer = 2 * tokens * (2 * d * d + 2 * d * d_kv + 3 * d * ffn) + 4 * b * seq * seq * d
    flops = layers * per_layer + 2 * tokens * d * vocab
    again = layers * 2 * b * seq * seq * d if attn == "sdpa" else 0
    ids = torch.randint(0, vocab, (b, seq))
    return Case(LlamaForCausalLM(config), (ids,), flops, 3 * flops, 3 * flops + again)


def mixtral(experts: str) -> Case:
    from transformers import MixtralConfig, MixtralForCausalLM

    b, seq, d, ffn, layers, vocab = 2, 64, 64, 96, 2, 500
    heads, kv_heads, n_experts, top_k = 4, 2, 4, 2
    config = MixtralConfig(
        hidden_size=d, intermediate_size=ffn, num_hidden_layers=layers, vocab_size=vocab,
        num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=d // heads,
        num_local_experts=n_experts, num_experts_per_tok=top_k, attn_implementation="eager",
        use_cache=False, pad_token_id=0,
    )  # fmt: skip
    model = MixtralForCausalLM(config)
    model.set_experts_implementation(experts)
    tokens, d_kv = b * seq, d * kv_heads // heads
    dense = 2 * tokens * (2 * d * d + 2 * d * d_kv) + 4 * b * seq * seq * d
    per_layer = dense + 2 * tokens * d * n_experts + 2 * tokens * top_k * 3 * d * ffn
    flops = layers * per_layer + 2 * tokens * d * vocab
    return Case(model, (torch.randint(0, vocab, (b, seq)),), flops, 3 * flops)


def vit() -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    b, d, ffn, layers, patch, image = 4, 96, 384, 2, 16, 64
    config = ViTConfig(
        hidden_size=d, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=3,
        image_size=image, patch_size=patch, num_labels=10, attn_implementation="sdpa",
    )  # fmt: skip
    patches = (image // patch) ** 2
    seq = patches + 1
    embed = 2 * b * patches * 3 * patch * patch * d
    per_layer = 2 * b * seq * (4 * d * d + 2 * d * ffn) + 4 * b * seq * seq * d
    flops = embed + layers * per_layer + 2 * b * d * 10
    model = ViTForImageClassification(config)
    step = 3 * flops - embed
    again = layers * 2 * b * seq * seq * d
    return Case(model, (torch.randn(b, 3, image, image),), flops, step, step + again)


def bert() -> Case:
    from transformers import BertConfig, BertForMaskedLM

    b, seq, d, ffn, layers, vocab = 2, 24, 64, 256, 2, 500
    config = BertConfig(
        hidden_size=d, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=4,
        vocab_size=vocab, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )  # fmt: skip
    tokens, scores = b * seq, 2 * b * seq * seq * d
    flops = layers * (2 * tokens * (4 * d * d + 2 * d * ffn) + 2 * scores)
    flops += 2 * tokens * (d * d + d * vocab)
    ids = torch.randint(0, vocab, (b, seq))
    return Case(BertForMaskedLM(config), (ids,), flops, 3 * flops, 3 * flops + layers * scores)


def t5() -> Case:
    from transformers import T5Config, T5ForConditionalGeneration

    b, s_in, s_out, d, d_kv, heads, ffn, layers, vocab = 2, 20, 12, 64, 8, 4, 128, 2, 500
    config = T5Config(
        d_model=d, d_kv=d_kv, num_heads=heads, d_ff=ffn, num_layers=layers, vocab_size=vocab,
        num_decoder_layers=layers, dropout_rate=0.0, use_cache=False, decoder_start_token_id=0,
        attn_implementation="eager",
    )  # fmt: skip
    inner = heads * d_kv

    def projections(queries: int, keys: int) -> int:
        return 2 * b * (queries * 2 * d * inner + keys * 2 * d * inner)  # q and out, k and v

    def scores(queries: int, keys: int) -> int:
        return 4 * b * queries * keys * inner

    encoder = projections(s_in, s_in) + scores(s_in, s_in) + 2 * b * s_in * 2 * d * ffn
    decoder = projections(s_out, s_out) + scores(s_out, s_out) + 2 * b * s_out * 2 * d * ffn
    cross = projections(s_out, s_in) + scores(s_out, s_in)
    flops = layers * (encoder + decoder + cross) + 2 * b * s_out * d * vocab
    ids, out = torch.randint(1, vocab, (b, s_in)), torch.randint(1, vocab, (b, s_out))
    batch = (ids, torch.ones_like(ids), out)
    return Case(T5ForConditionalGeneration(config), batch, flops, 3 * flops)


def mamba() -> Case:
    from transformers import MambaConfig, MambaForCausalLM

    b, seq, d, inner, state, rank, kernel, layers, vocab = 2, 10, 16, 32, 4, 3, 4, 2, 100
    config = MambaConfig(
        hidden_size=d, expand=2, state_size=state, time_step_rank=rank, conv_kernel=kernel,
        num_hidden_layers=layers, vocab_size=vocab, use_cache=False,
    )  # fmt: skip
    tokens = b * seq
    per_layer = 2 * tokens * (d * 2 * inner + inner * d)  # in and out
    per_layer += 2 * b * (seq + kernel - 1) * inner * kernel  # padded on both sides
    per_layer += 2 * tokens * (inner * (rank + 2 * state) + rank * inner)
    per_layer += 2 * tokens * inner * state  # the scan's read-out; its update is elementwise
    flops = layers * per_layer + 2 * tokens * d * vocab
    ids = torch.randint(0, vocab, (b, seq))
    return Case(MambaForCausalLM(config), (ids,), flops, 3 * flops)


class Adapted(nn.Module):
    """A frozen linear layer and a trained detour of rank ``r``."""

    def __init__(self, base: nn.Linear, r: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, r, bias=False)
        self.up = nn.Linear(r, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + self.up(self.down(x))


def llama_with_lora() -> Case:
    plain, layers, r = llama("eager", layers=2), 2, 4
    b, seq, d, ffn, d_kv, vocab = 2, 32, 64, 176, 16, 1000
    tokens, product = b * seq, 2 * b * seq * seq * d
    model = plain.model.requires_grad_(False)
    for layer in model.model.layers:
        layer.self_attn.q_proj = Adapted(layer.self_attn.q_proj, r)
        layer.self_attn.v_proj = Adapted(layer.self_attn.v_proj, r)
    down, up = 2 * 2 * tokens * d * r, 2 * tokens * r * (d + d_kv)  # of q and v together
    forward = plain.forward + layers * (down + up)
    # What the gradient of the trained part flows through in every layer: out, gate, up, down, and
    # the products for q, v and the scores. What is before it, from the second layer on: q, k, v,
    # the product for k, and the detours' inputs.
    every = 2 * tokens * (d * d + 3 * d * ffn) + 3 * product + 2 * up + down
    later = 2 * tokens * (d * d + 2 * d * d_kv) + product + down
    backward = layers * every + (layers - 1) * later + 2 * tokens * d * vocab
    return Case(model, plain.batch, forward, forward + backward)


def conv1d_of_gpt2() -> Case:
    from transformers.pytorch_utils import Conv1D

    flops = 2 * 4 * 32 * 64 * 192
    return Case(nn.Sequential(Conv1D(192, 64)), (torch.randn(4, 32, 64),), flops, 2 * flops)


for _attn in ("eager", "sdpa"):
    ZOO[f"gpt2_{_attn}"] = lambda attn=_attn: gpt2(attn)  # type: ignore[misc]
    ZOO[f"llama_{_attn}"] = lambda attn=_attn: llama(attn)  # type: ignore[misc]
for _experts in ("eager", "batched_mm", "grouped_mm"):
    ZOO[f"mixtral_{_experts}"] = lambda experts=_experts: mixtral(experts)  # type: ignore[misc]
for _build in (vit, bert, t5, mamba, llama_with_lora, conv1d_of_gpt2):
    ZOO[_build.__name__] = _build
