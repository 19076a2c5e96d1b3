"""The parts of steps as shares and as utilizations, against numbers worked out by hand."""

from __future__ import annotations

import math

import msgspec
import pytest
from samples import T, count, peak, step, term

from mfu_torch.records import CountEntry, FlopCount, PeakEntry, Step, StepParts
from mfu_torch.step_parts import (
    NO_CALLS,
    NOT_SPLIT,
    PART_ABOVE_PEAK,
    PARTS,
    SplitSteps,
    split_steps,
)

PEAKS = {"bf16": peak("bf16", 100e12), "fp32": peak("fp32", 50e12)}


def split(index: int, duration_s: float, wait_s: float | None = 0.0, **parts: float | None) -> Step:
    """A step with these parts; those that are not named took no time."""
    names = ("forward_s", "loss_s", "backward_s", "optimizer_s", "tail_s")
    given: dict[str, float | None] = dict.fromkeys(names, 0.0)
    return msgspec.structs.replace(
        step(index, duration_s, data_wait_s=wait_s), parts=StepParts(**{**given, **parts})
    )


def found(*steps: Step) -> SplitSteps:
    parts = split_steps(steps, {0: count()}, PEAKS)
    assert isinstance(parts, SplitSteps)
    return parts


def test_the_parts_sum_to_the_time_of_the_steps() -> None:
    parts = found(
        split(0, 8.0, 0.5, forward_s=2.0, loss_s=0.25, backward_s=3.0, optimizer_s=1.0, tail_s=1.0),
        split(1, 4.0, 0.0, forward_s=1.0, loss_s=0.25, backward_s=1.0, optimizer_s=0.5, tail_s=1.0),
    )
    assert (parts.steps, parts.time_s) == (2, 12.0)
    assert parts.parts_s == {
        "forward": 3.0,
        "loss": 0.5,
        "backward": 4.0,
        "optimizer": 1.5,
        "data_wait": 0.5,
        "rest": 1.0,  # 8 - 1 - 2 - 0.25 - 3 - 1 = 0.75 and 4 - 1 - 1 - 0.25 - 1 - 0.5 = 0.25
        "between": 1.5,
    }
    assert tuple(parts.parts_s) == PARTS
    assert math.fsum(parts.shares.values()) == 1.0
    assert parts.shares["forward"] == 0.25


def test_of_a_wait_only_what_the_device_can_have_waited_counts() -> None:
    # The GPU was busy for all but 0.25 s of the 2 s that the host waited.
    parts = found(split(0, 4.0, 2.0, forward_s=1.0, backward_s=2.75, tail_s=0.25))
    assert parts.parts_s["data_wait"] == 0.25
    assert (parts.parts_s["between"], parts.parts_s["rest"]) == (0.0, 0.0)


def test_waits_inside_a_step_are_taken_out_of_its_rest() -> None:
    parts = found(split(0, 4.0, 1.0, forward_s=1.0, backward_s=1.0, tail_s=0.25))
    assert parts.parts_s["data_wait"] == 1.0
    assert (parts.parts_s["between"], parts.parts_s["rest"]) == (0.0, 1.0)


def test_where_waits_are_not_measured_they_are_between_the_steps() -> None:
    parts = found(split(0, 4.0, None, forward_s=1.0, backward_s=1.0, tail_s=0.5))
    assert "data_wait" not in parts.parts_s
    assert parts.parts_s["between"] == 0.5
    assert math.fsum(parts.shares.values()) == 1.0


def test_where_no_call_was_seen_the_forward_is_in_the_rest() -> None:
    parts = found(
        split(0, 4.0, forward_s=None, loss_s=None, backward_s=1.0, optimizer_s=0.5, tail_s=0.5)
    )
    assert parts.parts_s == {
        "backward": 1.0, "optimizer": 0.5, "data_wait": 0.0, "rest": 2.0, "between": 0.5,
    }  # fmt: skip
    # 30 T of backward and its recompute at 100 T/s in 1 s; 0.5 T of the optimizer at 50 in 0.5 s.
    assert parts.of_peak == {"backward": pytest.approx(0.3), "optimizer": pytest.approx(0.02)}
    assert parts.absent == NO_CALLS


UNSEEN = {"forward_s": None, "loss_s": None}


def test_a_step_in_which_nothing_was_done_does_not_hide_the_forward_of_the_others() -> None:
    parts = found(split(0, 4.0, forward_s=1.0, backward_s=2.0), split(1, 0.5, **UNSEEN))
    assert (parts.parts_s["forward"], parts.parts_s["rest"]) == (1.0, 1.5)
    assert parts.absent == ""


def test_a_backward_whose_forward_was_not_seen_hides_that_of_all() -> None:
    steps = split(0, 4.0, forward_s=1.0, backward_s=2.0), split(1, 4.0, **UNSEEN, backward_s=2.0)
    parts = found(*steps)
    assert "forward" not in parts.parts_s and "loss" not in parts.parts_s
    assert (parts.parts_s["rest"], parts.absent) == (4.0, NO_CALLS)


def test_an_optimizer_that_no_step_shows_is_not_said_to_take_no_time() -> None:
    parts = found(split(0, 4.0, forward_s=1.0, backward_s=2.0))
    assert "optimizer" not in parts.parts_s
    assert math.fsum(parts.parts_s.values()) == parts.time_s
    inference = found(split(0, 4.0, forward_s=1.0))
    assert inference.parts_s["optimizer"] == 0.0
    accumulating = found(
        split(0, 4.0, backward_s=2.0), split(1, 4.0, backward_s=2.0, optimizer_s=1.0)
    )
    assert accumulating.parts_s["optimizer"] == 1.0


def test_a_share_above_the_peak_is_left_out_and_said() -> None:
    # A teacher that the meter was not given runs before the student: 12 T in 0.1 s at 100 T/s.
    counts = {
        0: CountEntry(id=0, count=FlopCount(terms=(term("forward_no_grad", 12 * T, 12 * T),)))
    }
    parts = split_steps([split(0, 4.0, forward_s=0.05, loss_s=0.05)], counts, PEAKS)
    assert isinstance(parts, SplitSteps)
    assert parts.of_peak == {}
    assert parts.absent == PART_ABOVE_PEAK.format("forward")


def test_steps_that_were_not_split_and_excluded_ones_have_no_say() -> None:
    excluded = msgspec.structs.replace(
        split(0, 64.0, forward_s=64.0), excluded="FLOPs were being counted"
    )
    parts = found(excluded, step(1, 32.0), split(2, 2.0, forward_s=1.0))
    assert (parts.steps, parts.time_s, parts.parts_s["forward"]) == (1, 2.0, 1.0)
    assert split_steps([excluded, step(1, 32.0)], {0: count()}, PEAKS) == NOT_SPLIT


def test_each_part_has_an_hfu_of_its_own() -> None:
    terms = (
        term("forward", 10 * T, 10 * T),
        term("forward_no_grad", 2 * T, 2 * T),
        term("backward", 20 * T, 20 * T),
        term("recompute", 10 * T, 10 * T),
        term("optimizer", 5 * T, 5 * T, dtype="fp32"),
    )
    counts = {0: CountEntry(id=0, count=FlopCount(terms=terms))}
    steps = [split(0, 4.0, forward_s=0.25, loss_s=0.25, backward_s=1.0, optimizer_s=0.5)]
    parts = split_steps(steps, counts, PEAKS)
    assert isinstance(parts, SplitSteps)
    assert parts.of_peak == {
        "forward": pytest.approx(0.24),  # 12 T / 100 T/s in 0.5 s, the loss included
        "backward": pytest.approx(0.30),  # 30 T / 100 T/s in 1 s
        "optimizer": pytest.approx(0.20),  # 5 T / 50 T/s in 0.5 s
    }


def test_a_part_without_flops_has_no_hfu() -> None:
    counts = {0: CountEntry(id=0, count=FlopCount(terms=(term("forward", T, T),)))}
    parts = split_steps([split(0, 1.0, forward_s=0.5, backward_s=0.5)], counts, PEAKS)
    assert isinstance(parts, SplitSteps)
    assert parts.of_peak == {"forward": pytest.approx(0.02)}


@pytest.mark.parametrize(
    ("counts", "peaks", "reason"),
    [
        ({0: CountEntry(id=0, unknown="the count failed")}, PEAKS, "the count failed"),
        ({0: count()}, {}, "the peak of bf16 is not known"),
        (
            {0: count()},
            {"bf16": PeakEntry(dtype="bf16", unknown="new"), "fp32": PEAKS["fp32"]},
            "the peak of bf16 is not known",
        ),
        (
            {0: CountEntry(id=0, count=FlopCount(terms=(term("given", T, T),)))},
            PEAKS,
            "FLOPs were given for the step as a whole",
        ),
    ],
)
def test_without_flops_or_peaks_there_are_shares_and_a_reason(
    counts: dict[int, CountEntry], peaks: dict[str, PeakEntry], reason: str
) -> None:
    parts = split_steps([split(0, 2.0, forward_s=1.0, backward_s=0.5)], counts, peaks)
    assert isinstance(parts, SplitSteps)
    assert (parts.of_peak, parts.absent) == ({}, reason)
    assert parts.shares["forward"] == 0.5


def test_leads_are_means_and_absent_where_one_is() -> None:
    first = split(0, 1.0, forward_s=0.5, lead_s=0.25, lead_most_s=0.5)
    second = split(1, 1.0, forward_s=0.5, lead_s=0.75, lead_most_s=1.0)
    parts = found(first, second)
    assert (parts.lead_s, parts.lead_most_s) == (0.5, 0.75)
    assert found(first, split(1, 1.0, forward_s=0.5)).lead_s is None
