"""``mfu-torch calc``: what it prints, what it refuses, and with which exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mfu_torch.calculator import calculate
from mfu_torch.cli import main
from mfu_torch.cli.calc import _FLAGS
from mfu_torch.flops.formulas import CONVENTIONS

CLAIM = ("--params", "70e9", "--tokens-per-second", "2000", "--peak-tflops-per-gpu", "989")
STEP = (
    *("--step-seconds", "1.2", "--gpus", "128"),
    *("--peak-tflops-per-gpu", "80", "--samples-per-step", "8192"),
)
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8192,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
}
SPREAD = ("--seq", "8192", "--tokens-per-second-per-gpu", "866.77", "--peak-tflops-per-gpu", "989")

TEXTS = {"--model", "--mode", "--convention", "--recompute", "--device", "--dtype"}
NUMBERS = [
    flag
    for title, flags in _FLAGS.items()
    for flag, *_ in flags
    if flag not in TEXTS and "prefill" not in title
]
SERVING = [flag for title, flags in _FLAGS.items() for flag, *_ in flags if "prefill" in title]
BAD = [
    "0",
    "-1",
    "nan",
    "inf",
    "1e400",
    "",
    "abc",
    "1 parsec",
    "1,5",
    "-0.0",
    "1e-400",
    "-1e3",
    "-inf",
]


@pytest.fixture
def llama(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = main(["calc", *args])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    code, out, err = printed(capsys, *args)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("mfu-torch calc: ")
    return err


def value_of(out: str, label: str) -> str:
    (line,) = [one for one in out.splitlines() if one.startswith(f"  {label}  ")]
    return line.removeprefix(f"  {label}").strip()


# --- the figures of the issue --------------------------------------------------------------------


def test_an_impossible_mfu_is_1_and_names_the_likely_slip(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = printed(capsys, "--model-flops-per-step", "2.4e18", *STEP)
    assert (code, err) == (1, "")
    assert value_of(out, "MFU") == "19531.25 %: impossible, no device runs above its peak"
    assert value_of(out, "peak of all devices") == "10.24 PFLOP/s"
    assert value_of(out, "samples/s") == "6,826.67"
    assert "a factor of 1000: 2.4e15 FLOPs per step gives 19.53 %" in out


def test_without_the_slip_it_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--model-flops-per-step", "2.4e15", *STEP)
    assert code == 0
    assert value_of(out, "MFU") == "19.53 %"
    assert "may have been meant" not in out


def test_a_claim_of_parameters_and_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, *CLAIM, "--mode", "inference")
    assert (code, err) == (0, "")
    assert value_of(out, "MFU") == "28.31 %"
    assert value_of(out, "convention").startswith("2n: 2N; leaves out attention")
    assert value_of(out, "peak") == "989.0 TFLOP/s per device, given"


def test_a_config_has_attention_and_what_is_computed_again(
    capsys: pytest.CaptureFixture[str], llama: str
) -> None:
    code, out, _ = printed(capsys, "--model", llama, *SPREAD, "--recompute", "selective")
    assert code == 0
    assert value_of(out, "MFU") == "42.19 %"
    # One forward of the scores more, 64.42 / 3: (481.435 + 21.475) x 866.77 / 989e3.
    assert value_of(out, "HFU") == "44.08 %"


def test_all_conventions_of_one_run_are_20_points_apart(
    capsys: pytest.CaptureFixture[str], llama: str
) -> None:
    code, out, _ = printed(capsys, "--model", llama, *SPREAD, "--all-conventions")
    assert code == 0
    assert out.splitlines()[-1] == (
        "The same run, by its convention: from 36.55 % (6w) to 56.26 % (full-recompute)"
    )
    assert max(map(len, out.splitlines())) <= 100
    assert "palm-hardware" not in out and "lora" not in out


@pytest.mark.parametrize(
    ("args", "label", "share"),
    [
        # Chowdhery et al. 2022, table 3: 46.2 %, and MT-NLG by the same formula 30.2 %.
        (
            "palm-540b --convention palm --tokens-per-second 238.3k --gpus 6144 --device tpu-v4",
            *("MFU", 46.2),
        ),
        (
            "mt-nlg-530b --convention palm --tokens-per-second 65.43k --gpus 2240 "
            "--peak-tflops-per-gpu 312",
            *("MFU", 30.2),
        ),
        # Korthikanti et al. 2022, table 5, 1T: 71.49 s, 56.3 % and 57.0 %.
        (
            "megatron-1008b --convention korthikanti --step-seconds 71.49 --batch 512 --gpus 512 "
            "--peak-tflops-per-gpu 312",
            *("MFU", 56.3),
        ),
        (
            "megatron-1008b --convention korthikanti-selective --step-seconds 71.49 --batch 512 "
            "--gpus 512 --peak-tflops-per-gpu 312",
            *("HFU", 57.0),
        ),
    ],
)
def test_published_shares_come_out_of_their_inputs(
    capsys: pytest.CaptureFixture[str], args: str, label: str, share: float
) -> None:
    code, out, _ = printed(capsys, "--model", *args.split())
    assert code == 0
    assert float(value_of(out, label).removesuffix(" %")) == pytest.approx(share, abs=0.1)


# --- plans ---------------------------------------------------------------------------------------


def test_a_plan_finds_the_devices_and_their_price(
    capsys: pytest.CaptureFixture[str], llama: str
) -> None:
    code, out, _ = printed(
        capsys,
        *("--model", llama, "--seq", "8192", "--mfu", "40%", "--device", "h100-sxm"),
        *("--token-budget", "15T", "--days", "60", "--price-per-gpu-hour", "$2.50"),
    )
    assert code == 0
    # 481.43e9 x 15e12 / (60 x 86400 x 0.4 x 989.4e12) = 3519.9
    assert value_of(out, "devices") == "3,520 (exactly 3,519.91, at 40.00 %) <- solved for"
    assert value_of(out, "15T tokens") == "60 days on 3,520 devices, 5.069M device-hours"
    assert "costs 12,672,000.00" in out  # 3520 x 60 x 24 x 2.50
    assert "datasheet: NVIDIA H100" in out
    assert "the peak is that of bf16" in out


def test_a_share_gives_the_throughput(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(
        capsys, *("--params", "70B", "--mfu", "0.4", "--gpus", "8", "--peak-tflops-per-gpu", "989")
    )
    assert code == 0
    assert value_of(out, "tokens/s") == "7,535.24, 941.90 per device <- solved for"


# --- JSON ----------------------------------------------------------------------------------------


def test_json_has_the_raw_values_that_python_has(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, *CLAIM, "--mode", "inference", "--json")
    found = json.loads(out)
    answer = calculate(params=70e9, tokens_per_s=2000, peak_flops_per_s=989e12, mode="inference")
    assert code == 0
    assert found["mfu"] == answer.mfu == 2 * 70e9 * 2000 / 989e12
    assert found["peak"]["flops_per_s"] == 989e12
    assert found["peak"]["provenance"] == "given"
    assert found["work"]["convention"] == "2n"
    assert found["assumptions"] == list(answer.assumptions)


def test_json_of_an_impossible_answer_is_1_as_well(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--model-flops-per-step", "2.4e18", *STEP, "--json")
    found = json.loads(out)
    assert code == 1 and found["possible"] is False
    assert found["slips"][0]["share"] == pytest.approx(0.1953125)


def test_json_of_all_conventions_has_a_row_for_each(
    capsys: pytest.CaptureFixture[str], llama: str
) -> None:
    code, out, _ = printed(capsys, "--model", llama, *SPREAD, "--all-conventions", "--json")
    rows = json.loads(out)["rows"]
    assert code == 0
    assert {row["convention"] for row in rows} == {
        n for n, c in CONVENTIONS.items() if c.is_general
    }
    assert rows[0]["share"] == pytest.approx(0.36548, abs=1e-4)


# --- tables --------------------------------------------------------------------------------------


def test_the_conventions_are_listed_with_source_and_what_they_omit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "--conventions")
    assert code == 0
    for name, one in CONVENTIONS.items():
        assert f"\n{name}: {one.formula}\n" in out
    assert max(map(len, out.splitlines())) <= 100
    code, out, _ = printed(capsys, "--conventions", "--json")
    assert [row["name"] for row in json.loads(out)] == list(CONVENTIONS)


def test_a_table_takes_no_input(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--gpus does not change" in refused(capsys, "--conventions", "--gpus", "8")
    assert "--gpus does not change" in refused(capsys, "--published", "llama", "--gpus", "8")
    assert "--published does not change" in refused(capsys, "--conventions", "--published")


def test_published_results_are_recomputed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--published", "palm")
    assert code == 0 and "46.2" in out
    code, out, _ = printed(capsys, "--published", "palm", "--json")
    assert code == 0 and len(json.loads(out)) >= 2
    refused(capsys, "--published", "no such paper")


# --- inference -----------------------------------------------------------------------------------


def test_decoding_says_whether_memory_binds(capsys: pytest.CaptureFixture[str], llama: str) -> None:
    given = ("--model", llama, "--mode", "decode", "--batch", "16", "--context", "4096")
    code, out, err = printed(capsys, *given, "--gpus", "8", "--device", "h100-sxm", "--json")
    assert (code, err) == (0, "")
    found: dict[str, Any] = json.loads(out)
    assert found["binds"] == "memory"
    assert found["bytes_per_s"] == 3.352e12  # the H100's, of the table of devices
    code, out, _ = printed(
        capsys, *given, *("--peak-tflops-per-gpu", "989", "--bandwidth", "3.35TB/s")
    )
    assert code == 0 and "memory" in out


def test_inference_that_says_too_little_or_too_much_is_refused(
    capsys: pytest.CaptureFixture[str], llama: str
) -> None:
    decode = ("--mode", "decode", "--model", llama)
    assert "give --context 4096" in refused(capsys, *decode, "--device", "h100-sxm")
    assert "the peak is missing" in refused(capsys, *decode, "--context", "4096")
    assert "--mfu has no place" in refused(capsys, *decode, "--mfu", "40%")
    assert "give --model" in refused(capsys, "--mode", "prefill", "--context", "4096")
    assert "is for --mode prefill" in refused(capsys, *CLAIM, "--context", "4096")
    assert "leave out --mode" in refused(capsys, *decode, "--all-conventions")


# --- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("flag", NUMBERS)
def test_a_number_that_cannot_be_is_one_line_that_names_its_flag(
    capsys: pytest.CaptureFixture[str], flag: str, bad: str
) -> None:
    assert f"{flag}: " in refused(capsys, flag, bad)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("flag", SERVING)
def test_a_number_of_inference_that_cannot_be_is_one_line_too(
    capsys: pytest.CaptureFixture[str], flag: str, bad: str
) -> None:
    assert f"{flag}: " in refused(capsys, "--mode", "decode", flag, bad)


@pytest.mark.parametrize("flag", sorted(TEXTS))
def test_a_name_that_cannot_be_is_one_line_that_names_its_flag(
    capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    given = () if flag in ("--mode", "--convention", "--recompute") else CLAIM[:4]
    if flag == "--model":
        given = ()
    device = ("--device", "h100-sxm") if flag == "--dtype" else ()
    for bad in ("no such thing", ""):
        assert f"{flag}: " in refused(capsys, *given, *device, flag, bad)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ("", "give --model (llama-3-70b, or a config.json), --params (70B) or"),
        ("--params 70B", "(--device h100-sxm, or --peak-tflops-per-gpu) are missing"),
        ("--params 70B --model llama-3-70b", "--params and --model both say"),
        ("--params 70B --step-seconds 2 --device h100-sxm", "give --tokens-per-step 4M"),
        (
            "--params 70B --step-seconds 2 --tokens-per-step 1M --tokens-per-second 3 "
            "--device h100-sxm",
            "--tokens-per-second and --step-seconds contradict each other: 3 and 500000",
        ),
        ("--params 70B --tokens-per-second 5tok/s/gpu", "is the rate of one device"),
        (
            "--params 70B --tokens-per-second 5 --device h100-sxm --peak-tflops-per-gpu 1979",
            "--peak-tflops-per-gpu 1.979 PFLOP/s is not the bf16 peak of --device h100-sxm",
        ),
        (
            "--params 70B --tokens-per-second 2000 --gpus 1 --peak-tflops-per-gpu 989 --mfu 50%",
            "a share of 50.00 % is given, and the throughput, devices and peak give 84.93 %",
        ),
        ("--params 70B --mfu 40", 'expected "40 %" or 0.40'),
        ("--params 70B --peak-tflops-per-gpu 989e12", "is the peak of no device"),
        ("--params 70B --gpus 1.5", "no whole number"),
    ],
)
def test_input_that_is_missing_or_contradicts_itself_is_one_line(
    capsys: pytest.CaptureFixture[str], args: str, says: str
) -> None:
    assert says in refused(capsys, *args.split())


def test_a_flag_that_does_not_exist_is_2_as_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = printed(capsys, "--parsecs", "12")
    assert code == 2
    assert "--parsecs is no flag, did you mean --params" in err


def test_the_help_explains_its_groups_with_examples(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--help")
    assert code == 0
    for title, flags in _FLAGS.items():
        assert f"\n{title}:\n" in out
        assert all(f"\n  {flag} " in out for flag, *_ in flags)
    assert "mfu-torch calc --model llama-3-70b" in out
