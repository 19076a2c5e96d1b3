"""A :class:`Plan` as text: the terms, the memory, and every assumption on its own line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from mfu_torch.units import bytes_, scaled, seconds

if TYPE_CHECKING:
    from mfu_torch.calculator.plan.estimate import Plan
    from mfu_torch.calculator.plan.memory import Memory


def render(plan: Plan) -> str:
    """Lines: what is planned, its terms, its memory, its assumptions."""
    lines = [*_title(plan), "", *_terms(plan), "", *_memory(plan.memory), "", "assumed:"]
    lines += [f"  {line}" for line in plan.assumptions]
    return "\n".join(lines) + "\n"


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
        "terms": [
            {"name": one.name, "seconds": one.seconds, "share": plan.points(one), "how": one.how}
            for one in plan.terms
        ],
        "memory": {
            **msgspec.structs.asdict(memory),
            "total": memory.total,
            "fits": memory.fits,
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
        f"{layout.micro_batches} micro-batches of {layout.micro_batch_size} x {layout.seq} tokens, "
        f"{layout.global_batch} sequences a step"
    )
    device = f"{machine.peak.device}, {scaled(machine.peak.flops_per_s, 'FLOP/s', 4)} "
    lines = [
        f"{plan.name} on {layout.gpus} x {device}{machine.peak.dtype}: an estimate",
        f"  layout       {', '.join(degrees)}; {batch}",
        f"  step         {seconds(plan.step_s)}, {scaled(plan.tokens_per_s, 'tokens/s')}",
        f"  MFU          {100 * plan.mfu:.2f} % by {plan.convention}",
    ]
    if plan.mfu > 1:
        lines.append(
            f"               above 100 %: {plan.convention} counts more than the kernels run, as "
            "matmul-causal does not"
        )
    return lines


def _terms(plan: Plan) -> list[str]:
    width = max(len(term.name) for term in plan.terms)
    rows = [f"  {'where the step goes':<{width}}  {'seconds':>10}  {'points':>7}"]
    for term in plan.terms:
        if term.seconds == 0:
            continue
        row = f"  {term.name:<{width}}  {_fixed(term.seconds):>10}  {100 * plan.points(term):7.2f}"
        rows.append(f"{row}  {term.how}".rstrip())
    rows.append(f"  {'step':<{width}}  {_fixed(plan.step_s):>10}  {100:7.2f}")
    return rows


def _fixed(value: float) -> str:
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def _memory(memory: Memory) -> list[str]:
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
        verdict = f"{word} {bytes_(memory.available or 0)}"
    least = "" if memory.is_whole else "at least "
    return [
        f"  memory       {least}{bytes_(memory.total)} a device: {verdict}",
        f"               {spelled}",
    ]
