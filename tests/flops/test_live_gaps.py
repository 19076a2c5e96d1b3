"""The same forward calls with one backward or one each are different work, and counted as such."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from audit import Audit, linear
from torch import nn

from mfu_torch.flops.live.gaps import BLIND, JOINED, MISREAD, UNTOLD, Gaps, forwards
from mfu_torch.flops.live.microbatches import Piece
from mfu_torch.records import FlopCount, FlopTerm

A, B = torch.ones(4, 16), torch.ones(8, 16)
CONTRAST = linear(4) + linear(8) + 3 * 2 * 4 * 16 * 8  # (4, 16) @ (16, 8), forward and two back


def one_by_one(model: nn.Module) -> None:
    model(A).sum().backward()
    model(B).sum().backward()


def contrasted(model: nn.Module) -> None:
    (model(A) @ model(B).T).sum().backward()


WORK: dict[str, tuple[Callable[[nn.Module], Any], int]] = {
    "a": (lambda model: model(A).sum().backward(), linear(4)),
    "b": (lambda model: model(B).sum().backward(), linear(8)),
    "s": (one_by_one, linear(4) + linear(8)),
    "c": (contrasted, CONTRAST),
}


def step_to(optimizer: torch.optim.Optimizer, set_to_none: bool | None) -> None:
    """``None`` for a loop that never steps: gradients go on adding up."""
    if set_to_none is not None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)


@pytest.mark.parametrize("set_to_none", [True, False, None])
@pytest.mark.parametrize(
    ("loop", "unknown"),
    [
        ("sss" + 30 * "c", 0),
        ("ccc" + 30 * "s", 0),
        ("aaa" + 30 * "c", 1),  # the step that has two calls for the first time
        ("ababa" + 30 * "c", 1),
        ("ababa" + 30 * "s", 1),
        (8 * "abcs", 1),
        (16 * "cs", 0),
        (7 * "asssc", 1),
    ],
)
def test_a_contrastive_step_is_not_taken_for_accumulation(
    loop: str, unknown: int, set_to_none: bool | None, tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    audit = Audit(model, tmp_path)
    for kind in loop:
        work, flops = WORK[kind]

        def step(work: Callable[[nn.Module], Any] = work) -> None:
            work(model)
            step_to(optimizer, set_to_none)

        audit.step(step, flops)
    _, counts = audit.close()
    wrong = [n for n, (c, t) in enumerate(zip(counts, audit.truth, strict=True)) if c != t]
    assert [counts[n] for n in wrong] == unknown * [None]


def test_frozen_and_unused_parameters_do_not_stand_for_a_backward(tmp_path: Path) -> None:
    model = nn.Module()
    model.frozen, model.used, model.unused = (nn.Linear(16, 16) for _ in range(3))
    model.frozen.requires_grad_(False)
    model.forward = lambda x: model.used(x)  # type: ignore[method-assign]
    audit = Audit(model, tmp_path)
    for kind in "sss" + 12 * "c" + 12 * "s":
        audit.step(lambda work=WORK[kind][0]: work(model), WORK[kind][1])  # type: ignore[misc]
    audit.assert_right()


@pytest.mark.parametrize("how", [{"foreach": True}, {"fused": True}], ids=str)
def test_optimizers_that_leave_no_trace_of_their_own_hide_no_gap(
    how: dict[str, bool], tmp_path: Path
) -> None:
    model = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    audit = Audit(model, tmp_path)
    for kind in "cccs" + 20 * "s" + 5 * "c":

        def step(work: Callable[[nn.Module], Any] = WORK[kind][0]) -> None:
            work(model)
            step_to(optimizer, True)

        audit.step(step, WORK[kind][1])
    audit.assert_right()


def test_updates_that_clear_the_gradients_between_forward_and_backward(tmp_path: Path) -> None:
    # The memory of a gradient that was freed is that of the next one, at the same version.
    model = nn.Linear(16, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def update(x: torch.Tensor) -> None:
        loss = model(x).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    audit = Audit(model, tmp_path)
    for _ in range(60):
        audit.step(lambda: (update(A), update(B), update(A)), 2 * linear(4) + linear(8))
    run = audit.assert_right()
    assert sum(step.excluded == "FLOPs were being counted" for step in run.steps) <= 5


def test_an_expert_that_no_token_went_to_does_not_hide_a_backward(tmp_path: Path) -> None:
    class Routed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.router = nn.Parameter(torch.ones(()))
            self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))
            self.chosen = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.router * self.experts[self.chosen](x)

    model = Routed()
    audit = Audit(model, tmp_path)
    for number, kind in enumerate("sss" + 12 * "cs"):
        model.chosen = 2 if number < 3 else number % 2
        audit.step(lambda work=WORK[kind][0]: work(model), WORK[kind][1])  # type: ignore[misc]
    audit.assert_right()


def test_where_no_gradient_tells_the_counts_say_so(tmp_path: Path) -> None:
    model = nn.Linear(16, 16)

    def taken_away() -> None:
        for x in (A, B):
            model(x).sum().backward()
            model.zero_grad()  # kept elsewhere, as some optimizers in the backward do

    audit = Audit(model, tmp_path)
    for _ in range(8):
        audit.step(taken_away, linear(4) + linear(8))
    run = audit.assert_right()
    counts = [run.count_of(step) for step in run.steps]
    assert all(isinstance(count, FlopCount) and BLIND in count.notes for count in counts)


# --- by itself -------------------------------------------------------------------------------


def piece(*, backward: bool) -> Piece:
    term = FlopTerm(phase="backward", op="mm", dtype="fp32", flops=1, causal_flops=1, calls=1)
    return Piece(FlopCount(terms=(term,) if backward else ()))


def counted(gaps: Gaps, steps: list[Callable[[], None]], ran: list[bool]) -> list[int]:
    gaps.start_counted()
    calls: list[int] = []
    for number, step in enumerate(steps):
        gaps.note(calls, counted=True)
        calls.append(number)
        step()
    gaps.mark()
    return gaps.learn(calls, [piece(backward=False), *[piece(backward=b) for b in ran]])


def uncounted(gaps: Gaps, steps: list[Callable[[], None]]) -> list[int]:
    calls: list[int] = []
    for number, step in enumerate(steps):
        gaps.note(calls, counted=False)
        calls.append(number)
        step()
    return calls


def test_gaps_are_learned_from_counted_steps() -> None:
    model = nn.Linear(2, 2)

    def backward() -> None:
        model(torch.ones(1, 2)).sum().backward()

    def nothing() -> None:
        pass

    gaps = Gaps([model])
    assert uncounted(gaps, [nothing, backward]) == [0, 1]  # nothing was counted yet
    assert counted(gaps, [backward], [True]) == [0]
    assert uncounted(gaps, [backward]) == [0]
    assert uncounted(gaps, [nothing, backward]) == [0, UNTOLD, 1]
    assert uncounted(gaps, [nothing, backward]) == [0, JOINED, 1]
    assert uncounted(gaps, [backward, nothing, backward]) == [0, 1, JOINED, 2]
    assert counted(gaps, [nothing, backward], [False, True]) == [0, JOINED, 1]


def test_parameters_that_are_replaced_are_noticed() -> None:
    model = nn.Linear(2, 2)

    def backward() -> None:
        model(torch.ones(1, 2)).sum().backward()

    gaps = Gaps([model])
    assert counted(gaps, [backward, backward], [True, True]) == [0, 1]
    assert uncounted(gaps, [backward, backward]) == [0, 1]
    model.load_state_dict({k: v.clone() for k, v in model.state_dict().items()}, assign=True)
    assert uncounted(gaps, [backward, backward]) == [0, UNTOLD, 1]
    assert counted(gaps, [lambda: None, backward], [False, True]) == [0, JOINED, 1]


def test_where_no_parameter_tells_nothing_is_said() -> None:
    model = nn.Linear(2, 2)
    model(torch.ones(1, 2)).sum().backward()

    def cleared() -> None:
        model.zero_grad(set_to_none=False)  # changes the gradients like a backward

    gaps = Gaps([model])
    assert counted(gaps, [cleared, cleared], [False, True]) == [0, 1]
    assert uncounted(gaps, [cleared, cleared]) == [0, 1]
    gaps.forget()
    assert counted(gaps, [cleared], [True]) == [0]


def test_parameters_made_in_inference_mode_are_left_out() -> None:
    with torch.inference_mode():
        model = nn.Linear(2, 2)
    gaps = Gaps([model])
    assert counted(gaps, [lambda: None], [False]) == [0]


def test_forwards_are_counted_without_what_is_between_them() -> None:
    assert forwards([3, JOINED, 4, UNTOLD, 3, 5]) == 4


@pytest.mark.parametrize("set_to_none", [True, False])
def test_a_gan_that_clears_gradients_between_its_calls_leaves_no_step_unknown(
    set_to_none: bool, tmp_path: Path
) -> None:
    made, real = nn.Linear(16, 32, bias=False), nn.Linear(32, 8, bias=False)
    to_make, to_tell = (torch.optim.SGD(one.parameters(), lr=1e-4) for one in (made, real))

    def step() -> None:
        fake = made(torch.ones(8, 16))
        to_tell.zero_grad(set_to_none=set_to_none)
        (real(fake.detach()) - real(torch.ones(8, 32))).sum().backward()
        to_tell.step()
        to_make.zero_grad(set_to_none=set_to_none)
        real(fake).sum().backward()
        to_make.step()

    audit = Audit([made, real], tmp_path)
    # made: forward, and dW; real: three forwards, dW of all three, dX of the last one.
    flops = 2 * (2 * 8 * 16 * 32) + (3 + 3 + 1) * (2 * 8 * 32 * 8)
    for _ in range(8):
        audit.step(step, flops)
    run = audit.assert_right()
    noted = [count for step in run.steps if MISREAD in (count := run.count_of(step)).notes]
    assert len(noted) == 1
