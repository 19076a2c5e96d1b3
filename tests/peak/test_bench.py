"""``run_bench``: every dtype has a rate or a reason, and nothing of the user's changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fake_bench import FakeDevice, Shape, StubSampler

from mfu_torch.peak import bench, benchmark, sustained
from mfu_torch.peak.bench import BENCH_DTYPES, Interrupted, driver_version, run_bench, shapes_for
from mfu_torch.peak.benchmark import measured_peak
from mfu_torch.peak.matmuls import flops
from mfu_torch.peak.user_table import UserTableError
from mfu_torch.records import Device, Peak, Telemetry

CPU = Device(name="AMD EPYC", kind="cpu", sm_count=2, threads=2)
H100 = Device(name="NVIDIA H100 80GB HBM3", kind="cuda", index=0, compute_capability="9.0")
T4 = Device(name="Tesla T4", kind="cuda", index=0, compute_capability="7.5")
UNKNOWN_CARD = Device(name="Mystery 1", kind="cuda", index=0, compute_capability="7.0")
MS = 1 / 1024


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeDevice:
    return FakeDevice(monkeypatch, lambda shape, number: MS)


@pytest.fixture(autouse=True)
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("MFU_TORCH_PEAKS", raising=False)


def test_every_dtype_that_torch_has_is_really_multiplied_on_this_cpu() -> None:
    sampler = StubSampler()
    found = run_bench(
        CPU, ("bf16", "fp32", "fp64", "int8"), seconds=1e-6, shapes="quick", sampler=sampler
    )
    for entry in found.entries:
        one = entry.sustained
        assert one is not None, entry.unknown
        assert (one.shape, one.shapes_tried, one.operand_sets) == ((256, 256, 256), 1, 1)
        assert 1e6 < one.flops_per_s <= one.burst_flops_per_s < 1e16
        assert entry.peak is None and "peak is not determined yet" in entry.no_peak
        assert entry.published == ()
    assert (found.torch, found.driver, found.shapes) == (torch.__version__, "", "quick")
    assert sampler.calls[:2] == ["start", "pause"] and sampler.calls[-1] == "stop"


def test_a_rate_stands_beside_the_peak_and_what_others_measured(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2 * 8192 * 8192 * 28672 FLOPs in 6 ms: 641 TFLOP/s; all others reach 500.
    def call_s(shape: Shape, number: int) -> float:
        return 0.006 if shape == (8192, 8192, 28672) else flops(shape) / 500e12

    fake.call_s = call_s
    where = torch.device("cpu")  # the fake multiplies on no device at all
    monkeypatch.setattr(bench, "torch_device", lambda device: where)
    seen = Telemetry(after_step=0, samples=9, time_s=1.0, sm_clock_hz=1.6e9)
    (entry,) = run_bench(H100, ["bf16"], shapes="quick", sampler=StubSampler(seen)).entries
    assert entry.sustained is not None and entry.peak is not None
    assert entry.sustained.flops_per_s == pytest.approx(2 * 8192 * 8192 * 28672 / 0.006)
    assert entry.sustained.telemetry == seen
    assert entry.share_of_peak == pytest.approx(641.4 / 989.4, rel=1e-3)
    assert [one.flops_per_s for one in entry.published] == [794.5e12]


def test_a_rate_of_a_cpu_stands_beside_the_peak_that_a_run_measured_and_kept(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Peak(flops_per_s=4e9, dtype="fp32", source="a matmul", provenance="measured")
    monkeypatch.setattr(benchmark, "_measure", lambda *_: kept)
    measured_peak(CPU, "fp32")
    monkeypatch.setattr(benchmark, "_measure", None)  # a bench never measures it
    fake.call_s = lambda shape, number: flops(shape) / 3e9
    fp32, bf16 = run_bench(CPU, ["fp32", "bf16"], shapes="quick", sampler=StubSampler()).entries
    assert (fp32.peak, fp32.no_peak) == (kept, "")
    assert fp32.share_of_peak == pytest.approx(0.75)
    assert bf16.peak is None and "not determined yet" in bf16.no_peak


def test_a_user_table_that_is_not_valid_is_said_before_anything_runs(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MFU_TORCH_PEAKS", str(tmp_path / "nowhere.toml"))
    with pytest.raises(UserTableError, match="cannot be read"):
        run_bench(CPU, ["fp32"], shapes="quick", sampler=StubSampler())
    assert fake.made == []


def test_what_the_device_lacks_is_not_measured_and_says_why(fake: FakeDevice) -> None:
    found = run_bench(T4, ["bf16", "tf32"], shapes="quick", sampler=StubSampler())
    assert [entry.unknown for entry in found.entries] == [
        "the T4 has no bf16 units",
        "the T4 has no tf32 units",
    ]
    found = run_bench(UNKNOWN_CARD, ["tf32"], shapes="quick", sampler=StubSampler())
    assert found.entries[0].unknown == "compute capability 7.0 has no tf32 units"
    found = run_bench(CPU, ["tf32"], shapes="quick", sampler=StubSampler())
    assert found.entries[0].unknown == "a device of kind 'cpu' has no tf32 units"
    assert fake.made == []


def test_what_torch_lacks_says_why_and_the_next_dtype_is_measured(
    fake: FakeDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    rotating = fake.rotating

    def refuse(shape: Shape, dtype: str, where: torch.device) -> object:
        if dtype == "fp8":
            raise RuntimeError("_scaled_mm needs compute capability 8.9\nand a long stack")
        return rotating(shape, dtype, where)

    monkeypatch.setattr(sustained, "rotating", refuse)
    fp8, fp32 = run_bench(CPU, ["fp8", "fp32"], shapes="quick", sampler=StubSampler()).entries
    assert fp8.unknown == "the matmul failed: _scaled_mm needs compute capability 8.9"
    assert fp8.sustained is None
    assert fp32.sustained is not None and fp32.unknown == ""


def test_a_device_that_torch_cannot_use_has_reasons_for_every_dtype() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = run_bench(H100, shapes="quick", sampler=StubSampler())
    assert [entry.dtype for entry in found.entries] == list(BENCH_DTYPES)
    assert all(entry.unknown and entry.sustained is None for entry in found.entries)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_interrupt_ends_it_and_lets_go_of_the_device(
    error: type[BaseException], fake: FakeDevice
) -> None:
    def interrupt(shape: Shape, number: int) -> float:
        if number == 50:
            raise error
        return MS

    fake.call_s = interrupt
    sampler = StubSampler()
    before = (torch.get_rng_state().tolist(), torch.is_grad_enabled())
    with pytest.raises(error):
        run_bench(CPU, ["fp32"], shapes="quick", sampler=sampler)
    assert sampler.calls[-1] == "stop"
    assert (torch.get_rng_state().tolist(), torch.is_grad_enabled()) == before


def test_an_interrupt_brings_along_what_was_found_by_then(fake: FakeDevice) -> None:
    def interrupt(shape: Shape, number: int) -> float:
        if fake.made[-1][1] == "bf16":
            raise KeyboardInterrupt
        return MS

    fake.call_s = interrupt
    with pytest.raises(Interrupted) as stop:
        run_bench(CPU, ["fp32", "tf32", "bf16", "fp64"], shapes="quick", sampler=StubSampler())
    done, unknown = stop.value.found.entries
    assert (stop.value.dtype, done.dtype, unknown.dtype) == ("bf16", "fp32", "tf32")
    assert done.sustained is not None and unknown.unknown
    assert stop.value.found.torch == torch.__version__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"dtypes": ["fp4"]}, "dtype is 'fp4'; expected one of bf16"),
        ({"shapes": "all"}, "shapes is 'all'; expected one of quick, full"),
        ({"seconds": 0.0}, "seconds is 0.0; expected a positive number"),
        ({"seconds": float("nan")}, "seconds is nan"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_runs(
    arguments: dict[str, object], message: str, fake: FakeDevice
) -> None:
    sampler = StubSampler()
    with pytest.raises(ValueError, match=message):
        run_bench(CPU, sampler=sampler, **arguments)  # type: ignore[arg-type]
    assert (sampler.calls, fake.made) == ([], [])


def test_a_dtype_that_is_named_twice_is_measured_once(fake: FakeDevice) -> None:
    told: list[str] = []
    found = run_bench(
        *(CPU, ["fp32", "fp64", "fp32"]),
        shapes="quick",
        sampler=StubSampler(),
        progress=told.append,
    )
    assert [entry.dtype for entry in found.entries] == told == ["fp32", "fp64"]


# --- shapes -----------------------------------------------------------------------------------


def test_published_winners_are_among_the_shapes_of_a_gpu() -> None:
    full, quick = shapes_for(H100, "full"), shapes_for(H100, "quick")
    assert {(2048, 2048, 13312), (1024, 10240, 5120), (4096, 4864, 32896)} <= set(full)
    assert (2048, 2048, 13312) in quick  # of this very device
    assert (1024, 10240, 5120) not in quick  # of the A100
    assert set(quick) <= set(full)


@pytest.mark.parametrize("device", [H100, CPU], ids=lambda device: device.kind)
@pytest.mark.parametrize("which", ["quick", "full"])
def test_shapes_grow_and_suit_every_kernel(device: Device, which: str) -> None:
    shapes = shapes_for(device, which)
    sizes = [m * n * k for m, n, k in shapes]
    assert sizes == sorted(sizes) and len(set(shapes)) == len(shapes)
    # fp8 wants multiples of 16, int8 more than 16 rows.
    assert all(extent % 16 == 0 and extent > 16 for shape in shapes for extent in shape)


def test_operands_of_the_large_shapes_of_a_gpu_exceed_its_l2_cache() -> None:
    # 50 MB on an H100; in bf16.
    large = [s for s in shapes_for(H100, "full") if 2 * (s[0] * s[2] + s[2] * s[1]) > 50e6]
    assert len(large) > len(shapes_for(H100, "full")) / 2


# --- the driver --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "file", "text", "version"),
    [
        (
            *("cuda", "proc/driver/nvidia/version"),
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC",
            "535.129.03",
        ),
        (
            *("cuda", "proc/driver/nvidia/version"),
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build",
            "575.57.08",
        ),
        ("rocm", "sys/module/amdgpu/version", "6.10.5\n", "6.10.5"),
        ("cuda", "proc/driver/nvidia/version", "nothing of the kind", ""),
        ("cpu", "proc/driver/nvidia/version", "535.129.03", ""),
    ],
)
def test_the_driver_is_what_the_kernel_says(
    kind: str, file: str, text: str, version: str, tmp_path: Path
) -> None:
    device = Device(name="x", kind=kind)
    assert driver_version(device, tmp_path) == ""
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text(text)
    assert driver_version(device, tmp_path) == version
