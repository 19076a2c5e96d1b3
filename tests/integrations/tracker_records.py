"""What the tests of W&B, MLflow and trackio write, and what has to be found there again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from explained_loop import entry
from samples import count, header, peak
from test_readme import blocks_of

from mfu_torch.figures import Figures
from mfu_torch.records import End, Entry, PeakEntry, Telemetry
from mfu_torch.run.recorder import Recorder
from mfu_torch.run.sinks import Sink

ROOT = Path(__file__).parent.parent.parent

SEEN = Telemetry(after_step=10, samples=10, time_s=10.0, gpu_util=0.75, sm_clock_hz=1.5e9)

FIRST = Figures(step=10, steps=9, time_s=1.0, mfu=0.25, hfu=0.5, model_flops_per_s=2e12)
SECOND = Figures(
    step=20,
    steps=10,
    time_s=1.0,
    mfu=0.0,
    phases={"all reduce": 0.125},
    goodput={"model": 0.0, "other": 1.0},
)

RECORDS: tuple[Entry | Figures, ...] = (
    header(),
    peak(),
    PeakEntry(dtype="fp8", unknown="no such row"),
    count(uncounted={"my::scan": 4}),
    SEEN,
    FIRST,
    entry(),
    SECOND,
    End(wall_s=2.0, reason="completed"),
)

# Tag -> (step, value), in order. What is not known of the second window has no value there.
CURVES = {
    "mfu/mfu": [(10, 0.25), (20, 0.0)],
    "mfu/hfu": [(10, 0.5)],
    "throughput/model_tflops_per_s_per_device": [(10, 2.0)],
    "time/phase_all_reduce_share": [(20, 0.125)],
    "goodput/model": [(20, 0.0)],
    "goodput/other": [(20, 1.0)],
    # 60, 30, 90 and 20 of 200 ms, as multiples of 2 ** -20 that sum to 1.
    "breakdown/matrix": [(13, 314573 / 2**20)],
    "breakdown/other_compute": [(13, 157286 / 2**20)],
    "breakdown/idle/data_wait": [(13, 471859 / 2**20)],
    "breakdown/idle/launch_bound": [(13, 104858 / 2**20)],
    "breakdown/dilation": [(13, 1.25)],
    "device/gpu_util": [(10, 0.75)],
    "device/sm_clock_mhz": [(10, 1500.0)],
}

FACTS = {
    "device": "NVIDIA H100 80GB HBM3",
    "attention": "full",
    "clock": "CUDA events",
    "rank": "0 of 1",
    "version": "0.1.0",
    "peak_bf16": "100 TFLOP/s dense, given: Made-up sheet",
    "peak_fp8": "unknown: no such row",
    "not_counted_my__scan": "my::scan has no FLOP formula",
}


def write_from_another_thread(sink: Sink) -> None:
    """As a run does: the recorder's thread calls the sink, and closes it."""
    recorder = Recorder(header(), [_Figures(sink)], keep=True)
    for record in RECORDS[1:]:
        recorder.put(record)  # type: ignore[arg-type]
    recorder.close()
    assert recorder.notes == []


class _Figures:
    """Passes everything on: a recorder makes figures of windows only."""

    def __init__(self, sink: Sink) -> None:
        self.write, self.close = sink.write, sink.close


def run_documented(sink: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Run what docs/sinks.md says about a sink, in a folder; ``model`` and ``train`` are its own.

    These blocks are not among those that run with the page: their libraries need not be there.
    """
    blocks = blocks_of((ROOT / "docs" / "sinks.md").read_text(encoding="utf-8"))
    first = next(block.text for block in blocks if block.language == "python")
    (code,) = [block.text for block in blocks if not block.language and f"{sink}(" in block.text]
    monkeypatch.chdir(folder)
    namespace: dict[str, object] = {}
    exec(first.rpartition("\ntrain(")[0], namespace)
    exec(code, namespace)


def message_without(library: str, module: str) -> str:
    """Last line of the traceback where ``library`` is not installed."""
    code = f"import sys; sys.modules[{library!r}] = None\nimport mfu_torch.integrations.{module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    return done.stderr.splitlines()[-1]
