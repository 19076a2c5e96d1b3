"""Why matrix time is more than the model's FLOPs at the peak, and what to try."""

from __future__ import annotations

import re
from collections import defaultdict

import numpy as np

from mfu_torch.insight.breakdown.evidence import Evidence, listed
from mfu_torch.insight.breakdown.matrix import LOW_RATE
from mfu_torch.insight.breakdown.precision import Faster, faster
from mfu_torch.insight.breakdown.rates import may_have_tf32
from mfu_torch.insight.breakdown.roofline import matrix_roofs
from mfu_torch.insight.breakdown.shapes import shapes_text
from mfu_torch.insight.breakdown.waves import Finding, findings
from mfu_torch.records.breakdown import Bucket
from mfu_torch.records.losses import GOOD_RATE
from mfu_torch.units import percent, scaled

MUCH = 0.1
"""Share of the matrix time from which a reason is named."""

SMALL_NS = 5_000
"""A product whose FLOPs take less at the peak cannot fill the device for long enough."""

_OPEN = (
    "neither kernels' names nor their grids show why; try larger products (a larger batch, fused "
    'projections), or torch.compile(mode="max-autotune")'
)
_ADVICE = {
    "misaligned": "pad the sizes and strides of its operands to multiples of 16 bytes",
    "old_architecture": "a newer library, or operands aligned to 16 bytes",
    "flash": "a newer attention kernel: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), FlashAttention-3",
    "tail": "sizes that fill whole waves",
    "small_grid": "larger products: a larger batch, fused projections",
    "small": "larger or batched products: a larger batch, fused projections",
    "memory": "fuse it with its neighbours by torch.compile",
    "attention": "scaled_dot_product_attention instead of products and a softmax",
}


def below_peak(of: Evidence, bucket: Bucket) -> str:
    """Efficiency of each family, and the reasons with most time."""
    if bucket.time_ns < 0:
        return ""  # a warning says it
    reasons, advice = _reasons(of)
    better, rates = _faster(of), of.matrix.rates
    said = _efficiencies(of)
    if better is not None and rates is not None:
        said = [f"most of it runs in {rates.reference.dtype}, {better.text}", *said]
        rest = [one for one in advice if one != _ADVICE["old_architecture"]]  # has other kernels
        advice = [f"autocast to {better.dtype} first", *rest]
    what = f"{of.share_of(bucket)} of the time: {listed(said)}"
    if not reasons:
        open_ = _slow(of) and not of.labels.of_ops and better is None
        what += f"; {_OPEN}" if open_ else ""
        return f"{what}. Try: {advice[0]}" if better is not None else what
    return f"{what}; {'; '.join(reasons)}. Try: {'; '.join(dict.fromkeys(advice))}"


def _by_family(of: Evidence) -> dict[str, tuple[float, float, int]]:
    """Ideal seconds of each family, those without masked scores, and its time."""
    found: dict[str, tuple[float, float, int]] = {}
    rates = of.matrix.rates
    if rates is None:
        return {}
    for one in of.matrix.counted.ops:
        if one.step < 0:
            continue
        ideal, kept, time = found.get(one.work.family, (0.0, 0.0, 0))
        rate = rates.of(one.dtype)
        causal = one.work.causal_flops + one.work.kernel_recompute_causal
        new = ideal + one.work.executed / rate, kept + causal / rate, time + one.time_ns
        found[one.work.family] = new
    return {family: sums for family, sums in found.items() if sums[2]}


def _efficiencies(of: Evidence) -> list[str]:
    families = sorted(_by_family(of).items(), key=lambda pair: -pair[1][2])
    said = []
    for family, (ideal, kept, time) in families:
        text = f"{family} reaches {percent(ideal / (time / 1e9))} of its peak"
        if kept < ideal:
            text += f" ({percent(kept / (time / 1e9))} by the scores that its mask keeps)"
        said.append(text)
    return said or ["matrix kernels run below the peak"]


def _faster(of: Evidence) -> Faster | None:
    """The dtype that has far more, where most of it runs in fp32 or TF32."""
    rates = of.matrix.rates
    if rates is None or of.labels.of_ops or rates.reference.dtype not in ("fp32", "tf32"):
        return None
    return faster(of.trace.device_name, rates.reference.dtype)


def _slow(of: Evidence) -> bool:
    return any(ideal / (time / 1e9) < GOOD_RATE for ideal, _, time in _by_family(of).values())


def _reasons(of: Evidence) -> tuple[list[str], list[str]]:
    matrix_ns = int(of.matrix.counted.time_ns.sum())
    kept = [one for one in findings(of.trace, of.matrix.counted) if _counts(one, matrix_ns)]
    by_kind = {one.kind: one for one in kept}
    reasons, advice = [], []
    odd, old = by_kind.get("misaligned"), by_kind.get("old_architecture")
    if odd and old and odd.example == old.example:
        share = percent(odd.time_ns / matrix_ns)
        reasons.append(
            f"{share} of matrix time is in misaligned kernels {old.detail}, {_example(of, odd)}"
        )
        advice += _advice(of, odd)
        kept = [one for one in kept if one not in (odd, old)]
    for one in kept:
        reasons.append(_sentence(of, one, matrix_ns))
        advice += _advice(of, one)
    for kind, reason in (("small", _small(of, matrix_ns)), ("memory", _memory(of, matrix_ns))):
        if reason:
            reasons.append(reason)
            advice.append(_ADVICE[kind])
    return reasons, advice


def _advice(of: Evidence, one: Finding) -> list[str]:
    if "flash" in one.example and one.kind == "old_architecture":
        return [_ADVICE["flash"]]
    plain = "aten::_softmax" in of.trace.names and "aten::bmm" in _shape(of, one)
    return [_ADVICE[one.kind], *([_ADVICE["attention"]] if plain else [])]


def _counts(one: Finding, matrix_ns: int) -> bool:
    # A tail touches all the time of its kernels, and costs a part of it.
    return (one.time_ns if one.lost_ns is None else one.lost_ns) > MUCH * matrix_ns


def _sentence(of: Evidence, one: Finding, matrix_ns: int) -> str:
    share = percent((one.time_ns if one.lost_ns is None else one.lost_ns) / matrix_ns)
    example = _example(of, one)
    if one.kind == "tail":
        return f"{share} of matrix time is lost in last waves ({one.detail}), {example}"
    if one.kind == "small_grid":
        return f"{share} of matrix time is lost as grids do not fill the device ({one.detail})"
    what = "misaligned kernels: " if one.kind == "misaligned" else "kernels "
    return f"{share} of matrix time is in {what}{one.detail}, {example}"


def _example(of: Evidence, one: Finding) -> str:
    return f"e.g. {_kernel(one.example)}{_shape(of, one)}"


def _kernel(name: str) -> str:
    """``cutlass::Kernel2<cutlass_75_x_align1>(cutlass_...)`` -> ``cutlass_75_x_align1``."""
    inner = name.partition("<")[2] if name.startswith("cutlass") else ""
    text = (inner or name).partition(">")[0].partition("(")[0]
    return text if len(text) <= 72 else f"{text[:69]}..."


def _shape(of: Evidence, one: Finding) -> str:
    """Op and shapes of the kernel with most time of a finding."""
    counted, work = of.matrix.counted, of.trace.work
    named = [i for i in np.unique(work.name).tolist() if of.name(i)[:60] == one.example[:60]]
    entries = np.flatnonzero(np.isin(work.name, named) & (counted.of_work >= 0))
    if not len(entries):
        return ""
    longest = int(entries[np.argmax(counted.time_ns[entries])])
    op = counted.ops[counted.of_work[longest]].op
    shapes = shapes_text(of.trace.ops.dims[op])
    return f" in {of.name(of.trace.ops.name[op])} {_cut(shapes)}"


def _small(of: Evidence, matrix_ns: int) -> str:
    rates = of.matrix.rates
    if rates is None:
        return ""
    small = [
        one
        for one in of.matrix.counted.ops
        if one.work.executed / rates.of(one.dtype) * 1e9 < SMALL_NS
    ]
    time_ns = sum(one.time_ns for one in small)
    if time_ns <= MUCH * matrix_ns:
        return ""
    mean = sum(one.work.executed for one in small) / len(small)
    products = of.each(len(small), "small product")
    return (
        f"{percent(time_ns / matrix_ns)} of matrix time is in {products} "
        f"({scaled(mean, 'FLOP')} on average, less than {SMALL_NS // 1000} us at the peak)"
    )


def _memory(of: Evidence, matrix_ns: int) -> str:
    bound = [one for one in matrix_roofs(of.trace, of.matrix) if one.bound == "memory"]
    time_ns = sum(one.time_ns for one in bound)
    if time_ns <= MUCH * matrix_ns:
        return ""
    first = max(bound, key=lambda one: one.time_ns)
    return (
        f"{percent(time_ns / matrix_ns)} of matrix time is bound by memory bandwidth, e.g. "
        f"{first.op} {_cut(first.shapes)} with {first.intensity:.3g} FLOP per byte"
    )


def _cut(shapes: str) -> str:
    # without the arguments that are no tensors
    text = re.sub(r"(,\s*\[\])+\]$", "]", shapes)
    return text if len(text) <= 64 else f"{text[:61]}..."


def recompute(of: Evidence, bucket: Bucket) -> str:
    """Whether checkpointing or attention kernels repeat it."""
    ops = of.matrix.counted.ops
    again = sum(one.work.flops for one in ops if one.recompute)
    kernels = sum(one.work.kernel_recompute for one in ops)
    total = sum(one.work.executed for one in ops)
    if not again and not kernels:
        return (
            f"{of.share_of(bucket)} of the time at the peak: FLOPs that the counter saw computed "
            "twice, and the trace alone does not show (compiled?); checkpoint fewer layers if "
            "memory allows"
        )
    parts = []
    if again:
        count = sum(1 for one in ops if one.recompute)
        parts.append(
            f"{percent(again / total)} of the FLOPs repeat a forward inside the backward "
            f"({of.each(count, 'op')}, activation checkpointing)"
        )
    if kernels:
        parts.append(f"{percent(kernels / total)} are scores that attention backwards repeat")
    advice = "; checkpoint fewer layers if memory allows" if again else ""
    return f"{of.share_of(bucket)} of the time: {listed(parts)}{advice}"


def optimizer(of: Evidence, bucket: Bucket) -> str:
    """That it is the optimizer's, and how many products."""
    ops = [one for one in of.matrix.counted.ops if one.optimizer]
    total = sum(one.work.executed for one in of.matrix.counted.ops)
    share = percent(sum(one.work.flops for one in ops) / total)
    return (
        f"{of.share_of(bucket)} of the time at the peak: {share} of the FLOPs are products of the "
        f"optimizer's step ({of.each(len(ops), 'op')}): a lower precision, fewer iterations, or a "
        "step that is shared among ranks"
    )


def beside_model(of: Evidence, bucket: Bucket) -> str:
    """What may run beside the model's step."""
    perhaps = ", or recompute in a backward that torch.compile made" * of.matrix.counted.compiled
    return (
        f"{of.share_of(bucket)} of the time at the peak: FLOPs beyond the model's, which repeat "
        f"nothing that the trace shows (an evaluation, a teacher, metrics{perhaps}): put an "
        "evaluation in meter.pause, and run the rest less often, smaller or in a lower precision"
    )


def low_rate_dtype(of: Evidence, bucket: Bucket) -> str:
    """Which dtype, and how much slower it is."""
    rates = of.matrix.rates
    if rates is None:
        return ""
    reference = rates.reference
    slower: dict[str, int] = defaultdict(int)
    total = 0
    for one in of.matrix.counted.ops:
        total += one.work.executed
        if one.dtype and rates.of(one.dtype) < reference.flops_per_s:
            slower[one.dtype] += one.work.executed
    if not slower:
        return ""
    dtype, flops = max(slower.items(), key=lambda pair: pair[1])
    times_slower = reference.flops_per_s / rates.of(dtype)
    advice = (
        'let fp32 run as TF32 (torch.set_float32_matmul_precision("high")) or autocast it'
        if dtype == "fp32" and may_have_tf32(of.trace.device_name)
        else f"autocast it to {reference.dtype}"
    )
    top = of.matrix.top_work.get(LOW_RATE)
    example = ""
    if top is not None and not of.labels.of_ops and top.any():
        example = f", e.g. {_kernel(of.name(of.trace.work.name[int(np.argmax(top))]))}"
    return (
        f"{of.share_of(bucket)} of the time: {percent(flops / total)} of the FLOPs run in "
        f"{dtype}, whose peak is 1/{times_slower:.3g} of {reference.dtype}'s{example}; {advice}"
    )


def unknown_flops(of: Evidence, bucket: Bucket) -> str:
    """The reason with most time."""
    why = of.matrix.counted.why_unknown
    if not any(why.values()):
        return ""
    reason = max(why, key=lambda text: why[text])
    first = of.most(bucket)
    example = f", e.g. {_kernel(first)}" if first else ""
    return (
        f"{of.share_of(bucket)} of the time is in matrix kernels of unknown FLOPs{example}: "
        f"{reason}; give the model FLOPs of a step (--model-flops) to place them"
    )


def whole(of: Evidence, bucket: Bucket) -> str:
    """The rate that was reached, where there is no peak to compare it with."""
    if of.labels.of_ops and of.trace.warnings:
        return (
            f"{of.share_of(bucket)} of the time the host is in matrix ops; how long they take "
            "on the device is not read: see the warning"
        )
    counted = of.matrix.counted
    known_ns = int(counted.time_ns[counted.known].sum())
    flops = sum(one.work.executed for one in counted.ops if one.step >= 0)
    if not flops or not known_ns:
        why = counted.why_unknown
        reason = max(why, key=lambda text: why[text], default="")
        return (
            f"{of.share_of(bucket)} of the time, in kernels whose FLOPs are not known: "
            f"{reason}; the model FLOPs of a step, a peak and its dtype give the MFU all the same "
            "(--model-flops, --peak, --dtype)"
        )
    rate = scaled(flops / (known_ns / 1e9), "FLOP/s")
    known = known_ns / max(int(counted.time_ns.sum()), 1)
    those = "matrix kernels" if known == 1 else f"the {percent(known)} of known FLOPs"
    return (
        f"{of.share_of(bucket)} of the time; {those} run at {rate}: give the device's peak "
        "(--peak) to see how far below it that is"
    )
