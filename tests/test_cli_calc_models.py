"""``mfu-torch calc`` about models: what is known, what one costs, what of it fits."""

from __future__ import annotations

import json

import pytest

from mfu_torch.cli import main
from mfu_torch.flops.formulas import known_models

DECODE = ("--model", "llama-3-70b", "--mode", "decode", "--context", "8192", "--device", "h100-sxm")


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["calc", *args])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = printed(capsys, *args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("mfu-torch calc: ")
    return err


def test_all_known_models_are_listed_and_each_name_is_one_that_is_found(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "--models")
    assert code == 0
    names = {line.split()[0] for line in out.splitlines() if line.startswith("  ")}
    assert {model.name for model in known_models()} <= names
    code, out, _ = printed(capsys, "--models", "mixtral", "--json")
    assert [model["name"] for one in json.loads(out) for model in one["models"]]


def test_a_filter_without_a_model_says_which_series_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "series are" in refused(capsys, "--models", "nothing of the kind")
    assert "--models prints a table that --params" in refused(capsys, "--models", "--params", "7B")
    assert "--published does not change" in refused(capsys, "--models", "--published")


def test_an_unknown_model_points_to_the_list_and_to_no_file_of_the_package(
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = refused(capsys, "--model", "lama-3-8b")
    assert "mfu-torch calc --models lists" in err and "models.csv" not in err
    assert "llama-3-8b" in err


def test_a_model_alone_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, "--model", "llama-3-8b", "--seq", "8192")
    assert (code, err) == (0, "")
    assert "forward 19.30 GFLOP, training 57.91 GFLOP" in out
    _, raw, _ = printed(capsys, "--model", "llama-3-8b", "--seq", "8192", "--json")
    assert json.loads(raw)["parameters"] == 8_030_261_248


def test_images_have_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("--model", "vit-l/16", "--samples-per-second", "500", "--device", "h100-sxm")
    _, small, _ = printed(capsys, *run)
    _, large, _ = printed(capsys, *run, "--image-size", "384")
    assert "for 224 x 224 pixels" in small and "for 384 x 384 pixels" in large
    assert "6LH" not in large
    assert "takes none" in refused(
        capsys, "--model", "llama-3-8b", "--image-size", "384", "--tokens-per-second", "3"
    )


def test_a_batch_that_does_not_fit_is_1_and_says_so_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, *DECODE, "--batch", "400", "--gpus", "2")
    assert code == 1
    assert "do not fit the 2 devices, 172 GB (160 GiB)" in out.splitlines()[1]
    assert "largest batch      11 of this context fit" in out
    assert "at best" not in out
    code, out, _ = printed(capsys, *DECODE, "--batch", "11", "--gpus", "2")
    assert code == 0 and "at best" in out


def test_a_context_beyond_the_positions_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = printed(
        capsys,
        *("--model", "llama-3-8b", "--mode", "decode", "--context", "100000"),
        *("--device", "h200-sxm"),
    )
    assert "100000 tokens are beyond the 8192 positions of llama-3-8b" in out


@pytest.mark.parametrize(
    ("flag", "value", "says"),
    [
        ("--days", "0", "e.g. 60 (days)"),
        ("--seq", "8k", "may be 8000 or 8192"),
        ("--gpus", "0", "expected a whole number from 1 on"),
    ],
)
def test_a_wrong_number_is_said_with_what_that_flag_takes(
    flag: str, value: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ("--model", "llama-3-8b", "--tokens-per-second", "3", "--device", "h100-sxm")
    err = refused(capsys, *run, flag, value)
    assert flag in err and says in err


def test_a_misspelt_flag_is_one_line_with_those_that_are_near(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "--modle is no flag, did you mean --mode or --model" in refused(
        capsys, "--modle", "llama-3-8b"
    )
    assert "'llama-3-8b' belongs to no flag" in refused(capsys, "llama-3-8b")


def test_a_budget_and_its_days_are_named_in_a_contradiction(
    capsys: pytest.CaptureFixture[str],
) -> None:
    err = refused(
        capsys,
        *("--params", "7B", "--token-budget", "1T", "--days", "30", "--gpus", "128"),
        *("--mfu", "50%", "--device", "h100-sxm"),
    )
    assert "--token-budget over --days, devices and peak give 12.79 %" in err


def test_devices_that_were_solved_for_have_one_set_of_figures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(
        capsys,
        *("--params", "7B", "--tokens-per-second", "250k", "--mfu", "42%"),
        *("--device", "h100-sxm"),
    )
    # 6 x 7e9 x 250e3 / 989.4e12 = 10.61 devices at 100 %, 25.27 at 42 %; on 26 it is 40.82 %.
    assert code == 0
    assert "26 (exactly 25.27, at 42.00 %) <- solved for" in out
    assert "MFU                   40.82 %" in out
    # 26 x 0.42 x 989.4e12 / 42e9
    assert "at 42.00 % so many devices reach 257,244 tokens/s" in " ".join(out.split())


def test_a_batch_at_which_compute_would_bind_says_where_it_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    flags = [
        "--mode",
        "decode",
        "--batch",
        "4",
        "--context",
        "1000",
        "--gpus",
        "4",
        "--device",
        "a100-sxm-80gb",
    ]
    assert main(["calc", "--model", "mixtral-8x7b", *flags]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "largest batch 1,908 of this context fit" in text
    assert "compute binds from batch 2390 on, which does not fit the memory" in text
