"""Closed forms of vision and diffusion transformers against what the counter counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formula_models import (
    assert_counted,
    assert_recomputed,
    checkpointed_core,
    core,
    selective,
    trained,
)
from torch import nn

from mfu_torch.flops.formulas import Swin, VisionTransformer, dit, vit
from mfu_torch.flops.formulas.encoders import encoder_block

B, H, HEADS, FFN = 2, 16, 4, 24


def pixels(side: int, channels: int = 3) -> torch.Tensor:
    return torch.randn(B, channels, side, side)


def parameters_of(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def vit_model() -> Any:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=H, num_hidden_layers=3, num_attention_heads=HEADS, intermediate_size=FFN,
        image_size=12, patch_size=4, num_labels=5, attn_implementation="eager",
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return ViTForImageClassification(config)


def vit_form() -> VisionTransformer:
    return vit(image=12, patch=4, layers=3, hidden=H, heads=HEADS, ffn=FFN, classes=5)


def test_vit_by_hand() -> None:
    form = vit(image=4, patch=2, layers=1, hidden=2, heads=1, ffn=3, classes=7).flops(1)
    # 4 patches of 12 numbers; 5 tokens x (16 + 12) weights and 25 pairs; one token x 14
    patches, layer, head = 2 * 4 * 12 * 2, 2 * 5 * 28 + 4 * 25 * 2, 2 * 14
    assert form.forward == patches + layer + head
    assert form.backward == patches + 2 * (layer + head)


def test_vit() -> None:
    model, closed = vit_model(), vit_form()
    form, batch = closed.flops(B), pixels(12)
    assert_counted(form, trained(model, batch))
    assert closed.parameters.total == parameters_of(model)
    base = model.vit
    layers = base.layers if hasattr(base, "layers") else base.encoder.layer
    assert_recomputed(form, model, layers, batch)
    with selective(model):
        assert trained(model, batch).recompute == form.recompute("selective")


def test_a_fused_kernel_computes_the_scores_once_more_beside_the_closed_form() -> None:
    model, form = vit_model(), vit_form().flops(B)
    model.set_attn_implementation("sdpa")
    count = trained(model, pixels(12))
    assert (count.forward, count.backward) == (form.forward, form.backward)
    scores = next(term for term in form.terms if term.name == "scores")
    assert count.kernel_recompute == scores.forward
    assert count.model_causal == count.model  # nothing is masked


def test_registers_and_a_pooler_are_tokens_and_a_product_more() -> None:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    config = Dinov2WithRegistersConfig(
        hidden_size=H, num_hidden_layers=2, num_attention_heads=HEADS, mlp_ratio=2, image_size=8,
        patch_size=4, num_register_tokens=3, attn_implementation="eager",
    )  # fmt: skip
    model = Dinov2WithRegistersModel(config)
    block = encoder_block(layers=2, hidden=H, heads=HEADS, ffn=2 * H)
    closed = VisionTransformer(
        image=(8, 8), patch=(4, 4), hidden=H, blocks=(block,), class_tokens=4
    )
    batch = pixels(8)
    assert_counted(closed.flops(B), trained(lambda x: model(x).last_hidden_state, batch))
    pooled = VisionTransformer(
        image=(8, 8), patch=(4, 4), hidden=H, blocks=(block,), class_tokens=4, has_pooler=True
    )
    assert pooled.flops(B).forward - closed.flops(B).forward == 2 * B * H * H


def test_swin() -> None:
    from transformers import SwinConfig, SwinForImageClassification

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=8, depths=[2, 2], num_heads=[2, 4], window_size=4,
        num_labels=5, attn_implementation="eager", hidden_dropout_prob=0.0, drop_path_rate=0.0,
    )  # fmt: skip
    model = SwinForImageClassification(config)
    closed = Swin(image=32, patch=2, hidden=8, depths=(2, 2), heads=(2, 4), window=4, classes=5)
    assert_counted(closed.flops(B), trained(model, pixels(32)))
    layers = nn.ModuleList(block for stage in model.swin.encoder.layers for block in stage.blocks)
    assert_recomputed(closed.flops(B), model, layers, pixels(32))
    products = [m for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d)]
    assert closed.parameters.weights == sum(m.weight.numel() for m in products)
    # 16 windows of 16 tokens of 8 wide, then 4 of 16: 4 x 16² x width for each window and layer
    attention = closed.flops(B).only("attention").forward
    assert attention == B * 2 * (16 * 4 * 256 * 8 + 4 * 4 * 256 * 16)


class DiTBlock(nn.Module):
    """A layer of arXiv:2212.09748, figure 3: adaLN-Zero."""

    def __init__(self, h: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(h, elementwise_affine=False)
        self.core = core
        self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
        self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)
        self.modulation = nn.Linear(h, 6 * h)

    def forward(self, x: torch.Tensor, condition: torch.Tensor) -> torch.Tensor:
        modulation = self.modulation(F.silu(condition))[:, None].chunk(6, dim=-1)
        shift, scale, gate, shift_2, scale_2, gate_2 = modulation
        y = self.norm(x) * (1 + scale) + shift
        q, k, v = self.qkv(y).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = self.core(q, k, v, None, q.shape[-1] ** -0.5).transpose(1, 2).flatten(2)
        x = x + gate * self.out(attended)
        y = self.norm(x) * (1 + scale_2) + shift_2
        return x + gate_2 * self.down(F.gelu(self.up(y)))


class DiT(nn.Module):
    """A small one for latents of 8 x 8 x 4, classes 0 to 10, the variance learned."""

    def __init__(self, h: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(4, h, 2, stride=2)
        self.time = nn.Sequential(nn.Linear(256, h), nn.SiLU(), nn.Linear(h, h))
        self.labels = nn.Embedding(11, h)
        self.blocks = nn.ModuleList(DiTBlock(h, 4) for _ in range(layers))
        self.norm = nn.LayerNorm(h, elementwise_affine=False)
        self.modulation, self.head = nn.Linear(h, 2 * h), nn.Linear(h, 2 * 2 * 8)

    def forward(self, x: torch.Tensor, waves: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        condition = self.time(waves) + self.labels(label)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(F.silu(condition))[:, None].chunk(2, dim=-1)
        return self.head(self.norm(x) * (1 + scale) + shift)


def test_dit() -> None:
    model, closed = DiT(H, 3), dit(size=8, layers=3, hidden=H, heads=4, labels=11)
    form = closed.flops(B)
    batch = pixels(8, 4), torch.randn(B, 256), torch.randint(11, (B,))
    assert_counted(form, trained(model, *batch))
    assert closed.parameters.total == parameters_of(model)
    assert_recomputed(form, model, model.blocks, *batch)
    for block in model.blocks:
        block.core = checkpointed_core
    assert trained(model, *batch).recompute == form.recompute("selective") > 0


def test_dit_modulates_samples_not_tokens() -> None:
    small, large = (dit(size=s, layers=3, hidden=H, heads=4).flops(5) for s in (8, 16))
    modulation = [
        [term.forward for term in form.terms if "modulation" in term.name]
        for form in (small, large)
    ]
    assert modulation[0] == modulation[1] == [3 * 2 * 5 * H * 6 * H, 2 * 5 * H * 2 * H]


def test_as_published() -> None:
    # torchvision prints 17.564, 4.491 ("GFLOPS", a multiply-add being one) for these weights.
    b16 = vit(layers=12, hidden=768, heads=12, ffn=3072)
    assert (b16.flops().forward, b16.parameters.total) == (35_127_656_448, 86_567_656)
    swin = Swin(hidden=96, depths=(2, 2, 6, 2), heads=(3, 6, 12, 24))
    assert round(swin.flops().forward / 2e9, 3) == 4.491
    # arXiv:2212.09748, table 4: 118.6 Gflops, 675M; with 256 fixed positions 675129632.
    xl = dit(layers=28, hidden=1152, heads=16)
    assert round(xl.flops().forward / 2e9, 1) == 118.6
    assert xl.parameters.total == 675_129_632 - 256 * 1152


def test_absurd_sizes_are_one_clear_line() -> None:
    with pytest.raises(ValueError, match=r"patches of \(5, 5\) do not fill an image of \(12, 12\)"):
        vit(image=12, patch=5, layers=1, hidden=H, heads=4, ffn=FFN)
    with pytest.raises(ValueError, match="seq is 4; a sample of this model has no sequence length"):
        vit_form().flops(1, 4)
    with pytest.raises(ValueError, match="batch is 0"):
        vit_form().flops(0)
    with pytest.raises(ValueError, match="windows of 7 do not fill a stage of side 8"):
        Swin(image=32, hidden=8, depths=(1,), heads=(2,))
    with pytest.raises(ValueError, match="expected one of each for a stage"):
        Swin(hidden=8, depths=(1, 2), heads=(2,))
