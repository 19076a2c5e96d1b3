"""``mfu-torch calc`` on claims as published: FLOP/s alone, sizes, inference as measured."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from mfu_torch.cli import main
from mfu_torch.flops.formulas import CONVENTIONS

TINY = "layers=22 hidden=2048 heads=32 kv_heads=4 ffn=5632 vocab=32000"
DECODE = ("--model", "llama-3-8b", "--mode", "decode", "--context", "4096", "--device", "h100-sxm")
H100 = ("--device", "h100-sxm")
RESNET = ("--model", "resnet-50", "--mode", "prefill", "--device", "h100-sxm")


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["calc", *args])
    out, err = capsys.readouterr()
    return code, out, err


def values(capsys: pytest.CaptureFixture[str], *args: str) -> dict[str, Any]:
    _, out, err = printed(capsys, *args, "--json")
    assert err == ""
    found: dict[str, Any] = json.loads(out)
    return found


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = printed(capsys, *args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("mfu-torch calc: ")
    return err


# --- FLOP/s alone --------------------------------------------------------------------------------


def test_flops_per_second_and_the_peak_are_a_ratio_without_a_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # MaxText's README: 328 TFLOP/s of a TPU v5p are 71.47 %.
    claim = ("--achieved-tflops-per-gpu", "328")
    found = values(capsys, *claim, "--peak-tflops-per-gpu", "459", "--gpus", "64")
    assert found["mfu"] == pytest.approx(328 / 459)
    assert found["flops_per_s"] == pytest.approx(64 * 328e12)
    code, out, _ = printed(capsys, *claim, "--peak-tflops-per-gpu", "459")
    assert code == 0 and "71.46 %" in out
    assert "per FLOP" not in out and "device-hours" not in out


def test_of_flops_per_second_the_peak_can_be_solved_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = values(capsys, "--achieved-tflops-per-gpu", "328", "--mfu", "50%")
    assert found["peak"]["flops_per_s"] == pytest.approx(656e12)


def test_flops_per_second_above_the_peak_are_1_with_the_factor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "--achieved-tflops-per-gpu", "400e3", "--device", "h100-sxm")
    assert code == 1
    assert "a factor of 1000: 4e14 FLOP/s reached by each device gives 40.43 %" in out
    assert "several devices" not in out


def test_what_flops_per_second_alone_cannot_use_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    claim = ("--achieved-tflops-per-gpu", "328", "--device", "h100-sxm")
    for flag, value in (
        ("--tokens-per-second", "5"),
        ("--seq", "8"),
        ("--convention", "palm"),
        ("--recompute", "full"),
        ("--token-budget", "1T"),
        ("--hfu", "40%"),
        ("--price-per-gpu-hour", "2"),
    ):
        assert f"{flag} says nothing beside" in refused(capsys, *claim, flag, value)
    assert "the peak" in refused(capsys, *claim[:2])


def test_of_gpu_hours_no_days_are_printed_where_the_devices_are_not_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ("--model", "llama-3-70b", "--token-budget", "15T", "--gpu-hours", "6.4M", *H100)
    _, out, _ = printed(capsys, *run)
    assert "15T tokens            6.400M device-hours\n" in out and "days" not in out
    _, out, _ = printed(capsys, *run, "--gpus", "16384")
    # 6.4e6 / 16384 / 24
    assert "16.28 days on 16,384 devices, 6.400M device-hours" in out


# --- sizes ---------------------------------------------------------------------------------------


def test_a_model_is_given_by_the_sizes_in_its_paper(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--seq", "2048", "--tokens-per-second-per-gpu", "24k", "--device", "a100-sxm-40gb")
    code, out, _ = printed(capsys, "--model", TINY, *given)
    assert code == 0
    assert "56.26 %" in out and "the MLP is gated" in out
    assert "give --seq" in refused(capsys, "--model", TINY, *given[2:])


def test_more_tokens_than_positions_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("--model", "gpt2", "--tokens-per-second", "10k", "--device", "h100-sxm")
    _, out, _ = printed(capsys, *run, "--seq", "4096")
    assert "4096 tokens are beyond the 1024 positions of gpt2" in out
    _, out, _ = printed(capsys, *run, "--seq", "1024")
    assert "positions of gpt2" not in out


# --- inference as it was measured ----------------------------------------------------------------


def test_a_rate_of_each_device_and_the_time_of_a_step_are_rates_of_all(
    capsys: pytest.CaptureFixture[str],
) -> None:
    eight = (*DECODE, "--gpus", "8", "--batch", "16")
    of_all = values(capsys, *eight, "--tokens-per-second", "1600")
    of_each = values(capsys, *eight, "--tokens-per-second-per-gpu", "200")
    of_step = values(capsys, *eight, "--step-seconds", "10 ms")  # 16 tokens in a hundredth
    assert of_all["mfu"] == of_each["mfu"] == pytest.approx(of_step["mfu"])
    assert of_all["mbu"] == pytest.approx(of_step["mbu"])
    prompts = (*DECODE[:3], "prefill", *DECODE[4:], "--batch", "4")
    found = values(capsys, *prompts, "--step-seconds", "2")
    assert found["tokens_per_s"] == 4 * 4096 / 2


def test_measured_rates_that_differ_or_lack_something_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "give --gpus as well" in refused(capsys, *DECODE, "--tokens-per-second-per-gpu", "9")
    both = (*DECODE, "--tokens-per-second", "100", "--step-seconds", "1")
    assert "contradict each other: 100 and 1 tokens per second" in refused(capsys, *both)
    assert "counted in tokens" in refused(capsys, *DECODE, "--samples-per-second", "5")
    assert "counted in samples" in refused(capsys, *RESNET, "--tokens-per-second", "5")


def test_samples_have_no_context_and_are_no_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, *RESNET, "--batch", "8", "--samples-per-second", "20000")
    assert code == 0
    assert "samples/s" in out and "tokens/s" not in out and "context 1" not in out
    found = values(capsys, *RESNET, "--batch", "8", "--samples-per-second", "20000")
    # Eight samples in 1/2500 of a second.
    assert found["mfu"] == pytest.approx(found["flops"] * 2500 / 989.4e12)
    assert "computed whole: leave it out" in refused(capsys, *RESNET, "--context", "512")


# --- the form of what is printed -----------------------------------------------------------------


@pytest.mark.parametrize(
    "args",
    [
        (*DECODE, "--batch", "16"),
        ("--conventions",),
        ("--model", TINY, "--seq", "2048", "--mfu", "40%", "--device", "h100-sxm"),
        ("--model", TINY, "--seq", "9", "--tokens-per-second", "9", *H100, "--all-conventions"),
        ("--achieved-tflops-per-gpu", "400e3", "--device", "h100-sxm"),
    ],
    ids=["decode", "conventions", "solved", "all conventions", "impossible"],
)
def test_no_line_is_wider_than_100_columns(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    _, out, _ = printed(capsys, *args)
    assert out and max(map(len, out.splitlines())) <= 100


def test_a_row_of_all_conventions_says_what_it_leaves_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = ("--model", "llama-3-8b", "--seq", "8192", "--tokens-per-second", "9000")
    _, out, _ = printed(capsys, *run, "--device", "h100-sxm", "--all-conventions")
    rows = [line for line in out.splitlines() if " MFU " in line or " HFU " in line]
    assert out.count("leaves out ") == len(rows) == 11
    words = " ".join(out.split())
    for one in CONVENTIONS.values():
        assert not one.leaves_out.startswith(("as ", "presumes"))
        assert f"leaves out {one.leaves_out}" in words or not one.is_general


def test_a_flag_without_its_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "argument --gpus: expected one argument" in refused(capsys, "--gpus")
    assert "ambiguous option: --tok" in refused(capsys, "--tok", "5")


def test_a_closed_standard_output_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["calc", "--achieved-tflops-per-gpu", "1", "--peak-tflops-per-gpu", "2"]) == 0
