"""Devices that a user adds: they win, they say so, and a mistake is one clear line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mfu_torch.peak import user_table
from mfu_torch.peak.resolve import resolve_peak
from mfu_torch.peak.table import peak_for, similar_names
from mfu_torch.peak.user_table import VARIABLE, UserTableError, user_index
from mfu_torch.records import Device, Peak, UnknownPeak

GOOD = """
[[device]]
name = "My GPU 9000"
bf16 = "500 TFLOP/s"
fp8 = 1e15
int8 = 2_000_000_000_000_000
sm_count = 128
clock_hz = 1.9e9
bandwidth = 4.8e12
source = "its data sheet, page 3"

[[device]]
names = ["NVIDIA A100-SXM4-80GB", "our-a100"]
bf16 = "290T"
source = "measured in our cluster"
"""


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "peaks.toml"
    path.write_text(GOOD, encoding="utf-8")
    return path


def written(folder: Path, text: str, name: str = "peaks.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_device_of_the_users_has_the_users_figure(good: Path) -> None:
    assert peak_for("My GPU 9000", "bf16", table=good) == Peak(
        flops_per_s=500e12,
        dtype="bf16",
        source=f"user table {good}: its data sheet, page 3",
        provenance="given",
        device="My GPU 9000",
        clock_hz=1.9e9,
    )
    assert peak_for("my-gpu-9000", "fp8", table=str(good)).flops_per_s == 1e15
    assert peak_for("NVIDIA My GPU 9000", "int8", table=[good]).flops_per_s == 2e15


def test_it_wins_over_the_built_in_table_and_says_so(good: Path) -> None:
    peak = peak_for("NVIDIA A100-SXM4-80GB", "bf16", table=good)
    assert (peak.flops_per_s, peak.provenance) == (290e12, "given")
    assert peak.source == f"user table {good}: measured in our cluster"
    assert peak_for("our-a100", "bf16", table=good).flops_per_s == 290e12


def test_what_it_leaves_out_is_looked_up(good: Path) -> None:
    peak = peak_for("NVIDIA A100-SXM4-80GB", "tf32", table=good)
    assert (peak.flops_per_s, peak.provenance) == (156e12, "datasheet")
    assert peak_for("NVIDIA L4", "bf16", table=good).flops_per_s == 121e12
    with pytest.raises(UnknownPeak, match=r"for 'My GPU 9000': your peaks\.toml") as own:
        peak_for("My GPU 9000", "tf32", table=good)
    assert "has only bf16, fp8, int8 of it; the table of" in str(own.value)
    with pytest.raises(UnknownPeak) as lacks:
        peak_for("NVIDIA A100-SXM4-80GB", "fp8", table=good)
    assert str(lacks.value) == (
        "no fp8 peak for 'NVIDIA A100-SXM4-80GB': your peaks.toml has only bf16 of it; the A100 "
        "SXM4 80GB has no fp8 units; the table has its fp64, fp32, tf32, fp16, bf16, int8. "
        "Contractions in this dtype have no peak here"
    )


def test_the_users_names_take_part_in_did_you_mean(good: Path) -> None:
    assert similar_names("My GPU 900", own=user_index(good))[0] == "My GPU 9000"
    assert similar_names("our a100s", own=user_index(good))[0] != "My GPU 9000"
    assert "our-a100" in similar_names("our a100", own=user_index(good))
    assert "our-a100" not in similar_names("our a100")


def test_the_environment_names_tables_as_path_does(
    good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = written(
        tmp_path, '[[device]]\nname = "X1"\nfp32 = 1e12\nsource = "a colleague"\n', "other.toml"
    )
    monkeypatch.setenv(VARIABLE, f"{good}{os.pathsep}{os.pathsep}{other}")
    assert peak_for("My GPU 9000", "bf16").flops_per_s == 500e12
    assert peak_for("X1", "fp32").flops_per_s == 1e12
    assert peak_for("NVIDIA A100-SXM4-80GB", "bf16", table=other).flops_per_s == 312e12
    monkeypatch.delenv(VARIABLE)
    assert user_index() == {}
    with pytest.raises(UnknownPeak):
        peak_for("X1", "fp32")


def test_a_part_of_the_users_device_has_its_share(good: Path) -> None:
    half = Device(name="My GPU 9000", kind="cuda", sm_count=64)
    peak = peak_for(half, "bf16", table=good)
    assert (peak.flops_per_s, peak.provenance) == (250e12, "derived")
    assert peak.source.endswith("its data sheet, page 3; scaled to 64 of 128 SMs")


def test_a_slice_of_a_device_without_sm_count_is_not_known(good: Path) -> None:
    piece = Device(name="NVIDIA A100-SXM4-80GB MIG 1g.10gb", kind="cuda", sm_count=14)
    with pytest.raises(UnknownPeak, match=r"does not say how many SMs \(sm_count\)"):
        peak_for(piece, "bf16", table=good)


def test_a_laptop_card_of_the_users_is_not_the_desktop_card(tmp_path: Path) -> None:
    table = written(
        tmp_path,
        '[[device]]\nname = "NVIDIA GeForce RTX 2080 Super"\nfp16 = "38T"\nsource = "my laptop"\n',
    )
    assert peak_for("NVIDIA GeForce RTX 2080 Super", "fp16", table=table).flops_per_s == 38e12
    assert peak_for("NVIDIA GeForce RTX 2080 SUPER", "fp16", table=table).flops_per_s == 44.6e12


def test_a_run_uses_it_below_what_is_given_and_above_all_else(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(good))
    a100 = Device(name="NVIDIA A100-SXM4-80GB", kind="cuda", sm_count=108)
    looked_up, given = resolve_peak(a100, "bf16"), resolve_peak(a100, "bf16", "100T")
    assert looked_up.peak is not None and given.peak is not None
    assert (looked_up.peak.flops_per_s, given.peak.flops_per_s) == (290e12, 100e12)


def test_a_cpu_that_the_user_lists_is_not_measured(tmp_path: Path) -> None:
    table = written(
        tmp_path, '[[device]]\nname = "AMD EPYC 9654"\nfp32 = "5T"\nsource = "its manual"\n'
    )
    cpu = Device(name="AMD EPYC 9654", kind="cpu", sm_count=96, threads=96)
    entry = resolve_peak(cpu, "fp32", table=table)
    assert entry.peak is not None
    assert (entry.peak.flops_per_s, entry.peak.provenance) == (5e12, "given")


def test_a_run_with_a_broken_table_has_no_peak_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, '[[device]]\nname = "X1"\nsource = "a colleague"\n')
    monkeypatch.setenv(VARIABLE, str(path))
    entry = resolve_peak(Device(name="NVIDIA L4", kind="cuda"), "bf16")
    assert entry.peak is None
    assert entry.unknown.startswith(f"{path}, [[device]] 1 ('X1'): no figure")


SOURCE = 'source = "s"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[device]\n", r"peaks\.toml is not TOML: "),
        ("", r"peaks\.toml has no \[\[device\]\]; expected a list of \[\[device\]\]"),
        ("device = 3\n", r"has no \[\[device\]\]"),
        ("[[gpu]]\nname = 'X'\n", r"has the key 'gpu'; expected a list of \[\[device\]\]"),
        ("[[device]]\nname = 'X'\nbf16 = 1e12\n", r"1 \('X'\): .*missing required field `source`"),
        (f"[[device]]\nname = 'X'\nbf61 = 1e12\n{SOURCE}", r"\('X'\): .*unknown field `bf61`"),
        (
            f"[[device]]\nname = 'X'\nBF16 = 1e12\n{SOURCE}",
            r"unknown field `BF16` \(did you mean `bf16`\?\); expected source, name, names, "
            "sm_count, clock_hz, bandwidth, fp64, fp32, tf32, fp16, bf16, fp8, int8, fp4$",
        ),
        (
            f"[[device]]\nname = 'X'\nbf16 = 1e12\nclock = 1\n{SOURCE}",
            r"unknown field `clock` \(did you mean `clock_hz`\?\); expected",
        ),
        (f"[[device]]\nname = 'X'\nbf16 = 1e12\nqq = 1\n{SOURCE}", "unknown field `qq`; expected"),
        ("[[device]]\nname = 'X'\nbf16 = 1e12\nsource = ' '\n", r"\('X'\): source is empty; expe"),
        (f"[[device]]\nname = ''\nnames = ['X']\nbf16 = 1e12\n{SOURCE}", "no name; expected name"),
        (f"[[device]]\nnames = ['X', ' ']\nbf16 = 1e12\n{SOURCE}", "no name; expected name"),
        (
            f"[[device]]\nname = 'h100'\nbf16 = 1e12\n{SOURCE}",
            r"'h100' is a short name, which no driver reports, so no run would use the entry; "
            r'expected name = "NVIDIA H100 80GB HBM3" or "NVIDIA H100 PCIe" or "NVIDIA H100 NVL"$',
        ),
        (
            f"[[device]]\nnames = ['rtx-4090', 'rtx_4080']\nfp4 = 1e12\n{SOURCE}",
            r'expected name = "NVIDIA GeForce RTX 4090" or "NVIDIA GeForce RTX 4080"$',
        ),
        (f"[[device]]\nname = 'X'\nbf16 = true\n{SOURCE}", r"\('X'\): Expected .*bf16`"),
        (f"[[device]]\nname = 'X'\nbf16 = -1e12\n{SOURCE}", r"\('X'\): bf16 = .*is no rate"),
        (f"[[device]]\nname = 'X'\nbf16 = 'fast'\n{SOURCE}", r"bf16 = 'fast' is not a rate"),
        (f"[[device]]\nname = 'X'\nbf16 = '3 TB/s'\n{SOURCE}", r"bf16 = '3 TB/s' is not a rate"),
        (f"[[device]]\nname = 'X'\nbf16 = inf\n{SOURCE}", r"bf16 = inf is no rate"),
        (f"[[device]]\nname = 'X'\n{SOURCE}", r"\('X'\): no figure; expected at least one"),
        (f"[[device]]\nbf16 = 1e12\n{SOURCE}", r"\[\[device\]\] 1: no name"),
        (f"[[device]]\nname = 'NVIDIA '\nbf16 = 1e12\n{SOURCE}", r"no name; expected name ="),
        (
            f"[[device]]\nnames = ['X', 'x']\nbf16 = 1e12\n{SOURCE}",
            r"two of its names are the same",
        ),
        (
            f"[[device]]\nname = 'X'\nbf16 = 1e12\nsm_count = 0\n{SOURCE}",
            r"sm_count is 0; expected a positive number",
        ),
        (
            f"[[device]]\nname = 'X'\nbf16 = 1e12\nbandwidth = '3 TB/s'\n{SOURCE}",
            r"\('X'\): Expected .*bandwidth",
        ),
        ("device = [3]\n", r"\[\[device\]\] 1: Expected `object`"),
        ("x = " + "[" * 5000, r"peaks\.toml nests too deeply; expected a list of"),
        (
            f"[[device]]\nname = 'X'\nbf16 = 500\n{SOURCE}",
            r"bf16 = 500.0 is 500 FLOP/s, which no device has; expected e.g. \"500 TFLOP/s\"",
        ),
        (f"[[device]]\nname = 'X'\nbf16 = '500'\n{SOURCE}", r"bf16 = '500' has no unit"),
        (f"[[device]]\nname = 'X'\nbf16 = '500 FLOP/s'\n{SOURCE}", r"is 500 FLOP/s, which no"),
        (f"[[device]]\nname = 'X'\nbf16 = 1e-300\n{SOURCE}", r"is 1e-300 FLOP/s, which no"),
        (f"[[device]]\nname = 'X'\nbf16 = 5{'0' * 40}\n{SOURCE}", r"is 5e\+40 FLOP/s, which no"),
        (
            f"[[device]]\nname = 'X'\nbf16 = 1e12\nclock_hz = 1830\n{SOURCE}",
            r"clock_hz is 1830, which is no GPU's clock in Hz; expected e.g. 1.83e9 for 1830 MHz",
        ),
        (
            f"[[device]]\nname = 'X'\nbf16 = 1e12\nclock_hz = 1.8e12\n{SOURCE}",
            "is 1.8e\\+12, which",
        ),
        (
            f"[[device]]\nname = 'NVIDIA X-MIG-1g.10gb'\nbf16 = 1e12\n{SOURCE}",
            r"'NVIDIA X-MIG-1g.10gb' is no name of a MIG slice; expected \"NVIDIA H100",
        ),
        (
            f"[[device]]\nnames = ['X', 'X MIG 1g.10gb']\nbf16 = 1e12\n{SOURCE}",
            r"names a MIG slice beside a whole device \(X, X MIG 1g.10gb\)",
        ),
    ],
)
def test_a_mistake_is_one_line_with_the_file_and_the_entry(
    tmp_path: Path, text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UserTableError, match=message) as caught:
        peak_for("NVIDIA L4", "bf16", table=path)
    assert str(caught.value).startswith((f"{path} ", f"{path}, "))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("names", ["l40s", "T4', 'Tesla T4", "NVIDIA T4", "mi300x', 'my-mi"])
def test_a_short_name_is_accepted_where_a_driver_reports_it_or_another_name(
    tmp_path: Path, names: str
) -> None:
    path = written(tmp_path, f"[[device]]\nnames = ['{names}']\nbf16 = 1e12\n{SOURCE}")
    assert peak_for(names.partition("'")[0], "bf16", table=path).flops_per_s == 1e12


def test_a_name_in_two_entries_is_refused_with_both(tmp_path: Path) -> None:
    entry = "[[device]]\nname = '{}'\nbf16 = 1e12\nsource = 's'\n"
    one = written(tmp_path, entry.format("My X"), "one.toml")
    two = written(tmp_path, entry.format("NVIDIA my-x"), "two.toml")
    with pytest.raises(UserTableError) as caught:
        user_index([one, two])
    assert str(caught.value) == (
        f"{two}, [[device]] 1 ('NVIDIA my-x'): 'NVIDIA my-x' is already the name of "
        f"{one}, [[device]] 1 ('My X'); keep one of them"
    )


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserTableError, match=r"nowhere\.toml cannot be read \(No such file"):
        peak_for("NVIDIA L4", "bf16", table=tmp_path / "nowhere.toml")
    with pytest.raises(UserTableError, match="cannot be read"):
        user_index(tmp_path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_what_is_no_regular_file_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "peaks.toml"
    os.mkfifo(fifo)
    monkeypatch.setenv(VARIABLE, str(fifo))
    entry = resolve_peak(Device(name="NVIDIA L4", kind="cuda"), "bf16")
    assert entry.unknown == (
        f"the table of peaks {fifo} cannot be read (it is no regular file); correct {VARIABLE}"
    )


def test_the_place_to_correct_is_where_the_path_came_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = tmp_path / "nowhere.toml"
    with pytest.raises(UserTableError, match=r"nowhere\.toml .*; correct that path$"):
        user_index(nowhere)
    monkeypatch.setenv(VARIABLE, str(nowhere))
    with pytest.raises(UserTableError, match=rf"nowhere\.toml .*; correct {VARIABLE}$"):
        user_index()


@pytest.mark.parametrize("path", ["", " ", "a\0b", "~nobody-of-that-name/peaks.toml"])
def test_what_is_no_path_is_one_line(path: str) -> None:
    with pytest.raises(UserTableError, match=r"is empty; name|cannot be read") as caught:
        user_index(path)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)


def test_a_byte_order_mark_is_no_part_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "peaks.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert peak_for("My GPU 9000", "bf16", table=path).flops_per_s == 500e12


SLICE = """
[[device]]
name = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"
bf16 = "100T"
sm_count = 16
source = "measured here"
"""


def test_a_slice_of_the_users_has_its_own_figure_and_no_other_has(tmp_path: Path) -> None:
    path = written(tmp_path, SLICE)
    h100 = "NVIDIA H100 80GB HBM3"
    for name, mig in ((f"{h100} MIG 1g.10gb", None), (h100, "1g.10gb")):
        device = Device(name=name, kind="cuda", sm_count=16, mig=mig)
        peak = peak_for(device, "bf16", table=path)
        assert (peak.flops_per_s, peak.provenance, peak.device) == (100e12, "given", name)
    assert peak_for(f"{h100} MIG 1g.10gb", "bf16", table=path).flops_per_s == 100e12
    other = Device(name=f"{h100} MIG 2g.20gb", kind="cuda", sm_count=32)
    assert peak_for(other, "bf16", table=path).flops_per_s == pytest.approx(989.4e12 * 32 / 132)
    assert peak_for(h100, "bf16", table=path).flops_per_s == 989.4e12


def test_a_file_is_parsed_again_only_after_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, GOOD)
    parsed: list[str] = []
    decode = user_table.msgspec.toml.decode
    monkeypatch.setattr(
        user_table.msgspec.toml, "decode", lambda text: parsed.append(text) or decode(text)
    )
    for _ in range(3):
        assert peak_for("My GPU 9000", "bf16", table=path).flops_per_s == 500e12
    assert len(parsed) == 1
    written(tmp_path, GOOD.replace('"500 TFLOP/s"', '"5000 TFLOP/s"'))
    assert peak_for("My GPU 9000", "bf16", table=path).flops_per_s == 5e15
    assert len(parsed) == 2
    path.unlink()
    with pytest.raises(UserTableError, match="cannot be read"):
        peak_for("My GPU 9000", "bf16", table=path)
