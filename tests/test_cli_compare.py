"""``mfu-torch compare``: what it prints, and the code it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from samples import count, header, peak, step

import mfu_torch
from mfu_torch.cli import main
from mfu_torch.records import End, Window
from mfu_torch.run.runfile import RunFileSink

ROOT = Path(mfu_torch.__file__).parent.parent


def write(folder: Path, step_s: float, **changes: Any) -> str:
    """A run of 1 + 40 steps that alternate by 1 % around a duration; returns the folder."""
    sink = RunFileSink(folder)
    steps = [step(0, 5.0, excluded="first step")]
    steps += [step(i, step_s * (1 + 0.01 * (-1) ** (i * i // 3))) for i in range(1, 41)]
    window = Window(steps=tuple(steps), wall_s=sum(each.duration_s for each in steps))
    for record in (header(**changes), peak(), peak("fp32", 50e12), count(), window):
        sink.write(record)
    sink.write(End(wall_s=50.0, reason="completed"))
    sink.close()
    return str(folder)


def test_runs_that_are_comparable_are_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", write(tmp_path / "a", 1.0), write(tmp_path / "b", 0.9)]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Comparable: the MFU of B is 11.1 % higher than that of A (95 %")
    assert f"A  {tmp_path}/a: NVIDIA" in captured.out
    assert captured.err == ""


def test_runs_that_are_not_comparable_are_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write(tmp_path / "b", 0.9, attention="causal")
    assert main(["compare", write(tmp_path / "a", 1.0), other]) == 1
    captured = capsys.readouterr()
    assert captured.out.startswith("MFU is not comparable, because of attention; by throughput B")
    assert captured.err == ""


def test_they_are_comparable_under_one_convention(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [write(tmp_path / "a", 1.0), write(tmp_path / "b", 0.9, attention="causal")]
    assert main(["compare", *runs, "--attention", "causal"]) == 0
    assert "attention causal" in capsys.readouterr().out


def test_the_same_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = write(tmp_path / "b", 0.9, clock="host clock, cuda synchronised at every mark")
    assert main(["compare", write(tmp_path / "a", 1.0), other, "--json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["comparable"] is False
    assert said["verdict"] == "Not comparable, because of clock."
    assert [each["aspect"] for each in said["differences"]] == ["clock"]
    assert said["differences"][0]["forbids"][0] == "MFU"
    (mfu,) = [each for each in said["changes"] if each["figure"] == "mfu"]
    assert (mfu["change"], mfu["significant"]) == (None, None)
    assert mfu["a"] == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize(
    "argv",
    [["compare"], ["compare", "a"], ["compare", "a", "b", "c"], ["compare", "a", "b", "--x"]],
)
def test_wrong_usage_is_2(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("usage: mfu-torch")


def test_a_run_that_cannot_be_read_is_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", write(tmp_path / "a", 1.0), str(tmp_path / "none")]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"mfu-torch compare: {tmp_path}/none: no such file; expected")
    assert captured.err.count("\n") == 1


def test_neither_torch_nor_more_than_is_needed_is_loaded(tmp_path: Path) -> None:
    runs = [write(tmp_path / "a", 1.0), write(tmp_path / "b", 0.9)]
    code = f"import sys; from mfu_torch.cli import main; main(['compare', *{runs}])\n"
    code += "assert 'numpy' in sys.modules\n"
    code += "assert not {'torch', 'matplotlib', 'scipy'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
    code = "import sys; from mfu_torch.cli import main; main(['compare', 'none', 'none'])\n"
    code += "assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)
