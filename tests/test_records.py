"""The records: what a count adds up to, and what a run knows about itself."""

from __future__ import annotations

import math

import pytest
from samples import T, count, entries, flop_count, header, run, step, term

from mfu_torch.records import CountEntry, Device, End, Entry, FlopCount, Pause, Peak, Run, Window


def test_records_are_built_by_keyword_only() -> None:
    with pytest.raises(TypeError):
        Device("NVIDIA H100 80GB HBM3", "cuda")  # type: ignore[call-arg]


def test_records_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        header().rank = 3  # type: ignore[misc]


@pytest.mark.parametrize("flops_per_s", [0.0, -1.0, math.inf, math.nan])
def test_a_peak_is_a_positive_finite_rate(flops_per_s: float) -> None:
    with pytest.raises(ValueError, match="expected a positive, finite number"):
        Peak(flops_per_s=flops_per_s, dtype="bf16", source="", provenance="given")


def test_every_phase_of_a_count_is_a_number_of_its_own() -> None:
    count = FlopCount(
        terms=(
            term("forward", 1, 1),
            term("forward_no_grad", 20, 20),
            term("backward", 300, 300),
            term("recompute", 4000, 4000),
            term("kernel_recompute", 50_000, 50_000),
            term("optimizer", 600_000, 600_000),
            term("given", 7_000_000, 7_000_000),
        )
    )
    assert count.forward == 1
    assert count.forward_no_grad == 20
    assert count.backward == 300
    assert count.recompute == 4000
    assert count.kernel_recompute == 50_000
    assert count.optimizer == 600_000
    assert count.given == 7_000_000
    assert count.model == 7_000_321  # forward, no-grad forward, backward, given
    assert count.hardware == 7_654_321  # all of them


def test_model_flops_leave_recompute_and_optimizer_out() -> None:
    count = flop_count()
    assert count.model == 30 * T
    assert count.model_causal == 27 * T
    assert count.hardware == 40 * T + T // 2
    assert count.hardware_causal == 36 * T + T // 2
    assert count.by_dtype == {"bf16": 40 * T, "fp32": T // 2}
    assert count.flops_by_dtype("model") == {"bf16": 30 * T}


def test_by_op_lists_the_largest_first() -> None:
    terms = (term("forward", 1, 1, op="a"), term("forward", 5, 5, op="b"))
    assert list(FlopCount(terms=terms).by_op.items()) == [("b", 5), ("a", 1)]


def test_counts_add_up_term_by_term() -> None:
    both = flop_count(uncounted={"x": 1}, notes=("n",)) + flop_count(
        uncounted={"x": 2, "y": 1}, notes=("n", "m")
    )
    assert len(both.terms) == 4
    assert both.terms[0].calls == 2
    assert both.model == 60 * T
    assert both.model_causal == 54 * T
    assert both.uncounted == {"x": 3, "y": 1}
    assert both.elementwise == 24 * 10**8
    assert both.notes == ("n", "m")


def test_an_empty_count_is_zero_everywhere() -> None:
    assert FlopCount().model == FlopCount().hardware == 0
    assert FlopCount().by_dtype == {}


def test_a_count_is_one_line_of_text_that_names_the_phases_it_has() -> None:
    assert str(flop_count()) == (
        "model 30.0 TFLOP (forward 10.0 TFLOP, backward 20.0 TFLOP, recompute 10.0 TFLOP, "
        "optimizer 500 GFLOP), hardware 40.5 TFLOP"
    )
    unknown = flop_count(terms=(term("forward", 64, 64),), uncounted={"my::scan": 4, "my::conv": 1})
    assert f"{unknown}" == (
        "model 64 FLOP (forward 64 FLOP), hardware 64 FLOP, not counted: my::scan, my::conv"
    )
    assert str(FlopCount()) == "model 0 FLOP (nothing), hardware 0 FLOP"


def test_a_run_is_sorted_from_its_entries() -> None:
    made = Run.from_entries(entries())
    assert [each.index for each in made.steps] == [0, 1, 2, 3, 4]
    assert list(made.peaks) == ["bf16", "fp32"]
    assert list(made.counts) == [0]
    assert [pause.name for pause in made.pauses] == ["init", "eval", "eval"]
    assert made.end == End(wall_s=20.0, reason="completed")


def test_the_count_of_a_step_is_the_sum_of_those_that_it_had() -> None:
    outside = CountEntry(id=1, count=FlopCount(terms=(term("forward", T, T, op="aten.bmm"),)))
    made = run(counts={0: count(), 1: outside})
    assert made.count_of(step(0, 1.0)) == flop_count()
    both = made.count_of(step(0, 1.0, count_ids=(0, 1, 0)))
    assert isinstance(both, FlopCount)
    assert both.model == 61 * T  # 30 + 1 + 30
    assert both.by_op == {"aten.mm": 81 * T, "aten.bmm": T}  # 40.5 + 40.5


def test_the_count_of_a_step_that_lacks_a_part_is_the_reason() -> None:
    made = run(counts={0: count(), 1: CountEntry(id=1, unknown="the count failed")})
    assert made.count_of(step(0, 1.0, count_ids=(0, 1))) == "the count failed"
    assert made.count_of(step(0, 1.0, count_ids=(0, 7))) == "they were never counted"


@pytest.mark.parametrize("lines", [[], entries()[1:]])
def test_a_run_without_a_header_is_refused(lines: list[Entry]) -> None:
    with pytest.raises(ValueError, match="starts with its header"):
        Run.from_entries(lines)


def test_the_wall_time_is_that_of_the_end_record() -> None:
    assert run().wall_s == 20.0


def test_the_wall_time_of_a_killed_run_is_that_of_its_last_window() -> None:
    assert run(end=None).wall_s == 19.0
    assert run(end=None, windows=(), pauses=()).wall_s == 0.0


def test_a_pause_after_the_last_window_lengthens_the_wall_time_of_a_killed_run() -> None:
    window = Window(steps=(step(0, 1.0), step(1, 1.0)), wall_s=7.0)
    inside = Pause(name="eval", after_step=2, duration_s=5.0)  # within step 1: in the 7 s
    later = Pause(name="eval", after_step=3, duration_s=4.0)  # after step 2, not yet written
    assert run(end=None, windows=(window,), pauses=(inside,)).wall_s == 7.0
    assert run(end=None, windows=(window,), pauses=(inside, later)).wall_s == 11.0
    assert run(end=None, windows=(), pauses=(inside, later)).wall_s == 9.0
