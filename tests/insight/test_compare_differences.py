"""Two runs built by hand: what makes them comparable, and what does not."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from compare_runs import A100, EVERYTHING, H100, aspects, change, only, run, times
from samples import T, count, flop_count, header, peak, term

from mfu_torch.figures import run_figures
from mfu_torch.insight.compare import Comparison, compare
from mfu_torch.insight.compare.text import render_comparison
from mfu_torch.records import (
    CountEntry,
    Device,
    Earlier,
    PeakEntry,
    Run,
    Telemetry,
)

# --- what they divide by -------------------------------------------------------------------------


def test_another_convention_forbids_comparing_mfu_but_not_throughput() -> None:
    before, after = run(times(1)), run(times(2), attention="causal")
    found = compare(before, after)
    assert not found.comparable
    difference = only(found, "attention")
    assert difference.forbids == ("MFU", "HFU", "end-to-end MFU")
    assert "--attention" in difference.why
    assert change(found, "MFU").not_compared == "forbidden by attention"
    assert change(found, "tokens/s").change is not None
    assert found.verdict.startswith("MFU is not comparable, because of attention; by throughput no")


def test_both_runs_can_be_read_under_one_convention() -> None:
    before, after = run(times(1)), run(times(1, mean_s=0.9), attention="causal")
    found = compare(before, after, attention="causal")
    assert found.comparable and found.attention == "causal"
    assert change(found, "MFU").a == run_figures(before).mfu_causal
    assert change(found, "MFU").change == pytest.approx(1 / 0.9 - 1)


def test_another_convention_is_a_remark_where_no_mask_makes_a_difference() -> None:
    alike = count(terms=(term("forward", 30 * T, 30 * T),))
    found = compare(run(times(1), counts=alike), run(times(2), counts=alike, attention="causal"))
    assert found.comparable
    assert only(found, "attention").forbids == ()


def test_another_peak_of_the_same_device_forbids_comparing_mfu() -> None:
    after = run(times(2), peaks=(peak("bf16", 102e12), peak("fp32", 50e12)))
    found = compare(run(times(1)), after)
    assert not found.comparable
    difference = only(found, "peak bf16")
    assert difference.forbids == ("MFU", "HFU", "end-to-end MFU")
    assert (difference.a, difference.b) == (
        "100.0 TFLOP/s, given: Made-up sheet",
        "102.0 TFLOP/s, given: Made-up sheet",
    )


def test_the_peak_of_a_dtype_without_flops_is_no_difference() -> None:
    after = run(times(2), peaks=(peak("bf16"), peak("fp32", 50e12), peak("fp8", 200e12)))
    assert compare(run(times(1)), after).differences == ()


def test_the_same_rate_from_another_source_is_a_remark() -> None:
    entry = peak("bf16")
    assert entry.peak is not None
    sheet = msgspec.structs.replace(entry.peak, provenance="datasheet", source="the vendor's")
    after = run(times(2), peaks=(PeakEntry(dtype="bf16", peak=sheet), peak("fp32", 50e12)))
    found = compare(run(times(1)), after)
    assert found.comparable
    assert only(found, "peak bf16").why == "the same rate from another source"


def test_another_device_forbids_comparing_throughput_and_not_mfu() -> None:
    found = compare(run(times(1)), run(times(2), device=A100))
    assert not found.comparable
    assert aspects(found)["device"].forbids == ("throughput", "step time")
    assert found.forbidden("MFU") == ()
    assert change(found, "MFU").significant is False
    assert change(found, "tokens/s").not_compared == "forbidden by device"
    assert found.verdict.startswith(
        "Throughput is not comparable, because of device; by MFU no sig"
    )


def test_other_devices_with_other_kinds_of_peaks_have_nothing_in_common() -> None:
    entry = peak("bf16", 312e12)
    assert entry.peak is not None
    measured = msgspec.structs.replace(entry.peak, provenance="measured")
    peaks = (PeakEntry(dtype="bf16", peak=measured), peak("fp32", 50e12))
    found = compare(run(times(1)), run(times(2), device=A100, peaks=peaks))
    assert found.forbidden("MFU") == ("peak bf16",)
    assert found.verdict == (
        "Not comparable: MFU because of peak bf16, throughput because of device."
    )


def test_a_slice_and_other_threads_are_other_devices_and_another_card_is_a_remark() -> None:
    def device(**fields: Any) -> Device:
        return msgspec.structs.replace(H100, **fields)

    for fields in ({"mig": "3g.40gb"}, {"threads": 2}, {"sm_count": 66}):
        found = compare(run(times(1)), run(times(2), device=device(**fields)))
        assert "device" in aspects(found), fields
    found = compare(run(times(1), device=device(uuid="a")), run(times(2), device=device(uuid="b")))
    assert found.comparable and only(found, "card").forbids == ()


def test_an_mfu_that_is_unknown_in_one_run_cannot_be_compared() -> None:
    missing = (PeakEntry(dtype="bf16", unknown="no peak of Foo 9"), peak("fp32", 50e12))
    found = compare(run(times(1)), run(times(2), peaks=missing))
    assert not found.comparable
    assert only(found, "unknown MFU").b == "not known: no peak of Foo 9"
    assert change(found, "MFU").b is None
    assert change(found, "tokens/s").change is not None


def test_flops_that_are_unknown_in_both_runs_leave_throughput() -> None:
    lost = CountEntry(id=0, unknown="the count failed")
    found = compare(run(times(1), counts=lost), run(times(2), counts=lost))
    assert not found.comparable
    assert found.forbidden("MFU") == ("unknown MFU",) and found.forbidden("throughput") == ()


def test_more_ranks_forbid_comparing_throughput() -> None:
    found = compare(run(times(1)), run(times(2), world_size=8))
    assert only(found, "ranks").forbids == ("throughput", "step time")
    found = compare(run(times(1), world_size=8), run(times(2), world_size=8, rank=3))
    assert only(found, "rank").forbids == ()


# --- what they compute ---------------------------------------------------------------------------


def test_other_flops_for_steps_of_the_same_size_forbid_comparing_anything() -> None:
    other = count(terms=(term("forward", 33 * T, 30 * T), term("optimizer", T, T, dtype="fp32")))
    found = compare(run(times(1)), run(times(2), counts=other))
    assert not found.comparable
    flops = aspects(found)["FLOPs per token"]
    assert flops.forbids == EVERYTHING
    assert (flops.a, flops.b) == ("30.0 GFLOP", "33.0 GFLOP")  # for 1000 tokens a step


def test_longer_sequences_of_the_same_model_forbid_comparing_throughput_alone() -> None:
    model = {"model": "GPT", "parameters": 10**9, "trainable": 10**9}
    longer = count(
        terms=tuple(
            msgspec.structs.replace(each, flops=each.flops * 11 // 10)
            for each in flop_count().terms
        )
    )
    before = run(times(1), **model)
    after = run(times(2), counts=longer, of_step={"samples": 1}, **model)
    found = compare(before, after)
    flops = aspects(found)["FLOPs per token"]
    assert flops.forbids == ("throughput", "step time")
    assert flops.why == (
        "the same model on sequences of 500.0 and 1000 tokens: a token is not the same work"
    )
    # Without knowing that it is the same model, nothing explains it.
    found = compare(run(times(1)), run(times(2), counts=longer, of_step={"samples": 1}))
    assert aspects(found)["FLOPs per token"].forbids == EVERYTHING


def test_flops_of_the_same_model_that_are_known_in_another_way_leave_throughput() -> None:
    model = {"model": "GPT", "parameters": 10**9}
    less = {"terms": (term("forward", 20 * T, 20 * T), term("optimizer", T, T, dtype="fp32"))}
    given = count(terms=(term("given", 33 * T, 33 * T),))
    for other in (count(**less, uncounted={"my::attention": 1}), given):
        found = compare(run(times(1), **model), run(times(2), counts=other, **model))
        assert aspects(found)["FLOPs per token"].forbids == ("MFU", "HFU", "end-to-end MFU")
        assert found.forbidden("throughput") == ()
    assert aspects(found)["how FLOPs are known"].b == "given by the user"
    found = compare(run(times(1)), run(times(2), counts=given))
    assert aspects(found)["FLOPs per token"].forbids == EVERYTHING


def mixed(durations_s: list[float], every: int) -> Run:
    """One step in so many is on shorter sequences: half the tokens, 0.45 of the FLOPs."""
    one = run(durations_s)
    short = flop_count(
        terms=tuple(
            msgspec.structs.replace(each, flops=each.flops * 45 // 100)
            for each in flop_count().terms
        )
    )
    steps = tuple(
        msgspec.structs.replace(each, tokens=500, count_ids=(1,))
        if each.index % every == 0
        else each
        for each in one.steps
    )
    windows = (msgspec.structs.replace(one.windows[0], steps=steps),)
    counts = {**one.counts, 1: CountEntry(id=1, count=short)}
    return msgspec.structs.replace(one, windows=windows, counts=counts)


def test_another_mix_of_the_same_shapes_is_explained() -> None:
    # 30 T for 1000 tokens, 13.5 T for 500; 6 and 5 of 60 steps are short.
    found = compare(mixed(times(1), 10), mixed(times(2), 12))
    flops = aspects(found)["FLOPs per token"]
    assert flops.forbids == () and "the same shapes in another mix" in flops.why
    found = compare(mixed(times(1), 20), mixed(times(2), 2))
    assert aspects(found)["FLOPs per token"].forbids == ("throughput", "step time")
    assert found.forbidden("MFU") == ()


def test_another_batch_of_the_same_work_forbids_comparing_step_times_alone() -> None:
    double = count(
        terms=tuple(
            msgspec.structs.replace(each, flops=2 * each.flops) for each in flop_count().terms
        )
    )
    after = run(times(2, mean_s=1.9), counts=double, of_step={"tokens": 2000, "samples": 4})
    found = compare(run(times(1)), after)
    assert found.comparable
    assert only_forbidding(found) == {"batch": ("step time",)}
    assert change(found, "step time").not_compared == "forbidden by batch"
    assert change(found, "MFU").change == pytest.approx(2 / 1.9 - 1, abs=0.005)


def only_forbidding(found: Comparison) -> dict[str, tuple[str, ...]]:
    return {each.aspect: each.forbids for each in found.differences if each.forbids}


def test_flops_that_are_estimated_may_differ_by_as_much() -> None:
    rough = flop_count(uncertainty=0.2, terms=(term("forward", 33 * T, 30 * T),))
    exact = flop_count(terms=(term("forward", 30 * T, 27 * T),))
    found = compare(
        run(times(1), counts=CountEntry(id=0, count=exact)),
        run(times(2), counts=CountEntry(id=0, count=rough)),
    )
    assert found.comparable
    assert aspects(found)["FLOPs per token"].forbids == ()
    assert aspects(found)["FLOPs estimated"].b == "within 20.0 %"


def test_other_dtypes_forbid_comparing_mfu() -> None:
    half = tuple(
        msgspec.structs.replace(each, dtype="fp32") if each.phase == "forward" else each
        for each in flop_count().terms
    )
    found = compare(run(times(1)), run(times(2), counts=count(terms=half)))
    assert not found.comparable
    assert only(found, "dtypes").forbids == ("MFU", "HFU", "end-to-end MFU")
    assert only(found, "dtypes").a == "bf16 98.8 %, fp32 1.2 %"


def test_recompute_is_a_remark_since_mfu_leaves_it_out() -> None:
    without = tuple(each for each in flop_count().terms if each.phase != "recompute")
    found = compare(run(times(1)), run(times(2), counts=count(terms=without)))
    assert found.comparable
    remark = aspects(found)["recompute"]
    # 40.5 / 30 and 30.5 / 30.
    assert (remark.a, remark.b) == (
        "hardware FLOPs 1.350 x model FLOPs",
        "hardware FLOPs 1.017 x model FLOPs",
    )


def test_ops_that_one_run_does_not_count_forbid_comparing_mfu() -> None:
    lower = count(uncounted={"my::attention": 12})
    found = compare(run(times(1)), run(times(2), counts=lower))
    assert only(found, "not counted").forbids == ("MFU", "HFU", "end-to-end MFU")
    found = compare(run(times(1), counts=lower), run(times(2), counts=lower))
    assert found.comparable and only(found, "not counted").forbids == ()


# --- how they were measured ----------------------------------------------------------------------


def test_synchronising_in_one_run_forbids_comparing_anything() -> None:
    found = compare(
        run(times(1)), run(times(2), clock="host clock, cuda synchronised at every mark")
    )
    assert only(found, "clock").forbids == EVERYTHING
    assert found.verdict == "Not comparable, because of clock."
    found = compare(run(times(1)), run(times(2), clock="host clock"))
    assert found.comparable and only(found, "clock").forbids == ()


def test_a_run_that_goes_on_is_compared_so_far() -> None:
    found = compare(run(times(1)), run(times(2), end=None))
    assert found.comparable
    assert only(found, "end").forbids == ()
    assert found.b.status == "no end record: still running, or its process was killed"


def test_a_run_without_steady_steps_cannot_be_compared() -> None:
    empty = Run.from_entries([header()])
    for before, after in ((run(times(1)), empty), (empty, run(times(1))), (empty, empty)):
        found = compare(before, after)
        assert not found.comparable
        assert aspects(found)["steady steps"].forbids == EVERYTHING
        assert render_comparison(found).startswith("Not comparable, because of steady steps.\n")


def test_a_much_longer_run_forbids_comparing_end_to_end_alone() -> None:
    found = compare(run(times(1)), run(times(2, n=120)))
    assert found.comparable
    assert only(found, "length").forbids == ("end-to-end MFU",)
    assert (only(found, "length").a, only(found, "length").b) == ("61 steps", "121 steps")
    earlier = Earlier(started="2026-01-01T00:00:00+00:00", wall_s=50.0, steps=50)
    found = compare(run(times(1)), run(times(2), earlier=earlier))
    assert aspects(found)["length"].forbids == ("end-to-end MFU",)


def test_a_slower_run_of_as_many_steps_is_not_longer() -> None:
    found = compare(run(times(1)), run(times(2, mean_s=2.0)))
    assert found.differences == ()
    assert change(found, "end-to-end MFU").change == pytest.approx(66 / 126 - 1, abs=0.01)


def test_remarks_name_versions_models_clocks_and_parts_of_the_training() -> None:
    sampled = [
        Telemetry(after_step=61, samples=9, time_s=60.0, sm_clock_hz=hz, other_processes=n)
        for hz, n in ((1.98e9, 0), (1.41e9, 2))
    ]
    newer = {"mfu_torch": "0.1.0", "torch": "2.14.0", "python": "3.12.1"}
    found = compare(
        run(times(1), telemetry=sampled[0], model="GPT"),
        run(times(2), telemetry=sampled[1], model="GPT2", versions=newer, first=500),
    )
    assert found.comparable
    shown = {aspect: (each.a, each.b) for aspect, each in aspects(found).items()}
    assert shown == {
        "model": ("GPT", "GPT2"),
        "clock held": ("1980 MHz", "1410 MHz"),
        "other processes": ("0", "2"),
        "steady window": ("steps 1 to 60", "steps 501 to 560"),
        "torch": ("2.13.0", "2.14.0"),
    }


def test_what_forbids_most_comes_first() -> None:
    found = compare(run(times(1)), run(times(2), clock="host clock, cuda synchronised", model="x"))
    assert list(aspects(found)) == ["clock", "model"]


@pytest.mark.parametrize(("first", "named"), [(0, False), (29, False), (35, True), (60, True)])
def test_parts_of_a_training_that_share_less_than_half_of_their_steps_are_named(
    first: int, named: bool
) -> None:
    found = compare(run(times(1)), run(times(2), first=first))
    assert ("steady window" in aspects(found)) == named


def test_a_run_without_flops_has_no_mfu_to_compare() -> None:
    nothing = run(times(1), of_step={"count_ids": ()})
    found = compare(nothing, run(times(2)))
    assert only(found, "FLOPs").forbids == ("MFU", "HFU", "end-to-end MFU")
    assert found.verdict.startswith("MFU is not comparable, because of FLOPs; by throughput no sig")
    alike = compare(nothing, run(times(2), of_step={"count_ids": ()}))
    assert alike.verdict.startswith("Comparable: no significant difference of tokens/s: ")


def test_everything_that_differs_at_once_is_named() -> None:
    terms = (term("forward", 20 * T, 18 * T, dtype="fp8"), term("backward", 40 * T, 36 * T))
    other = run(
        times(2),
        first=500,
        counts=count(terms=terms),
        peaks=(peak("fp8", 300e12), peak("bf16", 200e12)),
        device=A100,
        attention="causal",
    )
    found = compare(run(times(1)), other)
    assert {
        *("FLOPs per token", "attention", "dtypes", "device", "peak bf16"),
        *("recompute", "steady window"),
    } <= set(aspects(found))
    assert not found.comparable
    shown = render_comparison(found)
    assert all(f"  {aspect}" in shown for aspect in aspects(found))
