"""Where the time of traced steps went: every nanosecond in exactly one bucket."""

from __future__ import annotations

from mfu_torch.records.facts import Peak, Record

BUCKETS: tuple[str, ...] = (
    "matrix/model_flops",
    "matrix/recompute",
    "matrix/optimizer",
    "matrix/beside_model",
    "matrix/low_rate_dtype",
    "matrix/unknown_flops",
    "matrix/below_peak",
    "other_compute",
    "exposed_communication",
    "exposed_memcpy",
    "idle/data_wait",
    "idle/host_sync",
    "idle/alloc",
    "idle/launch_bound",
    "idle/device_gap",
    "idle/queued_wait",
    "idle/unknown",
)
"""All of them, in the order in which they are shown. Without a peak ``matrix`` is one bucket."""


class Kernel(Record, frozen=True, kw_only=True):
    """Work of one name, and what it took of a bucket.

    Attributes:
        name: Of the kernel, cut to a readable length; names are kept, no other metadata.
        op: The op that launched it most often; ``None`` without a record.
        count: Launches.
        time_ns: In this bucket.
    """

    name: str
    op: str | None
    count: int
    time_ns: int


class Bucket(Record, frozen=True, kw_only=True):
    """A part of the time.

    Attributes:
        name: One of :data:`BUCKETS`, or ``matrix``.
        time_ns: Over all steps; only ``matrix/below_peak`` may be negative, and then a warning
            says why.
        per_step_ns: Of each step.
        top: What took most of it: for idle time, the kernels that ended the gaps.
        hint: One sentence: the evidence, and what to try; empty where there is nothing to say.
    """

    name: str
    time_ns: int
    per_step_ns: tuple[int, ...]
    top: tuple[Kernel, ...] = ()
    hint: str = ""


class Coverage(Record, frozen=True, kw_only=True):
    """How much of what was seen is understood.

    Attributes:
        launches: Kernels and copies whose launch is recorded.
        work: Kernels and copies.
        matrix_known_ns: Time of matrix kernels whose FLOPs are known.
        matrix_ns: Time of matrix kernels.
    """

    launches: int
    work: int
    matrix_known_ns: int
    matrix_ns: int


class Breakdown(Record, frozen=True, kw_only=True):
    """Time of traced steps. ``sum(bucket.time_ns) == wall_ns``, in whole nanoseconds.

    Attributes:
        file: Name of the trace.
        device: Its name; ``None`` for a trace of a CPU alone, or one that names none.
        rank: Of the process; ``None`` without.
        edges: ``gpu``: a step begins with the first kernel that it launched; ``cpu``: with its
            annotation; ``trace``: there are no steps, the whole trace is one.
        steps: Names of the steps.
        step_ns: Wall time of each.
        wall_ns: Sum of them.
        buckets: Those that are not empty, in the order of :data:`BUCKETS`.
        peak: Of the matrix buckets; ``None`` where none is known.
        model_flops: Of all steps; ``None`` where they are not known.
        hardware_flops: Of all steps: model FLOPs, recompute and contractions of the optimizer.
        communication_ns: Time in which communication ran, also beside compute.
        overlapped_ns: Of it, beside compute.
        coverage: How much is understood.
        warnings: What may make it wrong, as sentences.
        notes: What else has to be said.
        precision: What matrix kernels could save at most in the fastest dtype of the device; no
            part of the sum. ``None`` where no dtype is far faster than theirs.
    """

    file: str
    device: str | None
    rank: int | None
    edges: str
    steps: tuple[str, ...]
    step_ns: tuple[int, ...]
    wall_ns: int
    buckets: tuple[Bucket, ...]
    peak: Peak | None
    model_flops: int | None
    hardware_flops: int | None
    communication_ns: int
    overlapped_ns: int
    coverage: Coverage
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    precision: Bucket | None = None


class BreakdownEntry(Record, frozen=True, kw_only=True, tag="breakdown"):
    """Where the time of a few steps went that were recorded while the run went on.

    Attributes:
        after_step: Steps completed when the last of them was over.
        steps: Indices of the traced steps.
        breakdown: Of these.
        traced_s: Their mean time, on the run's clock.
        untraced_s: Mean time of the steady steps around them, up to ten before and ten after;
            ``None`` where there are none.
        untraced_steps: How many these are.
        trace: File of the trace, relative to the folder of the run file; empty where it is not
            kept.
    """

    after_step: int
    steps: tuple[int, ...]
    breakdown: Breakdown
    traced_s: float
    untraced_s: float | None = None
    untraced_steps: int = 0
    trace: str = ""

    @property
    def dilation(self) -> float | None:
        """How many times as long a step takes that is traced; ``None`` if it is not known."""
        return self.traced_s / self.untraced_s if self.untraced_s else None
