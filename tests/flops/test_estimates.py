"""FLOPs that depend on data: an estimate with its margin, and no estimate where that is wide.

Rows of 64 go through Linear(64, 64), and as many of them as data says through Linear(64, WIDTH):
2 * rows * 64 * 64 + 2 * kept * 64 * WIDTH FLOPs forward.
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from mfu_torch import Meter
from mfu_torch.figures import run_figures
from mfu_torch.flops.shapes import GIVE_UP_AFTER, ShapeLaw
from mfu_torch.flops.shapes.estimate import FROM, NOTE, Estimate
from mfu_torch.records import FlopCount, FlopTerm

NARROW, WIDE = 4, 256
"""Widths of the part that depends on data: about 5 % of the FLOPs, and most of them."""


def flops(rows: int, kept: int, width: int) -> int:
    return 2 * rows * 64 * 64 + 2 * kept * 64 * width


def count(forward: int, **more: int) -> FlopCount:
    terms = tuple(
        FlopTerm(phase=phase, op="aten.mm", dtype="fp32", flops=n, causal_flops=n // 2, calls=1)  # type: ignore[arg-type]
        for phase, n in {"forward": forward, **more}.items()
    )
    return FlopCount(terms=terms, method="counted")


def observations(number: int, width: int, seed: int = 0) -> list[tuple[tuple[int], FlopCount]]:
    draw = random.Random(seed)
    rows = [draw.randint(50, 500) for _ in range(number)]
    kept = [draw.randint(n // 2, n) for n in rows]
    return [((n,), count(flops(n, k, width))) for n, k in zip(rows, kept, strict=True)]


def test_the_margin_is_what_an_observation_is_off_the_curve_through_the_others() -> None:
    seen = observations(40, NARROW)
    estimate = Estimate(seen)
    # The same, done the long way: a parabola through all but one, held against that one.
    x = np.array([sizes[0] for sizes, _ in seen], dtype=float)
    y = np.array([one.forward for _, one in seen], dtype=float)
    whole = np.polyval(np.polyfit(x, y, 2), x)
    off = [
        abs(y[i] - np.polyval(np.polyfit(np.delete(x, i), np.delete(y, i), 2), x[i])) / whole[i]
        for i in range(len(x))
    ]
    assert estimate.margin == pytest.approx(max(off), rel=1e-6)
    assert 0.005 < max(off) < 0.05


def test_an_estimate_says_how_far_off_it_may_be() -> None:
    estimate = Estimate(observations(60, NARROW))
    about = estimate.evaluate((201,))
    assert about is not None and estimate.margin is not None
    # Less sure than at what was counted, and hardly so amid of it: margin * sqrt(1 + leverage).
    assert estimate.margin < about.uncertainty < 1.1 * estimate.margin
    assert flops(201, 100, NARROW) < about.forward < flops(201, 201, NARROW)
    assert about.terms[0].causal_flops == pytest.approx(about.forward / 2, rel=1e-3)
    assert about.method.startswith("estimated from 60 shapes that were counted, each within ")
    assert NOTE in about.notes


def test_others_that_were_never_seen_are_within_about_the_margin() -> None:
    estimate = Estimate(observations(64, NARROW))
    assert estimate.margin is not None
    others = observations(300, NARROW, seed=1)
    inside = 0
    for sizes, truth in others:
        about = estimate.evaluate(sizes)
        if about is not None:
            inside += abs(truth.forward - about.forward) <= estimate.margin * about.forward
    assert inside >= 0.95 * 300


def test_a_wide_scatter_is_no_estimate() -> None:
    estimate = Estimate(observations(60, WIDE))
    assert estimate.margin is None and estimate.evaluate((200,)) is None


def test_few_observations_are_no_estimate() -> None:
    assert Estimate(observations(FROM - 1, NARROW)).margin is None
    assert Estimate([]).margin is None


def test_nothing_is_estimated_outside_of_what_was_counted() -> None:
    estimate = Estimate(observations(60, NARROW))
    assert estimate.evaluate((40,)) is None and estimate.evaluate((501,)) is None


def test_equal_sizes_with_other_counts_have_their_mean() -> None:
    seen = [((8,), count(1000 + n % 2 * 20)) for n in range(40)]  # 1000, 1020, 1000, ...
    about = Estimate(seen).evaluate((8,))
    assert about is not None and about.forward == 1010
    # Without one of 1000 the mean is 1010 + 10/39; that one is 10 + 10/39 off, of 1010.
    # The leverage of one more is 1/40.
    assert about.uncertainty == pytest.approx((10 + 10 / 39) / 1010 * (1 + 1 / 40) ** 0.5)


def test_the_margin_is_of_the_model_flops_and_recompute_is_estimated_beside() -> None:
    seen = [((n,), count(100 * n, recompute=10 * n + n % 7)) for n in range(50, 100)]
    about = Estimate(seen).evaluate((70,))
    assert about is not None and about.uncertainty == pytest.approx(0, abs=1e-9)
    assert about.forward == 7000 and about.recompute == pytest.approx(703, abs=3)


def test_a_sum_is_off_as_if_all_its_parts_were_in_the_same_direction() -> None:
    sure, about = count(3000), FlopCount(terms=count(1000).terms, uncertainty=0.08)
    assert (sure + about).uncertainty == pytest.approx(0.02)
    assert (about + FlopCount(notes=("a note",))).uncertainty == 0.08
    assert (sure + sure).uncertainty == 0


def test_a_law_that_is_not_found_is_followed_by_an_estimate() -> None:
    law = ShapeLaw()
    seen = dict(observations(3 * GIVE_UP_AFTER, NARROW))
    for sizes, one in list(seen.items())[: GIVE_UP_AFTER + 1]:
        assert law.evaluate(sizes) is None
        law.observe(sizes, one, [])
    assert law.refuted
    about = law.evaluate((222,))
    assert about is not None and about.uncertainty > 0


def test_an_estimate_is_checked_as_a_law_is() -> None:
    law = ShapeLaw()
    for sizes, one in observations(GIVE_UP_AFTER + 2, NARROW):
        law.observe(sizes, one, [])
    due = []
    for rows in range(100, 200):
        if law.is_due():
            due.append(rows)
            law.observe((rows,), count(flops(rows, rows * 3 // 4, NARROW)), [])
        else:
            assert law.evaluate((rows,)) is not None
    assert due == [116, 133, 150, 167, 184]  # after 16 that were estimated, and so on
    assert law.found_off == 0


def test_a_count_outside_of_the_margin_ends_the_estimate_until_enough_were_counted_anew() -> None:
    law = ShapeLaw()
    for sizes, one in observations(GIVE_UP_AFTER + 2, NARROW):
        law.observe(sizes, one, [])
    before = law.evaluate((200,))
    assert before is not None
    law.observe((200,), count(2 * before.forward), [])
    assert law.found_off == pytest.approx(1.0)
    assert law.evaluate((201,)) is None
    for sizes, one in observations(FROM, NARROW, seed=5):
        law.observe(sizes, count(2 * one.forward), [])
    after = law.evaluate((200,))
    assert after is not None and after.forward == pytest.approx(2 * before.forward, rel=0.02)


class Kept(nn.Module):
    """A part of the work is on the rows that data keeps."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 64, bias=False), nn.Linear(64, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(x)
        return self.head(hidden[x[:, 0] > 0]).sum()


def train(width: int, steps: int, folder: Path) -> tuple[Meter, list[int]]:
    model, draw = Kept(width), random.Random(3)
    meter = Meter(model, log_dir=folder, peak=1e12, sinks=[], telemetry=False)
    truth = []
    with meter:
        for rows in draw.sample(range(50, 500), steps):  # a shape that came before is known
            x = torch.randn(rows, 64)
            x[:, 0] = torch.rand(rows) - draw.uniform(0.0, 0.5)  # all are kept, or half of them
            kept = int((x[:, 0] > 0).sum())
            # body: forward and dW; head: forward, dW and dX
            truth.append(2 * 2 * rows * 64 * 64 + 3 * 2 * kept * 64 * width)
            with meter.step():
                model(x).backward()
    return meter, truth


def test_a_run_whose_work_depends_on_data_has_an_mfu_with_its_margin(tmp_path: Path) -> None:
    meter, truth = train(NARROW, 3 * GIVE_UP_AFTER, tmp_path)
    run = meter.run
    steady = [step for step in run.steps if not step.excluded]
    assert len(steady) > GIVE_UP_AFTER
    now = run_figures(run)
    assert now.mfu is not None and now.uncertainty is not None and 0 < now.uncertainty < 0.05
    estimated = 0
    for step, flops_run in zip(run.steps, truth, strict=True):
        found = run.count_of(step)
        assert isinstance(found, FlopCount)
        estimated += bool(found.uncertainty)
        assert found.model == pytest.approx(flops_run, rel=1.5 * found.uncertainty + 1e-12)
    assert estimated > GIVE_UP_AFTER
    whole = sum(truth[step.index] for step in steady)
    assert now.mfu == pytest.approx(whole / now.time_s / 1e12, rel=0.01)


def test_where_most_work_depends_on_data_every_shape_is_counted(tmp_path: Path) -> None:
    meter, truth = train(WIDE, GIVE_UP_AFTER + 20, tmp_path)
    found = [meter.run.count_of(step) for step in meter.run.steps]
    assert [one.model for one in found if isinstance(one, FlopCount)] == truth
    assert run_figures(meter.run).uncertainty is None


def test_estimates_that_a_check_finds_off_say_so(tmp_path: Path) -> None:
    """What data is like drifts: more and more rows are kept."""
    model, draw = Kept(64), random.Random(3)
    truth = []
    with Meter(model, log_dir=tmp_path, peak=1e12, sinks=[], telemetry=False) as meter:
        for index, rows in enumerate(draw.sample(range(100, 500), 360)):
            x = torch.randn(rows, 64)
            x[:, 0] = torch.linspace(-1, 1, rows) + (index - 180) / 400  # from 5 % to 95 %
            kept = int((x[:, 0] > 0).sum())
            truth.append(2 * 2 * rows * 64 * 64 + 3 * 2 * kept * 64 * 64)
            with meter.step():
                model(x).backward()
    found = [meter.run.count_of(step) for step in meter.run.steps]
    known = [
        (one, right) for one, right in zip(found, truth, strict=True) if not isinstance(one, str)
    ]
    assert len(known) == len(found)
    outside = [
        abs(one.model - right) > one.uncertainty * right + 1
        for one, right in known
        if one.uncertainty
    ]
    assert len(outside) > 20
    assert sum(outside) <= 0.15 * len(outside)  # those after the last check can be
