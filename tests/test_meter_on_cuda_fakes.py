"""The meter on a GPU that runs behind the host, of which only ``torch.cuda`` is a fake.

The model is one Linear(1024, 1024) without bias on 64 rows that need no gradient, in bf16:

    forward  2*64*1024*1024 = 134,217,728 FLOPs;  backward: dW only, as many;  268,435,456 together

At the 989.4 TFLOP/s of an H100 SXM its ideal time is 268,435,456 / 989.4e12 = 0.27131 us.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_cuda import FakeGpu
from fake_nvml import FakeGpu as NvmlGpu
from fake_nvml import FakeNvml
from fakes import ListSink

from mfu_torch import Meter, detect_device, read_run
from mfu_torch.figures import Figures
from mfu_torch.peak import nvml as peak_nvml
from mfu_torch.records import CountEntry, Device, FlopCount, Header, Pause, PeakEntry, Step, Window

H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", index=0)
FLOPS = 268_435_456
UUID = "3f1a0c52-0000-1111-2222-333344445555"


class Loop:
    """A loop whose ops run on the CPU under autocast, and whose time passes on a fake GPU."""

    def __init__(self, gpu: FakeGpu, folder: Path, **arguments: Any) -> None:
        self.gpu = gpu
        self.sink = ListSink()
        self.model = torch.nn.Linear(1024, 1024, bias=False)
        self.x = torch.ones(64, 1024)
        arguments = {"device": H100, "log_every": 2, "log_dir": folder} | arguments
        self.meter = Meter(self.model, sinks=[self.sink], **arguments)

    def step(self, gpu_s: float, host_s: float = 0.0, after_s: float = 0.0) -> None:
        """A step of ``gpu_s`` + ``after_s`` on the GPU, which the host queues in ``host_s``."""
        with self.meter.step(tokens=64):
            with torch.autocast("cpu", torch.bfloat16):
                loss = self.model(self.x).float().sum()
            loss.backward()
            self.gpu.launch(gpu_s)
            self.gpu.now_s += host_s
        self.gpu.launch(after_s)

    def steps(self) -> list[Step]:
        return [step for window in self.sink.of(Window) for step in window.steps]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 0)
    return FakeGpu(monkeypatch)


def exactly(seconds: float) -> Any:
    # Events give milliseconds: times that are exact in seconds come back but for rounding.
    return pytest.approx(seconds, rel=1e-9)


# --- time ---------------------------------------------------------------------------------------


def test_a_host_that_runs_ahead_never_waits_before_the_run_is_closed(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    loop = Loop(gpu, tmp_path)
    for _ in range(20):
        loop.step(1.0, host_s=0.125)  # 8 times faster than the GPU
    assert set(gpu.calls) == {"record", "query"}
    assert gpu.now_s == 1002.5  # 20 * 0.125 s: no call has made the host wait
    # The GPU is in its third step: the first two are known, and make a window.
    loop.meter._recorder.flush()
    assert [len(window.steps) for window in loop.sink.of(Window)] == [2]
    loop.meter.close()
    assert gpu.calls.count("torch.cuda.synchronize") == 0  # only events, never the device
    assert gpu.now_s == 1020.0
    assert [step.duration_s for step in loop.steps()] == [exactly(1.0)] * 20


def test_step_times_are_those_of_the_gpu_when_the_host_is_late_early_and_in_step(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    loop = Loop(gpu, tmp_path, log_every=1)
    # GPU work, time in which the host queues it, GPU work after the step.
    loop.step(2.0, host_s=0.5, after_s=0.25)
    loop.step(1.0, host_s=0.5, after_s=0.5)
    loop.step(0.5, host_s=6.0)  # the GPU runs dry: the host is at 7.0 s, the GPU was done at 4.25 s
    loop.step(0.25, host_s=0.25, after_s=0.5)
    loop.step(1.0, host_s=0.0, after_s=0.125)
    loop.meter.close()
    # A step ends when the GPU is where the next one was recorded. The third: from 3.75 s, when the
    # second was done, to 7.0 s, when the host came with the fourth.
    assert [step.duration_s for step in loop.steps()] == [
        exactly(seconds) for seconds in (2.25, 1.5, 3.25, 0.75, 1.0)
    ]
    assert read_run(tmp_path).wall_s == exactly(8.875)  # 7.0 + 0.75 + 1.125
    finish = [pause for pause in loop.sink.of(Pause) if pause.name == "finish"]
    assert [pause.duration_s for pause in finish] == [exactly(0.125)]


def test_windows_are_reported_as_the_gpu_gets_there(gpu: FakeGpu, tmp_path: Path) -> None:
    loop = Loop(gpu, tmp_path, log_every=2)
    for _ in range(6):
        loop.step(1.0)  # queued at once: the host's clock stands still
    assert len(list(loop.meter.run.steps)) == 0
    gpu.now_s += 3.5
    assert len(list(loop.meter.run.steps)) == 3  # reading the run asks the GPU, and does not wait
    loop.step(1.0)
    loop.meter._recorder.flush()
    assert [len(window.steps) for window in loop.sink.of(Window)] == [2]
    gpu.now_s += 1.0
    loop.step(1.0)
    loop.meter._recorder.flush()
    assert [len(window.steps) for window in loop.sink.of(Window)] == [2, 2]
    assert "synchronize" not in gpu.calls
    loop.meter.close()
    assert [step.duration_s for step in loop.steps()] == [exactly(1.0)] * 8


def test_a_pause_is_taken_out_on_the_timeline_of_the_gpu(gpu: FakeGpu, tmp_path: Path) -> None:
    loop = Loop(gpu, tmp_path, log_every=1)
    loop.step(1.0)
    loop.step(1.0)
    with loop.meter.pause("eval"):  # queued behind both steps
        gpu.launch(5.0)
        gpu.now_s += 0.5
    loop.step(1.0)
    loop.meter.close()
    assert [step.duration_s for step in loop.steps()] == [exactly(1.0)] * 3
    pauses = {pause.name: pause.duration_s for pause in loop.sink.of(Pause)}
    assert pauses["eval"] == exactly(5.0)


def test_time_after_a_pause_inside_a_pause_belongs_to_the_outer_one(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    loop = Loop(gpu, tmp_path, log_every=1)
    loop.step(1.0)
    with loop.meter.pause("eval"):
        gpu.launch(2.0)
        with loop.meter.pause("checkpoint"):
            gpu.launch(4.0)
        gpu.launch(8.0)
    loop.step(1.0)
    loop.meter.close()
    assert [step.duration_s for step in loop.steps()] == [exactly(1.0)] * 2
    spent = [(pause.name, pause.duration_s) for pause in loop.sink.of(Pause)]
    assert [(name, spent_s) for name, spent_s in spent if name not in ("init", "finish")] == [
        ("eval", exactly(2.0)),
        ("checkpoint", exactly(4.0)),
        ("eval", exactly(8.0)),
    ]


def test_a_long_run_makes_no_more_events_than_a_short_one(gpu: FakeGpu, tmp_path: Path) -> None:
    loop = Loop(gpu, tmp_path, log_every=10, flops={"bf16": FLOPS})
    created = []
    for _ in range(10):
        for _ in range(50):
            with loop.meter.step():
                gpu.launch(0.5)
            gpu.now_s = max(gpu.now_s, gpu.busy_until_s["stream of cuda:0"] - 2.0)
        created.append(gpu.created)
    loop.meter.close()
    assert len(set(created)) == 1
    assert created[0] <= 2 * (10 + 4 + 2)  # a window, the 4 steps of the lead, and what is begun


def test_with_sync_every_mark_waits_for_the_device_and_the_times_are_the_same(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = SimpleNamespace(perf_counter=lambda: gpu.now_s)
    monkeypatch.setattr("mfu_torch.clock.clocks.time", host)
    loop = Loop(gpu, tmp_path, sync=True)
    for _ in range(4):
        loop.step(1.0, host_s=0.125)
    loop.meter.close()
    assert [step.duration_s for step in loop.steps()] == [1.0] * 4  # 0.125 s run beside the GPU
    assert set(gpu.calls) == {"torch.cuda.synchronize"}
    (header,) = loop.sink.of(Header)
    assert header.clock == "host clock, cuda synchronised at every mark"


# --- figures ------------------------------------------------------------------------------------


def test_the_peak_of_the_device_is_found_and_mfu_is_ideal_time_over_time(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    loop = Loop(gpu, tmp_path)
    for _ in range(2):
        loop.step(1e-6)
    loop.meter.close()
    (entry,) = loop.sink.of(PeakEntry)
    assert entry.dtype == "bf16" and entry.peak is not None
    assert entry.peak.flops_per_s == 989.4e12
    assert entry.peak.provenance == "datasheet"
    assert entry.peak.source.startswith("NVIDIA H100 whitepaper")
    (count,) = loop.sink.of(CountEntry)
    assert count.count.model == FLOPS
    assert count.count.by_dtype == {"bf16": FLOPS}
    (figures,) = loop.sink.of(Figures)
    # 0.27131 us ideal in 1 us. The host's clock is at 1000 s, of which double precision keeps
    # 1e-13 s: hence the tolerance.
    assert figures.mfu == pytest.approx(0.271311356, rel=1e-6)
    assert figures.hfu == figures.mfu_causal == figures.mfu
    assert figures.model_flops_per_s == pytest.approx(268.435456e12, rel=1e-6)
    assert figures.tokens_per_s == pytest.approx(64e6, rel=1e-6)
    # Both steps over a wall time that has nothing else in it.
    assert figures.end_to_end == pytest.approx(0.271311356, rel=1e-6)
    (header,) = loop.sink.of(Header)
    assert header.device == H100 and header.clock == "CUDA events"
    summary = loop.meter.summary()
    assert "27.1 % steady-state, 27.1 % end-to-end" in summary
    assert "989 TFLOP/s" in summary and "datasheet" in summary


def test_without_autocast_the_fp32_peak_of_the_same_device_is_the_denominator(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    loop = Loop(gpu, tmp_path, log_every=1)
    for _ in range(2):
        with loop.meter.step():
            loop.model(loop.x).sum().backward()
            gpu.launch(16e-6)
    loop.meter.close()
    (entry,) = loop.sink.of(PeakEntry)
    assert (entry.dtype, entry.peak.flops_per_s) == ("fp32", pytest.approx(66.9e12))
    # 268,435,456 / 66.9e12 = 4.01249 us in 16 us
    assert loop.sink.of(Figures)[-1].mfu == pytest.approx(0.250780508, rel=1e-6)


def test_a_compiled_model_that_is_called_under_autocast_is_counted_on_a_shadow(
    gpu: FakeGpu, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    model = torch.compile(torch.nn.Linear(1024, 1024, bias=False), backend="eager")
    x = torch.ones(64, 1024)
    with Meter(model, device=H100, sinks=[], log_dir=tmp_path) as meter:
        for _ in range(3):
            with meter.step(), torch.autocast("cpu", torch.bfloat16):
                model(x).sum().backward()
                gpu.launch(1e-6)
    assert not [record for record in caplog.records if record.name.startswith("mfu_torch")]
    run = meter.run
    for step in run.steps:
        counts = [run.counts[count_id].count for count_id in step.count_ids]
        assert any("shadow" in count.method for count in counts)
        assert FlopCount.sum(counts).by_dtype == {"bf16": FLOPS}


def test_memory_is_what_the_allocator_says_about_this_device_at_each_window(
    gpu: FakeGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def max_memory_allocated(device: Any = None) -> int:
        asked.append(device)
        return 10**9 * len(asked)

    monkeypatch.setattr(torch.cuda, "max_memory_allocated", max_memory_allocated)
    loop = Loop(gpu, tmp_path, device=Device(kind="cuda", name="NVIDIA L4", index=5))
    for _ in range(4):
        loop.step(1.0)
    loop.meter.close()
    assert [figures.memory_bytes for figures in loop.sink.of(Figures)] == [10**9, 2 * 10**9]
    assert asked == [torch.device("cuda", 5)] * 2
    assert set(gpu.recorded_on) == {"stream of cuda:5"}


def test_a_device_that_the_table_does_not_have_gives_flops_per_s_and_no_mfu(
    gpu: FakeGpu, tmp_path: Path
) -> None:
    loop = Loop(gpu, tmp_path, device=Device(kind="cuda", name="NVIDIA Unheard-Of 9000", index=0))
    for _ in range(2):
        loop.step(1.0)
    loop.meter.close()
    (figures,) = loop.sink.of(Figures)
    assert figures.mfu is None and figures.hfu is None and figures.end_to_end is None
    assert figures.model_flops_per_s == pytest.approx(FLOPS)
    assert "NVIDIA Unheard-Of 9000" in figures.absent["mfu"]
    assert 'peak="... TFLOP/s"' in figures.absent["mfu"]


# --- a device without NVML ----------------------------------------------------------------------


def nvml_missing() -> None:
    return None


def nvml_of_another_package() -> Any:
    return SimpleNamespace(__file__="/site-packages/pynvml/__init__.py")


def nvml_without_driver() -> Any:
    return FakeNvml(driver=False).module


def nvml_not_permitted() -> Any:
    fake = FakeNvml()
    fake.fail("nvmlInit", "NO_PERMISSION")
    return fake.module


def nvml_that_does_not_know_the_gpu() -> Any:
    return FakeNvml(NvmlGpu(uuid="GPU-another", name="NVIDIA L4")).module


@pytest.fixture
def detectable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``torch.cuda`` describes an H100; only this fixture's user may ask it."""
    peak_nvml.warn_once.cache_clear()
    properties = SimpleNamespace(
        name="NVIDIA H100 80GB HBM3", uuid=UUID, multi_processor_count=132, major=9, minor=0,
        total_memory=85_000_000_000, gcnArchName="",
    )  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch.version, "hip", None)
    yield
    peak_nvml.warn_once.cache_clear()


@pytest.mark.parametrize(
    ("nvml", "what_to_do"),
    [
        (nvml_missing, "pip install nvidia-ml-py"),
        (nvml_of_another_package, "pip uninstall pynvml; pip install --force-reinstall nvidia-ml"),
        (nvml_without_driver, "nvidia-smi must work here: in a container, start it with --gpus"),
        (nvml_not_permitted, "does nvidia-smi show the GPU to this user?"),
        (nvml_that_does_not_know_the_gpu, "does nvidia-smi show the GPU to this user?"),
    ],
)
@pytest.mark.parametrize("how", ["detected by the user", "detected by the meter"])
def test_without_nvml_there_is_one_warning_that_says_what_to_do_and_the_run_goes_on(
    gpu: FakeGpu,
    detectable: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    nvml: Any,
    what_to_do: str,
    how: str,
) -> None:
    monkeypatch.setattr(peak_nvml, "pynvml", nvml())
    with caplog.at_level(logging.WARNING):
        device = detect_device() if how == "detected by the user" else "cuda"
        loop = Loop(gpu, tmp_path, device=device)
        for _ in range(4):
            loop.step(1.0)
        loop.meter.close()
        detect_device()  # asked again, it does not say so again
    (warning,) = caplog.records
    assert what_to_do in warning.getMessage()
    assert "MFU is not affected" in warning.getMessage()
    (header,) = loop.sink.of(Header)
    assert header.device.name == "NVIDIA H100 80GB HBM3"
    assert (header.device.uuid, header.device.sm_count) == (f"GPU-{UUID}", 132)
    assert len(loop.steps()) == 4
    # 0.27131 us ideal in 1 s
    assert loop.sink.of(Figures)[-1].mfu == pytest.approx(0.271311356e-6)
    assert gpu.recorded_on[0] == "stream of cuda:0"


def test_with_nvml_there_is_no_warning(
    gpu: FakeGpu,
    detectable: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    nvml = FakeNvml(NvmlGpu(uuid=f"GPU-{UUID}"))
    monkeypatch.setattr(peak_nvml, "pynvml", nvml.module)
    loop = Loop(gpu, tmp_path, device="cuda:0")
    loop.step(1.0)
    loop.meter.close()
    assert caplog.records == []
