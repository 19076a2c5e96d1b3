"""Torch's own counter as a second opinion on forward passes, op by op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from mfu_torch.records import FlopCount

PRODUCTS = ("aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm")
"""Which of these a product becomes depends on whether its operands require a gradient."""

AGREED = (PRODUCTS, ("aten.convolution",))
"""Ops that torch's counter counts right in a forward pass."""

ONLY_HERE = {
    "aten._scaled_dot_product_flash_attention_for_cpu": "attention on the CPU has no formula there",
    "aten._grouped_mm": "no formula there",
    "aten.mkldnn_rnn_layer": "no formula there",
    "aten.mv": "no formula there",
    "aten.dot": "no formula there",
    "aten.vdot": "no formula there",
    "aten.addbmm": "no formula there",
    "aten._trilinear": "no formula there",
    "aten._cdist_forward": "no formula there",
    "aten._euclidean_dist": "no formula there",
    "aten._fft_c2c": "no formula there",
    "aten._fft_r2c": "no formula there",
    "aten._fft_c2r": "no formula there",
    "aten.linalg_inv_ex": "no formula there",
    "aten._linalg_svd": "no formula there",
    "aten._linalg_solve_ex": "no formula there",
    "aten.linalg_solve_triangular": "no formula there",
    "aten._native_multi_head_attention": "no formula there",
    "aten._transformer_encoder_layer_fwd": "no formula there",
    "aten._sparse_addmm": "counted there as if it were dense, under the name of addmm",
}
"""Ops that torch's counter leaves out, and why."""


def forward_by_torch(
    model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> dict[str, int]:
    """FLOPs of one forward pass without gradients, by op."""
    # Its module tracker hooks the gradients of what requires one, and fails on some views.
    needed = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.requires_grad_(False)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(*args, **kwargs)
    for parameter in needed:
        parameter.requires_grad_(True)
    return {str(op): flops for op, flops in counter.get_flop_counts().get("Global", {}).items()}


def disagreements(ours: FlopCount, theirs: Mapping[str, int]) -> list[str]:
    """Where our forward count and torch's differ without a known reason, as sentences."""
    by_op = ours.by_op
    lines = []
    for ops in () if "aten._sparse_addmm" in by_op else AGREED:
        here, there = (sum(counts.get(op, 0) for op in ops) for counts in (by_op, theirs))
        if here != there:
            lines.append(f"{', '.join(ops)}: {here}, {there} by torch's counter")
    unexplained = by_op.keys() - {op for ops in AGREED for op in ops} - ONLY_HERE.keys()
    return lines + [f"{op}: no reason is known why only one has it" for op in unexplained]
