"""What the device did meanwhile, as the report prints it."""

from __future__ import annotations

import textwrap

import test_ladder

from mfu_torch.insight.device_block import device_block
from mfu_torch.records import Run

FIRST = test_ladder.seen(1)  # the window of the first step, which is excluded


def printed(of: Run) -> str:
    return "\n".join(device_block(of))


def block(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def test_a_hopper_card_shows_the_whole_ladder() -> None:
    seen = test_ladder.seen(
        3,
        samples=47,
        time_s=46.2,
        gpu_util=0.998,
        sm_active=0.91,
        tensor_active=0.586,
        dram_active=0.62,
        sm_clock_hz=1.5e9,
        sm_clock_min_hz=1.3e9,
        power_w=698.4,
        power_limit_w=700.0,
        power_default_w=700.0,
        temperature_c=71.0,
        throttle={"power cap": 0.87, "idle": 0.02, "thermal (software)": 0.0},
        memory_used_bytes=61_000_000_000,
        pcie_rx_bytes_per_s=1.5e9,
        pcie_tx_bytes_per_s=3e8,
        other_processes=1,
    )
    assert printed(test_ladder.sampled_run(FIRST, seen)) == block(
        """
What the device did meanwhile (47 samples in 46.2 s, steady windows)
  GPU-Util          99.8 % of the time any kernel ran, however small
  SM active         91.0 % of the multiprocessors had work in flight
  tensor active     58.6 % of the tensor pipes' cycles were busy
  HFU               41.0 % FLOPs that ran, over the peak
  MFU               30.0 % FLOPs that the model needs, over the peak
  clock            1500 MHz held, 1300 MHz at the lowest; the peak is stated at 2000 MHz
  at that clock    MFU 40.0 %, HFU 54.7 % of what the peak is at the clock held
  power            698 W of 700 W allowed
  held down by     power cap 87.0 % of the samples
  temperature      71 C at the highest
  shared with      1 other process on the device
  memory bandwidth 62.0 % in use
  memory used      61.0 GB by all processes
  PCIe             1.50 GB/s in, 300 MB/s out
"""
    )


def test_what_is_not_known_is_said_once_with_its_reason() -> None:
    why = {"sm_active": "GPM needs Hopper", "tensor_active": "GPM needs Hopper"}
    seen = test_ladder.seen(3, gpu_util=0.5, power_w=90.0, power_limit_w=100.0, absent=why)
    assert printed(test_ladder.sampled_run(FIRST, seen)) == block(
        """
What the device did meanwhile (2 samples in 2.00 s, steady windows)
  GPU-Util          50.0 % of the time any kernel ran, however small
  HFU               41.0 % FLOPs that ran, over the peak
  MFU               30.0 % FLOPs that the model needs, over the peak
  power            90 W of 100 W allowed
  SM active, tensor active: not known, GPM needs Hopper
"""
    )


def test_a_card_whose_limit_was_lowered_is_said_to_be_capped() -> None:
    seen = test_ladder.seen(3, power_w=290.0, power_limit_w=300.0, power_default_w=400.0)
    assert "  power            290 W of 300 W allowed; the card's own limit is 400 W, so it is" in (
        printed(test_ladder.sampled_run(FIRST, seen))
    )


def test_a_measured_peak_stands_beside_also_without_samples() -> None:
    peaks = {
        "bf16": test_ladder.entry(measured=75e12),
        "fp32": test_ladder.entry("fp32", 50e12, measured=40e12),
    }
    assert printed(test_ladder.sampled_run(peaks=peaks)) == (
        "measured peak    bf16 75.0 TFLOP/s, fp32 40.0 TFLOP/s (MFU 40.0 %, HFU 54.6 % of it)"
    )


def test_a_run_without_samples_and_measurement_has_no_such_block() -> None:
    assert printed(test_ladder.sampled_run()) == ""


def test_a_device_that_says_nothing_has_one_line_with_the_reason() -> None:
    why = dict.fromkeys(("gpu_util", "power_w"), "no driver library")
    nothing = test_ladder.seen(1, samples=0, time_s=0.0, absent=why)
    assert printed(test_ladder.sampled_run(nothing)) == (
        "What the device did meanwhile is not known: no driver library"
    )


def test_a_contradiction_between_tensor_activity_and_hfu_is_said() -> None:
    seen = test_ladder.seen(3, tensor_active=0.1)
    assert "HFU is above what the tensor pipes did" in printed(test_ladder.sampled_run(FIRST, seen))
    seen = test_ladder.seen(3, tensor_active=0.4)  # HFU is 41 %
    assert "tensor pipes did" not in printed(test_ladder.sampled_run(FIRST, seen))
    # At 1.5 of 2.0 GHz it is 54.7 % of what the pipes could do.
    seen = test_ladder.seen(3, tensor_active=0.4, sm_clock_hz=1.5e9)
    assert "HFU is above what the tensor pipes did" in printed(test_ladder.sampled_run(FIRST, seen))


def test_sampling_that_stopped_is_said_beside_what_was_seen_before() -> None:
    seen = test_ladder.seen(2, gpu_util=0.5)
    lost = test_ladder.seen(3, samples=0, time_s=0.0, absent={"gpu_util": "the GPU is gone"})
    text = printed(test_ladder.sampled_run(FIRST, seen, lost))
    assert "  GPU-Util          50.0 % of the time any kernel ran" in text
    assert text.endswith("  sampling stopped during the run: the GPU is gone")


def test_a_dtype_without_a_clock_leaves_a_reason_and_no_figure() -> None:
    peaks = {"bf16": test_ladder.entry(), "fp32": test_ladder.entry("fp32", 50e12, clock_hz=None)}
    seen = test_ladder.seen(3, sm_clock_hz=1.5e9)
    assert "  at that clock    not known, no clock is known that the fp32 peak is stated at" in (
        printed(test_ladder.sampled_run(FIRST, seen, peaks=peaks))
    )


def test_a_clock_that_is_none_leaves_its_reason() -> None:
    why = {"sm_clock_hz": "NVML reported 0 MHz", "pcie_rx_bytes_per_s": "no permission"}
    seen = test_ladder.seen(3, gpu_util=0.5, absent=why)
    text = printed(test_ladder.sampled_run(FIRST, seen))
    assert "  clock: not known, NVML reported 0 MHz" in text.splitlines()
    assert "no permission" not in text  # traffic is not missed by everyone
