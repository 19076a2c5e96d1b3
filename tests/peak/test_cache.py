"""How measured peaks are kept, and forgotten: a cache that fails never stops a run."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch

from mfu_torch.peak import benchmark, cache, cpu_time
from mfu_torch.peak.benchmark import forget_measured, measured_peak
from mfu_torch.records import Device, Peak

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
OTHER = Device(name="Other", kind="cpu", sm_count=2)

CORRUPT = ["", "{", "[]", '{"a": {"flops_per_s": -1}}', "\udcff", '{"a":' * 100_000]


@pytest.fixture(autouse=True)
def warnings_start_afresh() -> None:
    cache.warn_once.cache_clear()


@pytest.fixture(autouse=True)
def no_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_time, "cpu_quota", lambda: None)


@pytest.fixture
def measurements(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Dtypes that were really measured, in order; each comes out as 100 GFLOP/s."""
    seen: list[str] = []

    def measure(device: Device, dtype: str, reduced: str, seconds: float) -> Peak:
        seen.append(dtype)
        return Peak(
            flops_per_s=100e9,
            dtype=dtype,
            source="a fake",
            provenance="measured",
            device=device.name,
        )

    monkeypatch.setattr(benchmark, "_measure", measure)
    return seen


def refuse(source: object, target: object) -> None:
    raise OSError("no space left")


def test_a_second_call_reads_the_cache(measurements: list[str], tmp_path: Path) -> None:
    first = measured_peak(CPU, "fp32", cache_dir=tmp_path)
    assert measured_peak(CPU, "fp32", cache_dir=tmp_path) == first
    assert measurements == ["fp32"]


def test_another_dtype_cpu_thread_count_or_torch_is_measured_anew(
    measurements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    measured_peak(CPU, "bf16", cache_dir=tmp_path)
    measured_peak(OTHER, "fp32", cache_dir=tmp_path)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    monkeypatch.setattr(torch, "__version__", "99.0")
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    assert measurements == ["fp32", "bf16", "fp32", "fp32", "fp32"]
    assert len(json.loads((tmp_path / "peaks.json").read_text())) == 5


def test_another_quota_is_measured_anew_unless_it_leaves_the_threads_all_of_their_time(
    measurements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    for quota in (None, 1.5, 1.25, 1.5, 2.0, 16.0):
        monkeypatch.setattr(cpu_time, "cpu_quota", lambda quota=quota: quota)
        measured_peak(CPU, "fp32", cache_dir=tmp_path)
    start, end = "AMD EPYC, 2 cores, 2 threads", f"fp32, torch {torch.__version__}"
    assert list(json.loads((tmp_path / "peaks.json").read_text())) == [
        f"{start}, {end}",
        f"{start}, a CPU quota of 1.5, {end}",
        f"{start}, a CPU quota of 1.25, {end}",
    ]
    assert measurements == ["fp32"] * 3


@pytest.mark.parametrize("content", CORRUPT, ids=lambda content: repr(content[:20]))
def test_a_corrupt_cache_is_measured_over_and_logged_once(
    content: str, measurements: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "peaks.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    assert measurements == ["fp32"]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "cannot be read" in record.message
    assert [file.name for file in tmp_path.iterdir()] == ["peaks.json"]


def test_a_folder_that_cannot_be_written_is_logged_once_and_not_fatal(
    measurements: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "file"
    file.write_text("")  # a file where the folder should be: no permission bits needed
    for _ in range(2):
        assert measured_peak(CPU, "fp32", cache_dir=file).flops_per_s == 100e9
    assert measurements == ["fp32", "fp32"]
    assert sum("cannot be written" in record.message for record in caplog.records) == 1


def test_a_write_that_fails_half_way_leaves_the_old_cache(
    measurements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    before = (tmp_path / "peaks.json").read_bytes()

    monkeypatch.setattr("os.replace", refuse)
    measured_peak(CPU, "bf16", cache_dir=tmp_path)
    assert (tmp_path / "peaks.json").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["peaks.json"]


def test_forgetting_drops_its_own_entry_and_leaves_the_others(
    measurements: list[str], tmp_path: Path
) -> None:
    for device, dtype in ((CPU, "fp32"), (CPU, "bf16"), (OTHER, "fp32")):
        measured_peak(device, dtype, cache_dir=tmp_path)
    path = tmp_path / "peaks.json"
    before = json.loads(path.read_text())
    forget_measured(CPU, "fp32", cache_dir=tmp_path)
    after = json.loads(path.read_text())
    (gone,) = before.keys() - after.keys()
    assert gone.startswith("AMD EPYC, ")
    assert ", fp32, " in gone
    assert after == {key: peak for key, peak in before.items() if key != gone}
    measurements.clear()
    for device, dtype in ((CPU, "bf16"), (OTHER, "fp32"), (CPU, "fp32")):
        measured_peak(device, dtype, cache_dir=tmp_path)
    assert measurements == ["fp32"]
    assert json.loads(path.read_text()) == before


def test_forgetting_tells_apart_what_fp32_ran_in(
    measurements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    monkeypatch.setattr(benchmark, "reduced_fp32", lambda device: "bf16")
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    forget_measured(CPU, "fp32", cache_dir=tmp_path)
    (kept,) = json.loads((tmp_path / "peaks.json").read_text())
    assert kept.endswith(f"torch {torch.__version__}")  # and not "..., bf16"


def test_forgetting_what_was_never_kept_does_not_touch_the_file(
    measurements: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    before = (tmp_path / "peaks.json").read_bytes()
    written: list[object] = []
    monkeypatch.setattr("os.replace", lambda source, target: written.append(target))
    forget_measured(CPU, "bf16", cache_dir=tmp_path)
    forget_measured(OTHER, "fp32", cache_dir=tmp_path)
    assert written == []
    assert (tmp_path / "peaks.json").read_bytes() == before


def test_forgetting_without_a_cache_makes_none_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    forget_measured(CPU, "fp32", cache_dir=tmp_path / "none")
    assert list(tmp_path.iterdir()) == []
    assert caplog.records == []


@pytest.mark.parametrize("content", CORRUPT, ids=lambda content: repr(content[:20]))
def test_forgetting_leaves_a_corrupt_cache_as_it_is(
    content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "peaks.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    forget_measured(CPU, "fp32", cache_dir=tmp_path)
    assert path.read_bytes() == content.encode("utf-8", "surrogateescape")
    (record,) = caplog.records
    assert "cannot be read" in record.message


def test_forgetting_where_nothing_can_be_written_says_that_the_figure_stays(
    measurements: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    before = (tmp_path / "peaks.json").read_bytes()
    monkeypatch.setattr("os.replace", refuse)
    for _ in range(2):
        forget_measured(CPU, "fp32", cache_dir=tmp_path)
    assert (tmp_path / "peaks.json").read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["peaks.json"]
    (record,) = caplog.records
    assert "(no space left): the fp32 measurement in it stays in use." in record.message
    measured_peak(CPU, "fp32", cache_dir=tmp_path)
    assert measurements == ["fp32"]
