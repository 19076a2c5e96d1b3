"""``mfu-torch count``: what it prints, its JSON, and the code it exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mfu_torch
from mfu_torch.cli import main

pytest.importorskip("transformers")

ROOT = Path(mfu_torch.__file__).parent.parent

# 2 layers, 64 wide, 4 heads: closed forms in tests/integrations/test_configs.py
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
TOKENS = 2 * 32
Q, K, FFN, HEAD = (2 * TOKENS * 64 * n for n in (64, 32, 96, 512))
SCORES = 4 * 2 * 32 * 32 * 64
LAYER = 2 * Q + 2 * K + 3 * FFN + SCORES
FORWARD = 2 * LAYER + HEAD


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    return str(path)


def out_of(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(["count", *argv]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return captured.out


def test_the_table_names_every_family_once(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = out_of(capsys, config, "--batch", "2", "--seq", "32", "--train")
    assert out.startswith(
        "LlamaForCausalLM | training step | input_ids 2 x 32 | bf16, attention sdpa\n"
        "parameters    127 k, all trainable, 32.8 k in embeddings\n"
    )
    rows = [line.split()[0] for line in out.split("\n\n")[1].splitlines()]
    assert rows == [
        *("FLOPs", "model.layers.*", "self_attn", "q_proj", "k_proj", "v_proj", "(attention"),
        *("o_proj", "mlp", "gate_proj", "up_proj", "down_proj", "lm_head", "total", "share:"),
    ]
    # 2 layers of (64, 32) @ (32, 64) for 64 tokens; twice that backward
    assert "      q_proj                                    2     1.05M     2.10M" in out
    assert max(map(len, out.splitlines())) <= 100


def test_the_totals_have_both_conventions_and_the_rule_of_thumb(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = out_of(capsys, config, "--batch", "2", "--seq", "32", "--train")
    assert "FLOPs of one training step" in out
    assert 3 * FORWARD == 39_321_600
    assert 3 * (FORWARD - 2 * SCORES * 31 // 64) == 37_797_888
    assert "  forward                         13.1 MFLOP (32.9 %)" in out
    assert "  recompute in attention kernels  524 kFLOP (1.3 %)" in out
    assert (
        "  model FLOPs                     39.3 MFLOP   (attention causal: 37.8 MFLOP, 3.9 % less)"
        in out
    )
    assert "  per token                       614 kFLOP model, 623 kFLOP hardware" in out
    assert "rule of thumb 6N, to compare" in out
    assert "= 6 x 127 k parameters x 64 tokens; model" in out
    assert "not counted                     nothing" in out


def test_the_shares_of_the_rows_add_up(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = out_of(capsys, config, "--seq", "32", "--train", "--checkpoint")
    table = out.split("\n\n")[1].splitlines()[1:-1]
    tenths = {line.split()[0]: round(10 * float(line.split()[-1])) for line in table}
    assert tenths["model.layers.*"] + tenths["lm_head"] == 1000
    assert tenths["self_attn"] + tenths["mlp"] == tenths["model.layers.*"]


def figures(capsys: pytest.CaptureFixture[str], *argv: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(out_of(capsys, *argv, "--json"))
    return value


def test_json_has_exact_integers(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = figures(capsys, config, "--batch", "2", "--seq", "32", "--train")
    flops = said["flops"]
    assert flops["forward"] == FORWARD
    assert flops["backward"] == 2 * FORWARD
    assert flops["model"] == 3 * FORWARD
    assert flops["model_per_token"] == 3 * FORWARD / TOKENS
    assert flops["model_causal"] == 3 * (FORWARD - 2 * SCORES + 2 * SCORES * 33 // 64)
    assert said["parameters"]["total"] == 126_976 + 5 * 64
    assert said["rule_of_thumb"]["flops"] == 6 * said["parameters"]["total"] * TOKENS
    assert (said["samples"], said["tokens"], said["train"]) == (2, TOKENS, True)
    assert said["uncounted"] == {}
    assert said["modules"]["lm_head"] == {"times": 1, "forward": HEAD, "backward": 2 * HEAD}
    assert said["modules"]["model.layers.0-1.self_attn.q_proj"] == {
        "times": 2, "forward": Q, "backward": 2 * Q,
    }  # fmt: skip
    layers, head = said["families"]
    assert (layers["path"], layers["modules"], head["path"]) == ("model.layers.*", 2, "lm_head")
    assert layers["forward"] == 2 * LAYER
    attention, mlp = layers["inside"]
    assert (attention["path"], mlp["path"]) == ("model.layers.*.self_attn", "model.layers.*.mlp")
    assert sum(family["forward"] for family in mlp["inside"]) == mlp["forward"] == 6 * FFN


def test_text_json_and_note_say_the_same_of_a_mask_that_cannot_be_told(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    said = figures(capsys, config, "--seq", "32", "--attention", "eager")
    flops = said["flops"]
    assert flops["model_causal"] == flops["model"] > 0
    assert flops["causal_is_upper_bound"] is True
    (reason,) = flops["causal_bounds"]
    assert "so they are an upper bound" in reason and reason in said["notes"]
    text = out_of(capsys, config, "--seq", "32", "--attention", "eager")
    assert "(attention causal: at most the same, see the notes)" in text
    assert " ".join(reason.split()) in " ".join(text.split())
    exact = figures(capsys, config, "--seq", "32")["flops"]
    assert (exact["causal_is_upper_bound"], exact["causal_bounds"]) == (False, [])


def test_a_forward_is_counted_without_train(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = out_of(capsys, config, "--seq", "32")
    assert "| forward |" in out
    assert "FLOPs of one forward" in out
    assert "backward  recompute     kernel" in out
    assert "rule of thumb 2N" in out


def test_the_directory_will_do(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(Path(config).parent)
    assert figures(capsys, folder, "--seq", "8")["flops"] == figures(
        capsys, config, "--seq", "8"
    )["flops"]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give the length of it, --seq N"),
        (["--seq", "0"], "argument --seq: '0'; expected a whole number from 1 to"),
        (["--seq", "-5"], "argument --seq"),
        (["--seq", "8k"], "argument --seq: '8k'; expected a whole number"),
        (["--seq", "8", "--batch", "1e3"], "argument --batch: '1e3'; expected a whole number"),
        (["--seq", "9" * 30], "argument --seq"),
        (["--seq", "8", "--dtype", "int3"], "argument --dtype: invalid choice"),
        (["--seq", "8", "--attention", "flash"], "argument --attention: invalid choice"),
        (["--seq", "8", "--checkpoint"], "--checkpoint repeats layers in the backward; give"),
        (["--seq", "8", "--crosscheck", "--train"], "fvcore counts no backward; leave out --train"),
        (
            ["--seq", "8", "--crosscheck", "--train", "--checkpoint"],
            "leave out --train and --checkpoint, or count the step without --crosscheck",
        ),
        (["--seq", "8", "--target-seq", "8"], "--target-seq has no use for a LlamaForCausalLM"),
        (["--seq", "8", "--image-size", "8"], "--image-size has no use for a LlamaForCausalLM"),
        (["--seq", "8", "--image-size", "8x"], "argument --image-size: '8x'; expected pixels, H"),
        (["--seq", "8", "--image-size", "0"], "argument --image-size: '0'; expected pixels"),
    ],
)
def test_wrong_usage_is_2(
    config: str, options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["count", config, *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "nothing-like-it"},
        {"hidden_size": 64},
        LLAMA | {"num_hidden_layers": -1},
        LLAMA | {"num_hidden_layers": 0},
        LLAMA | {"vocab_size": 10**40},
        LLAMA | {"num_attention_heads": 7},
        LLAMA | {"num_key_value_heads": 3},
        LLAMA | {"architectures": 3},
        LLAMA | {"rope_scaling": {"type": "no such"}},
        "no object",
    ],
    ids=lambda fields: str(fields)[-40:],
)
def test_a_config_that_makes_no_model_is_1_and_one_line(
    tmp_path: Path, fields: object, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(fields), encoding="utf-8")
    assert main(["count", str(path), "--seq", "8"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("mfu-torch count: ")
    assert captured.err.count("\n") == 1


def test_a_file_that_is_not_there_is_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["count", str(tmp_path / "none.json"), "--seq", "8"]) == 1
    captured = capsys.readouterr()
    assert "No such file" in captured.err
    assert captured.err.count("\n") == 1


def test_sizes_that_overflow_are_one_line(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["count", config, "--batch", "1000000", "--seq", "100000000"]) == 1
    captured = capsys.readouterr()
    assert "LlamaForCausalLM cannot be counted" in captured.err
    assert captured.err.count("\n") == 1


def test_in_a_process_of_its_own_it_says_nothing_but_the_count(config: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mfu_torch", "count", config, "--seq", "32", "--train"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.startswith("LlamaForCausalLM | training step | input_ids 1 x 32 | bf16")


def test_a_crosscheck_shows_the_other_counters(
    config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = out_of(capsys, config, "--seq", "32", "--crosscheck")
    assert "fvcore" in out
    assert "torch" in out
    said = figures(capsys, config, "--seq", "32", "--crosscheck")
    assert said["model"] == "LlamaForCausalLM"
    assert said["work"] == "input_ids 1 x 32 | bf16, attention sdpa"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_crosscheck_says_what_ran(
    config: str, capsys: pytest.CaptureFixture[str], attention: str
) -> None:
    out = out_of(capsys, config, "--seq", "32", "--crosscheck", "--attention", attention)
    work = f"input_ids 1 x 32 | bf16, attention {attention}"
    assert out.startswith(f"forward FLOPs of LlamaForCausalLM | {work}\n")
    plain = "attention sdpa was run as plain products, which the other counters can count"
    assert (plain in out) == (attention == "sdpa")
    assert "upper bound" not in out  # all scores are compared


def test_a_terminal_is_told_what_goes_on(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert main(["count", config, "--seq", "8"]) == 0
    lines = capsys.readouterr().err.split("\r\x1b[K")
    assert [line[:8] for line in lines] == ["", "loading ", "building", "counting", ""]
    assert lines[3] == "counting LlamaForCausalLM ..."


def test_the_summary_in_json_does_not_grow_with_equal_layers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    for layers in (2, 12):
        path = tmp_path / f"{layers}.json"
        path.write_text(json.dumps(LLAMA | {"num_hidden_layers": layers}), encoding="utf-8")
        said.append(len(out_of(capsys, str(path), "--seq", "8", "--json").splitlines()))
    assert said[0] == said[1]


def test_a_known_name_is_no_config_and_the_calculator_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["count", "llama-3-8b"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "mfu-torch calc --model llama-3-8b" in err
