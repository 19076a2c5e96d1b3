"""A GPU that is sampled by hand: a fake NVML, a clock that stands still, no thread."""

from __future__ import annotations

import os
from typing import Any

import pytest
from fake_clock import FakeClock
from fake_nvml import FakeGpu, FakeNvml

from mfu_torch.peak import nvml
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import Device, Telemetry

UUID = "GPU-3f1a0c52-0000-1111-2222-333344445555"
BUSY = {
    "SM_UTIL": 90.0,
    "ANY_TENSOR_UTIL": 45.0,
    "DRAM_BW_UTIL": 30.0,
    "PCIE_RX_PER_SEC": 8.0,
    "PCIE_TX_PER_SEC": 2.0,
    "NVLINK_TOTAL_RX_PER_SEC": 1024.0,
    "NVLINK_TOTAL_TX_PER_SEC": 512.0,
}


def h100(**changes: Any) -> FakeGpu:
    """An H100 that trains this process's model."""
    facts: dict[str, Any] = {"uuid": UUID, "processes": {os.getpid(): 2**30}, "activity": BUSY}
    return FakeGpu(**(facts | changes))


def a100(**changes: Any) -> FakeGpu:
    """An A100: no GPM."""
    facts = {"name": "NVIDIA A100-SXM4-80GB", "capability": (8, 0), "gpm": False}
    return h100(**(facts | {"pcie_rx_kb": 5000, "pcie_tx_kb": 700} | changes))


class Rig:
    """One sampler on one machine.

    Args:
        monkeypatch: Puts the fake in the place of pynvml.
        gpus: By default one H100.
        device: By default the first GPU.
        without: As of :class:`FakeNvml`.
        machine: Of another rig; making one takes 20 ms.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *gpus: FakeGpu,
        device: Device | None = None,
        without: tuple[str, ...] = (),
        machine: FakeNvml | None = None,
    ) -> None:
        nvml.warn_once.cache_clear()
        self.clock = FakeClock()
        self.nvml = machine or FakeNvml(*(gpus or (h100(),)), without=without)
        self.gpu = self.nvml.gpus[0]
        monkeypatch.setattr(nvml, "pynvml", self.nvml.module)
        self.device = device or Device(name=self.gpu.name, kind="cuda", index=0, uuid=self.gpu.uuid)
        self.sampler = DeviceSampler(self.device, clock=self.clock.host_s)

    def elapse(self, seconds: float) -> None:
        """Time passes on the clock and in the GPUs' counters."""
        self.clock.advance(seconds)
        for gpu in self.nvml.gpus:
            for one in (gpu, *gpu.slices):
                one.elapse(seconds)

    def sample(self, *seconds: float) -> bool:
        """One sample after each of the times."""
        return [self.elapse(s) or self.sampler.sample() for s in seconds][-1]

    def take(self) -> Telemetry:
        """What was found, which must be something."""
        found = self.sampler.take(0)
        assert found is not None
        return found

    def seen(self, *seconds: float) -> Telemetry:
        """What samples after each of the times find, the first apart, which marks the start."""
        self.sampler.sample()
        self.sample(*(seconds or (1.0,)))
        return self.take()
