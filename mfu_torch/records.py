"""What mfu_torch knows, as frozen records; written as JSON lines they are also the run file.

    Device   what is there            Peak      what it could do
    FlopCount  what a step needs      Step      what happened
    Run      everything one training run recorded

A record exists only when it is complete: there are no placeholder values. What is not known is
``None`` or absent, and a reason stands beside it (:class:`PeakEntry`, :class:`FlopCount`).
Raw measurements are stored; shares and rates are computed on reading (:mod:`mfu_torch.figures`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

SCHEMA_VERSION = 1
"""Version of the run file. A reader refuses a file with a newer one."""

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


class Peak(Record, frozen=True, kw_only=True):
    """Dense arithmetic peak of one device for one dtype, fp32 accumulation, without sparsity.

    Attributes:
        flops_per_s: FLOP/s. H100 SXM bf16: 989.4e12.
        dtype: ``fp64``, ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8`` or ``fp4``.
        source: Document, benchmark or person that the figure comes from.
        provenance: ``datasheet``, ``derived``, ``measured`` or ``given``.
        device: The device that it belongs to.
    """

    flops_per_s: float
    dtype: str
    source: str
    provenance: Provenance
    device: str = ""

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
            count leaves out by definition.
        notes: Upper bounds and limits that apply to this count, as sentences.
        method: How it was obtained, as a phrase ("counted on the first step as it trained").
    """

    terms: tuple[FlopTerm, ...] = ()
    uncounted: dict[str, int] = {}
    elementwise: int = 0
    notes: tuple[str, ...] = ()
    method: str = ""

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
            elementwise=self.elementwise + other.elementwise,
            notes=tuple(dict.fromkeys(self.notes + other.notes)),
            method=self.method or other.method,
        )


class Header(Record, frozen=True, kw_only=True, tag="header"):
    """First line of a run file.

    Attributes:
        schema: :data:`SCHEMA_VERSION` of the writer.
        started: UTC time, ISO 8601.
        versions: Of mfu_torch, torch and python.
        attention: The attention convention that MFU and HFU use.
        clock: How time was taken, as a phrase.
        rank, world_size: Of the process that wrote this file. Its figures are of its own device.
    """

    schema: int
    started: str
    versions: dict[str, str]
    device: Device
    attention: Attention
    log_every: int
    clock: str
    rank: int = 0
    world_size: int = 1


class PeakEntry(Record, frozen=True, kw_only=True, tag="peak"):
    """The peak used for one dtype, or the reason why there is none."""

    dtype: str
    peak: Peak | None = None
    unknown: str = ""


class CountEntry(Record, frozen=True, kw_only=True, tag="count"):
    """A count that steps refer to by ``id``; or the reason why there is none."""

    id: int
    count: FlopCount | None = None
    unknown: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One optimizer update, from its start to the start of the next, pauses taken out.

    Attributes:
        index: 0 for the first step of the run.
        duration_s: Seconds on the run's clock (the GPU's own timeline on CUDA).
        data_wait_s: Host seconds spent waiting for data within it.
        count_ids: The :class:`CountEntry` records whose sum it had: one for each forward call of
            the model with its backward, and one for what ran beside them; or one for all.
        micro_batches: Forward calls of the model seen in it; 0 where they cannot be seen.
        tokens, samples: As given to ``Meter.step``.
        excluded: Why it is left out of steady-state figures; empty if it is not.
        phases: Seconds by name, from ``Meter.phase``.
    """

    index: int
    duration_s: float
    data_wait_s: float
    count_ids: tuple[int, ...]
    micro_batches: int = 0
    tokens: int | None = None
    samples: int | None = None
    excluded: str = ""
    phases: dict[str, float] = {}


class Window(Record, frozen=True, kw_only=True, tag="window"):
    """``log_every`` consecutive steps.

    Attributes:
        steps: In order; never empty.
        wall_s: Wall seconds from the start of the run to the end of the last of them.
        memory_bytes: Peak memory allocated on the device so far; ``None`` on the CPU.
    """

    steps: tuple[Step, ...]
    wall_s: float
    memory_bytes: int | None = None


class Pause(Record, frozen=True, kw_only=True, tag="pause"):
    """Wall time that belongs to no step: ``init``, ``eval``, ``checkpoint``, or any name.

    Attributes:
        after_step: Steps completed or begun before it.
        duration_s: Seconds on the run's clock.
    """

    name: str
    after_step: int
    duration_s: float


class End(Record, frozen=True, kw_only=True, tag="end"):
    """Last line of a run file that was closed; absent when the process was killed.

    Attributes:
        reason: ``"completed"``, or the name of the exception that ended the run.
        notes: Warnings given during the run.
    """

    wall_s: float
    reason: str
    notes: tuple[str, ...] = ()


Entry = Header | PeakEntry | CountEntry | Window | Pause | End
"""One line of a run file."""


class Run(Record, frozen=True, kw_only=True):
    """Everything that one run recorded, in order.

    Attributes:
        peaks: By dtype.
        counts: By count id.
        end: ``None`` while the run goes on, or when its process was killed.
        notes: What the reader found (a line cut short, say).
    """

    header: Header
    peaks: dict[str, PeakEntry] = {}
    counts: dict[int, CountEntry] = {}
    windows: tuple[Window, ...] = ()
    pauses: tuple[Pause, ...] = ()
    end: End | None = None
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> Iterator[Step]:
        """All recorded steps, in order."""
        return (step for window in self.windows for step in window.steps)

    @property
    def wall_s(self) -> float:
        """Wall seconds of the run, as far as it is recorded."""
        if self.end is not None:
            return self.end.wall_s
        seen_s, begun = 0.0, 0
        if self.windows:
            seen_s, begun = self.windows[-1].wall_s, self.windows[-1].steps[-1].index + 1
        # A step ends where the next one starts, so the last window holds the pause after its last
        # step; only pauses after a later step come on top of it.
        return seen_s + sum(
            pause.duration_s
            for pause in self.pauses
            if not self.windows or pause.after_step > begun
        )

    def with_window(self, window: Window) -> Run:
        """The run with one more window."""
        return msgspec.structs.replace(self, windows=(*self.windows, window))

    @classmethod
    def from_entries(cls, entries: list[Entry], notes: tuple[str, ...] = ()) -> Run:
        """Build a run from its lines.

        Raises:
            ValueError: If the first entry is not a header.
        """
        if not entries or not isinstance(entries[0], Header):
            raise ValueError("a run starts with its header line; this one has none")
        end = [e for e in entries if isinstance(e, End)]
        return cls(
            header=entries[0],
            peaks={e.dtype: e for e in entries if isinstance(e, PeakEntry)},
            counts={e.id: e for e in entries if isinstance(e, CountEntry)},
            windows=tuple(e for e in entries if isinstance(e, Window)),
            pauses=tuple(e for e in entries if isinstance(e, Pause)),
            end=end[-1] if end else None,
            notes=notes,
        )


Peaks = Mapping[str, PeakEntry]
Counts = Mapping[int, CountEntry]
