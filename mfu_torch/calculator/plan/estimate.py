"""The time of a training step, term by term, from sizes, a layout and a machine: an estimate.

    micro-batch on a stage = its layers' (matmuls + recompute + other operations + communication)
    step = m micro-batches + fill and drain + gradients over data-parallel ranks + optimizer

Every term is seconds of the step; together they are the step.
"""

from __future__ import annotations

import math

import msgspec

from mfu_torch.calculator.plan.assumptions import assumptions, has_experts
from mfu_torch.calculator.plan.errors import expected
from mfu_torch.calculator.plan.layout import Layout
from mfu_torch.calculator.plan.machine import Machine
from mfu_torch.calculator.plan.memory import (
    Memory,
    largest_micro_batch,
    memory_of,
    owned_by_optimizer,
)
from mfu_torch.calculator.plan.stage import (
    Stage,
    data_parallel_s,
    hidden_s,
    mean_and_slowest,
    scores_rule,
    stage_of,
)
from mfu_torch.flops.formulas.conventions import CONVENTIONS, flops_per_token
from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.records import Record
from mfu_torch.utilization import pipeline_bubble, utilization

DTYPES = ("bf16", "fp16", "fp8")
"""Of the matmuls; parameters and activations take 2 bytes in all of them."""

OPTIMIZER_TRAFFIC_BYTES = 30
"""Adam, for a parameter: reads gradient, copy and two moments in fp32, writes the last three and
the parameter in bf16: 4 · 4 + 3 · 4 + 2."""


class PlanTerm(Record, frozen=True, kw_only=True):
    """A part of the step.

    Attributes:
        name: What it is.
        seconds: Of the step; negative where a convention counts what does not run.
        how: How it comes about.
    """

    name: str
    seconds: float
    how: str = ""


class Plan(Record, frozen=True, kw_only=True):
    """The estimate of a step.

    Attributes:
        name: Of the model.
        layout: How it is spread.
        machine: Over what.
        convention: By which its model FLOPs are counted.
        model_flops: Of the step, all devices together.
        terms: They add up to ``step_s``; the first is the model FLOPs at the peak.
        hidden: Communication that runs beside compute, and is no part of the step.
        unhidden_step_s: Seconds of the step if none of it did.
        step_s: Seconds.
        mfu: Model FLOPs utilization.
        tokens_per_s: Of all devices together.
        memory: Of the fullest device.
        largest_micro_batch: Sequences of a micro-batch that fit, the layout being what it is; 0:
            not even one does. ``None`` where that is not known.
        expected: How far off such plans were of published runs, in a sentence.
        assumptions: One sentence each.
    """

    name: str
    layout: Layout
    machine: Machine
    convention: str
    model_flops: float
    terms: tuple[PlanTerm, ...]
    hidden: tuple[PlanTerm, ...]
    unhidden_step_s: float
    step_s: float
    mfu: float
    tokens_per_s: float
    memory: Memory
    largest_micro_batch: int | None
    expected: str
    assumptions: tuple[str, ...]

    def points(self, term: PlanTerm) -> float:
        """Share of the step, as a fraction: points of MFU that a term costs."""
        return term.seconds / self.step_s

    @property
    def unhidden_mfu(self) -> float:
        """Of the step in which no communication runs beside compute."""
        return utilization(self.terms[0].seconds, self.unhidden_step_s)


def plan(
    model: Decoder,
    layout: Layout,
    machine: Machine,
    *,
    name: str = "model",
    convention: str = "matmul",
    parameters: float | None = None,
) -> Plan:
    """Estimate a step.

    Args:
        model: Its sizes.
        layout: How it is spread; :meth:`Layout.check` says whether it can be.
        machine: What it runs on.
        name: Of the model.
        convention: One of :data:`CONVENTIONS` that counts model FLOPs.
        parameters: N, where the convention's source means another than the model's own.

    Raises:
        ContradictionError: If the model cannot be laid out so.
        ValueError: If there is no such convention, or it counts hardware FLOPs.
    """
    layout.check(model)
    each = flops_per_token(convention, model, layout.seq, parameters=parameters)
    _check(convention, machine)
    tokens = layout.global_batch * layout.seq
    model_flops = float(each * tokens)
    terms = _terms(model, layout, machine, model_flops, convention)
    step_s = sum(term.seconds for term in terms)
    beside = hidden_s(model, layout, machine, stage_of(model, layout, machine))
    bare = msgspec.structs.replace(layout, overlap=())
    unhidden = _terms(model, bare, machine, model_flops, convention) if beside else terms
    return Plan(
        name=name,
        layout=layout,
        machine=machine,
        convention=convention,
        model_flops=model_flops,
        terms=terms,
        hidden=tuple(PlanTerm(name=name, seconds=seconds) for name, seconds in beside.items()),
        unhidden_step_s=sum(term.seconds for term in unhidden),
        step_s=step_s,
        mfu=utilization(terms[0].seconds, step_s),
        tokens_per_s=tokens / step_s,
        memory=memory_of(model, layout, machine.memory_bytes),
        largest_micro_batch=largest_micro_batch(model, layout, machine.memory_bytes),
        expected=expected(has_experts(model), machine.rate_is_given, layout),
        assumptions=(*machine.notes, *assumptions(model, layout, machine.peak.dtype)),
    )


def _check(convention: str, machine: Machine) -> None:
    if CONVENTIONS[convention].counts != "model":
        raise ValueError(
            f"{convention} counts hardware FLOPs, whose ratio is no MFU; expected a convention of "
            "model FLOPs"
        )
    if not CONVENTIONS[convention].is_general:
        raise ValueError(f"{convention} is not for training whole models, which is what is planned")
    if machine.peak.dtype not in DTYPES:
        raise ValueError(
            f"a step in {machine.peak.dtype} is not planned; expected one of {', '.join(DTYPES)}"
        )


def _terms(
    model: Decoder, layout: Layout, machine: Machine, model_flops: float, convention: str
) -> tuple[PlanTerm, ...]:
    stage = stage_of(model, layout, machine)
    gradients_s = data_parallel_s(model, layout, machine, stage)
    updated = owned_by_optimizer(model, layout)
    return (
        *_compute_terms(stage, layout, machine, model_flops, convention),
        *_communication_terms(stage, layout, machine),
        *_pipeline_terms(model, layout, stage),
        PlanTerm(
            name="data parallel",
            seconds=gradients_s,
            how="gradients" if layout.zero == 0 else "gradients, and parameters back",
        ),
        PlanTerm(
            name="optimizer",
            seconds=updated * OPTIMIZER_TRAFFIC_BYTES / machine.bytes_per_s,
            how=f"Adam, {OPTIMIZER_TRAFFIC_BYTES} bytes a parameter",
        ),
    )


def _compute_terms(
    stage: Stage, layout: Layout, machine: Machine, model_flops: float, convention: str
) -> tuple[PlanTerm, ...]:
    peak, reached, m = machine.peak.flops_per_s, machine.matmul_flops_per_s, layout.micro_batches
    ideal_s = model_flops / (layout.gpus * peak)
    matmuls_s = m * (stage.matmuls_s + stage.head_s / layout.pp)
    at_peak_s = matmuls_s * reached / peak
    return (
        PlanTerm(name="model FLOPs at the peak", seconds=ideal_s, how="this share is the MFU"),
        PlanTerm(
            name="counted otherwise",
            seconds=0.0 if math.isclose(at_peak_s, ideal_s) else at_peak_s - ideal_s,
            how=f"{convention} against what runs: {scores_rule(layout)} scores",
        ),
        PlanTerm(
            name="matmuls below the peak",
            seconds=matmuls_s - at_peak_s,
            how=f"{100 * reached / peak:.1f} % of it",
        ),
        PlanTerm(name="recompute", seconds=m * stage.recompute_s, how=_how_recomputed(layout)),
        PlanTerm(
            name="other operations",
            seconds=m * stage.other_operations_s,
            how="norms, additions, activations over memory bandwidth",
        ),
    )


def _communication_terms(stage: Stage, layout: Layout, machine: Machine) -> tuple[PlanTerm, ...]:
    m, bandwidth = layout.micro_batches, machine.pipeline_link(layout).bytes_per_s
    reduced = "reduce-scatter + all-gather" if layout.sequence_parallel else "all-reduce"
    return (
        PlanTerm(name="tensor parallel", seconds=m * stage.tensor_s, how=reduced),
        PlanTerm(name="context parallel", seconds=m * stage.context_s, how="gathers of keys"),
        PlanTerm(name="expert parallel", seconds=m * stage.expert_s, how="all-to-all"),
        PlanTerm(name="parameter gathers", seconds=m * stage.gathers_s, how="ZeRO 3"),
        PlanTerm(
            name="pipeline sends",
            seconds=m * stage.sends_s,
            how=f"{bandwidth / 1e9:.0f} GB/s" if layout.pp > 1 else "",
        ),
    )


def _pipeline_terms(model: Decoder, layout: Layout, stage: Stage) -> tuple[PlanTerm, ...]:
    m = layout.micro_batches
    mean_s, slowest_s = mean_and_slowest(model, layout, stage)
    idle = pipeline_bubble(layout.pp, m, layout.virtual_stages)
    # The slowest stage works on all micro-batches; beside that, one passes all other stages. Where
    # stages are even this is (p-1)/v of one, as Narayanan et al. 2021 have it.
    bubble_s = (layout.pp * mean_s - slowest_s) / layout.virtual_stages
    return (
        PlanTerm(name="uneven stages", seconds=m * (slowest_s - mean_s), how="the head"),
        PlanTerm(
            name="pipeline bubble", seconds=bubble_s, how=f"{100 * idle:.1f} % of even stages"
        ),
    )


def _how_recomputed(layout: Layout) -> str:
    policy = layout.recompute
    kernel = "scores, inside the fused kernel"
    if layout.attention == "unfused":
        return policy
    return kernel if policy in ("none", "selective") else f"{policy}, and {kernel}"
