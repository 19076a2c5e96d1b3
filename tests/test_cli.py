"""The command line: what it prints and the code it exits with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from samples import entries, run

import mfu_torch
from mfu_torch.cli import COMMANDS, main
from mfu_torch.insight.report import render_report
from mfu_torch.run.runfile import RunFileSink

ROOT = Path(mfu_torch.__file__).parent.parent


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    sink = RunFileSink(tmp_path)
    for record in entries():
        sink.write(record)
    sink.close()
    return sink.path


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert name in out
        assert command.help in out


def test_every_command_has_help_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    for name in COMMANDS:
        assert main([name, "--help"]) == 0
        assert "--json" in capsys.readouterr().out


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"mfu-torch {mfu_torch.__version__}\n"


@pytest.mark.parametrize("argv", [[], ["no-such-command"], ["report"], ["report", "a", "b"]])
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("usage: mfu-torch")


@pytest.mark.parametrize("what", ["file", "directory"])
def test_report_prints_the_report(
    recorded: Path, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recorded if what == "file" else recorded.parent)]) == 0
    captured = capsys.readouterr()
    assert captured.out == render_report(run())
    assert captured.err == ""


def test_report_as_json_has_the_same_figures(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recorded), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["status"] == "completed"
    assert (said["steps"], said["wall_s"], said["attention"]) == (5, 20.0, "full")
    assert said["device"]["name"] == "NVIDIA H100 80GB HBM3"
    # worked out in test_figures
    assert said["figures"]["mfu"] == pytest.approx(0.30)
    assert said["figures"]["hfu"] == pytest.approx(0.41)
    assert said["figures"]["mfu_causal"] == pytest.approx(0.27)
    assert said["figures"]["end_to_end"] == pytest.approx(0.075)
    assert [(part["kind"], part["name"], part["time_s"]) for part in said["wall"]] == [
        ("steady", "", 4.0),
        ("excluded", "first step, compiling", 10.0),
        ("pause", "init", 2.0),
        ("pause", "eval", 3.0),
        ("other", "", 1.0),
    ]
    assert said["peaks"]["bf16"]["peak"]["flops_per_s"] == 100e12
    (counted,) = said["counts"]
    assert (counted["times"], counted["model"], counted["hardware"]) == (
        5,
        30_000_000_000_000,
        40_500_000_000_000,
    )


def test_a_run_that_cannot_be_read_is_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path)]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mfu-torch report: {tmp_path}: holds no run file; expected")
    assert captured.err.count("\n") == 1


def test_a_reader_that_stops_early_is_no_error(recorded: Path) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)  # nobody reads: the first write breaks the pipe
    with os.fdopen(write_end, "wb") as nowhere:
        done = subprocess.run(
            [sys.executable, "-m", "mfu_torch", "report", str(recorded)],
            stdout=nowhere,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            check=False,
        )
    assert done.stderr == b""
    assert done.returncode == 0


def test_a_terminal_that_cannot_show_a_name_does_not_cost_the_report(tmp_path: Path) -> None:
    from samples import header

    from mfu_torch.records import Device

    sink = RunFileSink(tmp_path)
    sink.write(header(device=Device(name="Größe 1", kind="cpu")))
    sink.close()
    done = subprocess.run(
        [sys.executable, "-m", "mfu_torch", "report", str(tmp_path)],
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0
    assert done.stdout.startswith(b"Gr??e 1 | 0 steps")
