"""A :class:`Plan` as text: the terms, the memory, and every assumption on its own line."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import msgspec

from mfu_torch.calculator.answer_table import WIDTH, memory_text
from mfu_torch.units import bytes_, percent_exact, scaled, seconds

if TYPE_CHECKING:
    from mfu_torch.calculator.plan.estimate import Plan
    from mfu_torch.calculator.plan.memory import Memory

_HIDDEN = "hidden beside compute"


def render(plan: Plan) -> str:
    """Lines: what is planned, its terms, its memory, its assumptions."""
    memory = _memory(plan.memory, plan.largest_micro_batch)
    lines = [*_title(plan), "", *_terms(plan), "", *memory, "", "Assumed"]
    lines += [_wrapped(f"  {line}", 4) for line in plan.assumptions]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: int = 15) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def summary(plan: Plan) -> dict[str, Any]:
    """The same values for JSON: seconds, bytes, shares as fractions."""
    memory = plan.memory
    return {
        "name": plan.name,
        "step_s": plan.step_s,
        "mfu": plan.mfu,
        "convention": plan.convention,
        "model_flops": plan.model_flops,
        "tokens_per_s": plan.tokens_per_s,
        "expected": plan.expected,
        "terms": [
            {"name": one.name, "seconds": one.seconds, "share": plan.points(one), "how": one.how}
            for one in plan.terms
        ],
        "hidden": [{"name": one.name, "seconds": one.seconds} for one in plan.hidden],
        "unhidden": {"step_s": plan.unhidden_step_s, "mfu": plan.unhidden_mfu},
        "memory": {
            **msgspec.structs.asdict(memory),
            "total": memory.total,
            "fits": memory.fits,
            "largest_micro_batch": plan.largest_micro_batch,
        },
        "layout": {
            **msgspec.structs.asdict(plan.layout),
            "dp": plan.layout.dp,
            "global_batch": plan.layout.global_batch,
        },
        "machine": plan.machine,
        "assumptions": plan.assumptions,
    }


def _title(plan: Plan) -> list[str]:
    layout, machine = plan.layout, plan.machine
    degrees = [f"tp {layout.tp}", f"pp {layout.pp}"]
    degrees += [f"v {layout.virtual_stages}"] if layout.virtual_stages > 1 else []
    degrees += [f"cp {layout.cp}"] if layout.cp > 1 else []
    degrees += [f"ep {layout.ep}"] if layout.ep > 1 else []
    degrees += [f"dp {layout.dp}", f"zero {layout.zero}"]
    batch = (
        f"{_plural(layout.micro_batches, 'micro-batch', 'micro-batches')} of "
        f"{layout.micro_batch_size} x {layout.seq} tokens, "
        f"{_plural(layout.global_batch, 'sequence', 'sequences')} a step"
    )
    device = f"{machine.peak.device}, {scaled(machine.peak.flops_per_s, 'FLOP/s', 4)} "
    lines = [
        f"{plan.name} on {layout.gpus} x {device}{machine.peak.dtype}: an estimate",
        _wrapped(f"  layout       {', '.join(degrees)}; {batch}"),
        f"  step         {seconds(plan.step_s)}, {scaled(plan.tokens_per_s, 'tokens/s')}",
        f"  MFU          {percent_exact(plan.mfu)} by {plan.convention}",
        _wrapped(f"  expect       {plan.expected}"),
    ]
    if plan.mfu > 1:
        lines.append(
            f"               above 100 %: {plan.convention} counts more than the kernels run, as "
            "matmul-causal does not"
        )
    return lines


def _plural(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _terms(plan: Plan) -> list[str]:
    width = max(len(_HIDDEN), *(len(term.name) for term in plan.terms))
    rows = [f"  {'where the step goes':<{width}}  {'seconds':>10}  {'points':>7}"]
    for term in plan.terms:
        if term.seconds == 0:
            continue
        row = f"  {term.name:<{width}}  {_fixed(term.seconds):>10}  {100 * plan.points(term):7.2f}"
        rows.append(_wrapped(f"{row}  {term.how}".rstrip(), len(row) + 2))
    rows.append(f"  {'step':<{width}}  {_fixed(plan.step_s):>10}  {100:7.2f}")
    if plan.hidden:
        total = _fixed(sum(term.seconds for term in plan.hidden))
        parts = ", ".join(f"{term.name} {seconds(term.seconds)}" for term in plan.hidden)
        row = f"  {_HIDDEN:<{width}}  {total:>10}  {'':7}"
        how = (
            f"{parts}: not in the step; if nothing were hidden, {seconds(plan.unhidden_step_s)} "
            f"and MFU {percent_exact(plan.unhidden_mfu)}"
        )
        rows.append(_wrapped(f"{row}  {how}", len(row) + 2))
    return rows


def _fixed(value: float) -> str:
    if abs(value) >= 1e7:
        return f"{value:.3e}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def _memory(memory: Memory, largest: int | None) -> list[str]:
    parts = (
        ("parameters", memory.parameters),
        ("gradients", memory.gradients),
        ("optimizer", memory.optimizer),
        ("activations", memory.activations),
    )
    spelled = ", ".join(f"{name} {bytes_(value)}" for name, value in parts)
    if memory.fits is None:
        verdict = "whether it fits is not known"
    else:
        word = "fits" if memory.fits else "does not fit"
        verdict = f"{word} {memory_text(memory.available or 0)}"
    least = "" if memory.is_whole else "at least "
    return [
        f"  memory       {least}{bytes_(memory.total)} a device: {verdict}",
        f"               {spelled}",
        *([] if largest is None else [f"               {_largest(largest)}"]),
    ]


def _largest(micro_batch: int) -> str:
    if micro_batch == 0:
        return "no micro-batch fits: not even one sequence"
    return f"micro-batches of up to {_plural(micro_batch, 'sequence', 'sequences')} fit"
