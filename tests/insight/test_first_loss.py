"""What to fix first is decided by what can be gained, not by size."""

from __future__ import annotations

import pytest
from breakdowns import breakdown, bucket
from msgspec.structs import replace

from mfu_torch.insight.breakdown_words import fix_first, large_losses
from mfu_torch.records.losses import first_loss, gain_ns, losses

MS = 1_000_000


def first(parts: dict[str, int]) -> str | None:
    found = first_loss(breakdown(parts))
    return None if found is None else found.name


@pytest.mark.parametrize(
    "whole",
    ["idle/data_wait", "idle/host_sync", "idle/unknown", "exposed_communication", "exposed_memcpy"],
)
@pytest.mark.parametrize(
    "half",
    [
        *("other_compute", "matrix/recompute", "matrix/optimizer", "matrix/beside_model"),
        "matrix/low_rate_dtype",
    ],
)
def test_what_can_go_to_zero_counts_in_full_and_what_can_only_shrink_by_half(
    whole: str, half: str
) -> None:
    assert first({whole: 21, half: 40, "matrix/model_flops": 39}) == whole
    assert first({whole: 19, half: 40, "matrix/model_flops": 41}) == half


def test_a_slow_loader_comes_before_a_larger_other_compute_and_the_table_stays_by_size() -> None:
    found = breakdown({"matrix": 52, "other_compute": 24, "idle/data_wait": 22, "idle/alloc": 2})
    worst = first_loss(found)
    assert worst is not None and worst.name == "idle/data_wait"
    assert [one.name for one in losses(found)][:2] == ["other_compute", "idle/data_wait"]


def test_only_what_lies_below_the_rate_of_good_kernels_counts() -> None:
    found = breakdown({"matrix/model_flops": 60, "matrix/below_peak": 40})
    below = found.buckets[1]
    # 60 ms of FLOPs take 80 at 75 % of the peak: 20 of the 100 could be saved, and half counts
    assert gain_ns(found, below) == pytest.approx(10 * MS)
    good = breakdown({"matrix/model_flops": 76, "matrix/below_peak": 24})
    assert gain_ns(good, good.buckets[1]) == 0


def test_at_a_good_rate_nothing_stands_out() -> None:
    found = breakdown({"matrix/model_flops": 766, "matrix/below_peak": 230, "other_compute": 4})
    assert first_loss(found) is None
    assert fix_first(found) == (
        "Fix first: nothing stands out. The largest loss is matrix below peak, 23.0 % of the time: "
        "these kernels reach 75 % of the peak or more, as good ones do."
    )


def test_recompute_and_slower_dtypes_are_flops_that_the_matrix_time_was_needed_for() -> None:
    parts = {"matrix/model_flops": 30, "matrix/recompute": 15, "matrix/low_rate_dtype": 15}
    found = breakdown({**parts, "matrix/below_peak": 40})
    assert gain_ns(found, found.buckets[-1]) == pytest.approx(10 * MS)


def test_a_faster_dtype_of_all_matrix_work_is_weighed_with_the_losses() -> None:
    precision = bucket("precision", 60 * MS, hint="70.0 % of the time in fp32: autocast")
    found = breakdown({"matrix/model_flops": 70, "idle/alloc": 25, "other_compute": 5})
    assert first_loss(replace(found, precision=precision)).name == "precision"  # type: ignore[union-attr]
    less = replace(precision, time_ns=40 * MS)
    assert first_loss(replace(found, precision=less)).name == "idle/alloc"  # type: ignore[union-attr]
    text = fix_first(replace(found, precision=precision))
    assert text == "Fix first: mixed precision. 70.0 % of the time in fp32: autocast."


def test_the_kernels_of_the_loss_to_fix_first_are_shown_though_three_are_larger() -> None:
    parts = {"matrix/recompute": 24, "matrix/low_rate_dtype": 23, "other_compute": 22}
    found = breakdown({**parts, "matrix/model_flops": 11, "idle/alloc": 20})
    assert [one.name for one in large_losses(found)] == [*parts, "idle/alloc"]
