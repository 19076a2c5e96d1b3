"""The formulas, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest

from mfu_torch.utilization import (
    ideal_time_s,
    mbu,
    pipeline_bubble,
    rate_per_s,
    scaling_efficiency,
    utilization,
)


def test_the_ideal_time_takes_every_dtype_at_its_own_peak() -> None:
    # 6/312 + 1/156 = 8/312 = 1/39 s
    flops = {"bf16": 6 * 10**12, "tf32": 10**12}
    assert ideal_time_s(flops, {"bf16": 312e12, "tf32": 156e12}) == pytest.approx(1 / 39)


def test_a_step_that_runs_every_dtype_at_its_peak_reaches_exactly_1() -> None:
    # 300 T at 100 T/s is 3 s, 50 T at 50 T/s is 1 s
    ideal_s = ideal_time_s({"fp8": 300, "bf16": 50}, {"fp8": 100.0, "bf16": 50.0})
    assert utilization(ideal_s, 3 + 1) == 1.0


def test_a_dtype_without_flops_needs_no_peak() -> None:
    assert ideal_time_s({"bf16": 100, "fp8": 0}, {"bf16": 50.0}) == 2.0


def test_a_dtype_with_flops_and_no_peak_is_an_error() -> None:
    with pytest.raises(KeyError, match="fp8"):
        ideal_time_s({"fp8": 1}, {"bf16": 50.0})


def test_utilization_is_ideal_time_over_time() -> None:
    assert utilization(0.4, 1.0) == 0.4


def test_more_than_the_peak_is_not_clamped() -> None:
    assert utilization(3.0, 2.0) == 1.5


def test_a_rate_is_an_amount_over_time() -> None:
    assert rate_per_s(1000, 0.25) == 4000.0


@pytest.mark.parametrize("time_s", [0.0, -1.0, math.nan])
def test_a_time_that_is_not_positive_is_refused(time_s: float) -> None:
    with pytest.raises(ValueError, match="time_s is"):
        utilization(1.0, time_s)
    with pytest.raises(ValueError, match="time_s is"):
        rate_per_s(1.0, time_s)


def test_mbu_of_weights_read_once_per_token() -> None:
    # 14e9 bytes / (0.010 s * 2e12 B/s) = 0.7
    assert mbu(14e9, 0.010, 2.0e12) == pytest.approx(0.7)


def test_the_pipeline_bubble_is_a_share_of_the_whole_step() -> None:
    assert pipeline_bubble(8, 64) == 7 / 71  # (8-1) / (64 + 8-1)
    assert pipeline_bubble(8, 64, chunks=2) == 7 / 135  # (8-1) / (2*64 + 8-1)
    assert pipeline_bubble(1, 4) == 0.0
    with pytest.raises(ValueError, match="micro_batches"):
        pipeline_bubble(8, 0)


def test_scaling_efficiency_compares_throughput_per_device() -> None:
    assert scaling_efficiency(700, 8, 100, 1) == 0.875  # 87.5 against 100 per device
    with pytest.raises(ValueError, match="base_devices"):
        scaling_efficiency(700, 8, 100, 0)
