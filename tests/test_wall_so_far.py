"""The wall time of a run while it goes on, in shares, on the records of samples.py.

A step needs 0.30 s for its model FLOPs and 0.41 s for its hardware FLOPs at the peak.
"""

from __future__ import annotations

from typing import Any

import pytest
from samples import T, count, entries, header, peak, step, term

from mfu_torch.records import CountEntry, Earlier, Pause, PeakEntry, Window
from mfu_torch.records.names import as_tag
from mfu_torch.wall import WallSoFar

PEAKS = {"bf16": peak("bf16", 100e12), "fp32": peak("fp32", 50e12)}
COUNTS = {0: count()}
EARLIER = Earlier(
    started="2026-01-01T00:00:00+00:00", wall_s=20.0, steps=9, ideal_s={"full": 2.7, "causal": 2.4}
)


def so_far(records: list[Any], **changes: Any) -> WallSoFar:
    wall = WallSoFar(header(**changes))
    for record in records:
        if isinstance(record, (Window, Pause)):
            wall.add(record)
    return wall


def test_shares_of_a_run_worked_out_by_hand() -> None:
    shares = so_far(entries()).shares(COUNTS, PEAKS)
    # Wall 19 s at the end of the last window: five steps, one of them compiling for 10 s, four
    # steady ones of 0.9 + 1.0 + 1.0 + 1.1 = 4.0 s; init 2 s, two evals of 1.5 s.
    assert list(shares) == [
        "model", "recompute", "below peak", "first step, compiling", "init", "eval", "other"
    ]  # fmt: skip
    assert shares["model"] == pytest.approx(5 * 0.30 / 19)
    assert shares["recompute"] == pytest.approx(5 * 0.11 / 19)
    assert shares["below peak"] == pytest.approx((4.0 - 4 * 0.41) / 19)
    assert shares["first step, compiling"] == pytest.approx((10.0 - 0.41) / 19)
    assert shares["init"] == pytest.approx(2 / 19)
    assert shares["eval"] == pytest.approx(3 / 19)
    assert shares["other"] == pytest.approx(0.0, abs=1e-12)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_the_first_share_is_the_end_to_end_mfu() -> None:
    wall = so_far(entries())
    assert wall.shares(COUNTS, PEAKS)["model"] == wall.end_to_end(COUNTS, PEAKS)


def test_the_causal_convention_has_its_own_ideal_times() -> None:
    shares = so_far(entries(), attention="causal").shares(COUNTS, PEAKS)
    assert shares["model"] == pytest.approx(5 * 0.27 / 19)
    assert shares["recompute"] == pytest.approx(5 * 0.10 / 19)


@pytest.mark.parametrize(
    ("counts", "peaks"),
    [
        ({0: CountEntry(id=0, unknown="nobody counted")}, PEAKS),
        (COUNTS, {"bf16": PeakEntry(dtype="bf16", unknown="nobody knows")}),
    ],
)
def test_where_ideal_times_are_unknown_steps_are_not_taken_apart(counts: Any, peaks: Any) -> None:
    shares = so_far(entries()).shares(counts, peaks)
    assert list(shares) == ["steady steps", "first step, compiling", "init", "eval", "other"]
    assert shares["steady steps"] == pytest.approx(4 / 19)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_earlier_attempts_count_in_both() -> None:
    wall = so_far(entries(), earlier=EARLIER)
    shares = wall.shares(COUNTS, PEAKS)
    assert shares["model"] == pytest.approx((5 * 0.30 + 2.7) / 39)
    assert shares["model"] == wall.end_to_end(COUNTS, PEAKS)
    assert shares["earlier attempts"] == pytest.approx((20 - 2.7) / 39)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_a_pause_with_the_name_of_a_share_keeps_its_own() -> None:
    records = [Pause(name="model", after_step=0, duration_s=1.0), Pause(name="other", after_step=0,
               duration_s=2.0), Window(steps=(step(0, 1.0),), wall_s=4.0)]  # fmt: skip
    shares = so_far(records).shares(COUNTS, PEAKS)
    assert shares["pause model"] == 0.25 and shares["pause other"] == 0.5
    assert shares["model"] == pytest.approx(0.30 / 4)


@pytest.mark.parametrize("order", [1, -1])
def test_no_two_pauses_share_a_name_whatever_they_are_called(order: int) -> None:
    durations_s = {"other": 1.0, "pause other": 2.0, "a b": 4.0, "a_b": 8.0, "further pauses": 16.0}
    pauses = [Pause(name=name, after_step=0, duration_s=s) for name, s in durations_s.items()]
    wall = so_far([*pauses[::order], Window(steps=(step(0, 1.0),), wall_s=32.0)])
    shares = wall.shares(COUNTS, PEAKS)
    assert sum(shares.values()) == pytest.approx(1.0)
    assert {1 / 32, 2 / 32, 4 / 32, 8 / 32, 16 / 32} <= {*shares.values()}
    assert len({as_tag(name) for name in shares}) == len(shares) == 3 + 5 + 1


def test_a_share_keeps_its_name_and_its_place_as_others_come() -> None:
    wall = so_far([
        Pause(name="a b", after_step=0, duration_s=1.0), Window(steps=(step(0, 1.0),), wall_s=2.0)
    ])  # fmt: skip
    before = list(wall.shares(COUNTS, PEAKS))
    wall.add(Pause(name="a_b", after_step=1, duration_s=1.0))
    wall.add(Window(steps=(step(1, 1.0, excluded="a/b"),), wall_s=4.0))
    after = list(wall.shares(COUNTS, PEAKS))
    assert before == ["model", "recompute", "below peak", "a b", "other"]
    assert after == [*before[:-1], "a/b 2", "pause a_b", "other"]


def test_of_many_pauses_those_after_the_30th_name_have_one_share() -> None:
    pauses = [Pause(name=f"eval {n}", after_step=0, duration_s=1.0) for n in range(300)]
    wall = so_far([*pauses, Window(steps=(step(0, 100.0),), wall_s=400.0), pauses[0], pauses[299]])
    shares = wall.shares(COUNTS, PEAKS)
    assert [name for name in shares if name.startswith("eval")] == [f"eval {n}" for n in range(30)]
    assert shares["eval 0"] == pytest.approx(2 / 400)
    assert shares["further pauses"] == pytest.approx(271 / 400)
    assert sum(shares.values()) == pytest.approx(1.0)


def test_where_a_part_of_the_run_was_lost_nothing_is_taken_apart() -> None:
    wall = so_far(entries())
    wall.lose("10 records were dropped")
    assert wall.end_to_end(COUNTS, PEAKS) == "10 records were dropped"
    assert next(iter(wall.shares(COUNTS, PEAKS))) == "steady steps"


def test_names_of_shares_are_kept_free_where_ideal_times_are_unknown() -> None:
    records = [Pause(name="model", after_step=0, duration_s=1.0),
               Window(steps=(step(0, 1.0),), wall_s=2.0)]  # fmt: skip
    shares = so_far(records).shares({}, PEAKS)
    assert shares == {"steady steps": 0.5, "pause model": 0.5, "other": 0.0}


def test_a_step_above_the_peak_still_sums_to_one() -> None:
    fast = {0: count(terms=(term("forward", 200 * T, 200 * T),))}  # 2 s at the peak
    shares = so_far([Window(steps=(step(0, 1.0),), wall_s=1.0)]).shares(fast, PEAKS)
    assert shares["model"] == 2.0 and shares["below peak"] == -1.0
    assert sum(shares.values()) == pytest.approx(1.0)


def test_without_wall_time_there_are_no_shares() -> None:
    assert so_far([]).shares(COUNTS, PEAKS) == {}
