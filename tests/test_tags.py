"""The names of curves: each figure has one, and no two the same."""

from __future__ import annotations

from typing import Any

import pytest

from mfu_torch.figures import Figures
from mfu_torch.records import Telemetry
from mfu_torch.records.names import Names, as_tag
from mfu_torch.step_parts import SplitSteps
from mfu_torch.tags import device_scalars, scalars


def figures(**fields: Any) -> Figures:
    return Figures(step=1, steps=1, time_s=1.0, **fields)


def test_a_tag_has_few_characters() -> None:
    assert as_tag("below peak") == "below_peak"
    assert as_tag("a/b:é-1.x") == "a_b__-1.x"


def test_what_is_unknown_has_no_tag() -> None:
    assert dict(scalars(figures(mfu=0.5))) == {"mfu/mfu": 0.5}


@pytest.mark.parametrize(
    ("field", "before", "after"), [("phases", "time/phase_", "_share"), ("goodput", "goodput/", "")]
)
def test_names_that_would_be_one_tag_are_two(field: str, before: str, after: str) -> None:
    shares = {"a b": 0.1, "a_b": 0.2, "é": 0.3, "ü": 0.4, "a/b": 0.5}
    found = list(scalars(figures(**{field: shares})))
    assert found == [
        (f"{before}{name}{after}", share)
        for name, share in zip(("a_b", "a_b_2", "_", "__2", "a_b_3"), shares.values(), strict=True)
    ]


def test_a_number_behind_a_name_is_taken_by_nobody() -> None:
    shares = {"a b": 0.1, "a_b 2": 0.2, "a_b": 0.3}
    assert [tag for tag, _ in scalars(figures(goodput=shares))] == [
        "goodput/a_b", "goodput/a_b_2", "goodput/a_b_3"
    ]  # fmt: skip


def test_reasons_of_throttling_that_would_be_one_tag_are_two() -> None:
    seen = Telemetry(after_step=1, samples=1, time_s=1.0, throttle={"hw slow": 0.1, "hw/slow": 0.2})
    assert list(device_scalars(seen)) == [
        ("device/throttle_hw_slow", 0.1), ("device/throttle_hw_slow_2", 0.2)
    ]  # fmt: skip


def test_parts_of_a_step_are_shares_and_a_wait_for_data_has_one_tag_only() -> None:
    parts_s = {"forward": 2.0, "loss": 0.5, "backward": 4.0, "optimizer": 0.5}
    parts_s |= {"data_wait": 0.25, "rest": 0.5, "between": 0.25}
    split = SplitSteps(
        steps=4, time_s=8.0, parts_s=parts_s, of_peak={"backward": 0.75}, lead_s=0.125
    )
    assert list(scalars(figures(data_wait_share=0.1, split=split))) == [
        ("time/data_wait_share", 0.1),  # the host's; 0.25 / 8 is that of the device
        ("time/forward_share", 0.25), ("time/loss_share", 0.0625), ("time/backward_share", 0.5),
        ("time/optimizer_share", 0.0625), ("time/rest_share", 0.0625),
        ("time/between_share", 0.03125), ("time/host_lead_s", 0.125), ("mfu/hfu_backward", 0.75),
    ]  # fmt: skip


def test_parts_that_are_not_told_apart_have_no_tag() -> None:
    parts_s = {"backward": 3.0, "optimizer": 0.0, "rest": 1.0, "between": 0.0}
    split = SplitSteps(steps=1, time_s=4.0, parts_s=parts_s)
    assert list(scalars(figures(split=split))) == [
        ("time/backward_share", 0.75), ("time/rest_share", 0.25), ("time/between_share", 0.0)
    ]  # fmt: skip


def test_a_name_is_shown_in_the_same_way_for_ever() -> None:
    names = Names(["other"])
    first = [names.of(name) for name in ("a_b", "a b", "other")]
    assert first == ["a_b", "a b 2", "other 2"]
    assert [names.of(name) for name in ("other", "a b", "a_b")] == first[::-1]


def test_a_prefix_is_put_before_what_is_taken_as_often_as_needed() -> None:
    names = Names(["other"])
    assert names.of("pause other", "pause ") == "pause other"
    assert names.of("other", "pause ") == "pause pause other"
    assert names.of("eval", "pause ") == "eval"
    assert names.of("eval") == "eval 2"  # of another kind


def test_only_so_many_names_are_remembered() -> None:
    names = Names()
    for number in range(3000):
        assert names.of(f"step {number}") == f"step {number}"
    assert len(names._shown) == len(names._tags) == 1000
