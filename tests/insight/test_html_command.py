"""``mfu-torch report RUN --html FILE``: whole pages, and over nothing that is not ours."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from samples import entries, run

import mfu_torch
from mfu_torch.cli import main
from mfu_torch.insight.html import NotOurs, render_page, write_page
from mfu_torch.records import MFUError
from mfu_torch.run.runfile import RunFileSink

ROOT = Path(mfu_torch.__file__).parent.parent
PAGE = render_page(run())


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    sink = RunFileSink(tmp_path / "runs")
    for record in entries():
        sink.write(record)
    sink.close()
    return sink.path


def test_the_page_of_a_run_is_written(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(recorded), "--html", str(target)]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == (f"{target} written\n", "")
    assert target.read_text(encoding="utf-8") == PAGE
    assert sorted(os.listdir(tmp_path)) == [
        "report.html",
        "runs",
    ]


def test_with_json_the_page_is_written_and_the_summary_printed(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(recorded), "--html", str(target), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 5
    assert target.exists()


def test_an_earlier_page_is_written_over(recorded: Path, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    target.write_text(PAGE.replace("30.0 %", "31.0 %"), encoding="utf-8")
    target.chmod(0o640)
    assert main(["report", str(recorded), "--html", str(target)]) == 0
    assert target.read_text(encoding="utf-8") == PAGE
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


@pytest.mark.parametrize("text", ["", "my notes", "<!doctype html>\n<html>", PAGE[5:]])
def test_another_file_is_only_written_over_by_force(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    target = tmp_path / "notes.html"
    target.write_text(text, encoding="utf-8")
    assert main(["report", str(recorded), "--html", str(target)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"mfu-torch report: {target}: exists, and is no page of mfu-torch; give another name, or "
        "--force to write over it\n"
    )
    assert target.read_text(encoding="utf-8") == text
    assert main(["report", str(recorded), "--html", str(target), "--force"]) == 0
    assert target.read_text(encoding="utf-8") == PAGE


def test_the_run_file_itself_is_not_written_over(recorded: Path) -> None:
    before = recorded.read_bytes()
    assert main(["report", str(recorded), "--html", str(recorded)]) == 2
    assert recorded.read_bytes() == before


def test_force_without_a_page_is_wrong_usage(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(recorded), "--force"]) == 2
    assert capsys.readouterr().err == "mfu-torch report: --force is for --html FILE\n"


@pytest.mark.parametrize("name", ["runs", "no/such/directory/report.html", "/dev/null"])
def test_what_cannot_be_a_file_is_1_and_one_line(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    assert main(["report", str(recorded), "--html", str(tmp_path / name)]) == 1
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert captured.err.startswith(f"mfu-torch report: {tmp_path / name}: ")


def test_a_run_that_cannot_be_read_leaves_no_page(tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "none"), "--html", str(target)]) == 1
    assert not target.exists()


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "real.html", tmp_path / "link.html"
    target.write_text(PAGE, encoding="utf-8")
    link.symlink_to(target)
    assert write_page(link, PAGE) == target
    assert link.is_symlink() and target.read_text(encoding="utf-8") == PAGE


def test_a_new_page_can_be_read_by_whom_new_files_can(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_page(tmp_path / "report.html", PAGE)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o644


def test_a_failure_while_writing_leaves_the_old_page_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "report.html"
    write_page(target, PAGE)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        write_page(target, PAGE + "<!-- more -->")
    assert target.read_text(encoding="utf-8") == PAGE
    assert os.listdir(tmp_path) == ["report.html"]


def test_refusals_are_errors_of_the_package(tmp_path: Path) -> None:
    assert issubclass(NotOurs, MFUError)
    with pytest.raises(MFUError, match="is no file; expected the name of a file to write"):
        write_page(tmp_path, PAGE)


def test_a_page_needs_neither_torch_nor_numpy(recorded: Path, tmp_path: Path) -> None:
    argv = ["report", str(recorded), "--html", str(tmp_path / "report.html")]
    code = f"import sys; from mfu_torch.cli import main; assert main({argv}) == 0\n"
    code += "assert not {'torch', 'numpy', 'matplotlib', 'jinja2'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True)


def test_the_page_is_the_same_whatever_the_seed_of_hashes(recorded: Path, tmp_path: Path) -> None:
    pages = set()
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.html"
        subprocess.run(
            [sys.executable, "-m", "mfu_torch", "report", str(recorded), "--html", str(target)],
            cwd=ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        )
        pages.add(target.read_bytes())
    assert pages == {PAGE.encode()}
