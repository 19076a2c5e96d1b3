"""What the device says of itself, averaged and set beside HFU and MFU."""

from __future__ import annotations

from typing import Any

import pytest
from samples import T, count, header, run, step

from mfu_torch.ladder import (
    NO_TELEMETRY,
    Beside,
    against_measured,
    at_clock_held,
    ladder,
    mean_telemetry,
    sampled,
)
from mfu_torch.records import Device, Peak, PeakEntry, Run, Telemetry, Window


def seen(after_step: int = 3, **fields: Any) -> Telemetry:
    return Telemetry(**{"after_step": after_step, "samples": 2, "time_s": 2.0} | fields)


def entry(
    dtype: str = "bf16",
    flops_per_s: float = 100e12,
    clock_hz: float | None = 2e9,
    measured: float | None = None,
    provenance: Any = "datasheet",
) -> PeakEntry:
    return PeakEntry(
        dtype=dtype,
        peak=Peak(
            flops_per_s=flops_per_s,
            dtype=dtype,
            source="Made-up sheet",
            provenance=provenance,
            clock_hz=clock_hz,
        ),
        measured=None
        if measured is None
        else Peak(flops_per_s=measured, dtype=dtype, source="GEMM", provenance="measured"),
    )


def sampled_run(*telemetry: Telemetry, peaks: dict[str, PeakEntry] | None = None) -> Run:
    """Two steady steps of 1 s after an excluded one: MFU 30 %, HFU 41 % (see samples)."""
    known = {"bf16": entry(), "fp32": entry("fp32", 50e12)}
    return run(
        windows=(
            Window(steps=(step(0, 5.0, excluded="first step"),), wall_s=5.0),
            Window(steps=(step(1, 1.0), step(2, 1.0)), wall_s=7.0),
        ),
        counts={0: count()},
        peaks=peaks or known,
        telemetry=telemetry,
    )


# --- means -----------------------------------------------------------------------------------


def test_means_are_weighted_by_time() -> None:
    mean = mean_telemetry(
        [
            seen(time_s=3.0, sm_clock_hz=1.2e9, throttle={"power cap": 1.0}),
            seen(4, time_s=1.0, samples=5, sm_clock_hz=1.6e9, gpu_util=0.5),
        ]
    )
    assert mean is not None
    assert (mean.sm_clock_hz, mean.gpu_util) == (pytest.approx(1.3e9), 0.5)
    assert (mean.after_step, mean.samples, mean.time_s) == (4, 7, 4.0)
    assert mean.throttle == {"power cap": 0.75}


def test_equal_readings_have_that_very_mean() -> None:
    mean = mean_telemetry([seen(time_s=t, sm_clock_hz=1.755e9) for t in (0.1, 0.7, 0.3)])
    assert mean is not None
    assert mean.sm_clock_hz == 1.755e9


def test_extremes_stay_extremes() -> None:
    mean = mean_telemetry(
        [
            seen(temperature_c=70.0, sm_clock_min_hz=1.0e9, memory_used_bytes=5),
            seen(temperature_c=60.0, sm_clock_min_hz=1.1e9, memory_used_bytes=9, other_processes=1),
        ]
    )
    assert mean is not None
    assert (mean.temperature_c, mean.sm_clock_min_hz) == (70.0, 1.0e9)
    assert (mean.memory_used_bytes, mean.other_processes) == (9, 1)


def test_a_reason_goes_where_a_later_record_has_the_value() -> None:
    why = {"power_w": "refused", "sm_active": "needs Hopper"}
    mean = mean_telemetry([seen(absent=why), seen(power_w=300.0)])
    assert mean is not None
    assert mean.absent == {"sm_active": "needs Hopper"}


def test_no_records_have_no_mean() -> None:
    assert mean_telemetry([]) is None


# --- over which steps ------------------------------------------------------------------------


def test_windows_with_excluded_steps_are_left_out() -> None:
    found = sampled(sampled_run(seen(1, power_w=100.0), seen(3, power_w=500.0)))
    assert found is not None
    assert (found.mean.power_w, found.all_steps) == (500.0, False)


def test_where_every_window_has_one_all_are_taken_and_it_is_said() -> None:
    found = sampled(sampled_run(seen(2, power_w=100.0)))
    assert found is not None
    assert (found.mean.power_w, found.all_steps) == (100.0, True)


def test_a_window_with_a_short_check_in_it_is_steady() -> None:
    # An excluded step of 1.5 s among ten of 1 s is 14 % of the time; the first step is all of its.
    steps = [step(n, 1.0) for n in range(1, 10)] + [step(10, 1.5, excluded="counted again")]
    checked = run(
        windows=(
            Window(steps=(step(0, 5.0, excluded="first step"),), wall_s=5.0),
            Window(steps=tuple(steps), wall_s=16.0),
        ),
        telemetry=(seen(1, power_w=100.0), seen(11, power_w=500.0)),
    )
    found = sampled(checked)
    assert found is not None
    assert (found.mean.power_w, found.all_steps) == (500.0, False)


def test_a_device_that_was_lost_keeps_what_it_said_before() -> None:
    lost = seen(3, samples=0, time_s=0.0, absent={"power_w": "the GPU no longer answers"})
    found = sampled(sampled_run(seen(1, power_w=100.0), seen(2, power_w=300.0), lost))
    assert found is not None
    assert (found.mean.power_w, found.stopped) == (300.0, "the GPU no longer answers")


def test_reasons_that_could_not_be_read_do_not_count_as_no_throttling() -> None:
    mean = mean_telemetry(
        [
            seen(throttle={"power cap": 1.0}),
            seen(throttle={}, absent={"throttle": "refused"}),
        ]
    )
    assert mean is not None
    assert (mean.throttle, mean.absent) == ({"power cap": 1.0}, {})


# --- the ladder ------------------------------------------------------------------------------


def test_the_ladder_goes_from_busy_to_mfu() -> None:
    rungs = ladder(sampled_run(seen(gpu_util=1.0, sm_active=0.9, tensor_active=0.5)))
    assert [(rung.name, rung.share) for rung in rungs] == [
        ("GPU-Util", 1.0),
        ("SM active", 0.9),
        ("tensor active", 0.5),
        ("HFU", pytest.approx(0.41)),
        ("MFU", pytest.approx(0.30)),
    ]
    assert not any(rung.absent for rung in rungs)


def test_a_rung_that_is_not_known_says_why() -> None:
    rungs = ladder(sampled_run(seen(gpu_util=1.0, absent={"sm_active": "GPM needs Hopper"})))
    assert [rung.absent for rung in rungs] == ["", "GPM needs Hopper", NO_TELEMETRY, "", ""]


def test_on_a_cpu_the_first_rung_is_how_busy_it_is() -> None:
    cpu = sampled_run(seen(cpu_util=0.8))
    cpu = Run(
        header=header(device=Device(name="EPYC", kind="cpu")),
        **{name: getattr(cpu, name) for name in ("peaks", "counts", "windows", "telemetry")},
    )
    assert [(r.name, r.share) for r in ladder(cpu)][:2] == [
        ("CPU busy", 0.8),
        ("HFU", pytest.approx(0.41)),
    ]


def test_without_samples_there_is_no_ladder() -> None:
    assert ladder(sampled_run()) == ()


# --- other peaks, beside ---------------------------------------------------------------------


def test_at_the_clock_held_the_peaks_are_lower() -> None:
    # Held at 1.5 of 2.0 GHz every ideal time is a third longer.
    now = at_clock_held(sampled_run(seen(sm_clock_hz=1.5e9)))
    assert isinstance(now, Beside)
    assert (now.figures.mfu, now.figures.hfu) == (pytest.approx(0.40), pytest.approx(0.41 / 0.75))


@pytest.mark.parametrize(
    ("peaks", "reason"),
    [
        ({"bf16": entry(clock_hz=None)}, "no clock is known that the bf16 peak is stated at"),
        (
            {"bf16": entry(provenance="measured")},
            "no clock is known that the bf16 peak is stated at",
        ),
        ({"bf16": PeakEntry(dtype="bf16", unknown="nobody knows")}, "nobody knows"),
    ],
)
def test_a_peak_without_a_clock_is_not_adjusted(peaks: dict[str, PeakEntry], reason: str) -> None:
    assert at_clock_held(sampled_run(seen(sm_clock_hz=1.5e9), peaks=peaks)) == reason


def test_without_a_clock_held_nothing_is_adjusted() -> None:
    assert at_clock_held(sampled_run()) == NO_TELEMETRY
    refused = seen(absent={"sm_clock_hz": "NVML refused"})
    assert at_clock_held(sampled_run(refused)) == "NVML refused"


def test_against_what_the_device_was_measured_to_sustain() -> None:
    peaks = {"bf16": entry(measured=75e12), "fp32": entry("fp32", 50e12, measured=40e12)}
    now = against_measured(sampled_run(peaks=peaks))
    assert isinstance(now, Beside)
    assert now.figures.mfu == pytest.approx(30 * T / 75e12)  # per step of 1 s
    assert now.figures.hfu == pytest.approx(40 * T / 75e12 + 0.5 * T / 40e12)


def test_one_dtype_that_was_not_measured_leaves_no_figure() -> None:
    # fp32 is 0.01 s of 0.41 s ideal time: 2.4 %.
    peaks = {"bf16": entry(measured=75e12), "fp32": entry("fp32", 50e12)}
    assert against_measured(sampled_run(peaks=peaks)) == (
        "nothing was measured for fp32; mfu-torch bench --save does that"
    )


def test_a_dtype_with_next_to_no_work_keeps_the_stated_peak() -> None:
    # fp32 at 500 TFLOP/s is 0.001 s of 0.401 s: 0.25 %.
    peaks = {"bf16": entry(measured=80e12), "fp32": entry("fp32", 500e12, clock_hz=None)}
    of = sampled_run(seen(sm_clock_hz=1e9), peaks=peaks)
    now, held = against_measured(of), at_clock_held(of)
    assert isinstance(now, Beside) and isinstance(held, Beside)
    assert now.as_stated == held.as_stated == ("fp32",)
    assert now.figures.hfu == pytest.approx(0.40 / 0.8 + 0.001)
    assert held.figures.hfu == pytest.approx(0.40 / 0.5 + 0.001)


@pytest.mark.parametrize("clock_hz", [0.0, -1e9, 1e308, 1e-300, float("nan")])
def test_what_is_no_clock_adjusts_nothing(clock_hz: float) -> None:
    adjusted = at_clock_held(sampled_run(seen(sm_clock_hz=clock_hz)))
    assert isinstance(adjusted, str) and "which is no clock" in adjusted
