"""Device, Peak and FlopCount: what is there, what it could do, what a step needs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from mfu_torch.units import scaled

Phase = Literal[
    "forward",
    "forward_no_grad",
    "backward",
    "recompute",
    "kernel_recompute",
    "optimizer",
    "given",
]
Provenance = Literal["datasheet", "derived", "measured", "given"]
Attention = Literal["full", "causal"]

MODEL_PHASES: frozenset[Phase] = frozenset({"forward", "forward_no_grad", "backward", "given"})
"""The phases that the mathematics of the step needs. All phases together are hardware FLOPs."""


class MFUError(Exception):
    """Base of the errors that mfu_torch raises for a reason other than misuse."""


class UnknownPeak(MFUError):
    """No trustworthy peak is known for a device and dtype; the message says why and what to do."""


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records: immutable, built by keyword, compared by value."""


class Device(Record, frozen=True, kw_only=True):
    """One accelerator, or the CPU of the machine.

    Attributes:
        name: As the driver reports it, e.g. ``"NVIDIA H100 80GB HBM3"``.
        kind: ``"cuda"``, ``"rocm"``, ``"mps"`` or ``"cpu"``.
        index: The torch index (after ``CUDA_VISIBLE_DEVICES``), not NVML's; ``None`` for the CPU.
        uuid: The driver's identifier, ``None`` where there is none.
        sm_count: Streaming multiprocessors (CUDA), compute units (ROCm) or CPU cores that this
            process may use.
        memory_bytes: Total device memory.
        compute_capability: ``"9.0"`` on CUDA, the gfx name on ROCm.
        mig: The MIG profile, e.g. ``"3g.40gb"``, when the device is a slice of a GPU.
        threads: Threads that torch uses on the CPU; ``None`` on accelerators.
        max_clock_hz: The highest clock of the multiprocessors that the driver states; ``None``
            where it states none.
    """

    name: str
    kind: str
    index: int | None = None
    uuid: str | None = None
    sm_count: int | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    mig: str | None = None
    threads: int | None = None
    max_clock_hz: float | None = None


class Peak(Record, frozen=True, kw_only=True):
    """Dense arithmetic peak of one device for one dtype, fp32 accumulation, without sparsity.

    Attributes:
        flops_per_s: FLOP/s. H100 SXM bf16: 989.4e12.
        dtype: ``fp64``, ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8`` or ``fp4``.
        source: Document, benchmark or person that the figure comes from.
        provenance: ``datasheet``, ``derived``, ``measured`` or ``given``.
        device: The device that it belongs to.
        clock_hz: At which multiprocessors x FLOP per clock give ``flops_per_s``; ``None`` where
            that is not known. A device that holds another clock can do proportionally more or less.
        uncertainty: As a fraction: the true figure may be so much lower or higher, because it is
            derived, or because other cards report the same name; ``None`` where nothing says so.
    """

    flops_per_s: float
    dtype: str
    source: str = "whoever made this Peak"
    provenance: Provenance = "given"
    device: str = ""
    clock_hz: float | None = None
    uncertainty: float | None = None

    def __post_init__(self) -> None:
        if not (0 < self.flops_per_s < float("inf")):
            raise ValueError(
                f"peak is {self.flops_per_s} FLOP/s; expected a positive, finite number of FLOP/s "
                '(e.g. 989e12, or "989 TFLOP/s")'
            )


class FlopTerm(Record, frozen=True, kw_only=True):
    """FLOPs of one op in one phase and dtype.

    Attributes:
        flops: Every attention score counted (convention ``full``).
        causal_flops: Only the scores that the attention mask keeps (convention ``causal``).
    """

    phase: Phase
    op: str
    dtype: str
    flops: int
    causal_flops: int
    calls: int


class FlopCount(Record, frozen=True, kw_only=True):
    """The FLOPs of one step (or one call): contractions only, a multiply-add is 2.

    All integer properties are in FLOPs under the ``full`` attention convention unless their name
    says ``causal``.

    Attributes:
        terms: The count, split by phase, op and dtype. Everything else follows from it.
        uncounted: Ops that look like contractions and have no formula -> number of calls.
        elementwise: Elements touched by elementwise and reduction ops: the size of what the
            count leaves out by definition; ``None`` where it was not counted.
        notes: Upper bounds and limits that apply to this count, as sentences.
        method: How it was obtained, as a phrase ("counted on the first step as it trained").
        uncertainty: How far off the model FLOPs may be, as a fraction of them: 0 where they were
            counted, or follow exactly from what was.
    """

    terms: tuple[FlopTerm, ...] = ()
    uncounted: dict[str, int] = {}
    elementwise: int | None = 0
    notes: tuple[str, ...] = ()
    method: str = ""
    uncertainty: float = 0.0

    def _phase(self, phase: Phase) -> int:
        return sum(term.flops for term in self.terms if term.phase == phase)

    @property
    def forward(self) -> int:
        """Forward FLOPs with gradients enabled."""
        return self._phase("forward")

    @property
    def forward_no_grad(self) -> int:
        """Forward FLOPs under ``no_grad``: a teacher, or the first pass of a checkpoint."""
        return self._phase("forward_no_grad")

    @property
    def backward(self) -> int:
        """Backward FLOPs; 4 matmuls per attention."""
        return self._phase("backward")

    @property
    def recompute(self) -> int:
        """Activation recomputation (checkpointing)."""
        return self._phase("recompute")

    @property
    def kernel_recompute(self) -> int:
        """Recomputation inside fused attention kernels: the fifth matmul of their backward."""
        return self._phase("kernel_recompute")

    @property
    def optimizer(self) -> int:
        """Contractions in the optimizer (Muon, Shampoo)."""
        return self._phase("optimizer")

    @property
    def given(self) -> int:
        """Model FLOPs that were given, not counted."""
        return self._phase("given")

    @property
    def model(self) -> int:
        """Model FLOPs: what the mathematics of the step needs."""
        return sum(self.flops_by_dtype("model").values())

    @property
    def hardware(self) -> int:
        """Hardware FLOPs: model FLOPs, recomputation and optimizer contractions."""
        return sum(self.flops_by_dtype("hardware").values())

    @property
    def model_causal(self) -> int:
        """Model FLOPs with only the attention scores that the mask keeps."""
        return sum(self.flops_by_dtype("model", "causal").values())

    @property
    def hardware_causal(self) -> int:
        """Hardware FLOPs with only the attention scores that the mask keeps."""
        return sum(self.flops_by_dtype("hardware", "causal").values())

    @property
    def by_dtype(self) -> dict[str, int]:
        """Hardware FLOPs by the dtype that each contraction ran in."""
        return self.flops_by_dtype("hardware")

    @property
    def by_op(self) -> dict[str, int]:
        """Hardware FLOPs by op name, largest first."""
        totals: Counter[str] = Counter()
        for term in self.terms:
            totals[term.op] += term.flops
        return dict(totals.most_common())

    def flops_by_dtype(
        self, kind: Literal["model", "hardware"], attention: Attention = "full"
    ) -> dict[str, int]:
        """FLOPs by dtype, model or hardware, under an attention convention."""
        totals: Counter[str] = Counter()
        for term in self.terms:
            if kind == "hardware" or term.phase in MODEL_PHASES:
                totals[term.dtype] += term.flops if attention == "full" else term.causal_flops
        return {dtype: flops for dtype, flops in totals.items() if flops}

    def __str__(self) -> str:
        """On one line: ``model 45.9 GFLOP (forward 15.3 GFLOP, backward 30.6 GFLOP), ...``."""
        parts = {phase: self._phase(phase) for phase in get_args(Phase)}
        named = [f"{name} {scaled(flops, 'FLOP')}" for name, flops in parts.items() if flops]
        text = f"model {scaled(self.model, 'FLOP')} ({', '.join(named) or 'nothing'})"
        text += f", hardware {scaled(self.hardware, 'FLOP')}"
        if self.uncounted:
            text += f", not counted: {', '.join(map(self._with_failure, self.uncounted))}"
        return text

    def _with_failure(self, op: str) -> str:
        # Without it, an op whose formula raises looks as if it had none.
        failure = next((note for note in self.notes if note.startswith(failed_formula(op))), "")
        return f"{op} ({failure})" if failure else op

    def split(self, phase: Phase) -> tuple[FlopCount, FlopCount]:
        """The count without a phase, and that phase alone."""
        return (
            msgspec.structs.replace(self, terms=tuple(t for t in self.terms if t.phase != phase)),
            FlopCount(terms=tuple(t for t in self.terms if t.phase == phase)),
        )

    @classmethod
    def sum(cls, counts: Iterable[FlopCount]) -> FlopCount:
        """The count of several pieces of work together."""
        total = cls()
        for count in counts:
            total = total + count
        return total

    def __add__(self, other: FlopCount) -> FlopCount:
        """The count of two pieces of work together; equal terms are merged."""
        merged: dict[tuple[Phase, str, str], tuple[int, int, int]] = {}
        for term in self.terms + other.terms:
            key = (term.phase, term.op, term.dtype)
            flops, causal, calls = merged.get(key, (0, 0, 0))
            merged[key] = (
                flops + term.flops,
                causal + term.causal_flops,
                calls + term.calls,
            )
        return FlopCount(
            terms=tuple(
                FlopTerm(phase=p, op=o, dtype=d, flops=f, causal_flops=c, calls=n)
                for (p, o, d), (f, c, n) in merged.items()
            ),
            uncounted=dict(Counter(self.uncounted) + Counter(other.uncounted)),
            elementwise=_known_sum(self.elementwise, other.elementwise),
            notes=tuple(dict.fromkeys(self.notes + other.notes)),
            method=self.method or other.method,
            uncertainty=_joint_uncertainty((self, other)),
        )


def failed_formula(op: str) -> str:
    """How the note begins that says why the formula of an op gave no count."""
    return f"formula for {op} failed: "


def _joint_uncertainty(counts: tuple[FlopCount, ...]) -> float:
    """Of a sum: as if all were off in the same direction."""
    if not any(count.uncertainty for count in counts):
        return 0.0
    whole = sum(count.model for count in counts)
    return sum(count.uncertainty * count.model for count in counts) / whole if whole else 0.0


def _known_sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other
