"""Whether two runs do the same work: FLOPs for a token, shapes, dtypes, what was left uncounted."""

from __future__ import annotations

from collections.abc import Iterator

from mfu_torch.insight.compare.facet import Facet
from mfu_torch.insight.compare.record import (
    EVERYTHING,
    UTILIZATIONS,
    Difference,
    Group,
)
from mfu_torch.records import Attention
from mfu_torch.units import percent, scaled, significant

_SAME = 1e-6
"""Relative: FLOPs are whole numbers, and a mean of them differs by rounding alone."""
_MIX = 0.01
"""Relative: FLOPs for a token that another mix of the same shapes may change in a comparison."""
_DTYPE_SHARE = 0.01
_RECOMPUTE = 0.005
_BATCH = 1e-3


def work_differences(a: Facet, b: Facet) -> Iterator[Difference]:
    """What each of two runs computes, where it is not the same."""
    yield from _model(a, b)
    if not a.known or not b.known:
        return
    yield from _flops(a, b)
    yield from _dtypes(a, b)
    yield from _recompute(a, b)
    yield from _uncounted(a, b)
    yield from _methods(a, b)


def _model(a: Facet, b: Facet) -> Iterator[Difference]:
    texts = [_model_text(each) for each in (a, b)]
    if texts[0] != texts[1]:
        why = "not the same model; whether it does the same work is in its FLOPs"
        yield Difference(aspect="model", a=texts[0], b=texts[1], why=why)


def _model_text(facet: Facet) -> str:
    header = facet.run.header
    parts = [header.model or "not named"]
    if header.parameters is not None:
        parts.append(f"{header.parameters:,} parameters")
    if header.trainable is not None and header.trainable != header.parameters:
        parts.append(f"{header.trainable:,} trainable")
    return ", ".join(parts)


def _same_model(a: Facet, b: Facet) -> bool:
    return a.run.header.parameters is not None and _model_text(a) == _model_text(b)


def _flops(a: Facet, b: Facet) -> Iterator[Difference]:
    """FLOPs for a token, or sample, or step: the same, or explained by the shapes, or not."""
    conventions = {facet.run.header.attention for facet in (a, b)}
    attention: Attention = conventions.pop() if len(conventions) == 1 else "full"
    unit, amounts = _unit(a, b)
    each = [f.model(attention) / n for f, n in zip((a, b), amounts, strict=True)]
    if max(each) <= min(each) * (1 + _SAME):
        return
    apart = max(each) / min(each) - 1 if min(each) else float("inf")
    texts = [scaled(flops, "FLOP") for flops in each]
    if texts[0] == texts[1]:
        texts = [scaled(flops, "FLOP", 7) for flops in each]
    forbids, why = _explained(a, b, attention, apart)
    yield Difference(aspect=f"FLOPs per {unit}", a=texts[0], b=texts[1], forbids=forbids, why=why)


def _unit(a: Facet, b: Facet) -> tuple[str, tuple[int, int]]:
    for noun in ("token", "sample"):
        one, other = a.total(f"{noun}s"), b.total(f"{noun}s")
        if one and other:
            return noun, (one, other)
    return "step", (len(a.steady), len(b.steady))


def _explained(
    a: Facet, b: Facet, attention: Attention, apart: float
) -> tuple[tuple[Group, ...], str]:
    """What other FLOPs forbid, and why."""
    estimated = max(f.figures.uncertainty or 0.0 for f in (a, b))
    if apart <= estimated:
        return (), f"they are estimated within {percent(estimated)}, and differ by less"
    shapes = a.flops_by_shape(attention), b.flops_by_shape(attention)
    shared = shapes[0].keys() & shapes[1].keys()
    if _same_model(a, b) and (a.uncounted != b.uncounted or _given(a) != _given(b)):
        return UTILIZATIONS, "the same model, whose FLOPs are not known in the same way"
    if any(shapes[0][shape].isdisjoint(shapes[1][shape]) for shape in shared):
        why = (
            "other FLOPs for steps of the same size: another model, other inputs, or another count"
        )
        return EVERYTHING, why
    if shared and apart <= _MIX:
        return (), f"the same shapes in another mix: throughput may differ by {percent(apart)}"
    if shared:
        return ("throughput", "step time"), "other shapes: a token or sample is not the same work"
    lengths = [_length(facet) for facet in (a, b)]
    if _same_model(a, b) and None not in lengths and lengths[0] != lengths[1]:
        texts = " and ".join(significant(each, 4) for each in lengths if each is not None)
        return (
            ("throughput", "step time"),
            f"the same model on sequences of {texts} tokens: a token is not the same work",
        )
    return EVERYTHING, "other work, and nothing that was recorded explains it"


def _length(facet: Facet) -> float | None:
    """Tokens in a sample; ``None`` where one of the two is not known."""
    tokens, samples = facet.total("tokens"), facet.total("samples")
    return tokens / samples if tokens and samples else None


def _dtypes(a: Facet, b: Facet) -> Iterator[Difference]:
    names = a.by_dtype.keys() | b.by_dtype.keys()
    apart = max((abs(a.by_dtype.get(n, 0) - b.by_dtype.get(n, 0)) for n in names), default=0)
    if apart > _DTYPE_SHARE:
        texts = [
            ", ".join(f"{dtype} {percent(share)}" for dtype, share in facet.by_dtype.items())
            for facet in (a, b)
        ]
        why = "every dtype has a peak of its own, so MFU is a share of another one"
        yield Difference(aspect="dtypes", a=texts[0], b=texts[1], forbids=UTILIZATIONS, why=why)


def _recompute(a: Facet, b: Facet) -> Iterator[Difference]:
    if not a.model("full") or not b.model("full"):
        return
    ratios = [facet.hardware / facet.model("full") for facet in (a, b)]
    if abs(ratios[0] - ratios[1]) > _RECOMPUTE * min(ratios):
        texts = [f"hardware FLOPs {significant(ratio, 4)} x model FLOPs" for ratio in ratios]
        why = "MFU leaves recompute out; a change of HFU is in part that of recompute"
        yield Difference(aspect="recompute", a=texts[0], b=texts[1], why=why)


def _uncounted(a: Facet, b: Facet) -> Iterator[Difference]:
    if not a.uncounted and not b.uncounted:
        return
    texts = [", ".join(sorted(facet.uncounted)) or "nothing" for facet in (a, b)]
    if a.uncounted == b.uncounted:
        why = "both MFUs are lower bounds, since ops have no formula"
        yield Difference(aspect="not counted", a=texts[0], b=texts[1], why=why)
        return
    why = "one MFU lacks work that the other counts -> mfu_torch.register_flops(op, formula)"
    yield Difference(aspect="not counted", a=texts[0], b=texts[1], forbids=UTILIZATIONS, why=why)


def _given(facet: Facet) -> bool:
    return any(count.given for count, _ in facet.known)


def _methods(a: Facet, b: Facet) -> Iterator[Difference]:
    given = [_given(facet) for facet in (a, b)]
    if given[0] != given[1]:
        texts = ["given by the user" if each else "counted" for each in given]
        why = "FLOPs that are given may follow another convention than those that are counted"
        yield Difference(aspect="how FLOPs are known", a=texts[0], b=texts[1], why=why)
    off = [facet.figures.uncertainty or 0.0 for facet in (a, b)]
    if any(off):
        texts = [f"within {percent(each)}" if each else "exact" for each in off]
        why = "MFU and HFU are known no better than that, whatever the interval below says"
        yield Difference(aspect="FLOPs estimated", a=texts[0], b=texts[1], why=why)


def batch_differences(a: Facet, b: Facet) -> Iterator[Difference]:
    """The size of one update."""
    for noun in ("tokens", "samples"):
        totals = a.total(noun), b.total(noun)
        if totals[0] is None or totals[1] is None:
            continue
        means = totals[0] / len(a.steady), totals[1] / len(b.steady)
        if abs(means[0] - means[1]) > _BATCH * min(means):
            texts = [f"{scaled(mean, '', 4)} {noun} per step" for mean in means]
            why = (
                "updates of another size take another time; MFU and throughput are per FLOP, token"
            )
            yield Difference(
                aspect="batch", a=texts[0], b=texts[1], forbids=("step time",), why=f"{why}, sample"
            )
            return
    parts = [facet.mean([step.micro_batches for step in facet.steady]) for facet in (a, b)]
    if parts[0] != parts[1] and min(parts) > 0:
        texts = [f"{significant(part)} per step" for part in parts]
        why = "smaller micro-batches use a device less"
        yield Difference(aspect="micro-batches", a=texts[0], b=texts[1], why=why)
