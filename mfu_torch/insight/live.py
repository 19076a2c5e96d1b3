"""The analysis of a trace that a run recorded, in a process of its own: one job in, one line out.

Run by :mod:`mfu_torch.explaining.analysis`, not by people: they have ``mfu-torch explain``.
"""

from __future__ import annotations

import gzip
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from mfu_torch.messages import first_line
from mfu_torch.records import Breakdown, MFUError, Peak

_NICEST = 19
_LEVEL = 5  # of compression: three quarters of the time of the default, and 3 % more bytes


def main(job: Mapping[str, Any]) -> None:
    """Compress the trace, analyse it, and print the outcome as a line of JSON.

    Args:
        job: ``trace`` and ``packed`` are paths, ``time_limit_s`` ends the process even when nobody
            is left to do it; ``steps`` are those in it, as :func:`explain` takes them, and
            ``peak``, ``dtype``, and of one of them ``model_flops`` and ``recompute_flops``.
    """
    _be_modest(job["time_limit_s"])
    outcome: dict[str, Any]
    # Whoever waits for the outcome gets no traceback, but one line.
    try:
        outcome = {"breakdown": _analyse(job)}
    except MFUError as error:
        outcome = {"problem": str(error)}
    except Exception as error:
        outcome = {"problem": f"{type(error).__name__}: {first_line(error)}"}
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
    sys.stdout.buffer.flush()


def _be_modest(time_limit_s: float) -> None:
    if hasattr(os, "nice"):  # not on Windows
        os.nice(_NICEST)
    if hasattr(signal, "alarm"):
        signal.alarm(int(time_limit_s) + 1)


def _analyse(job: Mapping[str, Any]) -> Breakdown:
    from mfu_torch.insight import explain

    trace = _pack(Path(job["trace"]), Path(job["packed"]))
    peak = None if job["peak"] is None else msgspec.convert(job["peak"], Peak)
    return explain(
        trace,
        peak=peak,
        dtype=job["dtype"],
        model_flops=job["model_flops"],
        steps=job["steps"],
        recompute_flops=job.get("recompute_flops"),
    )


def _pack(trace: Path, packed: Path) -> Path:
    """Compress it; the name is there once the file is whole."""
    part = packed.with_suffix(".part")
    with trace.open("rb") as source, gzip.open(part, "wb", compresslevel=_LEVEL) as target:
        shutil.copyfileobj(source, target, 2**20)
    part.replace(packed)
    trace.unlink()
    return packed
