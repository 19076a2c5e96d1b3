"""``mfu-torch explain`` of a run's folder, and ``--device``: which trace and which device."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from mfu_torch.cli import main

sys.path.insert(0, str(Path(__file__).parent / "insight"))

from trace_builder import TraceBuilder

US = 1000


def write(
    path: Path,
    *,
    busy_us: int = 500,
    rank: int | None = None,
    device: str = "NVIDIA H100 80GB HBM3",
    sm_count: int = 132,
) -> Path:
    trace = TraceBuilder(
        device_name=device,
        sm_count=sm_count,
        rank=rank,
        world_size=None if rank is None else 2,
        groups={} if rank is None else {"0": [0, 1]},
    )
    trace.step(3, 0, 1000 * US)
    trace.op("aten::mm", 10, 80, dims=[[1000, 1000], [1000, 1000]], types=["c10::BFloat16"] * 2)
    trace.kernel("sm90_xmma_gemm_bf16", 100, busy_us * US, launch_ns=20)
    path.parent.mkdir(parents=True, exist_ok=True)
    return trace.write(path)


def wall_ns(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str]:
    """Of all ranks, and all notes."""
    assert main(["explain", *map(str, arguments), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    found = said.get("total", said)
    return found["wall_ns"], " ".join(found["notes"])


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that recorded three times; the last recording is not the last by its letters."""
    folder = tmp_path / "mine"
    for at, steps in enumerate(("5-7", "95-97", "105-107")):
        write(folder / "traces" / f"run.steps-{steps}.json.gz", busy_us=100 * (at + 1))
    (folder / "run.jsonl").write_text("{}\n")
    return folder


# --- a run's folder --------------------------------------------------------------------------


@pytest.mark.parametrize("below", ["", "traces"])
def test_of_a_run_the_newest_recording_is_explained_and_the_others_named(
    run: Path, below: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, notes = wall_ns(capsys, run / below)
    assert found == 300 * US
    assert f"run.steps-105-107.json.gz is the newest recording in {run / below}" in notes
    assert "run.steps-5-7.json.gz" in notes and "run.steps-95-97.json.gz" in notes


def test_a_recording_that_is_named_is_taken_itself(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, notes = wall_ns(capsys, run / "traces" / "run.steps-5-7.json.gz")
    assert found == 100 * US and "newest" not in notes


def test_other_json_beside_the_recordings_is_none_of_them(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "config.json").write_text('{"lr": 1}')
    found, notes = wall_ns(capsys, run)
    assert found == 300 * US and "config.json" in notes


def test_of_a_run_of_several_ranks_the_newest_of_each_rank_are_joined(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for steps, us in (("5-7", 100), ("15-17", 200)):
        write(tmp_path / "traces" / f"run.steps-{steps}.json.gz", busy_us=us, rank=0)
        write(tmp_path / "traces" / f"run.rank1.steps-{steps}.json.gz", busy_us=us, rank=1)
    found, notes = wall_ns(capsys, tmp_path)
    assert found == 2 * 200 * US and "are the newest recording" in notes


def test_of_several_runs_it_is_the_one_that_wrote_last(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = write(tmp_path / "old" / "traces" / "run.steps-900-902.json", busy_us=100)
    new = write(tmp_path / "new" / "traces" / "run.steps-900-902.json", busy_us=200)
    write(tmp_path / "new" / "traces" / "run.steps-5-7.json", busy_us=300)
    os.utime(old, (1, 1))
    os.utime(new, (9, 9))
    found, notes = wall_ns(capsys, tmp_path)
    assert found == 200 * US
    assert "new/traces/run.steps-900-902.json is the newest" in notes


def test_the_newest_recordings_of_two_runs_are_compared(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "other" / "traces" / "run.steps-5-7.json", busy_us=600)
    assert main(["explain", "--diff", str(run), str(tmp_path / "other")]) == 0
    (row,) = [x for x in capsys.readouterr().out.splitlines() if x.startswith("SUM")]
    assert row.split()[1:5:3] == ["0.30000", "0.60000"]


# --- which device ----------------------------------------------------------------------------


def test_a_name_of_devices_with_unlike_peaks_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "trace.json", sm_count=80)
    assert main(["explain", str(trace), "--device", "v100"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "'v100' is a name of 2 devices with unlike peaks" in said.err
    assert "say which: v100-sxm2, v100-pcie" in said.err


def test_with_a_peak_it_does_not_matter_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "trace.json", sm_count=80)
    assert main(["explain", str(trace), "--device", "v100", "--peak", "125 TFLOP/s"]) == 0


def test_the_multiprocessors_of_the_trace_may_say_which(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "trace.json", sm_count=114)
    assert main(["explain", str(trace), "--device", "h100", "--json"]) == 0
    peak = json.loads(capsys.readouterr().out)["peak"]
    assert (peak["device"], peak["flops_per_s"]) == ("h100-pcie", 756e12)


def test_names_of_one_peak_are_taken_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = write(tmp_path / "trace.json", sm_count=108)
    _, notes = wall_ns(capsys, trace, "--device", "a100")
    assert "a100 is any of a100-sxm-40gb, a100-sxm-80gb" in notes
    assert "whose peaks are the same" in notes


def test_warnings_stand_above_what_they_are_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = write(tmp_path / "one.json")
    other = write(tmp_path / "other.json", device="NVIDIA A100-SXM4-40GB", sm_count=108)
    assert main(["explain", "--diff", str(one), str(other)]) == 0
    out = capsys.readouterr().out
    assert 0 < out.index("WARNING: the devices differ") < out.index("A step takes")
    assert main(["explain", "--diff", str(one), str(other), "--md"]) == 0
    out = capsys.readouterr().out
    assert 0 <= out.index("**Warning:** the devices differ") < out.index("A step takes")
