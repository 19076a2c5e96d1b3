"""Two breakdowns against each other: the changes sum exactly to that of the step."""

from __future__ import annotations

import csv
import io
from decimal import Decimal
from fractions import Fraction

import pytest
from breakdowns import MS, PARTS, PEAK, breakdown, bucket
from msgspec.structs import replace
from traces import trace_path

from mfu_torch.insight.breakdown.diff import Incomparable, diff
from mfu_torch.insight.breakdown.noise import kept_steps, may_be_chance
from mfu_torch.insight.diff_table import csv_text, markdown, render, rows, sentence, summary
from mfu_torch.records import Peak
from mfu_torch.records.breakdown import Breakdown, Coverage


def changed(found_before: Breakdown, found_after: Breakdown) -> dict[str, Fraction]:
    found = diff(found_before, found_after)
    return {one.name: found.change_ns(one) for one in found.changes}


FASTER = {**PARTS, "idle/data_wait": 0, "idle/launch_bound": 30}


def test_a_bucket_changes_by_what_its_share_of_a_mean_step_does() -> None:
    moved = changed(breakdown(), breakdown(FASTER))
    assert moved["idle/data_wait"] == -30 * MS  # 60 ms of two steps
    assert moved["idle/launch_bound"] == 10 * MS
    assert moved["other_compute"] == 0


def test_a_bucket_that_one_of_them_lacks_was_empty() -> None:
    without = {name: ms for name, ms in PARTS.items() if name != "exposed_memcpy"}
    assert changed(breakdown(), breakdown(without))["exposed_memcpy"] == -2 * MS
    assert changed(breakdown(without), breakdown())["exposed_memcpy"] == 2 * MS


@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 7), (7, 1)])
def test_the_changes_sum_exactly_where_the_steps_do_not_divide(before: int, after: int) -> None:
    found = diff(
        breakdown(unit=1_234_567, steps=before), breakdown(FASTER, unit=7_654_321, steps=after)
    )
    total = sum((found.change_ns(one) for one in found.changes), Fraction(0))
    wall = Fraction(160 * 7_654_321, after) - Fraction(200 * 1_234_567, before)
    assert total == found.step_change_ns == wall


@pytest.mark.parametrize("steps", [(1, 1), (2, 3), (3, 7)])
def test_every_printed_column_adds_up_and_every_row_too(steps: tuple[int, int]) -> None:
    odd = {name: 1 + 7 * i for i, name in enumerate(PARTS)}
    found = diff(
        breakdown(unit=333_337, steps=steps[0]), breakdown(odd, unit=777_773, steps=steps[1])
    )
    body, last = rows(found)
    for column in ("before_ms", "before_share", "after_ms", "after_share", "change_ms"):
        assert sum(Decimal(getattr(row, column)) for row in body) == Decimal(getattr(last, column))
    for row in (*body, last):
        assert Decimal(row.after_ms) - Decimal(row.before_ms) == Decimal(row.change_ms)


def test_the_sentence_says_what_changed_most_and_what_went_the_other_way() -> None:
    assert sentence(diff(breakdown(), breakdown(FASTER))) == (
        "A step takes 80 ms instead of 100 ms (20.0 % less). What changed most: idle: data wait, "
        "-30 ms per step (30.0 % of the step, then 0.0 %). The other way: idle: launch-bound, "
        "+10 ms per step (5.0 % of the step, then 18.8 %)."
    )
    assert "as before. No bucket changed." in sentence(diff(breakdown(), breakdown()))


def test_the_values_for_programs_sum_in_whole_numbers() -> None:
    found = summary(diff(breakdown(unit=333_337), breakdown(FASTER, unit=7, steps=3)))
    assert found["units_per_ns"] == 6
    assert sum(one["change_units"] for one in found["changes"]) == found["step_change_units"]
    assert found["step_change_units"] == 2 * 160 * 7 - 3 * 200 * 333_337


def test_the_other_forms_have_every_bucket_and_the_sum() -> None:
    found = diff(breakdown(), breakdown(FASTER))
    lines = list(csv.DictReader(io.StringIO(csv_text(found))))
    assert {line["bucket"]: line["before_ns"] for line in lines}["idle/data_wait"] == "60000000"
    assert "| **SUM** | 100.00 | 100.00 % | 80.00 | 100.00 % | -20.00 |" in markdown(found)
    text = render(found)
    assert max(map(len, text.splitlines())) <= 100
    assert "MFU 25.0 %, then 29.4 %" not in text  # that is 50 of 170 ms
    assert "MFU 25.0 %, then 31.3 %" in text  # 25 of 80 ms: 31.25 in the table


# --- steps that are not the same thing -------------------------------------------------------


def test_other_edges_are_refused() -> None:
    with pytest.raises(Incomparable, match=r"delimited by 'gpu', those of .* by 'cpu'"):
        diff(breakdown(), breakdown(edges="cpu"))


def test_a_trace_without_a_gpu_does_not_compare_with_one_that_has_it() -> None:
    nothing = Coverage(launches=0, work=0, matrix_known_ns=0, matrix_ns=0)
    with pytest.raises(Incomparable, match="has work of a GPU"):
        diff(breakdown(), breakdown(coverage=nothing))


def test_no_time_is_refused() -> None:
    with pytest.raises(Incomparable, match="no time"):
        diff(breakdown(), breakdown({}))


def test_buckets_that_do_not_sum_to_the_wall_are_refused() -> None:
    with pytest.raises(Incomparable, match="do not sum"):
        diff(breakdown(), breakdown(wall_ns=200 * MS + 1))


def test_another_device_is_a_warning() -> None:
    (warning,) = diff(breakdown(), breakdown(device="Tesla V100")).warnings
    assert warning == "the devices differ: NVIDIA H100 80GB HBM3, then Tesla V100"


@pytest.mark.parametrize("other", [None, Peak(flops_per_s=5e14, dtype="bf16")])
def test_with_another_peak_the_parts_of_matrix_are_one_line(other: Peak | None) -> None:
    after = breakdown(PARTS if other else {"matrix": 90, "other_compute": 20}, peak=other)
    found = diff(breakdown(peak=PEAK), after)
    assert [c.name for c in found.changes if c.name.startswith("matrix")] == ["matrix"]
    assert next(c for c in found.changes if c.name == "matrix").before_ns == 90 * MS
    assert "the peaks differ: 1.000 PFLOP/s bf16, then" in found.warnings[0]


def test_another_amount_of_work_is_a_warning() -> None:
    (warning,) = diff(breakdown(), breakdown(model_flops=100 * 10**12)).warnings
    assert "25.00 TFLOP, then 50.00 TFLOP" in warning


# --- the pair of real traces -----------------------------------------------------------------


def test_four_workers_take_the_data_wait_away() -> None:
    from mfu_torch.insight import explain

    paths = [trace_path(f"kineto_v100_rn50_workers{n}") for n in (0, 4)]
    found = diff(*(explain(path, edges="cpu") for path in paths))
    (wait,) = [one for one in found.changes if one.name == "idle/data_wait"]
    assert float(found.before_ns(wait) / found.step_before_ns) == pytest.approx(0.336, abs=0.0005)
    assert float(found.after_ns(wait) / found.step_after_ns) == pytest.approx(0.008, abs=0.0005)
    assert found.largest()[0] == wait
    total = sum((found.change_ns(one) for one in found.changes), Fraction(0))
    assert total == found.step_change_ns < 0


@pytest.mark.parametrize("seed", range(20))
def test_the_sentence_has_the_figure_of_the_table(seed: int) -> None:
    # Columns are rounded so that they add up: a change may be one off in its last digit.
    odd = {name: 1 + (7 * i + seed) % 13 for i, name in enumerate(PARTS)}
    found = diff(breakdown(unit=333_337 + seed, steps=2), breakdown(odd, unit=777_773, steps=3))
    printed = {row.name: Decimal(row.change_ms) for row in rows(found)[0]}
    largest = found.largest()[0].name
    assert f", {printed[largest].normalize():+f} ms per step" in sentence(found)


# --- chance -----------------------------------------------------------------------------------


def steps_of_ns(*step_ns: int, wait_ns: tuple[int, ...] = ()) -> Breakdown:
    """Steps whose data wait differs, and the rest is other compute."""
    waits = wait_ns or tuple(ns // 2 for ns in step_ns)
    rest = tuple(ns - wait for ns, wait in zip(step_ns, waits, strict=True))
    buckets = tuple(
        replace(bucket(name, sum(each)), per_step_ns=each)
        for name, each in (("other_compute", rest), ("idle/data_wait", waits))
    )
    sizes = {"steps": tuple(f"ProfilerStep#{at}" for at in range(len(step_ns)))}
    found = replace(breakdown(), buckets=buckets, wall_ns=sum(step_ns), **sizes)
    return replace(found, step_ns=step_ns, edges="cpu")


def test_a_change_within_what_steps_differ_by_may_be_chance() -> None:
    found = diff(steps_of_ns(1000, 1020, 1010), steps_of_ns(1020, 1010, 1030))
    assert found.may_be_chance()
    text = sentence(found)
    assert "(0.99 % more). Steps of one trace differ by as much: this may be chance." in text
    assert "No part of it changed by 1 % of the step beyond chance" in text
    assert summary(found)["may_be_chance"] is True


def test_a_change_beyond_what_steps_differ_by_is_none() -> None:
    found = diff(steps_of_ns(1000, 1020, 1010), steps_of_ns(1200, 1210, 1220))
    assert not found.may_be_chance()
    assert "chance" not in sentence(found)


def test_parts_can_change_where_the_step_does_not() -> None:
    before = steps_of_ns(1000, 1020, 1010, wait_ns=(400, 410, 405))
    after = steps_of_ns(1020, 1010, 1030, wait_ns=(100, 105, 110))
    text = sentence(diff(before, after))
    assert "this may be chance. What changed most beyond chance: other compute, +0." in text
    assert "The other way: idle: data wait, -0.0003 ms per step" in text


def test_one_step_in_each_says_nothing_of_chance() -> None:
    found = diff(steps_of_ns(1000), steps_of_ns(1200))
    assert found.may_be_chance() is None
    assert sentence(found).endswith("With one step in each, whether that is chance is not known.")


def test_the_last_step_of_a_gpu_lacks_what_follows_it() -> None:
    waits = (40, 40, 0)  # ms: the wait after the last step is not in the trace
    slow = replace(steps_of_ns(100, 100, 58, wait_ns=waits), edges="gpu")
    fast = replace(steps_of_ns(61, 61, 58, wait_ns=(1, 1, 0)), edges="gpu")
    assert kept_steps(slow) == [0, 1]
    assert not diff(slow, fast).may_be_chance()
    names = ("rank 0 a", "rank 0 b", "rank 0 c", "rank 1 a", "rank 1 b", "rank 1 c")
    two = replace(breakdown(), steps=names, step_ns=(1,) * 6)
    assert kept_steps(two) == [0, 1, 3, 4]


def test_students_test_has_its_tabled_limits() -> None:
    # Means 0 and d, variance 1 each, two of each: the limit at 95 % is 4.30.
    half = 10_000
    near = [round(4.25 * 2**0.5 * half) + x for x in (-half, half)]
    far = [round(4.35 * 2**0.5 * half) + x for x in (-half, half)]
    assert may_be_chance([-half, half], near) is True
    assert may_be_chance([-half, half], far) is False
    assert may_be_chance([1], [2]) is None and may_be_chance([], [2, 3]) is None


def test_the_sentence_has_the_shares_of_the_table() -> None:
    # 4.646 % is 4.65 in a table of two decimals, so 4.7, and not 4.6.
    after = steps_of_ns(100_000, wait_ns=(4_646,))
    text = sentence(diff(steps_of_ns(100_000, wait_ns=(50_000,)), after))
    assert "(50.0 % of the step, then 4.7 %)" in text


def test_a_step_as_before_is_not_said_to_differ_by_chance() -> None:
    before = steps_of_ns(1000, 1020, 1010, wait_ns=(400, 410, 405))
    after = steps_of_ns(1000, 1020, 1010, wait_ns=(100, 105, 110))
    text = sentence(diff(before, after))
    assert text.startswith("A step takes 0.00101 ms, as before. What changed most: other compute,")
    assert "chance" not in text
