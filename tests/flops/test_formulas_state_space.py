"""Closed forms of Mamba and Mamba-2 against what the counter counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formula_models import assert_counted, assert_recomputed, trained
from torch import nn

from mfu_torch.flops.formulas import (
    MLP,
    Attention,
    Block,
    Decoder,
    Mamba,
    Mamba2,
    Sequences,
    mamba,
    mamba2,
)

B, H, V, L = 2, 16, 50, 3


def ids(seq: int) -> torch.Tensor:
    return torch.randint(1, V, (B, seq))


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def mamba_model(**changes: Any) -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(
        MambaConfig(
            hidden_size=H, expand=2, state_size=4, time_step_rank=3, conv_kernel=4,
            num_hidden_layers=L, vocab_size=V, use_cache=False, **changes,
        )
    )  # fmt: skip


def mamba2_model() -> Any:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    return Mamba2ForCausalLM(
        Mamba2Config(
            hidden_size=H, expand=2, state_size=6, num_heads=4, head_dim=8, n_groups=2,
            chunk_size=4, num_hidden_layers=L, vocab_size=V, use_cache=False,
            tie_word_embeddings=True,
        )
    )  # fmt: skip


MAMBA: dict[str, Any] = {"layers": L, "hidden": H, "vocab": V, "state": 4, "rank": 3}
MAMBA2: dict[str, Any] = {
    "layers": L, "hidden": H, "vocab": V, "heads": 4, "head_dim": 8, "state": 6, "groups": 2,
    "chunk": 4,
}  # fmt: skip


def test_mamba_by_hand() -> None:
    part = Mamba(inner=4, state=3, rank=1, kernel=2)
    weights = [linear.weights for linear in part.linears(2)]
    assert weights == [2 * 8, 4 * 7, 1 * 4, 4 * 2]
    convolution, scan = part.cores(Sequences.of(1, 5), "full")
    assert (convolution.forward, scan.forward) == (2 * 5 * 4 * 2, 2 * 5 * 4 * 3)


def test_mamba2_by_hand() -> None:
    part = Mamba2(heads=4, head_dim=2, state=3, groups=2, chunk=4, kernel=2)
    assert [linear.weights for linear in part.linears(5)] == [5 * (2 * 8 + 2 * 2 * 3 + 4), 8 * 5]
    terms = {term.name: term.forward for term in part.cores(Sequences.of(1, 10), "full")}
    # Chunks of 4, 4 and 2 tokens have 36 pairs.
    assert terms == {
        "convolution": 2 * 10 * (8 + 12) * 2,
        "chunk_scores": 2 * 36 * 2 * 3,
        "chunk_outputs": 2 * 36 * 8,
        "chunk_states": 2 * 10 * 8 * 3,
        "read_out": 2 * 10 * 8 * 3,
    }


def test_mamba_of_transformers() -> None:
    model, closed = mamba_model(), mamba(**MAMBA, form="torch")
    assert_counted(closed.flops(B, 10), trained(model, ids(10)))
    assert closed.parameters.total == parameters_of(model)


def test_mamba_without_kernels_convolves_what_is_behind_a_sequence_and_drops_it() -> None:
    torch_form, kernel = (mamba(**MAMBA, form=f).flops(B, 10) for f in ("torch", "kernel"))
    assert torch_form.forward - kernel.forward == L * 2 * B * (4 - 1) * (2 * H) * 4


@pytest.mark.parametrize("seq", [12, 10, 3])
def test_mamba2_of_transformers(seq: int) -> None:
    model, closed = mamba2_model(), mamba2(**MAMBA2, form="torch")
    assert_counted(closed.flops(B, seq), trained(model, ids(seq)))
    assert closed.parameters.total == parameters_of(model)


def test_what_transformers_computes_beyond_the_kernels() -> None:
    torch_form, kernel = (mamba2(**MAMBA2, form=f).flops(B, 12) for f in ("torch", "kernel"))
    behind = 2 * B * (4 - 1) * (32 + 2 * 2 * 6) * 4
    repeated = 2 * B * 12 * 4 * (4 - 2) * 6  # scores of each head, not of each group
    passing = 2 * B * (3 + 1) ** 2 * 32 * 6
    assert torch_form.forward - kernel.forward == L * (behind + repeated + passing)


class SSD(nn.Module):
    """The mixer of arXiv:2405.21060, section 6, as its kernels compute it: a scan over chunks."""

    def __init__(self, part: Mamba2, h: int) -> None:
        super().__init__()
        self.part, self.inner = part, part.heads * part.head_dim
        self.into = nn.Linear(h, self.inner + part.filtered + part.heads, bias=False)
        self.filters = nn.Conv1d(part.filtered, part.filtered, part.kernel, groups=part.filtered)
        self.out = nn.Linear(self.inner, h, bias=False)

    def forward(self, u: torch.Tensor) -> torch.Tensor:
        part, (b, s, _), c = self.part, u.shape, self.part.chunk
        gate, x, step = self.into(u).split([self.inner, part.filtered, part.heads], -1)
        x = self.filters(F.pad(x.transpose(1, 2), (part.kernel - 1, 0))).transpose(1, 2)
        states = part.groups * part.state
        x, into, out = x.split([self.inner, states, states], -1)
        decay = -F.softplus(step).view(b, -1, c, part.heads).cumsum(2)  # (b, chunks, c, heads)
        into, out = (m.reshape(b, -1, c, part.groups, part.state) for m in (into, out))
        x = x.reshape(b, -1, c, part.heads, part.head_dim)
        scores = torch.einsum("bzlgn,bzsgn->bzgls", out, into)  # of each group
        each = part.heads // part.groups
        mask = (decay[:, :, :, None] - decay[:, :, None]).exp().permute(0, 1, 4, 2, 3).tril()
        y = torch.einsum("bzhls,bzshp->bzlhp", scores.repeat_interleave(each, 2) * mask, x)
        wide = into.repeat_interleave(each, 3), out.repeat_interleave(each, 3)
        left = (decay[:, :, -1:] - decay).exp()[..., None]
        added = torch.einsum("bzlhn,bzlhp->bzhpn", wide[0] * left, x)
        state, before = torch.zeros_like(added[:, 0]), []
        for z in range(s // c):
            before.append(state)
            state = state * decay[:, z, -1, :, None, None].exp() + added[:, z]
        read = torch.einsum("bzlhn,bzhpn->bzlhp", wide[1], torch.stack(before, 1))
        y = (y + read * decay.exp()[..., None]).reshape(b, s, self.inner)
        return self.out(y * F.silu(gate))


class Residual(nn.Module):
    """A norm, a mixer and the sum."""

    def __init__(self, mixer: nn.Module, h: int) -> None:
        super().__init__()
        self.norm, self.mixer = nn.LayerNorm(h), mixer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.mixer(self.norm(x))


def test_mamba2_as_its_kernels_compute_it() -> None:
    part = Mamba2(heads=4, head_dim=8, state=6, groups=2, chunk=4)
    model = nn.Sequential(*[Residual(SSD(part, H), H) for _ in range(L)])
    closed = Decoder(hidden=H, vocab=V, blocks=(Block(parts=(part,), count=L),), has_head=False)
    x = torch.randn(B, 12, H, requires_grad=True)
    assert_counted(closed.flops(B, 12), trained(model, x))


@pytest.mark.parametrize("name", ["mamba", "mamba2"])
def test_a_checkpoint_leaves_out_the_last_projection(name: str) -> None:
    closed: Decoder = (
        mamba(**MAMBA, form="torch") if name == "mamba" else mamba2(**MAMBA2, form="torch")
    )
    model = mamba_model() if name == "mamba" else mamba2_model()
    form = closed.flops(B, 12)
    assert form.recompute("full") - form.recompute("checkpoint") == L * 2 * B * 12 * 2 * H * H
    assert_recomputed(form, model, model.backbone.layers, ids(12))


def test_a_hybrid_is_made_of_blocks() -> None:
    attention = Attention(heads=4, kv_heads=2, head_dim=4)
    mixer = Mamba(inner=2 * H, state=4, rank=3)
    blocks = (Block(parts=(mixer, MLP(width=24)), count=3), Block(parts=(attention, MLP(width=24))))
    form = Decoder(hidden=H, vocab=V, blocks=blocks).flops(B, 12)
    alone = Decoder(hidden=H, vocab=V, blocks=(Block(parts=(mixer,)),)).flops(B, 12)
    scans = [f.only("convolution", "scan").training for f in (form, alone)]
    assert scans[0] == 3 * scans[1]
    assert form.only("attention").forward == 4 * B * 12 * 12 * H


def test_jamba_of_transformers() -> None:
    from transformers import JambaConfig, JambaForCausalLM

    model = JambaForCausalLM(
        JambaConfig(
            hidden_size=H, intermediate_size=24, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, vocab_size=V, attn_layer_period=4, attn_layer_offset=2,
            num_experts=1, mamba_d_state=4, mamba_d_conv=4, mamba_expand=2, mamba_dt_rank=3,
            use_mamba_kernels=False, use_cache=False, attn_implementation="eager",
        )
    )  # fmt: skip
    mixer = Mamba(inner=2 * H, state=4, rank=3, form="torch")
    attention = Attention(heads=4, kv_heads=2, head_dim=4)
    closed = Decoder(
        hidden=H,
        vocab=V,
        blocks=(
            Block(parts=(mixer, MLP(width=24)), count=3),
            Block(parts=(attention, MLP(width=24))),
        ),
    )
    assert_counted(closed.flops(B, 12), trained(model, ids(12)))
    assert_recomputed(closed.flops(B, 12), model, model.model.layers, ids(12))


def test_published_sizes() -> None:
    assert mamba(layers=24, hidden=768, vocab=50280).parameters.total == 129_135_360
    assert mamba2(layers=24, hidden=768, vocab=50288).parameters.total == 128_989_632
    form = mamba2(layers=64, hidden=2560, vocab=50288).flops(1, 2048)
    assert form.forward == 11_762_137_038_848
    # 2 t L (Q G N + Q e + 2 e N) with Q 256, N 128 and e 5120
    assert form.only("scan").forward == 2 * 2048 * 64 * (256 * 128 + 256 * 5120 + 2 * 5120 * 128)


def test_absurd_sizes_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match="groups is 3; expected a divisor of heads 4"):
        Mamba2(heads=4, groups=3)
    with pytest.raises(ValueError, match="form is 'cuda'; expected one of kernel, torch"):
        Mamba(inner=4, rank=1, form="cuda")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="state is 0"):
        mamba(layers=1, hidden=H, vocab=V, state=0)
