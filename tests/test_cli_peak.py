"""``mfu-torch peak``: the row of a name, this machine, and what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mfu_torch.cli import main
from mfu_torch.peak import benchmark, devices, resolve
from mfu_torch.peak.devices import detect_device
from mfu_torch.records import Device, Peak


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MFU_TORCH_PEAKS", raising=False)


def printed(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(["peak", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_name_shows_its_row_with_every_dtype(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "h100-sxm")
    assert code == 0
    assert out.startswith("NVIDIA H100 SXM5\n  reported as      NVIDIA H100 80GB HBM3\n")
    for line in (
        "  size             132 multiprocessors x 4096 FLOP/clock, 1830 MHz",
        "  verified         quoted: the vendor's own line was read",
        "    bf16  989.4 TFLOP/s, datasheet, at 1830 MHz",
        "          published 794.5 TFLOP/s (80.3 %): 2048x2048x13312 torch 2.7 cu126,",
        "    fp4: the H100 SXM5 has no units for it",
    ):
        assert line in out.splitlines()
    assert max(map(len, out.splitlines())) <= 100


def test_a_name_need_not_be_quoted(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "NVIDIA", "A100-SXM4-80GB") == printed(capsys, "NVIDIA A100-SXM4-80GB")


def test_a_name_of_several_devices_shows_all_and_how_to_say_which(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "h100", "--dtype", "bf16")
    assert code == 1
    first = "3 devices share that name; say which: h100-sxm, h100-pcie, h100-nvl"
    assert out.splitlines()[0] == first
    for rate in ("989.4", "756.0", "835.5"):
        assert f"    bf16  {rate} TFLOP/s, datasheet" in out


def test_a_name_that_is_not_there_is_1_and_offers_similar_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = printed(capsys, "h100-sxn")
    assert (code, out) == (1, "")
    assert "'h100-sxn' is none of the" in err
    assert "did you mean h100-sxm" in err
    assert '. A run on it takes peak="989 TFLOP/s", or a table' in err
    _, _, err = printed(capsys, "qqq")
    assert "devices of the table. A run on it takes" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("--dtype", "bf16,fp8", "h100-sxm"),
        ("h100-sxm", "--dtype", "bf16,fp8"),
        ("--dtype", "bf16", "--dtype", "fp8, bf16", "h100-sxm"),
    ],
)
def test_a_name_may_follow_the_dtypes(
    argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = printed(capsys, *argv, "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert list(row["peaks"]) == ["bf16", "fp8"]
    assert row["peaks"]["fp8"]["peak"]["flops_per_s"] == 1978.9e12


def test_dtypes_without_commas_are_wrong_usage_that_says_how(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = printed(capsys, "--dtype", "bf16", "fp8", "int8")
    assert (code, out) == (2, "")
    assert err.endswith("'fp8 int8' is no device; for several dtypes: --dtype bf16,fp8,int8\n")
    for wrong in ("bfloat16", "bf16,", ""):
        code, _, err = printed(capsys, "--dtype", f"{wrong}", "h100-sxm")
        assert code == (0 if wrong == "bf16," else 2)
    assert "invalid choice: ''" in err


def test_a_dtype_that_the_device_lacks_is_1_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "t4", "--dtype", "bf16")
    assert code == 1
    assert out.rstrip().endswith("No peak is known\n    bf16: the T4 has no units for it")


def test_json_has_the_same_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "a100-sxm-80gb", "--json")
    (row,) = json.loads(out)
    assert code == 0
    assert row["peaks"]["bf16"]["peak"]["flops_per_s"] == 312e12
    assert row["peaks"]["fp64"]["peak"]["flops_per_s"] == 19.5e12
    assert row["peaks"]["fp8"]["peak"] is None and "no fp8 units" in row["peaks"]["fp8"]["unknown"]
    assert row["row"]["sm_count"] == 108


def test_a_table_of_yours_comes_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(
        '[[device]]\nname = "My GPU 9000"\nbf16 = "500 TFLOP/s"\nsource = "a leaflet"\n'
    )
    code, out, _ = printed(capsys, "my gpu 9000", "--dtype", "bf16", "--table", str(table))
    assert code == 0
    assert "500.0 TFLOP/s, given" in out
    assert "a leaflet" in " ".join(out.split())


def test_a_table_that_is_not_valid_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.toml"
    table.write_text('[[device]]\nname = "My GPU 9000"\nbf61 = "500 TFLOP/s"\n')
    code, out, err = printed(capsys, "my gpu 9000", "--table", str(table))
    assert (code, out) == (2, "")
    assert "mine.toml" in err and "bf61" in err


def test_a_table_that_is_not_there_is_not_blamed_on_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = printed(capsys, "l4", "--table", str(tmp_path / "nowhere.toml"))
    assert code == 2
    assert err.endswith("(No such file or directory); correct that path\n")
    code, _, err = printed(capsys, "l4", "--table", "")
    assert code == 2
    assert err.endswith("the path of the table of peaks is empty; name a TOML file\n")


def test_a_slice_of_yours_is_found_by_its_whole_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.toml"
    name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
    table.write_text(f'[[device]]\nname = "{name}"\nbf16 = "100T"\nsource = "a leaflet"\n')
    code, out, _ = printed(capsys, name, "--dtype", "bf16", "--table", str(table))
    assert code == 0
    assert "    bf16  100.0 TFLOP/s, given" in out.splitlines()


# --- this machine ----------------------------------------------------------------------------


def test_without_a_name_this_machine_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys)
    assert code == 0
    assert out.count("<- a Meter takes this one") == 1
    assert "cpu  " in out


def test_a_cpu_says_that_its_peak_is_measured_when_needed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = printed(capsys, "--json")
    (cpu,) = [one for one in json.loads(out) if one["device"]["kind"] == "cpu"]
    assert cpu["peaks"]["fp32"]["peak"] is None
    assert "the first run that needs it does that" in cpu["peaks"]["fp32"]["unknown"]
    assert "no TF32" in cpu["peaks"]["tf32"]["unknown"]


def test_what_a_run_measured_is_shown(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    peak = Peak(flops_per_s=123e9, dtype="fp32", source="a matmul", provenance="measured")
    monkeypatch.setattr(benchmark, "_measure", lambda *_: peak)
    benchmark.measured_peak(detect_device(kind="cpu"), "fp32")
    _, out, _ = printed(capsys, "--dtype", "fp32")
    assert "    fp32  123.0 GFLOP/s, measured: a matmul" in out.splitlines()


def test_what_was_measured_here_is_shown_also_where_no_peak_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Peak(flops_per_s=102e12, dtype="bf16", source="a bench", provenance="measured")
    monkeypatch.setattr(
        resolve, "saved_peak", lambda device, dtype, cache_dir: saved if dtype == "bf16" else None
    )
    monkeypatch.setattr(
        devices, "devices_here", lambda: (Device(name="NVIDIA Unheard-Of", kind="cuda", index=0),)
    )
    code, out, _ = printed(capsys, "--dtype", "bf16,fp8")
    assert code == 1
    lines = out.splitlines()
    start = lines.index("  No peak is known")
    assert lines[start + 1] == "    bf16  measured here 102.0 TFLOP/s: a bench"
    assert lines[start + 2].startswith("    bf16, fp8: the table of ")
    _, out, _ = printed(capsys, "--dtype", "bf16", "--json")
    assert json.loads(out)[0]["peaks"]["bf16"]["measured"]["flops_per_s"] == 102e12
