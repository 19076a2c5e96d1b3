"""The lines of a run file, and the Run that they make up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import msgspec

from mfu_torch.records.breakdown import BreakdownEntry
from mfu_torch.records.facts import Attention, Device, FlopCount, Peak, Record
from mfu_torch.records.parts import StepParts

SCHEMA_VERSION = 1
"""Version of the run file. A reader refuses a file with a newer one."""


class Earlier(Record, frozen=True, kw_only=True):
    """What earlier attempts at a run had done when its state was saved, and when they began.

    Attributes:
        started: UTC time at which the first of them began, ISO 8601.
        wall_s: From then until this attempt began: work that was lost and standing still included.
        steps: Steps completed when the state was saved.
        ideal_s: Ideal time of the model FLOPs of these, by attention convention; empty if unknown.
        unknown: Then, why.

    Raises:
        ValueError: If a time or the number of steps is negative, or no finite number.
    """

    started: str
    wall_s: float
    steps: int
    ideal_s: dict[Attention, float] = msgspec.field(default_factory=dict)
    unknown: str = ""

    def __post_init__(self) -> None:
        """Check the numbers: what they are summed into can be told from nothing else."""
        check_amounts(self.wall_s, self.steps, self.ideal_s)


STEPS_LIMIT = 2**53
"""More steps than any run has, and a number that every reader of JSON takes as it is."""


def check_amounts(wall_s: float, steps: int, ideal_s: Mapping[Attention, float]) -> None:
    """Of earlier attempts: times are finite and not negative, and so are steps.

    Raises:
        ValueError: If they are not; the message names the field.
    """
    times = {"wall_s": wall_s, **{f"ideal_s of {way}": time_s for way, time_s in ideal_s.items()}}
    for name, time_s in times.items():
        if not (math.isfinite(time_s) and time_s >= 0):
            raise ValueError(f"{name} is {time_s}, no time that can have passed")
    if not 0 <= steps <= STEPS_LIMIT:
        raise ValueError(f"{steps} steps, no number of steps that can have been made")


class Header(Record, frozen=True, kw_only=True, tag="header"):
    """First line of a run file.

    Attributes:
        schema: :data:`SCHEMA_VERSION` of the writer.
        started: UTC time, ISO 8601.
        versions: Of mfu_torch, torch and python.
        attention: The attention convention that MFU and HFU use.
        clock: How time was taken, as a phrase.
        rank, world_size: Of the process that wrote this file. Its figures are of its own device.
        model: Class of the model, or classes; empty without one.
        parameters: Elements of its parameters, shared ones once; ``None`` if they cannot be told.
        trainable: Of these, with gradients.
        earlier: The attempts that this run resumes; ``None`` for a run of its own.
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
    model: str = ""
    parameters: int | None = None
    trainable: int | None = None
    earlier: Earlier | None = None


class PeakEntry(Record, frozen=True, kw_only=True, tag="peak"):
    """The peak used for one dtype, or the reason why there is none.

    Attributes:
        measured: What this very device was measured to sustain, if it was, where ``peak`` is
            something else.
    """

    dtype: str
    peak: Peak | None = None
    unknown: str = ""
    measured: Peak | None = None


class CountEntry(Record, frozen=True, kw_only=True, tag="count"):
    """A count that steps refer to by ``id``; or the reason why there is none."""

    id: int
    count: FlopCount | None = None
    unknown: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One optimizer update, from its start to the start of the next, pauses taken out.

    Attributes:
        index: 0 for the first step of the run; after a restart it goes on from the saved state.
        duration_s: Seconds on the run's clock (the GPU's own timeline on CUDA).
        data_wait_s: Host seconds spent waiting for data within it; ``None`` where the loop does not
            iterate over ``Meter.data``.
        count_ids: The :class:`CountEntry` records whose sum it had: one for each forward call of
            the model with its backward, and one for what ran beside them; or one for all.
        micro_batches: Forward calls of the model seen in it; 0 where they cannot be seen.
        tokens, samples: As given to ``Meter.step``.
        excluded: Why it is left out of steady-state figures; empty if it is not.
        phases: Seconds by name, from ``Meter.phase``.
        parts: Forward, backward and so on; ``None`` where the step was not split.
    """

    index: int
    duration_s: float
    data_wait_s: float | None
    count_ids: tuple[int, ...]
    micro_batches: int = 0
    tokens: int | None = None
    samples: int | None = None
    excluded: str = ""
    phases: dict[str, float] = {}
    parts: StepParts | None = None


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


class Telemetry(Record, frozen=True, kw_only=True, tag="telemetry"):
    """What the device did by its own account, over the samples of about one window.

    Means over time unless said otherwise; shares are fractions. ``None`` is not known, and
    ``absent`` says why. Samples that a pause overlaps are not among them.

    Attributes:
        after_step: Steps completed when it was taken.
        samples: How many it is made of.
        time_s: Seconds that they cover.
        gpu_util: NVML's GPU-Util: the share of the time in which any kernel ran, however small.
        cpu_util: On a CPU: busy time of the CPUs that the process may use, by any process.
        sm_active: Multiprocessors with at least one warp in flight (GPM, Hopper and newer).
        tensor_active: Tensor pipes that are busy (GPM).
        dram_active: Device memory's bandwidth in use (GPM).
        sm_clock_hz, memory_clock_hz: The clocks that were held.
        sm_clock_min_hz: The lowest of them.
        power_w: Power drawn; ``power_limit_w`` is the limit in force, ``power_default_w`` the
            card's own.
        temperature_c: The highest, in degrees Celsius.
        throttle: Reason -> share of the samples in which it held the clock down.
        memory_used_bytes: On the whole device, by all processes; the highest.
        pcie_rx_bytes_per_s, pcie_tx_bytes_per_s: Into and out of the device.
        nvlink_rx_bytes_per_s, nvlink_tx_bytes_per_s: Likewise, over all links.
        other_processes: Processes with a context on the device besides this one; the most.
        absent: Name of a field -> why it is not known.
    """

    after_step: int
    samples: int
    time_s: float
    gpu_util: float | None = None
    cpu_util: float | None = None
    sm_active: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    sm_clock_hz: float | None = None
    sm_clock_min_hz: float | None = None
    memory_clock_hz: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_default_w: float | None = None
    temperature_c: float | None = None
    throttle: dict[str, float] = msgspec.field(default_factory=dict)
    memory_used_bytes: int | None = None
    pcie_rx_bytes_per_s: float | None = None
    pcie_tx_bytes_per_s: float | None = None
    nvlink_rx_bytes_per_s: float | None = None
    nvlink_tx_bytes_per_s: float | None = None
    other_processes: int | None = None
    absent: dict[str, str] = msgspec.field(default_factory=dict)


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


Entry = Header | PeakEntry | CountEntry | Window | Telemetry | Pause | BreakdownEntry | End
"""One line of a run file."""


class Run(Record, frozen=True, kw_only=True):
    """Everything that one run recorded, in order.

    Attributes:
        peaks: By dtype.
        counts: By count id.
        telemetry: What the device did meanwhile, in order.
        breakdowns: Where the time of traced steps went, in order (``Meter(explain_every=...)``).
        end: ``None`` while the run goes on, or when its process was killed.
        notes: What the reader found (a line cut short, say).
    """

    header: Header
    peaks: dict[str, PeakEntry] = msgspec.field(default_factory=dict)
    counts: dict[int, CountEntry] = msgspec.field(default_factory=dict)
    windows: tuple[Window, ...] = ()
    pauses: tuple[Pause, ...] = ()
    telemetry: tuple[Telemetry, ...] = ()
    breakdowns: tuple[BreakdownEntry, ...] = ()
    end: End | None = None
    notes: tuple[str, ...] = ()

    @property
    def steps(self) -> Iterator[Step]:
        """All recorded steps, in order."""
        return (step for window in self.windows for step in window.steps)

    def count_of(self, step: Step) -> FlopCount | str:
        """The FLOPs of a step, all its micro-batches together, or why they are not known."""
        if not step.count_ids:
            return "nothing was counted in it"
        counts = []
        for count_id in step.count_ids:
            entry = self.counts.get(count_id)
            if entry is None or entry.count is None:
                return entry.unknown if entry else "they were never counted"
            counts.append(entry.count)
        return FlopCount.sum(counts)

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
            telemetry=tuple(e for e in entries if isinstance(e, Telemetry)),
            breakdowns=tuple(e for e in entries if isinstance(e, BreakdownEntry)),
            end=end[-1] if end else None,
            notes=notes,
        )


Peaks = Mapping[str, PeakEntry]
Counts = Mapping[int, CountEntry]
