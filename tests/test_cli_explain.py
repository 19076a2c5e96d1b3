"""``mfu-torch explain``: its forms, its options, and its exit codes."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from mfu_torch.cli import main

sys.path.insert(0, str(Path(__file__).parent / "insight"))

from trace_builder import TraceBuilder
from traces import NAMES, trace_path

US = 1000


def write(
    path: Path,
    *,
    wait: int = 400,
    rank: int | None = None,
    device: str | None = "NVIDIA H100 80GB HBM3",
) -> Path:
    """Two steps of 1 ms: ``wait`` us of data wait, 500 us of a matmul, the rest elementwise."""
    trace = TraceBuilder(device_name=device, rank=rank, world_size=2 if rank is not None else None)
    for number in (3, 4):
        begin = 1000 * (number - 3) * US
        trace.step(number, begin, 1000 * US)
        # (1000, 1000) @ (1000, 1000): 2 GFLOP
        dims = [[1000, 1000], [1000, 1000]]
        trace.op("aten::mm", begin + 10, 80, dims=dims, types=["c10::BFloat16", "c10::BFloat16"])
        trace.kernel("sm90_xmma_gemm_bf16", begin + 100, 500 * US, launch_ns=begin + 20)
        trace.kernel(
            "elementwise_kernel", begin + 500 * US + 100, (500 - wait) * US, launch_ns=begin + 95
        )
        trace.data_wait(begin + (1000 - wait) * US, wait * US - 5)
    return trace.write(path)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return write(tmp_path / "trace.json")


# --- what it prints --------------------------------------------------------------------------


def test_a_trace_becomes_a_waterfall(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(trace)]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    lines = captured.out.splitlines()
    assert lines[0].startswith("trace.json | NVIDIA H100 80GB HBM3 | 2 steps")
    assert lines[1].startswith("Fix first: ")
    assert max(map(len, lines)) <= 100
    assert "= wall time, " in captured.out


def test_json_sums_to_the_wall_time(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(trace), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(one["time_ns"] for one in found["buckets"]) == found["wall_ns"]
    assert found["file"] == "trace.json"


def test_csv_and_markdown_have_the_same_buckets(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(trace), "--csv"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert main(["explain", str(trace), "--md"]) == 0
    text = capsys.readouterr().out
    assert lines[-1]["bucket"] == "SUM"
    assert text.count("| **SUM** |") == 1
    table = text.partition("|--:|--:|---|\n")[2].partition("| **SUM** |")[0]
    assert table.count("\n") == len(lines) - 1


def test_the_peak_and_the_flops_can_be_given(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["explain", str(trace), "--edges", "cpu", "--peak", "100 TFLOP/s", "--dtype", "bf16"]
    assert main([*argv, "--model-flops", "10 GFLOP", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak"]["flops_per_s"] == 100e12
    assert found["mfu"] == pytest.approx(10e9 / 100e12 / 1e-3, rel=1e-3)  # in 1 ms
    assert found["model_flops"] == 2 * 10**10


def test_what_runs_a_second_time_can_be_given(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["explain", str(trace), "--model-flops", "1", "--json"]
    assert main([*argv, "--recompute-flops", "1 MFLOP"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["hardware_flops"] == found["model_flops"] + 10**6 * len(found["step_ns"])


def test_a_device_can_be_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    unnamed = write(tmp_path / "unnamed.json", device=None)
    assert main(["explain", str(unnamed), "--device", "h100-sxm", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["peak"]["flops_per_s"] == pytest.approx(989.4e12)
    assert any("as given by --device; the trace names none" in note for note in found["notes"])


def test_steps_can_be_chosen(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(trace), "--steps", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == ["ProfilerStep#4"]


def test_top_0_names_no_kernels(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(trace)]) == 0
    assert "What took it" in capsys.readouterr().out
    assert main(["explain", str(trace), "--top", "0"]) == 0
    assert "What took it" not in capsys.readouterr().out


def test_a_trace_without_a_gpu_is_read_by_its_ops(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = TraceBuilder(device_name=None)
    trace.step(3, 0, 1000 * US)
    trace.data_wait(0, 300 * US)
    trace.op("aten::mm", 300 * US, 500 * US, dims=[[100, 100], [100, 100]], types=["float"] * 2)
    trace.op("aten::relu", 800 * US, 150 * US)
    path = trace.write(tmp_path / "cpu.json")
    assert main(["explain", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["edges"] == "cpu"
    times = {one["name"]: one["time_ns"] for one in found["buckets"]}
    assert times["idle/data_wait"] == 300 * US
    assert times["other_compute"] == 150 * US
    assert sum(times.values()) == found["wall_ns"] == 1000 * US
    assert main(["explain", str(path), "--peak", "1 TFLOP/s", "--dtype", "fp32"]) == 0
    out = capsys.readouterr().out
    assert "MFU 0.20 %: 2.000 MFLOP per step" in out  # 2 us of 1 ms
    assert "(--edges gpu" not in out


# --- several traces --------------------------------------------------------------------------


def test_a_folder_holds_the_ranks_of_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "a.pt.trace.json.gz", rank=1)
    write(tmp_path / "b.json", rank=0)
    (tmp_path / "readme.txt").write_text("no trace")
    assert main(["explain", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["rank"] for one in found["ranks"]] == [0, 1]
    assert found["total"]["wall_ns"] == sum(one["wall_ns"] for one in found["ranks"])
    assert main(["explain", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("2 of 2 ranks (0, 1) | ")


def test_other_json_in_a_folder_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text('{"hidden": 4}')
    write(tmp_path / "trace.json", rank=0)
    assert main(["explain", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("trace.json | ")
    assert "WARNING: left out: config.json" in out
    write(tmp_path / "other.json", rank=1)
    assert main(["explain", str(tmp_path)]) == 0
    assert "WARNING: left out: config.json" in capsys.readouterr().out
    assert main(["explain", str(tmp_path / "trace.json"), str(tmp_path / "config.json")]) == 1


def test_a_folder_of_other_json_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "ab":
        (tmp_path / f"{name}.json").write_text('{"hidden": 4}')
    assert main(["explain", str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_folders_of_two_jobs_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = []
    for name, wait in (("slow", 400), ("fast", 100)):
        folders.append(tmp_path / name)
        folders[-1].mkdir()
        for rank in (0, 1):
            write(folders[-1] / f"{rank}.json", wait=wait, rank=rank)
    assert main(["explain", "--diff", *map(str, folders), "--edges", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["before"]["steps"], found["after"]["steps"]) == (4, 4)
    assert sum(one["change_units"] for one in found["changes"]) == found["step_change_units"]


def test_a_rank_twice_is_one_line_and_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [write(tmp_path / f"{name}.json", rank=0) for name in "ab"]
    assert main(["explain", *map(str, paths)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("mfu-torch explain: rank 0 is there twice")
    assert error.count("\n") == 1


@pytest.mark.parametrize("form", ["both", "beside"])
def test_diff_says_what_changed_most(
    tmp_path: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = write(tmp_path / "a.json"), write(tmp_path / "b.json", wait=100)
    two = ["--diff", str(before), str(after)]
    argv = two if form == "both" else [str(before), "--diff", str(after)]
    assert main(["explain", *argv, "--edges", "cpu"]) == 0
    out = capsys.readouterr().out
    assert "What changed most: " in out
    assert "Before:  a.json" in out and "After:   b.json" in out
    assert main(["explain", *argv, "--edges", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(one["change_units"] for one in found["changes"]) == found["step_change_units"]


def test_scrub_writes_a_copy_that_says_the_same(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(trace.read_text())
    document["metadata"] = {"TOKEN": "secret-of-the-host"}
    trace.write_text(json.dumps(document))
    clean = tmp_path / "clean.json"
    assert main(["explain", str(trace), "--scrub", str(clean)]) == 0
    assert "clean.json" in capsys.readouterr().out
    assert "secret-of-the-host" not in clean.read_text()
    assert main(["explain", str(trace), "--csv"]) == 0
    before = capsys.readouterr().out
    assert main(["explain", str(clean), "--csv"]) == 0
    assert capsys.readouterr().out == before


def test_scrub_never_writes_over_the_trace(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = trace.read_bytes()
    assert main(["explain", str(trace), "--scrub", str(trace)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert trace.read_bytes() == before


# --- what is wrong ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "no trace is given"),
        (["t", "--csv", "--json"], "exclude each other"),
        (["t", "--peak", "989"], "--peak: '989' has no unit"),
        (["t", "--peak", "0"], "--peak: "),
        (["t", "--dtype", "bf17"], "--dtype: "),
        (["t", "--device", "abacus"], "--device: 'abacus' is not in the table"),
        (["t", "--model-flops", "many"], "--model-flops: 'many' is not understood"),
        (["t", "--recompute-flops", "some"], "--recompute-flops: 'some' is not understood"),
        (["t", "--top", "-1"], "--top: '-1' is no whole number"),
        (["t", "--max-raw-bytes", "big"], "--max-raw-bytes: "),
        (["t", "--steps", "40:50"], "'40:50'"),
        (["t", "--diff", "t", "t"], "--diff compares 2 traces and 3 are given"),
        (["--diff", "t"], "--diff compares 2 traces and 1 are given"),
        (["t", "t", "--scrub", "o"], "--scrub OUT cleans 1 trace"),
    ],
)
def test_wrong_usage_is_one_line_and_2(
    trace: Path, argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [str(trace) if word == "t" else word for word in argv]
    assert main(["explain", *given]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mfu-torch explain: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no-such"), ("", ""), ("{", ""), ('{"a": 1}', ""), ("[1, 2]", ""), ("\x00\x01", "")],
)
def test_what_is_no_trace_is_one_line_and_1(
    tmp_path: Path, content: str | None, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "no-such.json"
    if content is not None:
        path.write_text(content)
    assert main(["explain", str(path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mfu-torch explain: ")
    assert said in captured.err
    assert captured.err.count("\n") == 1


def test_an_empty_folder_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(tmp_path)]) == 1
    assert "holds no trace" in capsys.readouterr().err


def test_a_trace_above_the_limit_is_refused(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(trace), "--max-raw-bytes", "100"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["explain", str(trace), "--max-raw-bytes", "1 GB"]) == 0


def test_steps_that_do_not_compare_are_1(
    tmp_path: Path, trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = TraceBuilder()
    other.kernel("elementwise_kernel", 0, 100 * US)
    whole = other.write(tmp_path / "whole.json")
    assert main(["explain", "--diff", str(trace), str(whole)]) == 1
    assert "delimited by 'gpu'" in capsys.readouterr().err


@pytest.mark.parametrize("module", ["partition.label", "hints._HINTS"])
def test_a_fault_of_ours_is_not_called_wrong_usage(
    module: str, trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise ValueError("operands could not be broadcast together")

    at = f"mfu_torch.insight.breakdown.{module}"
    faults = {f"idle/{name}": fault for name in ("data_wait", "launch_bound", "host_sync")}
    monkeypatch.setattr(at, faults if module.endswith("_HINTS") else fault)
    with pytest.raises(ValueError, match="broadcast"):
        main(["explain", str(trace)])


def test_a_table_of_classes_that_is_not_there_is_named(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(trace), "--classes", "/nowhere/my.toml"]) == 1
    assert capsys.readouterr().err == (
        "mfu-torch explain: /nowhere/my.toml cannot be read: No such file or directory\n"
    )


# --- real traces -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_every_real_trace_sums_and_fits_the_page(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", str(trace_path(name))]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[1].startswith("Fix first: ") or lines[2].startswith("Fix first: ")
    assert max(map(len, lines)) <= 100
    assert "= wall time, " in captured.out
    assert "Coverage: " in captured.out
