"""The loop of ``tests/gpu/test_gpu_peak.py``, run on a fake GPU: its two ways of timing agree."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_cuda import FakeGpu
from gemm_loop import LAYERS, expected_tensor_active, gemm_layers, metered_gemms

from mfu_torch.records import Device

H100 = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", index=0)
PER_STEP = LAYERS * 2 * 64**3


def run_on(gpu: FakeGpu, seconds: list[float]) -> Any:
    model, x = gemm_layers(64, "cpu")
    left = iter(seconds)
    return metered_gemms(
        *(model, x, len(seconds)),
        mark=lambda: event(gpu),
        after_step=lambda: gpu.launch(next(left)),
        **{"device": H100, "telemetry": False, "log_every": 2},
    )


def event(gpu: FakeGpu) -> Any:
    made = torch.cuda.Event(enable_timing=True)
    made.record(gpu.current_stream(torch.device("cuda", 0)))
    return made


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: 0)
    return FakeGpu(monkeypatch)


def test_meter_and_events_have_the_same_steps_flops_and_time(gpu: FakeGpu) -> None:
    found = run_on(gpu, [5.0, *[1.0] * 8, 3.0])
    assert found.steps >= 6
    assert found.flops == found.by_hand == found.steps * PER_STEP
    assert found.meter_s == pytest.approx(found.steps * 1.0)
    assert found.events_s == pytest.approx(found.meter_s)
    assert found.meter_flops_per_s == pytest.approx(PER_STEP)


def test_layers_keep_their_numbers_so_that_power_is_that_of_training() -> None:
    model, x = gemm_layers(64, "cpu")
    with torch.no_grad():
        assert 0.2 < float(model(x).float().std()) < 5


def test_tensor_activity_follows_from_rate_and_clock() -> None:
    assert expected_tensor_active(791.52e12, 989.4e12, 1.83e9, 1.6e9) == pytest.approx(0.915)
