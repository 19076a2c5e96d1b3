"""Several models in one step: a GAN, a student and its teacher."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from audit import Audit
from torch import nn

from mfu_torch import Meter

ROWS = 2 * 16 * 16  # one row through Linear(16, 16)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> None:
    torch._dynamo.reset()


def as_it_is(model: nn.Module) -> nn.Module:
    return model


def compiled(model: nn.Module) -> nn.Module:
    return torch.compile(model, backend="eager", dynamic=True)  # type: ignore[return-value]


class Gan:
    """A step of each player. Both are one Linear(16, 16) without a bias."""

    def __init__(self, wrap: Callable[[nn.Module], nn.Module]) -> None:
        self.generator, self.critic = (
            wrap(nn.Sequential(nn.Linear(16, 16, bias=False))) for _ in range(2)
        )

    def step(self, real: torch.Tensor) -> None:
        fake = self.generator(torch.ones_like(real))
        (self.critic(real) - self.critic(fake.detach())).sum().backward()
        self.critic(fake).sum().backward()

    @staticmethod
    def flops(rows: int) -> int:
        # generator: forward, dW; critic: twice forward and dW, once forward, dW and dX
        return (2 + 2 * 2 + 3) * rows * ROWS


def batches(seed: int, steps: int) -> Iterator[torch.Tensor]:
    draw = random.Random(seed)
    for _ in range(steps):
        yield torch.ones(draw.randint(2, 64), 16)


@pytest.mark.parametrize("wrap", [as_it_is, compiled])
def test_both_players_of_a_gan_are_counted_at_every_batch_size(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    gan = Gan(wrap)
    audit = Audit(None, tmp_path)
    audit.meter = Meter(
        [gan.generator, gan.critic], peak=1e12, sinks=[], log_dir=tmp_path, log_every=3
    )
    for real in batches(0, 40):
        audit.step(lambda real=real: gan.step(real), gan.flops(len(real)))
    _, counts = audit.close()
    known = [(c, t) for c, t in zip(counts, audit.truth, strict=True) if c is not None]
    assert [c for c, _ in known] == [t for _, t in known]
    # The step before the first law, of shapes that cannot be foreseen, can stay unknown.
    assert len(known) >= 30 if wrap is as_it_is else len(known) == 40


def test_a_gan_whose_data_is_seen_is_known_throughout(tmp_path: Path) -> None:
    gan = Gan(as_it_is)
    audit = Audit(gan.generator, tmp_path)
    for real in audit.meter.data(list(batches(1, 40))):
        audit.step(lambda real=real: gan.step(real), gan.flops(len(real)))
    audit.assert_right()


@pytest.mark.parametrize("wrap", [as_it_is, compiled])
def test_a_teacher_without_gradients_is_model_work_of_its_own(
    wrap: Callable[[nn.Module], nn.Module], tmp_path: Path
) -> None:
    teacher, student = (wrap(nn.Sequential(nn.Linear(16, 16))) for _ in range(2))
    meter = Meter([student, teacher], peak=1e12, sinks=[], log_dir=tmp_path)
    for _ in range(4):
        with meter.step():
            x = torch.ones(8, 16)
            with torch.no_grad():
                target = teacher(x)
            (student(x) - target).sum().backward()
    meter.close()
    count: Any = meter.run.count_of(list(meter.run.steps)[-1])
    assert (count.forward, count.forward_no_grad, count.backward) == (8 * ROWS,) * 3


def test_a_model_inside_another_is_not_counted_twice(tmp_path: Path) -> None:
    inner = nn.Linear(16, 16)
    outer = nn.Sequential(inner, nn.ReLU())
    meter = Meter([outer, inner], peak=1e12, sinks=[], log_dir=tmp_path)
    for _ in range(3):
        with meter.step():
            outer(torch.ones(8, 16)).sum().backward()
    meter.close()
    count: Any = meter.run.count_of(list(meter.run.steps)[-1])
    assert count.model == 2 * 8 * ROWS


def test_a_list_of_modules_is_several_models_and_other_things_are_refused() -> None:
    Meter(nn.ModuleList([nn.Linear(2, 2)]))
    with pytest.raises(TypeError, match=r"a sequence with a str; expected the torch.nn.Module"):
        Meter([nn.Linear(2, 2), "critic"])  # type: ignore[list-item]
