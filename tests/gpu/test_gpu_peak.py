"""The denominator on a real GPU: rate, tensor activity and measured peak agree with one another."""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import pytest
import torch
from gemm_loop import GemmRun, expected_tensor_active, gemm_layers, metered_gemms

from mfu_torch import Peak, UnknownPeak, detect_device, peak_for
from mfu_torch.figures import run_figures
from mfu_torch.peak.bench import run_bench
from mfu_torch.peak.matmuls import reduced_fp32
from mfu_torch.peak.saved import save, saved_peak
from mfu_torch.peak.telemetry import DeviceSampler
from mfu_torch.records import Device, Telemetry

pytestmark = pytest.mark.gpu

SIDE = 8192
SECONDS = 4.0  # long against the samples of the driver, and against its averages of power
TENSOR_AGREES = 0.05
"""How far the tensor activity of GPM may be from what the rate asks for: both are means over the
same seconds, but the samples do not begin and end with a step, and the clock moves."""


def event() -> torch.cuda.Event:
    made = torch.cuda.Event(enable_timing=True)
    made.record()
    return made


class Sampled:
    """One run of the loop, and what the driver says of the seconds that it took."""

    def __init__(self, found: GemmRun, telemetry: Telemetry | None) -> None:
        self.found = found
        self.telemetry = telemetry


@functools.cache
def gemms() -> Sampled:
    """Made once, when the first test that needs it runs: never where there is no GPU."""
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        pytest.skip(f"{torch.cuda.get_device_name()} has no bf16 units")
    model, x = gemm_layers(SIDE, "cuda")
    with torch.no_grad():
        model(x)
        begin = event()
        for _ in range(5):
            model(x)
        end = event()
    end.synchronize()
    step_s = begin.elapsed_time(end) / 1e3 / 5
    steps = min(2000, max(20, math.ceil(SECONDS / step_s)))
    sampler = DeviceSampler(detect_device(kind="cuda"), interval_s=0.2)
    sampler.start()
    sampler.pause()
    queued = itertools.count()

    def sample_from_the_fifth_step_on() -> None:
        # By then the GPU has work queued, and is not without any until the loop ends.
        if next(queued) == 4:
            sampler.resume()

    try:
        found = metered_gemms(
            *(model, x, steps, event, sample_from_the_fifth_step_on),
            **{"peak": 1e15, "telemetry": False},
        )
        telemetry = sampler.take(0)
    finally:
        sampler.stop()
    return Sampled(found, telemetry)


def known_peak(device: Device, dtype: str) -> Peak:
    try:
        return peak_for(device, dtype)
    except UnknownPeak as error:
        pytest.skip(str(error))


def test_the_meter_reads_the_rate_that_cuda_events_give_for_the_same_loop() -> None:
    found = gemms().found
    assert found.flops == found.by_hand
    print(f"meter {found.meter_flops_per_s / 1e12:.2f} TFLOP/s, ", end="")
    print(f"events {found.events_flops_per_s / 1e12:.2f} TFLOP/s on {torch.cuda.get_device_name()}")
    assert found.meter_flops_per_s == pytest.approx(found.events_flops_per_s, rel=0.01)
    figures = run_figures(found.run)
    assert figures.model_flops_per_s == pytest.approx(found.events_flops_per_s, rel=0.01)


def test_the_tensor_activity_of_the_driver_is_what_hfu_asks_for_at_the_clock_held() -> None:
    sampled = gemms()
    device = detect_device(kind="cuda")
    peak, seen = known_peak(device, "bf16"), sampled.telemetry
    assert seen is not None, "the driver gave no sample in some seconds"
    if seen.tensor_active is None:
        pytest.skip(f"tensor activity: {seen.absent.get('tensor_active')}")
    if seen.sm_clock_hz is None or peak.clock_hz is None:
        pytest.skip(f"the clock held or stated is not known: {seen.absent.get('sm_clock_hz')}")
    rate = sampled.found.events_flops_per_s
    expected = expected_tensor_active(rate, peak.flops_per_s, peak.clock_hz, seen.sm_clock_hz)
    print(f"tensor active {seen.tensor_active:.3f}, HFU {rate / peak.flops_per_s:.3f} x ", end="")
    print(f"{peak.clock_hz / 1e6:.0f} MHz / {seen.sm_clock_hz / 1e6:.0f} MHz = {expected:.3f}")
    assert seen.tensor_active == pytest.approx(expected, rel=TENSOR_AGREES)
    # The ladder: no rung is above the one before it.
    if seen.gpu_util is not None and seen.sm_active is not None:
        assert seen.gpu_util + 0.02 >= seen.sm_active >= seen.tensor_active - 0.02


def test_the_measured_bf16_peak_is_a_believable_share_of_the_stated_one() -> None:
    device = detect_device(kind="cuda")
    peak = known_peak(device, "bf16")
    (entry,) = run_bench(device, ["bf16"], shapes="quick").entries
    one = entry.sustained
    assert one is not None, entry.unknown
    assert one.time_s == pytest.approx(1.0, rel=0.5)
    assert one.flops_per_s <= one.burst_flops_per_s
    assert one.operand_sets >= 2
    share = entry.share_of_peak
    assert share is not None
    print(f"bf16 {one.flops_per_s / 1e12:.1f} TFLOP/s, {100 * share:.1f} % of the peak", end="; ")
    print(f"{one.shape}; {one.telemetry}")
    held_hz = one.telemetry.sm_clock_hz if one.telemetry else None
    if peak.clock_hz and held_hz:  # a power limit, or a boost above the rated one, is no fault
        share *= peak.clock_hz / held_hz
    assert 0.6 < share < 1.1


def test_the_peak_of_this_card_is_known_or_refused_with_a_reason() -> None:
    device = detect_device(kind="cuda")
    try:
        peak = peak_for(device, "bf16")
    except UnknownPeak as error:
        assert device.name in str(error) and len(str(error)) > len(device.name) + 20
    else:
        assert peak.flops_per_s > 1e12 and peak.source and peak.provenance != "given"


def test_every_dtype_is_measured_or_says_why_and_the_users_settings_stay(tmp_path: Any) -> None:
    device = detect_device(kind="cuda")

    def state() -> tuple[object, ...]:
        switches: Any = torch.backends.cuda.matmul
        return (
            torch.cuda.get_rng_state().tolist(),
            torch.get_rng_state().tolist(),
            torch.cuda.current_device(),
            torch.get_float32_matmul_precision(),
            switches.allow_tf32,
            switches.allow_bf16_reduced_precision_reduction,
            getattr(switches, "allow_fp16_accumulation", None),
            reduced_fp32(device),
            torch.backends.cudnn.allow_tf32,
            torch.is_grad_enabled(),
            torch.is_autocast_enabled("cuda"),
        )

    before = state()
    found = run_bench(device, seconds=0.2, shapes="quick")
    assert state() == before
    rates = {e.dtype: e.sustained.flops_per_s for e in found.entries if e.sustained is not None}
    reasons = {entry.dtype: entry.unknown for entry in found.entries if entry.unknown}
    print(f"{ {d: round(rate / 1e12, 1) for d, rate in rates.items()} }, not measured: {reasons}")
    assert {*rates, *reasons} == {entry.dtype for entry in found.entries}
    assert {"fp16", "fp32", "fp64"} <= rates.keys()
    capability = torch.cuda.get_device_capability()
    if capability >= (8, 0):
        assert {"bf16", "tf32", "int8"} <= rates.keys()
        assert rates["tf32"] > 1.2 * rates["fp32"]  # 1.0 on paper for GeForce 30 is 2.0 on A100
    if capability >= (8, 9) and hasattr(torch, "_scaled_mm"):
        assert "fp8" in rates
    assert set(save(found, tmp_path)) == rates.keys()
    for dtype, rate in rates.items():
        peak = saved_peak(device, dtype, tmp_path)
        assert peak is not None and peak.flops_per_s == rate
