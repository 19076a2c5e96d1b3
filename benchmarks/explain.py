"""Reading and explaining a trace: time and peak memory, against Holistic Trace Analysis (HTA).

Ours is ``mfu_torch.insight.explain(path)``; HTA's is its ``TraceAnalysis`` and the four analyses
that answer the same question. Imports are not in the times, but in the memory. Each measurement is
a process of its own, ours and HTA's by turns, on every trace of 8 MB of JSON or more, and on one
made ten times as long. On a machine that does other work, the CPU times say more than the wall.

    PYTHONPATH=. python benchmarks/explain.py --hta-venv hta-venv

The virtual environment is made if it is not there; without the flag, ours is measured alone. Traces
are looked for in --traces, else MFU_TORCH_TRACES, else ../shared/traces.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

# Nothing large is imported or held here: ru_maxrss of a child begins at the size of its parent.

LEAST_BYTES = 8_000_000
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas<3")  # it fails with pandas 3
LENGTHENED, COPIES = "hta_a100_dlrm_8gpu_rank3", 10
BESIDE = Path(__file__).resolve().parents[2] / "shared" / "traces"


@dataclass(frozen=True)
class Cost:
    """Of one run in a process of its own; infinite where none succeeded."""

    wall_s: float = math.inf
    cpu_s: float = math.inf
    peak_mb: float = math.inf
    error: str = ""

    def best(self, other: Cost) -> Cost:
        """The least of each."""
        return Cost(
            min(self.wall_s, other.wall_s),
            min(self.cpu_s, other.cpu_s),
            min(self.peak_mb, other.peak_mb),
            self.error or other.error,
        )


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def measure_ours(path: str) -> str:
    """In a process of its own."""
    import numpy.ma  # noqa: F401 - np.unique imports it at its first call; HTA has it too

    from mfu_torch.insight import explain

    start, cpu_start = time.perf_counter(), cpu_s()
    explain(path)
    return measured(start, cpu_start)


def measure_hta(path: str) -> str:
    """In a process of its own, of HTA's virtual environment."""
    from hta.trace_analysis import TraceAnalysis

    warnings.simplefilter("ignore")
    start, cpu_start = time.perf_counter(), cpu_s()
    analysis = TraceAnalysis(trace_files={0: path})
    analysis.get_temporal_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(ranks=[0], visualize=False)
    analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    return measured(start, cpu_start)


def measured(start: float, cpu_start: float) -> str:
    wall, cpu = time.perf_counter() - start, cpu_s() - cpu_start
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB on Linux
    return json.dumps([wall, cpu, peak_kib * 1024 / 1e6])


def lengthen(path: str, to: str) -> str:
    """A trace that runs COPIES times as long: its events again, later and with other numbers."""
    with gzip.open(path, "rb") as file:
        document = json.load(file)
    events = document.pop("traceEvents")
    timed = [event for event in events if event["ph"] == "X"]
    period_us = 1000 + (
        max(event["ts"] + event["dur"] for event in timed) - min(event["ts"] for event in timed)
    )
    numbers = [int(e["args"].get("correlation", 0)) for e in timed if "args" in e]
    numbers += [int(e["args"].get("External id", 0)) for e in timed if "args" in e]
    steps = sum(e["name"].startswith("ProfilerStep#") for e in timed)
    with gzip.open(to, "wb", compresslevel=6) as file:
        file.write(json.dumps(document, separators=(",", ":"))[:-1].encode())
        file.write(b',"traceEvents":[')
        for copy in range(COPIES):
            shift_us, shift = copy * period_us, copy * (max(numbers) + 1)
            texts = []
            for event in events:
                if event["ph"] != "M" or copy == 0:
                    event = shifted(event, shift_us, shift, copy * steps)
                    texts.append(json.dumps(event, separators=(",", ":")))
            file.write((b"," if copy else b"") + ",".join(texts).encode())
        file.write(b"]}")
    return "null"


def shifted(event: dict, shift_us: float, shift: int, step_shift: int) -> dict:
    event = event | {"ts": event["ts"] + shift_us}
    if "id" in event:
        event["id"] += shift
    name, _, step = event["name"].partition("#")
    if name == "ProfilerStep":
        event["name"] = f"{name}#{int(step) + step_shift}"
    args = event.get("args", {})
    numbers = {key: args[key] + shift for key in ("correlation", "External id") if args.get(key)}
    return event | ({"args": args | numbers} if numbers else {})


def run(python: str, what: str, *arguments: str) -> Cost:
    """Measures in a fresh process of an interpreter."""
    command = [python, __file__, "--measure", what, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        return Cost(error=lines[-1])
    return Cost(*(json.loads(done.stdout.splitlines()[-1]) or ()))


def raw_bytes(path: Path) -> int:
    total = 0
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        while chunk := file.read(1 << 20):
            total += len(chunk)
    return total


def hta_python(venv: Path) -> str:
    """The interpreter of HTA's virtual environment, which is made if it is not there."""
    python = venv / "bin" / "python"
    if not python.exists():
        print(f"making {venv} with {' '.join(HTA)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *HTA], check=True)
    return str(python)


def print_trace(path: Path, size: int, hta: str | None, repeats: int) -> None:
    ours, theirs = Cost(), Cost()
    for _ in range(repeats):
        ours = ours.best(run(sys.executable, "ours", str(path)))
        if hta:
            theirs = theirs.best(run(hta, "hta", str(path)))
    name = path.name.partition(".")[0]
    line = (
        f"{name:<38} {size / 1e6:>6.1f} {ours.wall_s:>6.2f} {ours.cpu_s:>5.2f} {ours.peak_mb:>5.0f}"
    )
    if math.isfinite(theirs.wall_s):
        line += (
            f" {theirs.wall_s:>6.2f} {theirs.cpu_s:>6.2f} {theirs.peak_mb:>5.0f}"
            f" {theirs.wall_s / ours.wall_s:>5.1f} {theirs.cpu_s / ours.cpu_s:>5.1f}"
            f" {theirs.peak_mb / ours.peak_mb:>6.2f}"
        )
    print(line, flush=True)
    for tool, cost in (("ours", ours), ("HTA", theirs)):
        if cost.error:
            print(f"  {tool} failed: {cost.error}")


def print_table(traces: list[tuple[Path, int]], hta: str | None, repeats: int) -> None:
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(
        f"best of {repeats} each; {os.cpu_count()} CPUs, load {loads}; Python "
        f"{sys.version.split()[0]}, numpy {version('numpy')}, msgspec {version('msgspec')}"
    )
    head = f"{'':<38} {'raw':>6} {'ours':>6} {'ours':>5} {'ours':>5}"
    units = f"{'trace':<38} {'MB':>6} {'wall s':>6} {'CPU s':>5} {'MB':>5}"
    if hta:
        head += f" {'HTA':>6} {'HTA':>6} {'HTA':>5} {'HTA / ours':>18}"
        units += f" {'wall s':>6} {'CPU s':>6} {'MB':>5} {'wall':>5} {'CPU':>5} {'memory':>6}"
    print(f"{head}\n{units}")
    for path, size in traces:
        print_trace(path, size, hta, repeats)
    with tempfile.TemporaryDirectory() as folder:
        for path, _ in traces:
            if path.name.startswith(LENGTHENED):
                longer = Path(folder) / f"{LENGTHENED}_x{COPIES}.json.gz"
                made = run(sys.executable, "lengthen", str(path), str(longer))
                if made.error:
                    raise SystemExit(f"{longer.name}: {made.error}")
                print_trace(longer, raw_bytes(longer), hta, repeats)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, help="folder of *.json.gz or *.json")
    parser.add_argument("--hta-venv", type=Path, help=f"virtual environment of {' '.join(HTA)}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the names of the traces to measure")
    options = parser.parse_args()
    folder = options.traces or Path(os.environ.get("MFU_TORCH_TRACES") or BESIDE)
    paths = sorted(path for path in folder.glob("*.json*") if options.only in path.name)
    traces = [(path, size) for path in paths if (size := raw_bytes(path)) >= LEAST_BYTES]
    if not traces:
        print(f"no trace of {LEAST_BYTES / 1e6:.0f} MB in {folder}: nothing to measure (--traces)")
        return
    if options.hta_venv is None:
        print("without --hta-venv: ours alone")
    print_table(traces, options.hta_venv and hta_python(options.hta_venv), options.repeats)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        programs = {"ours": measure_ours, "hta": measure_hta, "lengthen": lengthen}
        print(programs[sys.argv[2]](*sys.argv[3:]))
    else:
        main()
