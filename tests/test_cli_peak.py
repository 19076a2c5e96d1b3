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
        "  verified         quoted: the vendor's own line was read; SMs x FLOP/clock x 1830 MHz "
        "gives the",
        "                   bf16 figure to 0.1 %",
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
    assert '. A run on it takes peak="... TFLOP/s", or a table' in err
    _, _, err = printed(capsys, "qqq")
    assert "devices of the table. Nor can it be derived from the name: its product line" in err
    assert "did you mean" not in err


@pytest.mark.parametrize(
    ("name", "first"), [("NVIDIA H100 80GB", "NVIDIA H100 80GB HBM3"), ("NVIDA H100", "h100")]
)
def test_the_same_model_is_offered_first(
    name: str, first: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"did you mean {first}, " in printed(capsys, name)[2]


def test_a_laptop_and_an_export_edition_have_reasons_and_no_card_is_offered_for_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, _, err = printed(capsys, "NVIDIA GeForce RTX 4090 Laptop GPU")
    assert code == 1
    assert "; laptop parts share a desktop card's name, but not its SMs, clock or power. Nor" in err
    assert "which detect_device() tells on its machine. A run" in err
    assert "did you mean" not in err
    code, _, err = printed(capsys, "NVIDIA GeForce RTX 5090 D")
    assert code == 1 and "an edition cut for export" in err and "did you mean" not in err


def test_words_that_are_no_name_together_are_names_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "l4", "Tesla T4", "--dtype", "fp16")
    assert code == 0
    assert "\n".join(line for line in out.splitlines() if "TFLOP/s" in line) == (
        "    fp16  121.0 TFLOP/s, datasheet, at 2040 MHz\n"
        "    fp16  65.00 TFLOP/s, datasheet, at 1590 MHz"
    )
    assert "\n\nNVIDIA T4\n" in out
    assert printed(capsys, "l4", "t4", "--dtype", "bf16")[0] == 1
    code, out, _ = printed(capsys, "l4", "h100", "--json")
    assert code == 1  # h100 is three devices
    assert [row["name"] for row in json.loads(out)] == ["L4", "H100 SXM5", "H100 PCIe", "H100 NVL"]
    code, out, err = printed(capsys, "l4", "qqq")
    assert (code, out) == (1, "") and "'l4 qqq' is none of the" in err


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
    for wrong in ("int32", "bf16,", ""):
        code, _, err = printed(capsys, "--dtype", f"{wrong}", "h100-sxm")
        assert code == (0 if wrong == "bf16," else 2)
    assert "invalid choice: ''" in err


@pytest.mark.parametrize("name", ["BF16", "bfloat16", "torch.bfloat16"])
def test_a_dtype_may_have_torchs_name(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    bf16 = printed(capsys, "h100-sxm", "--dtype", "bf16")
    assert printed(capsys, "h100-sxm", "--dtype", name) == bf16


def test_the_help_states_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = printed(capsys, "--help")
    words = " ".join(out.split())
    assert code == 0
    assert "Exit codes: 0 a peak is known" in words
    assert "Several words are one name where there is one; else each is a name" in words


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a100-sxm-80gb", "1410 MHz gives the bf16 figure to 0.1 %"),
        ("h100-nvl", "1785 MHz gives 15.5 % more than the bf16 figure, which is at 1545 MHz"),
        ("h200-nvl", "1785 MHz gives 15.5 % more than the bf16 figure, which is at 1545 MHz"),
        ("b200", "1965 MHz gives 5.9 % more than the bf16 figure, which is at 1856 MHz"),
        ("gb200", "2062 MHz gives 2.7 % more than the bf16 figure, which is at 2008 MHz"),
        ("gaudi3", "1600 MHz gives 8.6 % less than the bf16 figure, which is at 1750 MHz"),
        ("gb300", "an independent table cites the same document notes"),
        ("b580", "no figure of it is trusted, so no peak is given; the notes say why notes"),
    ],
)
def test_how_far_a_row_was_checked_is_true_of_that_row(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert text in " ".join(printed(capsys, name)[1].split())


# --- the list --------------------------------------------------------------------------------


def listed(out: str) -> dict[str, list[str]]:
    """Short name -> the cells of its line, in columns of 20."""
    lines = out.split("\n\n")[0].splitlines()[1:]
    return {
        line[:28].strip(): [line[i : i + 20].strip() for i in range(28, len(line), 20)]
        for line in lines
    }


def test_the_list_tells_no_units_from_not_trusted_and_not_published(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, _ = printed(capsys, "--list")
    rows = listed(out)
    assert code == 0 and len(rows) == 122
    cells = {name: rows[name][0] for name in ("h100-sxm", "t4", "p100-sxm2", "h20", "dgx-spark")}
    assert cells == {
        "h100-sxm": "989.4 TFLOP/s",
        "t4": "fp16 65.00 TFLOP/s",
        "p100-sxm2": "no units",
        "h20": "unknown",
        "dgx-spark": "-",
    }
    assert "no units: the hardware has none for the dtype; unknown: no figure of the device" in out


def test_the_list_has_a_column_for_each_dtype_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, out, _ = printed(capsys, "--list", "--dtype", "fp32,FP8")
    rows = listed(out)
    assert out.split()[:6] == ["short", "name", "dense", "fp32", "dense", "fp8"]
    assert rows["h100-sxm"][:2] == ["66.90 TFLOP/s", "1.979 PFLOP/s"]
    assert rows["t4"][:2] == ["8.100 TFLOP/s", "no units"]


def test_the_list_has_devices_and_figures_of_yours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "mine.toml"
    table.write_text(
        '[[device]]\nname = "My GPU 9000"\nbf16 = "500 TFLOP/s"\nsource = "a leaflet"\n'
        '[[device]]\nname = "NVIDIA L4"\nbf16 = "90 TFLOP/s"\nsource = "a leaflet"\n'
    )
    _, out, _ = printed(capsys, "--list", "--table", str(table))
    rows = listed(out)
    assert next(iter(rows)) == "My GPU 9000" and len(rows) == 123
    assert rows["My GPU 9000"][0] == "500.0 TFLOP/s *" and rows["l4"][0] == "90.00 TFLOP/s *"
    assert rows["t4"][0] == "fp16 65.00 TFLOP/s"
    assert "".join(out.split()).endswith(f"*:ofyourtable{table}")
    _, out, _ = printed(capsys, "--list", "--table", str(table), "--dtype", "fp8")
    rows = listed(out)
    assert (rows["My GPU 9000"][0], rows["l4"][0]) == ("-", "242.5 TFLOP/s")
    _, out, _ = printed(capsys, "--list", "--table", str(table), "--json")
    assert [row["file"] for row in json.loads(out)][:3] == [str(table), str(table), ""]


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
    assert (
        "determined yet; the first run that needs it measures it" in cpu["peaks"]["fp32"]["unknown"]
    )
    assert "no tf32 units" in cpu["peaks"]["tf32"]["unknown"]


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
    assert lines[start + 1] == (
        "    bf16  sustained here, by mfu-torch bench: 102.0 TFLOP/s, a bench"
    )
    assert lines[start + 2].startswith("    bf16, fp8: the table of ")
    _, out, _ = printed(capsys, "--dtype", "bf16", "--json")
    assert json.loads(out)[0]["peaks"]["bf16"]["measured"]["flops_per_s"] == 102e12


def test_a_cpu_that_was_benched_is_not_said_to_be_unmeasured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = Peak(flops_per_s=97e9, dtype="fp32", source="a bench", provenance="measured")
    monkeypatch.setattr(resolve, "saved_peak", lambda *_: saved)
    _, out, _ = printed(capsys, "--dtype", "fp32")
    lines = out.splitlines()
    start = lines.index("  No peak is determined yet")
    assert lines[start + 1 :] == [
        "    fp32  sustained here, by mfu-torch bench: 97.00 GFLOP/s, a bench",
        "    fp32: the CPU's peak is not determined yet; the first run that needs it measures it",
    ]


def test_a_device_of_this_machine_that_is_in_a_table_of_yours_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mine.toml"
    table.write_text('[[device]]\nname = "NVIDIA Unheard-Of"\nbf16 = "5T"\nsource = "a leaflet"\n')
    device = Device(name="NVIDIA Unheard-Of", kind="cuda", index=0)
    monkeypatch.setattr(devices, "devices_here", lambda: (device,))
    code, out, _ = printed(capsys, "--table", str(table), "--dtype", "bf16")
    assert code == 0
    assert "  in the table as  NVIDIA Unheard-Of (yours)" in out.splitlines()
