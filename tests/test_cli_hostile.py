"""Hostile files and hasty hands: ``explain``, ``report`` and ``compare`` say what is wrong."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from samples import entries, header, peak, term

from mfu_torch.cli import main
from mfu_torch.records import CountEntry, Device, FlopCount, Header, PeakEntry
from mfu_torch.run.runfile import RunFileSink

sys.path.insert(0, str(Path(__file__).parent / "insight"))

from trace_builder import TraceBuilder

US = 1000
ESCAPE = "\x1b[31mred\x1b[0m"
Captured = pytest.CaptureFixture[str]


def builder(**changes: Any) -> TraceBuilder:
    """Two steps: a matmul, an all-reduce, a wait for data."""
    trace = TraceBuilder(**changes)
    for number in (3, 4):
        begin = 1000 * (number - 3) * US
        trace.step(number, begin, 1000 * US)
        dims = [[1000, 1000], [1000, 1000]]
        trace.op("aten::mm", begin + 10, 80, dims=dims, types=["c10::BFloat16"] * 2)
        trace.kernel("sm90_xmma_gemm_bf16", begin + 100, 500 * US, launch_ns=begin + 20)
        trace.data_wait(begin + 600 * US, 399 * US)
    return trace


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return builder().write(tmp_path / "trace.json")


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return tmp_path / "clean.json"


def write_run(folder: Path, *, of: Callable[[Any], Any] = lambda entry: entry) -> str:
    sink = RunFileSink(folder)
    for entry in entries():
        sink.write(of(entry))
    sink.close()
    return str(folder)


def error_of(argv: list[str], code: int, capsys: Captured) -> str:
    """The one line that a command says, and nothing beside it."""
    assert main(argv) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1 and captured.err.startswith(f"mfu-torch {argv[0]}: ")
    return captured.err


# --- a clean copy where there is something already -----------------------------------------------


def test_a_clean_copy_takes_the_place_of_a_file_only_by_force(
    trace: Path, clean: Path, capsys: Captured
) -> None:
    clean.write_text("mine")
    argv = ["explain", str(trace), "--scrub", str(clean)]
    assert "exists; give another name, or --force to write over it" in error_of(argv, 2, capsys)
    assert clean.read_text() == "mine"
    assert main([*argv, "--force"]) == 0
    assert json.loads(clean.read_text())["traceEvents"]


def test_force_never_writes_over_the_trace_itself(
    trace: Path, tmp_path: Path, capsys: Captured
) -> None:
    before = trace.read_bytes()
    (tmp_path / "link.json").symlink_to(trace)
    (tmp_path / "hard.json").hardlink_to(trace)
    for out in (trace, tmp_path / "link.json", tmp_path / "hard.json"):
        argv = ["explain", str(trace), "--scrub", str(out), "--force"]
        assert "is the trace itself" in error_of(argv, 1, capsys)
    assert trace.read_bytes() == before


def test_a_device_is_not_replaced_by_a_file(trace: Path, tmp_path: Path, capsys: Captured) -> None:
    os.mkfifo(tmp_path / "pipe")
    for out in (tmp_path / "pipe", tmp_path):
        argv = ["explain", str(trace), "--scrub", str(out), "--force"]
        assert "is no file; give the name of a file to write" in error_of(argv, 2, capsys)
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "3:4"], "--steps would change nothing"),
        (["--csv"], "--csv would change nothing"),
        (["--classes", "my.toml"], "--classes would change nothing"),
        (["--model-flops", "1e9"], "--model-flops would change nothing"),
    ],
)
def test_what_scrub_does_not_look_at_is_refused(
    trace: Path, clean: Path, words: list[str], said: str, capsys: Captured
) -> None:
    assert said in error_of(["explain", str(trace), "--scrub", str(clean), *words], 2, capsys)
    assert not clean.exists()


def test_a_folder_that_is_not_there_is_named(trace: Path, capsys: Captured) -> None:
    argv = ["explain", str(trace), "--scrub", "/nowhere/clean.json"]
    assert "there is no folder /nowhere; make it first" in error_of(argv, 2, capsys)


def test_a_clean_copy_says_what_it_keeps(trace: Path, clean: Path, capsys: Captured) -> None:
    assert main(["explain", str(trace), "--scrub", str(clean)]) == 0
    assert "names of kernels, operators" in capsys.readouterr().out
    argv = ["explain", str(trace), "--scrub", str(clean), "--force", "--json"]
    assert main(argv) == 0
    assert "names of kernels" in json.loads(capsys.readouterr().out)["kept"]


# --- what was typed ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argv",
    [
        ["explain", ""],
        ["explain", "--diff", "", "t"],
        ["explain", "t", "--scrub", ""],
        ["report", ""],
        ["report", "t", "--html", " "],
        ["compare", "", "t"],
    ],
)
def test_an_empty_name_is_not_the_folder_in_which_one_is(argv: list[str], capsys: Captured) -> None:
    assert "an empty name is given" in error_of(argv, 2, capsys)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--max-raw-bytes", ""], "--max-raw-bytes: '' is no number of bytes"),
        (["--max-raw-bytes", "8 GB/s"], "--max-raw-bytes: '8 GB/s' is no number of bytes"),
        (["--max-raw-bytes", "8i"], "--max-raw-bytes: '8i' is no number of bytes"),
        (["--max-raw-bytes", "0"], "--max-raw-bytes: '0' is less than a byte"),
        (["--step-name", ""], "--step-name: it is empty"),
        (["--force"], "--force is for --scrub OUT"),
        (["--diff", "t", "--top", "many"], "--top: 'many' is no whole number"),
        (["--csv", "--md"], "not allowed with argument --csv"),
        (["--steps"], "argument --steps: expected one argument"),
    ],
)
def test_wrong_words_are_one_line(
    trace: Path, words: list[str], said: str, capsys: Captured
) -> None:
    given = [str(trace) if word == "t" else word for word in words]
    assert said in error_of(["explain", str(trace), *given], 2, capsys)


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("100", 100), ("2 kB", 2000), ("1 KiB", 1024), ("0.5kib", 512), ("1e3", 1000), ("1MB", 10**6)],
)
def test_bytes_are_read_with_their_prefixes(
    tmp_path: Path, text: str, bytes_: int, capsys: Captured
) -> None:
    large = tmp_path / "large.json"
    events = ",".join([json.dumps(builder().events[0])] * 20_000)
    large.write_text(f'{{"traceEvents": [{events}]}}')
    assert large.stat().st_size > 2 * 10**6
    assert f"more than {bytes_} bytes" in error_of(
        ["explain", str(large), "--max-raw-bytes", text], 1, capsys
    )


def test_the_help_has_the_limit_that_is_used(capsys: Captured) -> None:
    from mfu_torch.insight.trace.source import MAX_RAW_BYTES

    assert main(["explain", "--help"]) == 0
    said = re.search(r"default (\d+) GiB", " ".join(capsys.readouterr().out.split()))
    assert said is not None and int(said[1]) << 30 == MAX_RAW_BYTES


# --- Ctrl-C --------------------------------------------------------------------------------------


def test_ctrl_c_is_one_line_and_130(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mfu_torch.insight.trace.reading.read_trace", stopped)
    assert error_of(["explain", str(trace)], 130, capsys).endswith("stopped by Ctrl-C\n")


def test_ctrl_c_while_a_copy_is_written_leaves_no_part_of_it(
    trace: Path, clean: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    def stopped(trace: object, file: Any, **_: object) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr("mfu_torch.insight.trace.scrub._write", stopped)
    error_of(["explain", str(trace), "--scrub", str(clean)], 130, capsys)
    assert [path.name for path in trace.parent.iterdir()] == [trace.name]


# --- run files -----------------------------------------------------------------------------------


def test_a_report_has_nothing_that_a_terminal_obeys(tmp_path: Path, capsys: Captured) -> None:
    def hostile(entry: Any) -> Any:
        if isinstance(entry, Header):
            return header(device=Device(name=ESCAPE, kind="cuda", index=0), clock=f"{ESCAPE}\u202e")
        return entry

    run = write_run(tmp_path, of=hostile)
    assert main(["report", run]) == 0
    out = capsys.readouterr().out
    assert out.startswith("?[31mred?[0m | ")
    assert not set(re.sub(r"[\n -~]", "", out)) & set("\x1b\u202e")
    assert main(["compare", run, run]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_an_error_has_nothing_that_a_terminal_obeys(tmp_path: Path, capsys: Captured) -> None:
    for command in (["report"], ["explain"], ["compare", str(tmp_path)]):
        assert "\x1b" not in error_of([*command, str(tmp_path / ESCAPE)], 1, capsys)


@pytest.mark.parametrize("rate", [1e-300, 1e25])
def test_a_peak_that_no_device_has_is_refused(
    tmp_path: Path, rate: float, capsys: Captured
) -> None:
    run = write_run(tmp_path, of=lambda e: peak("bf16", rate) if isinstance(e, PeakEntry) else e)
    for argv in (["report", run], ["compare", run, run]):
        assert "FLOP/s is recorded; expected 1 to 1e+24" in error_of(argv, 1, capsys)


def test_a_count_that_no_step_has_is_refused(tmp_path: Path, capsys: Captured) -> None:
    far = FlopCount(terms=(term("forward", 10**31, 10**31),))
    run = write_run(
        tmp_path, of=lambda e: CountEntry(id=0, count=far) if isinstance(e, CountEntry) else e
    )
    assert "more than 10^30 FLOPs is recorded" in error_of(["report", run], 1, capsys)
