"""What is read of a CPU, from counters that a test sets and once from this machine's own."""

from __future__ import annotations

import sys
from collections import namedtuple
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
from fake_clock import FakeClock

from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.peak.telemetry.cpu import CpuSource
from mfu_torch.records import Device, Telemetry

Times = namedtuple("Times", "user system idle iowait guest")
CPU = Device(name="a CPU", kind="cpu")


class Machine:
    """Four CPUs, of which the process may use 1 and 3."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.times = [Times(0.0, 0.0, 0.0, 0.0, 0.0)] * 4
        self.affinity = [1, 3]
        self.memory = SimpleNamespace(total=16 * 2**30, available=10 * 2**30)
        monkeypatch.setattr(psutil, "cpu_times", lambda percpu: self.times)
        monkeypatch.setattr(psutil, "virtual_memory", lambda: self.memory)
        monkeypatch.setattr(
            psutil, "Process", lambda: SimpleNamespace(cpu_affinity=lambda: self.affinity)
        )
        monkeypatch.setattr("sys.platform", "linux")
        self.clock = FakeClock()
        self.sampler = DeviceSampler(CPU, source=CpuSource(folder), clock=self.clock.host_s)
        self.sampler.sample()

    def after(self, seconds: float, *times: Times) -> Telemetry:
        self.clock.advance(seconds)
        self.times = list(times)
        self.sampler.sample()
        found = self.sampler.take(1)
        assert found is not None
        return found


IDLE = Times(0.0, 0.0, 10.0, 0.0, 0.0)


def test_busy_is_what_is_neither_idle_nor_waiting_on_the_cpus_that_the_process_may_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    others = Times(10.0, 0.0, 0.0, 0.0, 0.0)  # CPUs 0 and 2, of other processes
    machine = Machine(monkeypatch, tmp_path)
    # CPU 1: 6 s of users (2 s of them of a guest) and 1 s of the kernel in 10 s; CPU 3: idle.
    found = machine.after(10.0, others, Times(6.0, 1.0, 2.0, 1.0, 2.0), others, IDLE)
    assert found.cpu_util == 7 / 20
    assert found.memory_used_bytes == 6 * 2**30
    assert found.absent["gpu_util"] == found.absent["power_w"] == "not read on a CPU"


def test_the_clock_is_read_where_linux_tells_it_and_is_no_nominal_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, tmp_path)
    found = machine.after(1.0, *[IDLE] * 4)
    assert found.sm_clock_hz is None
    assert "does not tell the present clock" in found.absent["sm_clock_hz"]
    assert found.absent["sm_clock_min_hz"] == found.absent["sm_clock_hz"]
    for cpu, khz in enumerate((9_000_000, 3_000_000, 9_000_000, 2_000_000)):
        (tmp_path / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "cpufreq" / "scaling_cur_freq").write_text(f"{khz}\n")
    assert machine.after(1.0, *[IDLE] * 4).sm_clock_hz == 2.5e9  # CPUs 1 and 3


def test_a_cpu_that_is_offline_has_no_clock_of_zero(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = Machine(monkeypatch, tmp_path)
    for cpu, khz in ((1, 0), (3, 2_000_000)):
        (tmp_path / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "cpufreq" / "scaling_cur_freq").write_text(f"{khz}\n")
    assert machine.after(1.0, *[IDLE] * 4).sm_clock_hz == 2e9
    (tmp_path / "cpu3" / "cpufreq" / "scaling_cur_freq").write_text("4294967295\n")
    found = machine.after(1.0, *[IDLE] * 4)
    assert found.sm_clock_hz is None
    assert found.absent["sm_clock_hz"] == "the operating system reported 0 kHz"


def test_clocks_of_a_large_machine_are_read_of_eight_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    read: list[str] = []
    real = Path.read_text

    def noted(path: Path) -> str:
        read.append(path.parts[-3])
        return real(path)

    machine = Machine(monkeypatch, tmp_path)
    machine.affinity = list(range(192))
    for cpu in machine.affinity:
        (tmp_path / f"cpu{cpu}" / "cpufreq").mkdir(parents=True)
        (tmp_path / f"cpu{cpu}" / "cpufreq" / "scaling_cur_freq").write_text("2000000")
    monkeypatch.setattr(Path, "read_text", noted)
    assert machine.after(1.0, *[IDLE] * 192).sm_clock_hz == 2e9
    assert read == [f"cpu{24 * n}" for n in range(8)]


def test_what_cannot_be_told_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine = Machine(monkeypatch, tmp_path)
    assert "have not moved" in machine.after(1.0, *machine.times).absent["cpu_util"]
    assert "CPUs are offline" in machine.after(1.0, IDLE, IDLE).absent["cpu_util"]

    def refuse() -> None:
        raise PermissionError("no /proc here")

    monkeypatch.setattr(psutil, "virtual_memory", refuse)
    found = machine.after(1.0, *[IDLE] * 4)
    assert found.memory_used_bytes is None
    assert "no /proc here" in found.absent["memory_used_bytes"]


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (None, "the module psutil is missing; run: pip install psutil"),
        ("raise OSError('another libc')", "psutil cannot be imported (another libc); run: pip"),
    ],
)
def test_without_psutil_there_is_a_reason_and_no_exception(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, module: str | None, reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    if module is not None:
        (tmp_path / "psutil.py").write_text(module)
        monkeypatch.delitem(sys.modules, "psutil")
        monkeypatch.syspath_prepend(tmp_path)
    sampler = DeviceSampler(CPU)
    assert sampler.sample() is False
    assert sampler.problem.startswith(f"no telemetry: {reason}")
    said = sampler.take(1)
    assert said is not None and said.absent["cpu_util"].startswith(reason)


def test_a_psutil_that_lacks_everything_is_a_reason_for_every_field(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "psutil", ModuleType("psutil"))
    clock = FakeClock()
    sampler = DeviceSampler(CPU, source=CpuSource(tmp_path), clock=clock.host_s)
    sampler.sample()
    clock.advance(1.0)
    assert sampler.sample() is True
    said = sampler.take(1)
    assert said is not None
    assert "has no attribute 'cpu_times'" in said.absent["cpu_util"]
    assert "has no attribute 'virtual_memory'" in said.absent["memory_used_bytes"]


def test_this_machines_own_counters_can_be_read() -> None:
    clock = FakeClock()
    sampler = DeviceSampler(CPU, clock=clock.host_s)
    found = None
    while found is None or "have not moved" in found.absent.get("cpu_util", ""):
        clock.advance(1.0)
        sampler.sample()
        found = sampler.take(1) or found  # counters go on in ticks of 10 ms
    assert found.cpu_util is not None and 0.0 <= found.cpu_util <= 1.0
    assert found.memory_used_bytes is not None and found.memory_used_bytes > 2**20
