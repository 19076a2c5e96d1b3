"""``mfu-torch bench``: what it takes, prints, saves, and which exit code it has."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import msgspec
import pytest
import torch

from mfu_torch.cli import bench as command
from mfu_torch.peak import bench, devices, saved
from mfu_torch.peak.bench import BENCH_DTYPES, BenchEntry, BenchResult, Interrupted
from mfu_torch.peak.saved import saved_peak
from mfu_torch.peak.sustained import Sustained
from mfu_torch.peak.user_table import UserTableError
from mfu_torch.records import Device

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
FP32 = Sustained(
    dtype="fp32",
    flops_per_s=2e11,
    burst_flops_per_s=3e11,
    shape=(512, 512, 512),
    time_s=1.0,
    calls=9,
)


class Benchmarks:
    """Stands for ``run_bench``; keeps what it was called with."""

    def __init__(self) -> None:
        self.entries: tuple[BenchEntry, ...] = (BenchEntry(dtype="fp32", sustained=FP32),)
        self.arguments: dict[str, object] = {}

    def __call__(
        self, device: Device, dtypes: object, *, progress: object, **arguments: object
    ) -> BenchResult:
        assert callable(progress)
        for entry in self.entries:
            progress(entry.dtype)
        self.arguments = {"device": device, "dtypes": tuple(dtypes), **arguments}  # type: ignore[arg-type]
        return BenchResult(
            device=device,
            started="2026-11-30T12:00:00+00:00",
            torch=str(torch.__version__),
            driver="",
            seconds=1.0,
            shapes="full",
            entries=self.entries,
        )


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Benchmarks:
    found = Benchmarks()
    monkeypatch.setattr(bench, "run_bench", found)
    monkeypatch.setattr(devices, "detect_device", lambda index, kind: CPU)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return found


def run(*argv: str) -> int:
    """As the command line does it."""
    parser = argparse.ArgumentParser(prog="mfu-torch bench")
    command.arguments(parser)
    parser.add_argument("--json", action="store_true")
    parser.set_defaults(command="bench")
    return command.run(parser.parse_args(argv))


def test_by_default_all_dtypes_are_measured_for_a_second(
    found: Benchmarks, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert found.arguments == {
        "device": CPU,
        "dtypes": BENCH_DTYPES,
        "seconds": 1.0,
        "shapes": "full",
    }
    out, err = capsys.readouterr()
    assert out.startswith(f"AMD EPYC | torch {torch.__version__} | ") and "200 GFLOP/s" in out
    assert "Saved" not in out and err == ""  # no terminal: no progress


def test_the_arguments_reach_the_benchmark(found: Benchmarks) -> None:
    assert (
        run("--dtype", "bf16,fp8", "--dtype", "fp8", "--seconds", "0.5", "--shapes", "quick") == 0
    )
    assert found.arguments["dtypes"] == ("bf16", "fp8")
    assert (found.arguments["seconds"], found.arguments["shapes"]) == (0.5, "quick")


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("cuda:1", (1, "cuda")),
        ("cuda", (None, "cuda")),
        ("cpu", (None, "cpu")),
        ("rocm:0", (0, "rocm")),
    ],
)
def test_the_device_is_named_as_in_torch(
    text: str, asked: tuple[int | None, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int | None, str | None]] = []

    def detect(index: int | None, kind: str | None) -> Device:
        seen.append((index, kind))
        return CPU

    monkeypatch.setattr(devices, "detect_device", detect)
    assert run("--device", text) == 0
    assert seen == [asked]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--dtype", "fp4"], "invalid choice: 'fp4'"),
        (["--dtype", "bf16,fp4"], "invalid choice: 'fp4'"),
        (["--seconds", "0"], "'0'; expected seconds, up to 3600"),
        (["--seconds", "nan"], "'nan'; expected seconds"),
        (["--device", "gpu"], "'gpu'; expected cuda, cuda:1, rocm:0, mps or cpu"),
        (["--device", "cuda:-1"], "'cuda:-1'; expected"),
        (["--shapes", "some"], "invalid choice: 'some'"),
    ],
)
def test_wrong_usage_is_said(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        run(*argv)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def test_a_device_that_is_not_there_is_wrong_usage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(index: int | None, kind: str | None) -> Device:
        raise ValueError("device index is 7, but torch sees 1 GPU(s)")

    monkeypatch.setattr(devices, "detect_device", refuse)
    assert run("--device", "cuda:7") == 2
    out, err = capsys.readouterr()
    assert (out, err) == ("", "mfu-torch bench: device index is 7, but torch sees 1 GPU(s)\n")


def test_a_table_of_the_users_that_is_wrong_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*args: object, **kwargs: object) -> BenchResult:
        raise UserTableError("peaks.toml: no figure")

    monkeypatch.setattr(bench, "run_bench", refuse)
    assert run() == 2
    assert capsys.readouterr().err == "mfu-torch bench: peaks.toml: no figure\n"


def test_where_nothing_could_be_measured_the_answer_is_no(
    found: Benchmarks, capsys: pytest.CaptureFixture[str]
) -> None:
    found.entries = (BenchEntry(dtype="tf32", unknown="a device of kind 'cpu' has no tf32 units"),)
    assert run() == 1
    assert "tf32: a device of kind 'cpu' has no tf32 units" in capsys.readouterr().out


def test_save_keeps_the_result_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--save") == 0
    out = capsys.readouterr().out
    assert out.endswith("\nSaved, to stand beside the peak that MFU divides by: fp32\n")
    peak = saved_peak(CPU, "fp32")
    assert peak is not None and peak.flops_per_s == 2e11


def test_without_save_nothing_is_kept() -> None:
    assert run() == 0
    assert saved_peak(CPU, "fp32") is None


def test_a_disturbed_rate_is_shown_and_not_saved(
    found: Benchmarks, capsys: pytest.CaptureFixture[str]
) -> None:
    low = msgspec.structs.replace(FP32, cpu_share=0.3)
    found.entries = (BenchEntry(dtype="fp32", sustained=low),)
    assert run("--save") == 1
    out, err = capsys.readouterr()
    assert "200 GFLOP/s" in out and out.endswith("MFU divides by: nothing\n")
    assert err.startswith("mfu-torch bench: not saved: fp32; other work kept the CPU busy")
    assert saved_peak(CPU, "fp32") is None


def test_a_folder_that_cannot_be_written_costs_the_saving_and_not_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))
    assert run("--save") == 1
    out, err = capsys.readouterr()
    assert "200 GFLOP/s" in out
    assert "cannot be written" in err and "nothing, or not all, was saved" in err


def test_json_is_the_same_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--json", "--save") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dtypes"]["fp32"]["sustained"]["flops_per_s"] == 2e11
    assert (found["saved"], found["device"]["name"]) == (["fp32"], "AMD EPYC")
    assert run("--json") == 0
    assert json.loads(capsys.readouterr().out)["saved"] is None


def test_progress_goes_to_a_terminal_and_not_into_the_result(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert run("--json") == 0
    out, err = capsys.readouterr()
    json.loads(out)
    assert err == "measuring fp32 on AMD EPYC ...\n"


def test_the_help_offers_every_dtype_that_can_be_measured() -> None:
    assert command.DTYPES == BENCH_DTYPES


# --- Ctrl-C -------------------------------------------------------------------------------------


def interrupt(monkeypatch: pytest.MonkeyPatch, found: Benchmarks, *done: BenchEntry) -> None:
    """``bf16`` is being measured when it comes."""
    found.entries = done

    def stopped(device: Device, dtypes: object, **arguments: object) -> BenchResult:
        raise Interrupted(found(device, dtypes, **arguments), "bf16")  # type: ignore[arg-type]

    monkeypatch.setattr(bench, "run_bench", stopped)


def test_after_an_interrupt_what_was_measured_is_printed_and_not_saved(
    found: Benchmarks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(monkeypatch, found, *found.entries)
    assert run("--save", "--dtype", "fp32,bf16,fp64") == 130
    out, err = capsys.readouterr()
    assert "200 GFLOP/s" in out and out.endswith("MFU divides by: nothing\n")
    assert err == (
        "mfu-torch bench: interrupted while bf16 was measured; 1 of 3 dtypes had been measured; "
        "nothing was saved\n"
    )
    assert saved_peak(CPU, "fp32") is None
    assert run("--json", "--dtype", "fp32,bf16") == 130
    assert list(json.loads(capsys.readouterr().out)["dtypes"]) == ["fp32"]


def test_an_interrupt_before_anything_was_measured_is_one_line(
    found: Benchmarks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt(monkeypatch, found)
    assert run("--dtype", "bf16") == 130
    assert capsys.readouterr() == (
        "",
        "mfu-torch bench: interrupted while bf16 was measured; 0 of 1 dtypes had been measured\n",
    )

    def at_once(index: int | None, kind: str | None) -> Device:
        raise KeyboardInterrupt

    monkeypatch.setattr(devices, "detect_device", at_once)
    assert run() == 130
    assert capsys.readouterr() == ("", "mfu-torch bench: interrupted\n")


def test_an_interrupt_while_saving_costs_no_result(
    found: Benchmarks, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(path: Path, text: bytes) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(saved, "replace", stopped)
    assert run("--save") == 130
    out, err = capsys.readouterr()
    assert "200 GFLOP/s" in out and "Saved" not in out
    assert err.startswith("mfu-torch bench: interrupted while the result was saved; nothing, or")
