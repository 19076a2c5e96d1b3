"""What a plan takes for granted, one sentence each."""

from __future__ import annotations

from mfu_torch.calculator.plan.errors import MIXTURES
from mfu_torch.calculator.plan.layout import Layout
from mfu_torch.calculator.plan.memory import KNOWN
from mfu_torch.calculator.plan.stage import layer_parts
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.parts import Experts


def has_experts(model: Decoder) -> bool:
    """Whether it is a mixture of experts."""
    return any(isinstance(part, Experts) for _, part in layer_parts(model))


def assumptions(model: Decoder, layout: Layout, dtype: str) -> list[str]:
    """Of the layout and the model; those of the machine are its notes."""
    found = [
        "layers take equally long wherever they are; the head is on the last stage",
        "activations travel in bf16; gradients are accumulated and reduced in fp32",
        f"attention is {layout.attention}: "
        + (
            "masked scores are not computed, none are stored, the backward computes them again; no "
            "dropout"
            if layout.attention == "fused"
            else "all scores are computed, stored and read again; dropout, as in GPT-3's time"
        ),
        f"ranks are placed {layout.order}, neighbours first",
    ]
    found.append(_overlap_text(layout))
    if layout.recompute == "selective" and layout.attention == "fused":
        found.append(
            "selective recompute changes nothing: fused attention stores no scores to compute again"
        )
    if dtype == "fp8":
        found.append("all products run in fp8, attention and the head, too")
    if len(model.blocks) > 1:
        found.append("layers of several kinds are spread over the stages as if all were the mean")
    if has_experts(model):
        found.append("tokens are routed evenly over experts; none is dropped or padded")
        found.append(
            "products of experts are taken to be as fast as any: three published steps of mixtures "
            f"took {MIXTURES[0]} to {MIXTURES[1]} times as long as planned"
        )
    unknown = {type(part).__name__ for _, part in layer_parts(model) if not isinstance(part, KNOWN)}
    if unknown:
        listed = ", ".join(sorted(unknown))
        found.append(f"{listed}: activations inside, and operations without a product, left out")
    if model.mtp:
        found.append("layers for further tokens (MTP) run on the last stage: their matmuls alone")
    found.append(
        "memory: 18 bytes a parameter (bf16, fp32 gradients, Adam in fp32), activations by "
        "Korthikanti et al. 2022, eq. 1-5; without buffers and fragments"
    )
    found.append("no stragglers, failures, congestion, data waits, evaluation or checkpoints")
    return found


def _overlap_text(layout: Layout) -> str:
    if not layout.overlap:
        return "no communication runs beside compute (--overlap)"
    listed = ", ".join(layout.overlap)
    text = (
        f"beside compute (--overlap): communication of {listed}, together up to the matmuls of its "
        "micro-batch"
    )
    if "dp" in layout.overlap and layout.zero < 3:
        text += "; the gradients, once a step, up to those of one micro-batch"
    return text
