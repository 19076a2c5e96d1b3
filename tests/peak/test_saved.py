"""What ``mfu-torch bench --save`` keeps, for which device, and how it meets concurrent writers."""

from __future__ import annotations

import functools
import json
import threading
from pathlib import Path

import msgspec
import pytest
import torch

from mfu_torch.peak import cache, cpu_time, saved
from mfu_torch.peak.bench import BenchEntry, BenchResult
from mfu_torch.peak.saved import save, saved_folder, saved_peak
from mfu_torch.peak.sustained import Sustained
from mfu_torch.records import Device, Telemetry

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
H100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", index=0, uuid="GPU-1", sm_count=132)


@pytest.fixture(autouse=True)
def plain_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    cache.warn_once.cache_clear()
    monkeypatch.setattr(cpu_time, "cpu_quota", lambda: None)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(saved, "driver_version", lambda device: driver_of(device))


def driver_of(device: Device) -> str:
    return "575.57.08" if device.kind == "cuda" else ""


def rate(dtype: str = "bf16", **fields: object) -> Sustained:
    values: dict[str, object] = {"dtype": dtype, "flops_per_s": 7.5e14, "time_s": 1.02}
    values |= {"burst_flops_per_s": 8e14, "shape": (2048, 2048, 13312), "calls": 10}
    return Sustained(**values | fields)  # type: ignore[arg-type]


def result(device: Device, *rates: Sustained) -> BenchResult:
    return BenchResult(
        device=device,
        started="2026-11-30T12:00:00+00:00",
        torch=str(torch.__version__),
        driver=driver_of(device),
        seconds=1.0,
        shapes="full",
        entries=tuple(BenchEntry(dtype=one.dtype, sustained=one) for one in rates),
    )


def changed(device: Device, **fields: object) -> Device:
    return msgspec.structs.replace(device, **fields)


def test_what_was_saved_is_a_measured_peak_that_says_how(tmp_path: Path) -> None:
    seen = Telemetry(
        after_step=0,
        samples=9,
        time_s=0.9,
        sm_clock_hz=1.4e9,
        power_w=698.7,
        throttle={"power cap": 1.0},
        other_processes=1,
    )
    assert save(result(H100, rate(telemetry=seen)), tmp_path) == ("bf16",)
    peak = saved_peak(H100, "bf16", tmp_path)
    assert peak is not None
    assert (peak.flops_per_s, peak.dtype, peak.provenance) == (7.5e14, "bf16", "measured")
    assert (peak.device, peak.clock_hz) == (H100.name, None)
    assert peak.source == (
        "bf16 matmul 2048x2048x13312 sustained for 1.0 s on NVIDIA H100 80GB HBM3 at 1400 MHz, "
        f"699 W, torch {torch.__version__}, driver 575.57.08; 1 other process was on the device; "
        "the clock was held down: power cap (100.0 % of the samples) (mfu-torch bench, 2026-11-30)"
    )


def test_nothing_saved_is_no_peak_and_makes_no_folder(tmp_path: Path) -> None:
    assert saved_peak(H100, "bf16", tmp_path / "none") is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="dtype is 'float32'"):
        saved_peak(H100, "float32", tmp_path)


def test_it_holds_for_the_very_device_and_dtype_only(tmp_path: Path) -> None:
    save(result(H100, rate()), tmp_path)
    others = [
        changed(H100, uuid="GPU-2"),
        changed(H100, sm_count=60),
        changed(H100, mig="3g.40gb"),
        changed(H100, name="NVIDIA H100 PCIe"),
        CPU,
    ]
    assert [saved_peak(other, "bf16", tmp_path) for other in others] == [None] * 5
    assert saved_peak(H100, "fp16", tmp_path) is None
    # The index may change with CUDA_VISIBLE_DEVICES; it is the same card.
    assert saved_peak(changed(H100, index=3), "bf16", tmp_path) is not None


def test_it_holds_for_the_same_torch_driver_and_threads_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(result(H100, rate()), tmp_path)
    save(result(CPU, rate("fp32")), tmp_path)
    with monkeypatch.context() as changes:
        changes.setattr(torch, "__version__", "99.0")
        assert saved_peak(H100, "bf16", tmp_path) is None
    with monkeypatch.context() as changes:
        changes.setattr(saved, "driver_version", lambda device: "600.1")
        assert saved_peak(H100, "bf16", tmp_path) is None
    with monkeypatch.context() as changes:
        changes.setattr(torch, "get_num_threads", lambda: 1)
        assert saved_peak(CPU, "fp32", tmp_path) is None
    with monkeypatch.context() as changes:
        changes.setattr(cpu_time, "cpu_quota", lambda: 1.5)
        assert saved_peak(CPU, "fp32", tmp_path) is None
    assert saved_peak(H100, "bf16", tmp_path) is not None
    assert saved_peak(CPU, "fp32", tmp_path) is not None


def test_a_cpu_whose_fp32_runs_as_bf16_has_no_saved_fp32_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(result(CPU, rate("fp32"), rate("bf16")), tmp_path)
    monkeypatch.setattr(saved, "reduced_fp32", lambda device: "bf16")
    assert saved_peak(CPU, "fp32", tmp_path) is None
    assert saved_peak(CPU, "bf16", tmp_path) is not None


def test_a_later_benchmark_replaces_its_own_and_no_other(tmp_path: Path) -> None:
    save(result(H100, rate(), rate("fp16")), tmp_path)
    save(result(H100, rate(flops_per_s=6e14)), tmp_path)
    found = [saved_peak(H100, dtype, tmp_path) for dtype in ("bf16", "fp16")]
    assert [one.flops_per_s for one in found if one] == [6e14, 7.5e14]
    assert len(list(saved_folder(tmp_path).iterdir())) == 2


def test_what_failed_and_what_other_work_disturbed_is_not_kept(tmp_path: Path) -> None:
    failed = BenchEntry(dtype="fp8", unknown="the matmul failed")
    found = result(CPU, rate("bf16", cpu_share=0.5), rate("fp32", cpu_share=0.9))
    found = msgspec.structs.replace(found, entries=(*found.entries, failed))
    assert save(found, tmp_path) == ("fp32",)
    assert saved_peak(CPU, "bf16", tmp_path) is None


def test_many_writers_at_once_lose_nothing(tmp_path: Path) -> None:
    devices = [changed(H100, uuid=f"GPU-{number}") for number in range(8)]
    threads = [
        threading.Thread(target=save, args=(result(device, rate(), rate("fp16")), tmp_path))
        for device in devices
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for device in devices:
        assert saved_peak(device, "bf16", tmp_path) and saved_peak(device, "fp16", tmp_path)
    assert {path.suffix for path in saved_folder(tmp_path).iterdir()} == {".json"}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff", b'{"key": 1}', b'{"a":' * 100_000, None],
    ids=lambda content: repr(content)[:20],
)
def test_a_corrupt_file_is_no_peak_and_logged_once(
    content: bytes | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save(result(H100, rate()), tmp_path)
    (path,) = saved_folder(tmp_path).iterdir()
    if content is None:  # a rate that no device has
        kept = json.loads(path.read_text())
        kept["sustained"]["flops_per_s"] = -1.0
        content = json.dumps(kept).encode()
    path.write_bytes(content)
    for _ in range(2):
        assert saved_peak(H100, "bf16", tmp_path) is None
    (record,) = caplog.records
    assert "cannot be read" in record.message
    save(result(H100, rate()), tmp_path)
    assert saved_peak(H100, "bf16", tmp_path) is not None


@pytest.mark.parametrize(
    ("path_in_file", "value", "reason"),
    [
        ("sustained.dtype", "fp16", "its rate is of 'fp16'; expected 'bf16'"),
        ("sustained.time_s", -1.0, "its time_s is -1.0; expected a positive number"),
        ("sustained.time_s", 0, "its time_s is 0.0"),
        ("sustained.flops_per_s", -1.0, "its flops_per_s is -1.0"),
        ("sustained.burst_flops_per_s", 0, "its burst_flops_per_s is 0.0"),
        ("sustained.shape", [8, 0, 8], "its shape is 0"),
        ("sustained.calls", 0, "its calls is 0"),
        ("sustained.operand_sets", -3, "its operand_sets is -3"),
        ("sustained.shapes_tried", 0, "its shapes_tried is 0"),
        ("sustained.cpu_share", 0.2, "its cpu_share is 0.2; expected 0.85 to 1"),
        ("sustained.cpu_share", 1.5, "its cpu_share is 1.5"),
        ("sustained.telemetry.sm_clock_hz", 0, "of sm_clock_hz it reported 0"),
        ("sustained.telemetry.power_w", -7.0, "of power_w it reported -7"),
        ("sustained.telemetry.other_processes", -1, "of other_processes it reported -1"),
        ("sustained.telemetry.throttle", {"idle": 7.0}, "its share of 'idle' is 7.0"),
        ("started", "", "Invalid isoformat string: ''"),
        ("started", "yesterday", "Invalid isoformat string: 'yesterday'"),
        ("torch", "1.0", "its device, torch or driver is another one"),
        ("driver", "1.0", "its device, torch or driver is another one"),
        ("executor", "8 threads", "its device, torch or driver is another one"),
        ("device.name", "NVIDIA L4", "its device, torch or driver is another one"),
        ("device.uuid", "GPU-9", "its device, torch or driver is another one"),
    ],
)
def test_a_file_that_no_benchmark_has_written_is_not_believed(
    path_in_file: str,
    value: object,
    reason: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    held = Telemetry(after_step=0, samples=9, time_s=0.9, sm_clock_hz=1.4e9, power_w=700.0)
    save(result(H100, rate(telemetry=held)), tmp_path)
    (path,) = saved_folder(tmp_path).iterdir()
    kept = json.loads(path.read_text())
    *outer, last = path_in_file.split(".")
    place = functools.reduce(lambda folder, name: folder[name], outer, kept)
    place[last] = value
    assert saved_peak(H100, "bf16", tmp_path) is not None
    path.write_text(json.dumps(kept))
    assert saved_peak(H100, "bf16", tmp_path) is None
    (record,) = caplog.records
    assert reason in record.message and "it is not used" in record.message


def test_a_file_that_was_copied_to_another_name_is_not_taken_for_it(tmp_path: Path) -> None:
    save(result(H100, rate()), tmp_path)
    (path,) = saved_folder(tmp_path).iterdir()
    other = changed(H100, uuid="GPU-2")
    save(result(other, rate()), tmp_path)
    (target,) = set(saved_folder(tmp_path).iterdir()) - {path}
    target.write_bytes(path.read_bytes())
    assert saved_peak(other, "bf16", tmp_path) is None


def test_a_folder_that_cannot_be_written_is_an_error_for_who_asked_to_save(
    tmp_path: Path,
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(OSError, match="file"):
        save(result(H100, rate()), file)


def test_a_name_that_is_no_file_name_is_kept_all_the_same(tmp_path: Path) -> None:
    odd = changed(CPU, name="../../Intel(R) Xeon(R) CPU @ 2.10GHz/\u00b5" + "x" * 300)
    save(result(odd, rate("fp32")), tmp_path)
    assert saved_peak(odd, "fp32", tmp_path) is not None
    (path,) = saved_folder(tmp_path).iterdir()
    assert path.name.startswith("Intel-R-Xeon-R-CPU-2.10GHz") and len(path.name) < 100
