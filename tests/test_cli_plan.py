"""``mfu-torch plan``: the estimate of a step, and every input that cannot be in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mfu_torch.calculator.plan import Layout, machine_of, plan, render
from mfu_torch.cli import main
from mfu_torch.flops import formulas

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 16,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "vocab_size": 32768,
    "tie_word_embeddings": False,
}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["plan", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def spread(config: str, *more: str) -> list[str]:
    return [
        *(config, "--device", "h100-sxm", "--gpus", "64", "--micro-batches", "8"),
        *("--seq", "2048", *more),
    ]


def test_selective_recompute_without_stored_scores_is_said_to_change_nothing(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    said = "selective recompute changes nothing: fused attention stores no scores"
    fused = " ".join(printed(capsys, *spread(config, "--recompute", "selective"))[1].split())
    assert said in fused
    options = ("--recompute", "selective", "--attention", "unfused")
    assert said not in " ".join(printed(capsys, *spread(config, *options))[1].split())


def test_the_estimate_is_that_of_python(capsys: pytest.CaptureFixture[str], config: str) -> None:
    options = ("--tp", "4", "--pp", "4", "--zero", "1", "--sequence-parallel")
    code, out, err = printed(capsys, *spread(config, *options), "--json")
    assert (code, err) == (0, "")
    model = formulas.dense_decoder(
        layers=16, hidden=1024, heads=16, kv_heads=4, ffn=4096, vocab=32768, others=33 * 1024
    )
    layout = Layout(gpus=64, tp=4, pp=4, micro_batches=8, seq=2048, zero=1, sequence_parallel=True)
    expected = plan(model, layout, machine_of("h100-sxm"))
    values = json.loads(out)
    assert values["step_s"] == pytest.approx(expected.step_s, rel=1e-12)
    assert values["mfu"] == pytest.approx(expected.mfu, rel=1e-12)
    assert values["layout"]["dp"] == 4
    code, out, _ = printed(capsys, *spread(config, *options))
    for line in render(expected).splitlines()[1:]:
        assert line in out


def test_a_known_model_has_its_own_sequence_length(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(
        capsys,
        *("gpt3-175b", "--device", "a100-sxm-80gb", "--gpus", "512", "--tp", "8", "--pp", "8"),
        *("--micro-batches", "64", "--zero", "1", "--json"),
    )
    assert code == 0
    values = json.loads(out)
    assert values["layout"]["seq"] == 2048
    assert any("A100 whitepaper" in line for line in values["assumptions"])


def test_what_does_not_fit_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(
        capsys,
        *("gpt3-175b", "--device", "h100-sxm", "--gpus", "8", "--tp", "8"),
        *("--micro-batches", "1"),
    )
    assert code == 1
    assert "does not fit 85.9 GB (80 GiB)" in out


def test_everything_can_be_given(capsys: pytest.CaptureFixture[str], config: str) -> None:
    code, out, _ = printed(
        capsys,
        *spread(config, "--device", "l4", "--efficiency", "70 %"),
        *("--intra-node-bandwidth", "25 GB/s", "--inter-node-bandwidth", "12.5 GB/s"),
        *("--intra-node-latency", "8 us", "--inter-node-latency", "20 us"),
        *("--link-efficiency", "0.9", "--gpus-per-node", "4", "--overlap", "none"),
        *("--attention", "unfused", "--order", "tp-cp-pp-dp", "--convention", "palm"),
    )
    assert code == 0
    for words in (
        "matmuls reach 70.0 % of it, as given",
        "node: 25.0 GB/s for each GPU in one direction, as given",
        "collectives reach 90.0 % of a link's bandwidth, as given",
        "takes 8 us in a node and 20 us outside, besides its bytes, as given",
        "no communication runs beside compute",
        "ranks are placed tp-cp-pp-dp",
        "% by palm",
    ):
        assert words in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--tp", "5"), "tp 5 x pp 1 is 5, which does not divide 64 GPUs"),
        (("--tp", "4", "--dp", "8"), "not 64 GPUs; expected dp 16"),
        (("--pp", "32"), "16 layers cannot be spread evenly over pp 32"),
        (("--tp", "32"), "heads 16 is no multiple of tp 32"),
        (("--pp", "16", "--virtual-stages", "1", "--micro-batches", "0"), "--micro-batches: '0'"),
        (("--pp", "4", "--virtual-stages", "2", "--micro-batches", "6"), "a multiple of pp"),
        (("--gpus", "1e400"), "--gpus:"),
        (("--gpus", "-8"), "--gpus:"),
        (("--gpus", "nan"), "--gpus:"),
        (("--seq", "8k"), "--seq:"),
        (("--efficiency", "0"), "--efficiency:"),
        (("--efficiency", "70"), "--efficiency:"),
        (("--intra-node-bandwidth", "fast"), "--intra-node-bandwidth:"),
        (("--zero", "4"), "--zero: '4' is no level; expected 0, 1, 2 or 3"),
        (("--recompute", "some"), "--recompute is 'some'; expected one of none, selective, full"),
        (("--overlap", "tp,all"), "--overlap is 'all'; expected one of"),
        (("--convention", "mine"), "'mine' is no convention"),
        (("--convention", "megatron"), "megatron counts hardware FLOPs"),
        (("--device", "h100"), "share"),
        (("--device", "no-such-device"), "give another --device or --dtype"),
        (("--order", "pp-tp"), "--order is 'pp-tp'"),
        (("--attention", "flash"), "--attention is 'flash'; expected one of fused, unfused"),
        (("--device", "h200-sxm"), "give the share of the peak (--efficiency 0.8)"),
        (("--dtype", "int3"), "int3"),
    ],
)
def test_an_input_that_cannot_be_is_one_line_and_2(
    capsys: pytest.CaptureFixture[str], config: str, more: tuple[str, ...], message: str
) -> None:
    code, out, err = printed(capsys, *spread(config, *more))
    assert (code, out) == (2, "")
    assert err.startswith("mfu-torch plan: ") and err.count("\n") == 1
    assert message in err


@pytest.mark.parametrize("left_out", ["--device", "--gpus", "--micro-batches", "--seq"])
def test_what_is_missing_is_named(
    capsys: pytest.CaptureFixture[str], config: str, left_out: str
) -> None:
    argv = spread(config)
    at = argv.index(left_out)
    code, out, err = printed(capsys, *argv[:at], *argv[at + 2 :])
    assert (code, out) == (2, "")
    assert left_out in err and err.count("\n") == 1


def test_a_single_gpu_needs_nothing_that_connects_it(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    argv = [config, "--device", "l4", "--efficiency", "0.7", "--gpus", "1", "--micro-batches", "1"]
    code, out, _ = printed(capsys, *argv, "--seq", "2048")
    assert code == 0
    assert "in one direction" not in out and "collective" not in out


def test_a_device_of_a_table_of_ones_own_is_planned(
    capsys: pytest.CaptureFixture[str],
    config: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = tmp_path / "mine.toml"
    entry = '[[device]]\nname = "My GPU 9000"\nbf16 = "500 TFLOP/s"\nsource = "its data sheet"\n'
    monkeypatch.setenv("MFU_TORCH_PEAKS", str(table))
    argv = [config, "--device", "My GPU 9000", "--efficiency", "0.7", "--gpus", "1"]
    argv += ["--micro-batches", "1", "--seq", "2048"]
    table.write_text(entry, encoding="utf-8")
    code, _, err = printed(capsys, *argv)
    assert code == 2
    assert "memory bandwidth of My GPU 9000 is not known" in err
    table.write_text(entry + "bandwidth = 4e12\n", encoding="utf-8")
    code, out, _ = printed(capsys, *argv)
    assert code == 0
    assert "whether it fits is not known" in out


def test_only_decoders_are_planned(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bert = {
        "model_type": "bert",
        "architectures": ["BertForMaskedLM"],
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "vocab_size": 100,
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(bert), encoding="utf-8")
    code, _, err = printed(capsys, *spread(str(path)))
    assert code == 2
    assert "is no decoder" in err


def test_a_model_that_nobody_knows_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = printed(capsys, *spread("no-such-model"))
    assert code == 2
    assert err.count("\n") == 1


def test_the_output_itself_says_that_published_runs_took_longer(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, out, _ = printed(capsys, *spread(config))
    assert code == 0
    assert "12 to 92 % longer than planned" in " ".join(out.split())
    assert "docs/planning.md" in out
    assert max(map(len, out.splitlines())) <= 100
    _, out, _ = printed(capsys, *spread(config), "--json")
    assert "docs/planning.md" in json.loads(out)["expected"]


def test_sizes_are_planned_as_well(capsys: pytest.CaptureFixture[str], config: str) -> None:
    sizes = "layers=16 hidden=1024 heads=16 kv_heads=4 ffn=4096 vocab=32768"
    code, out, _ = printed(capsys, *spread(sizes), "--json")
    assert code == 0
    _, same, _ = printed(capsys, *spread(config), "--json")
    found, expected = json.loads(out)["model_flops"], json.loads(same)["model_flops"]
    assert found == expected


def test_a_flag_without_its_value_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = printed(capsys, "gpt3-175b", "--gpus")
    assert (code, out) == (2, "")
    assert err == (
        "mfu-torch plan: argument --gpus: expected one argument; mfu-torch plan --help has the "
        "flags\n"
    )


@pytest.mark.parametrize(
    "more", [("--efficiency", "1e-300"), ("--inter-node-latency", "1e300"), ("--seq", "1e15")]
)
def test_absurd_inputs_make_no_rows_of_digits(
    capsys: pytest.CaptureFixture[str], config: str, more: tuple[str, str]
) -> None:
    _, out, err = printed(capsys, *spread(config, *more))
    assert err == "" and max(map(len, out.splitlines())) <= 100
    assert "0" * 20 not in out and "0.00 %" not in out


def test_more_tokens_than_positions_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    run = ("gpt2", "--device", "h100-sxm", "--gpus", "1", "--micro-batches", "1", "--seq", "4096")
    _, out, _ = printed(capsys, *run)
    assert "4096 tokens are beyond the 1024 positions of gpt2" in out


def test_the_sequences_of_a_step_stand_for_its_micro_batches(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    run = (config, "--device", "h100-sxm", "--gpus", "64", "--tp", "4", "--seq", "2048", "--json")
    # dp 16: 512 sequences are 16 micro-batches of 2
    size = ("--micro-batch-size", "2")
    _, by_batch, _ = printed(capsys, *run, *size, "--batch", "512")
    _, by_number, _ = printed(capsys, *run, *size, "--micro-batches", "16")
    assert by_batch == by_number and json.loads(by_batch)["layout"]["global_batch"] == 512
    code, _, err = printed(capsys, *run, *size, "--batch", "500")
    assert code == 2 and "--batch 500 is no multiple of dp 16 x micro-batches of 2, 32" in err
    code, _, err = printed(capsys, *run, "--batch", "512", "--micro-batches", "3")
    assert code == 2 and "--batch 512 is not 3 micro-batches x dp 16" in err
    code, _, err = printed(capsys, *run)
    assert code == 2 and "--micro-batches 64, or the sequences of a step, --batch" in err


def test_fsdp_is_zero_3(capsys: pytest.CaptureFixture[str], config: str) -> None:
    _, fsdp, _ = printed(capsys, *spread(config, "--fsdp"))
    _, zero, _ = printed(capsys, *spread(config, "--zero", "3"))
    assert fsdp == zero and "hidden beside compute" in fsdp
    code, _, err = printed(capsys, *spread(config, "--fsdp", "--zero", "1"))
    assert code == 2 and "--fsdp is --zero 3, and --zero is 1" in err


def test_a_misspelt_flag_is_one_line_with_the_one_that_is_near(
    capsys: pytest.CaptureFixture[str], config: str
) -> None:
    code, out, err = printed(capsys, *spread(config, "--micro-batch-sise", "2"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--micro-batch-sise is no flag, did you mean --micro-batch-size" in err
