"""The figures over a set of steps, against numbers worked out by hand."""

from __future__ import annotations

import math

import pytest
from samples import T, count, flop_count, peak, run, step, term

from mfu_torch.figures import end_to_end_mfu, figures, run_figures
from mfu_torch.ideal import ideal_model_s, ideal_times
from mfu_torch.records import CountEntry, End, FlopCount, Peak, PeakEntry
from mfu_torch.wall import WallShare, wall_shares

PEAKS = {"bf16": peak("bf16", 100e12), "fp32": peak("fp32", 50e12)}
COUNTS = {0: count()}


def test_the_four_ideal_times_of_a_count() -> None:
    times = ideal_times(flop_count(), PEAKS)
    assert not isinstance(times, str)
    assert times.model == pytest.approx(0.30)  # 30 T / 100 T/s
    assert times.model_causal == pytest.approx(0.27)
    assert times.hardware == pytest.approx(0.41)  # 40/100 + 0.5/50
    assert times.hardware_causal == pytest.approx(0.37)


def test_a_missing_peak_is_a_reason_not_a_number() -> None:
    unknown = PeakEntry(dtype="fp32", unknown="nobody knows")
    assert ideal_times(flop_count(), {"bf16": PEAKS["bf16"], "fp32": unknown}) == "nobody knows"
    reason = ideal_times(flop_count(), {"bf16": PEAKS["bf16"]})
    assert reason == "no fp32 peak was looked up; Meter(peak=...) gives one"


def test_figures_are_sums_over_sums_and_leave_excluded_steps_out() -> None:
    steps = [step(0, 10.0, excluded="first step"), step(1, 0.5), step(2, 1.5)]
    now = figures(steps, COUNTS, PEAKS, "full", end_to_end=0.1, memory_bytes=7)
    assert (now.step, now.steps, now.time_s) == (3, 2, 2.0)
    assert now.mfu == pytest.approx(0.30)  # 2 * 0.30 / 2.0; the mean of 0.6 and 0.2 would be 0.4
    assert now.hfu == pytest.approx(0.41)
    assert now.mfu_full == now.mfu
    assert now.mfu_causal == pytest.approx(0.27)
    assert now.model_flops_per_s == pytest.approx(30e12)  # 2 * 30 T / 2 s
    assert now.tokens_per_s == 1000.0  # 2 * 1000 / 2 s
    assert now.samples_per_s == 2.0
    assert now.step_s == 1.0
    assert now.step_s_p95 == 1.5
    assert now.data_wait_share == pytest.approx(0.02)
    assert (now.end_to_end, now.memory_bytes, now.absent) == (0.1, 7, {})


def test_the_causal_convention_moves_mfu_hfu_and_the_flop_rate() -> None:
    now = figures([step(0, 1.0)], COUNTS, PEAKS, "causal")
    assert now.mfu == now.mfu_causal == pytest.approx(0.27)
    assert now.hfu == pytest.approx(0.37)
    assert now.mfu_full == pytest.approx(0.30)
    assert now.model_flops_per_s == pytest.approx(27e12)


def test_steps_of_different_shapes_use_their_own_counts() -> None:
    counts = {0: count(), 1: CountEntry(id=1, count=FlopCount(terms=(term("given", T, T),)))}
    now = figures([step(0, 1.0), step(1, 1.0, count_ids=(1,))], counts, PEAKS, "full")
    assert now.mfu == pytest.approx(0.155)  # (0.30 + 0.01) / 2


@pytest.mark.parametrize(("steps", "nearest_rank"), [(1, 1), (19, 19), (20, 19), (100, 95)])
def test_p95_is_the_nearest_rank(steps: int, nearest_rank: int) -> None:
    # durations 1, 2, ..., n: the k-th is k
    durations = [step(i, float(i + 1)) for i in range(steps)]
    assert figures(durations, COUNTS, PEAKS, "full").step_s_p95 == nearest_rank


def test_phases_are_shares_of_the_step_time() -> None:
    steps = [step(0, 1.0, phases={"forward": 0.25}), step(1, 1.0, phases={"optimizer": 0.5})]
    assert figures(steps, COUNTS, PEAKS, "full").phases == {"forward": 0.125, "optimizer": 0.25}


def test_an_unknown_count_leaves_the_times_and_says_why() -> None:
    unknown = {0: CountEntry(id=0, unknown="the count failed")}
    now = figures([step(0, 1.0)], unknown, PEAKS, "full")
    assert now.mfu is now.hfu is now.model_flops_per_s is None
    assert now.step_s == 1.0
    names = ("mfu", "hfu", "mfu_full", "mfu_causal", "model_flops_per_s")
    assert {name: now.absent[name] for name in names} == dict.fromkeys(names, "the count failed")


def test_an_unknown_peak_leaves_the_flop_rate() -> None:
    unknown = {"bf16": PeakEntry(dtype="bf16", unknown="new device")}
    now = figures([step(0, 1.0)], COUNTS, unknown, "full")
    assert now.mfu is None
    assert now.absent["mfu"] == "new device"
    assert now.model_flops_per_s == pytest.approx(30e12)


def test_tokens_that_were_not_always_given_make_no_rate() -> None:
    now = figures([step(0, 1.0), step(1, 1.0, tokens=None)], COUNTS, PEAKS, "full")
    assert now.tokens_per_s is None
    assert now.absent["tokens_per_s"] == "Meter.step was not given tokens="
    assert now.samples_per_s == 2.0


@pytest.mark.parametrize("first", [None, 0.5])
def test_waits_that_were_not_always_measured_make_no_share(first: float | None) -> None:
    steps = [step(0, 1.0, data_wait_s=first), step(1, 1.0, data_wait_s=None)]
    now = figures(steps, COUNTS, PEAKS, "full", end_to_end=0.1)
    assert now.data_wait_share is None
    assert now.absent == {"data_wait_share": "the loop does not iterate over Meter.data(loader)"}


def test_a_wait_of_0_is_a_share_of_0_and_excluded_steps_have_no_say_in_it() -> None:
    steps = [step(0, 1.0, data_wait_s=None, excluded="first step"), step(1, 1.0, data_wait_s=0.0)]
    now = figures(steps, COUNTS, PEAKS, "full", end_to_end=0.1)
    assert now.data_wait_share == 0.0
    assert now.absent == {}


def test_only_excluded_steps_make_no_figures() -> None:
    now = figures([step(0, 1.0, excluded="first step")], COUNTS, PEAKS, "full", end_to_end=0.2)
    assert (now.step, now.steps, now.mfu, now.step_s) == (1, 0, None, None)
    assert now.absent["mfu"] == "no steady step (first step); steps after it have figures"
    assert now.end_to_end == 0.2


@pytest.mark.parametrize("duration_s", [0.0, math.nan])
def test_a_time_that_nothing_can_be_divided_by_is_a_reason(duration_s: float) -> None:
    now = figures([step(0, duration_s)], COUNTS, PEAKS, "full")
    assert now.mfu is None
    assert now.absent["mfu"] == "the steps took no measurable time"


def test_no_steps_make_no_figures() -> None:
    now = figures([], COUNTS, PEAKS, "full")
    assert (now.step, now.steps) == (0, 0)
    assert now.absent["mfu"] == "no step is recorded"


def test_end_to_end_mfu_has_all_steps_and_all_wall_time() -> None:
    # 5 steps * 0.30 s / 20 s, the compiling one among them
    assert end_to_end_mfu(run()) == pytest.approx(0.075)
    assert run_figures(run()).end_to_end == pytest.approx(0.075)


def test_end_to_end_mfu_says_why_it_is_not_known() -> None:
    assert end_to_end_mfu(run(windows=())) == "no step is recorded"
    unknown = {"bf16": PeakEntry(dtype="bf16", unknown="new device")}
    assert end_to_end_mfu(run(peaks=unknown)) == "new device"


def test_ideal_model_time_follows_the_convention() -> None:
    steps = {0: 2}  # two steps that had count 0
    assert ideal_model_s(steps, COUNTS, PEAKS, "full") == pytest.approx(0.60)
    assert ideal_model_s(steps, COUNTS, PEAKS, "causal") == pytest.approx(0.54)
    assert ideal_model_s({}, COUNTS, PEAKS, "full") == 0


def test_the_wall_time_is_shared_out_with_what_each_part_costs() -> None:
    # steady-state MFU m = 4*0.30/4.0 = 0.30, wall W = 20 s; a part costs (m t - t*) / W
    expected = [
        ("steady", "", 4, 4.0, 0.20, 0.0),
        ("excluded", "first step, compiling", 1, 10.0, 0.50, (3.0 - 0.3) / 20),
        ("pause", "init", 1, 2.0, 0.10, 0.6 / 20),
        ("pause", "eval", 2, 3.0, 0.15, 0.9 / 20),
        ("other", "", 1, 1.0, 0.05, 0.3 / 20),
    ]
    parts = wall_shares(run())
    assert len(parts) == len(expected)
    for part, (kind, name, times, time_s, share, gap) in zip(parts, expected, strict=True):
        assert (part.kind, part.name, part.times) == (kind, name, times)
        assert part.time_s == pytest.approx(time_s)
        assert part.share == pytest.approx(share)
        assert part.mfu_gap == pytest.approx(gap, abs=1e-12)


def test_the_parts_sum_to_the_wall_time_and_to_the_gap() -> None:
    parts = wall_shares(run())
    assert math.fsum(part.time_s for part in parts) == 20.0
    assert math.fsum(part.share for part in parts) == pytest.approx(1.0)
    gap = sum(part.mfu_gap or 0.0 for part in parts)
    assert gap == pytest.approx(0.30 - 0.075)


def test_without_a_steady_step_the_gap_is_not_known() -> None:
    only = run(windows=(), pauses=())
    assert [part.kind for part in wall_shares(only)] == ["steady", "other"]
    assert all(part.mfu_gap is None for part in wall_shares(only))


def test_a_run_without_wall_time_has_no_parts() -> None:
    assert wall_shares(run(end=None, windows=(), pauses=())) == ()


def test_other_is_negative_where_the_parts_overlap() -> None:
    # 14 s of steps, 5 s of pauses, 18 s of wall time
    parts = wall_shares(run(end=End(wall_s=18.0, reason="completed")))
    assert parts[-1] == WallShare(
        kind="other", times=1, time_s=-1.0, share=-1 / 18, mfu_gap=parts[-1].mfu_gap
    )


def test_mfu_of_what_was_measured_stands_beside() -> None:
    # 30 T model FLOPs, all in bf16, of a measured 75 T/s in 1 s; fp32 runs in the optimizer alone.
    measured = Peak(flops_per_s=75e12, dtype="bf16", source="a GEMM", provenance="measured")
    peaks = {
        "bf16": PeakEntry(dtype="bf16", peak=PEAKS["bf16"].peak, measured=measured),
        "fp32": PeakEntry(dtype="fp32", peak=PEAKS["fp32"].peak, measured=measured),
    }
    now = figures([step(1, 1.0)], COUNTS, peaks, "full")
    assert (now.mfu, now.mfu_of_measured) == (pytest.approx(0.30), pytest.approx(0.40))
    peaks["fp32"] = PEAKS["fp32"]
    assert figures([step(1, 1.0)], COUNTS, peaks, "full").mfu_of_measured is None
