"""What mfu_torch knows, as frozen records; written as JSON lines they are also the run file.

    Device   what is there            Peak      what it could do
    FlopCount  what a step needs      Step      what happened
    Run      everything one training run recorded

A record exists only when it is complete: there are no placeholder values. What is not known is
``None`` or absent, and a reason stands beside it (:class:`PeakEntry`, :class:`FlopCount`).
Raw measurements are stored; shares and rates are computed on reading (:mod:`mfu_torch.figures`).
"""

from __future__ import annotations

from mfu_torch.records.breakdown import Breakdown, BreakdownEntry
from mfu_torch.records.facts import (
    MODEL_PHASES,
    Attention,
    Device,
    FlopCount,
    FlopTerm,
    MFUError,
    Peak,
    Phase,
    Provenance,
    Record,
    UnknownPeak,
)
from mfu_torch.records.lines import (
    SCHEMA_VERSION,
    CountEntry,
    Counts,
    Earlier,
    End,
    Entry,
    Header,
    Pause,
    PeakEntry,
    Peaks,
    Run,
    Step,
    Telemetry,
    Window,
)
from mfu_torch.records.parts import StepParts

__all__ = [
    "MODEL_PHASES",
    "SCHEMA_VERSION",
    "Attention",
    "Breakdown",
    "BreakdownEntry",
    "CountEntry",
    "Counts",
    "Device",
    "Earlier",
    "End",
    "Entry",
    "FlopCount",
    "FlopTerm",
    "Header",
    "MFUError",
    "Pause",
    "Peak",
    "PeakEntry",
    "Peaks",
    "Phase",
    "Provenance",
    "Record",
    "Run",
    "Step",
    "StepParts",
    "Telemetry",
    "UnknownPeak",
    "Window",
]
