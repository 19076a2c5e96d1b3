"""Two runs built by hand: what makes them comparable, and what changed."""

from __future__ import annotations

import math
import random
import re
from typing import Any

import msgspec
import pytest
from compare_runs import A100, change, only, run, times
from samples import T, count, term

from mfu_torch.figures import run_figures
from mfu_torch.insight.compare import compare
from mfu_torch.insight.compare.text import render_comparison
from mfu_torch.records import Run, StepParts

# --- what changed --------------------------------------------------------------------------------


def test_a_run_and_itself_do_not_differ() -> None:
    one = run(times(1))
    found = compare(one, one)
    assert found.comparable
    assert only(found, "recording").forbids == ()
    for each in found.changes:
        assert each.change == 0
        assert each.significant in (False, None)
    assert found.verdict.startswith("Comparable: no significant difference of MFU: 0 % (95 % inter")


def test_runs_that_differ_by_chance_alone_do_not_differ_significantly() -> None:
    found = compare(run(times(1)), run(times(2)))
    assert found.comparable and found.differences == ()
    mfu = change(found, "MFU")
    assert mfu.change != 0 and mfu.significant is False
    # 60 steps that vary by 1 %: standard error sqrt(2) * 1 % / sqrt(60) = 0.18 %, times 2.8.
    assert mfu.smallest == pytest.approx(2.8 * 0.0018, rel=0.3)
    assert "would have been seen" in found.verdict


def test_five_percent_less_time_is_five_percent_more_mfu() -> None:
    before, after = run(times(1)), run(times(2, mean_s=1 / 1.05))
    found = compare(before, after)
    assert found.comparable
    for name in ("MFU", "HFU", "tokens/s", "samples/s"):
        now = change(found, name)
        assert now.change == pytest.approx(0.05, abs=0.005)
        assert now.significant and now.low is not None and now.high is not None
        assert 0.04 < now.low < 0.05 < now.high < 0.06
    assert change(found, "step time").change == pytest.approx(-0.05, abs=0.005)
    assert found.verdict.startswith("Comparable: the MFU of B is ")
    assert "% higher than that of A" in found.verdict


def test_the_figures_are_those_of_the_reports() -> None:
    before, after = run(times(1)), run(times(2))
    for each in compare(before, after).changes:
        assert each.a == getattr(run_figures(before), each.figure)
        assert each.b == getattr(run_figures(after), each.figure)


def test_the_same_runs_have_the_same_intervals_every_time() -> None:
    before, after = run(times(1)), run(times(2))
    assert compare(before, after) == compare(before, after)
    assert compare(before, after, seed=1).changes != compare(before, after, seed=2).changes


def test_a_change_of_data_wait_is_in_points() -> None:
    waiting = run(times(2), of_step={"data_wait_s": 0.1})
    found = change(compare(run(times(1)), waiting), "data wait")
    # 2 % of each step, and 0.1 s of steps of 1 s.
    assert not found.relative
    assert found.change == pytest.approx(0.08, abs=0.001) and found.significant


def test_a_loader_that_stalls_for_many_steps_leaves_the_intervals_of_the_others() -> None:
    def stalled(seed: int) -> Run:
        one = run(times(seed))
        steps = tuple(
            msgspec.structs.replace(each, data_wait_s=0.0001 * each.index) for each in one.steps
        )
        return msgspec.structs.replace(
            one, windows=(msgspec.structs.replace(one.windows[0], steps=steps),)
        )

    found = compare(stalled(1), stalled(2))
    mfu, wait = change(found, "MFU"), change(found, "data wait")
    assert mfu.low is not None and mfu.smallest is not None and mfu.smallest < 0.01
    # Waits grow all the time, from 0 to twice their mean: it may be off by that.
    assert wait.a is not None and wait.smallest is not None and wait.smallest > wait.a


def test_intervals_of_whole_runs_hold_the_truth_in_95_of_100_pairs() -> None:
    held = 0
    for seed in range(200):
        pair = run(times(2 * seed, n=30)), run(times(2 * seed + 1, n=30, mean_s=0.96))
        mfu = change(compare(*pair, replicates=300), "MFU")
        held += mfu.low is None or (mfu.high is not None and mfu.low <= 1 / 0.96 - 1 <= mfu.high)
    assert 0.92 <= held / 200 <= 0.985


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_times_that_cannot_be_have_no_interval_and_break_nothing(value: float) -> None:
    odd = run([1.0, value] * 10, of_step={"data_wait_s": value, "tokens": 0})
    for pair in ((odd, run(times(1))), (run(times(1)), odd), (odd, odd)):
        found = compare(*pair)
        assert all(len(line) <= 100 for line in render_comparison(found).splitlines())
        for each in found.changes:
            assert each.low is None or each.low == each.low  # no NaN that looks like a bound


def test_one_number_per_run_has_no_interval() -> None:
    found = compare(run(times(1)), run(times(2)))
    for name in ("end-to-end MFU", "memory"):
        assert change(found, name).change is not None
        assert change(found, name).low is None and change(found, name).significant is None
        assert "one number per run" in change(found, name).no_interval


def test_of_too_few_steps_a_change_is_shown_without_an_interval() -> None:
    found = compare(run([1.0] * 4), run([0.9] * 4))
    mfu = change(found, "MFU")
    assert mfu.change == pytest.approx(1 / 0.9 - 1)
    assert (mfu.low, mfu.significant, mfu.smallest) == (None, None, None)
    assert mfu.no_interval == "A: 4 steady steps are too few for an interval; at least 10"
    assert found.verdict == (
        "Comparable: MFU of B +11.1 %, and how sure that is cannot be said (A: 4 steady steps are "
        "too few for an interval; at least 10)."
    )
    assert "Intervals:" not in render_comparison(found)


def test_a_change_that_is_not_significant_is_told_with_the_steps_that_would_decide_it() -> None:
    found = compare(run(times(1)), run(times(2, mean_s=0.9975)))
    mfu = change(found, "MFU")
    assert mfu.significant is False and mfu.change and mfu.smallest
    steps = 60 * (math.log1p(mfu.smallest) / math.log1p(mfu.change)) ** 2
    said = re.search(r"with about ([\d,]+) steps in each\.$", found.verdict)
    assert said is not None
    assert float(said[1].replace(",", "")) == pytest.approx(steps, rel=0.06)  # two digits


def test_a_clear_change_between_runs_that_drift_is_significant() -> None:
    # As of a loader before and after its mending, on a machine that others use, too: what a step
    # takes sinks by a third over the run, and 30 % less of it after the mending.
    noise = [random.Random(seed) for seed in (1, 2)]
    drift = [1.3 - 0.4 * i / 180 for i in range(180)]
    slow, fast = (
        [level * x * each.gauss(1, 0.05) for x in drift]
        for level, each in zip((1.0, 0.7), noise, strict=True)
    )
    found = compare(run(slow), run(fast))
    mfu = change(found, "MFU")
    assert mfu.significant and mfu.low is not None and mfu.low > 0.1
    assert found.a.drifts and found.b.drifts
    text = render_comparison(found)
    assert "The steps of A and B drift for longer than a fifth of the run" in text
    assert "blocks of 36 (A) and 36 (B)" in text and "None" not in text
    same = compare(run(slow), run([x * noise[1].gauss(1, 0.05) for x in drift]))
    assert change(same, "MFU").significant is False


def split_run(data_wait_s: float, **changes: Any) -> Run:
    made = run([1.0 + data_wait_s] * 20)
    parts = StepParts(
        forward_s=0.3, loss_s=0.0, backward_s=0.6, optimizer_s=0.1, tail_s=data_wait_s
    )
    steps = tuple(
        msgspec.structs.replace(each, parts=parts, data_wait_s=data_wait_s) for each in made.steps
    )
    window = msgspec.structs.replace(made.windows[0], steps=steps)
    return msgspec.structs.replace(made, windows=(window,))


def test_the_parts_of_a_step_stand_beside_each_other() -> None:
    found, ends = compare(split_run(0.4), split_run(0.1)), ("data_wait", "total")
    assert [(each.part, each.a_s, each.b_s) for each in found.parts if each.part in ends] == [
        ("data_wait", pytest.approx(0.4), pytest.approx(0.1)),
        ("total", pytest.approx(1.4), pytest.approx(1.1)),
    ]
    rows = render_comparison(found).splitlines()
    at = rows.index(
        "Where a step's time goes                        A              B         change"
    )
    assert rows[at + 1].split() == ["forward", "300", "ms", "300", "ms", "0", "s"]
    assert [row.split()[:3] + row.split()[-2:] for row in rows[at + 3 : at + 5]] == [
        ["optimizer", "100", "ms", "0", "s"],
        ["waiting", "for", "data", "-300", "ms"],
    ]
    assert not compare(split_run(0.4), run(times(1))).parts


def test_a_figure_that_is_zero_has_no_relative_change() -> None:
    none = count(terms=(term("optimizer", 10 * T, 10 * T),))
    found = compare(run(times(1), counts=none), run(times(2), counts=none))
    assert change(found, "MFU").not_compared == "both are 0"


@pytest.mark.parametrize(("name", "value"), [("replicates", 10), ("attention", "none")])
def test_arguments_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name} is .*; expected"):
        compare(run([1.0]), run([1.0]), **{name: value})


# --- as text -------------------------------------------------------------------------------------


def test_a_comparison_is_written_whole() -> None:
    text = render_comparison(
        compare(run([1.0, 1.1] * 20), run([1.0, 0.9] * 20), names=("one", "two"))
    )
    lines = text.splitlines()
    assert lines[0].startswith("Comparable: the MFU of B is 10.5 % higher than that of A (95 % int")
    assert "A  one: NVIDIA H100 80GB HBM3 | 40 steady steps | completed" in lines
    row = next(line for line in lines if line.startswith("MFU "))
    assert row.split()[1:6] == ["28.6", "%", "31.6", "%", "+10.5"]
    assert row.endswith(" significant")


def test_what_is_not_significant_is_called_so() -> None:
    text = render_comparison(compare(run(times(1)), run(times(2))))
    row = next(line for line in text.splitlines() if line.startswith("MFU "))
    assert "not significant (<0." in row
    assert "that 4 of 5 such pairs of runs would have shown" in " ".join(text.split())


def test_nothing_of_a_run_moves_the_cursor() -> None:
    odd = run(times(2), model="\x1b[2Jgone\r", versions={"torch\x07": "\x1b]0;title\x07"})
    text = render_comparison(compare(run(times(1)), odd, names=("a\n", "b\x1b")))
    assert text.replace("\n", "").isprintable()
    assert "?[2Jgone?" in text


def test_no_line_is_wider_than_100_columns() -> None:
    wide = "x" * 300
    before = run(times(1), counts=count(uncounted={f"my::{wide}": 1}), model=wide)
    after = run(times(2), device=A100, clock=f"host clock, synchronised {wide}", world_size=4)
    text = render_comparison(compare(before, after, names=(f"runs/{wide}", "two")))
    assert max(map(len, text.splitlines())) <= 100


def test_columns_of_a_table_never_touch() -> None:
    found = compare(run([*times(1, 12), 1000000000.0]), run(times(2)))
    (line,) = [row for row in render_comparison(found).splitlines() if row.startswith("step time")]
    assert "1000000 h" not in line and " h " in line
    assert re.match(r"step time +\d+ h \d+ min +\S+ m?s +-100 % ", line)
    back = compare(run(times(2)), run([*times(1, 12), 1000000000.0]))
    assert re.search(r" \+\d\.\de\+09 % ", render_comparison(back))


def test_one_step_is_too_few() -> None:
    found = compare(run([1.0]), run(times(2)))
    assert change(found, "MFU").no_interval == (
        "A: 1 steady step is too few for an interval; at least 10"
    )
