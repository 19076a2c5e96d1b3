"""The Lightning callback in manual optimisation: accumulation, several optimizers, GANs.

One batch of the small model is 16384 FLOPs and 0.25 s at peak: see ``lightning_models``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_clock import FakeClock
from lightning_models import (
    BATCH_FLOPS,
    BATCH_S,
    PACKAGES,
    fitted,
    flops_of_steps,
    module,
    package,
    rows,
)
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader

from mfu_torch.figures import run_figures


@pytest.fixture(params=PACKAGES)
def pl(request: pytest.FixtureRequest) -> Any:
    return package(request.param)


@pytest.fixture
def one() -> Any:
    """Where the two packages cannot differ."""
    return package(PACKAGES[0])


def manual(pl: Any, every: int) -> Callable[[FakeClock], Any]:
    def training_step(self: Any, batch: torch.Tensor, batch_idx: int) -> None:
        self.clock.advance(BATCH_S)
        optimizer = self.optimizers(use_pl_optimizer=self.wrapped)
        self.manual_backward(self.net(batch).sum())
        if (batch_idx + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()

    def make(clock: FakeClock) -> Any:
        made = module(pl, None, training_step=training_step)
        made.automatic_optimization = False
        made.clock, made.wrapped = clock, True
        return made

    return make


@pytest.mark.parametrize("accumulated", [1, 2, 4])
def test_accumulation_in_manual_optimisation_does_not_change_the_mfu(
    pl: Any, tmp_path: Path, accumulated: int
) -> None:
    run = fitted(pl, tmp_path, rows(10 * accumulated), model=manual(pl, accumulated))
    assert flops_of_steps(run) == [accumulated * BATCH_FLOPS] * 10
    assert {step.micro_batches for step in run.steps} == {accumulated}
    assert run_figures(run).mfu == 0.5


def test_an_optimizer_used_without_lightnings_wrapper_makes_steps(one: Any, tmp_path: Path) -> None:
    def make(clock: FakeClock) -> Any:
        made = manual(one, 2)(clock)
        made.wrapped = False  # Trainer.global_step stays 0
        return made

    run = fitted(one, tmp_path, rows(8), model=make)
    assert flops_of_steps(run) == [2 * BATCH_FLOPS] * 4


def test_a_short_batch_in_manual_optimisation_is_counted_when_it_comes(
    one: Any, tmp_path: Path
) -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(16, 32))

        def encode(self, x: torch.Tensor) -> torch.Tensor:  # called by its name: no forward
            return x @ self.weight

    def make(clock: FakeClock) -> Any:
        made = manual(one, 1)(clock)
        made.encoder, made.decoder = Encoder(), nn.Linear(32, 16, bias=False)
        del made.net
        made.net = lambda x: made.decoder(made.encoder.encode(x))
        return made

    loader = DataLoader(torch.ones(20, 16), batch_size=8)
    run = fitted(one, tmp_path, loader, model=make)
    both = BATCH_FLOPS + 3 * 8192  # the second layer's input has a gradient, too
    assert flops_of_steps(run) == [both, both, both // 2]


DISCRIMINATOR = 3 * 8192
"""The generator's forward 2*8*16*32 = 8192; the discriminator's on two batches 2 * 2*8*32*8 = 8192,
and its weights' gradients as much."""
GENERATOR = 2 * 4096 + 8192
"""The discriminator, which is frozen meanwhile: forward and the gradient of its input, 4096 each;
the gradient of the generator's weights, 8192."""


def gan(pl: Any, every: int) -> Callable[[FakeClock], Any]:
    class Gan(pl.LightningModule):  # type: ignore[misc]
        def __init__(self, clock: FakeClock) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.clock = clock
            self.nets = nn.ModuleDict(
                {"g": nn.Linear(16, 32, bias=False), "d": nn.Linear(32, 8, bias=False)}
            )
            self.loss = nn.MSELoss()

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
            self.clock.advance(BATCH_S)
            g, d = self.optimizers()
            fake, real = self.nets["g"](batch), torch.ones(8, 32)
            loss = (self.nets["d"](fake.detach()) - self.nets["d"](real)).sum()
            d.zero_grad()
            self.manual_backward(loss)
            d.step()
            if batch_idx % every == 0:
                self.toggle_optimizer(g)
                score = self.nets["d"](fake)
                g.zero_grad()
                self.manual_backward(self.loss(score, torch.ones_like(score)))
                g.step()
                self.untoggle_optimizer(g)

        def configure_optimizers(self) -> list[torch.optim.Optimizer]:
            nets = self.nets.values()
            return [torch.optim.SGD(net.parameters(), lr=1e-4) for net in nets]

    return Gan


def test_a_batch_in_which_two_optimizers_step_is_one_step(pl: Any, tmp_path: Path) -> None:
    run = fitted(pl, tmp_path, rows(8), model=gan(pl, every=1))
    assert flops_of_steps(run) == [DISCRIMINATOR + GENERATOR] * 8
    assert {step.samples for step in run.steps} == {8}


def test_a_generator_trained_on_every_third_batch_is_counted_on_these(
    one: Any, tmp_path: Path
) -> None:
    run = fitted(one, tmp_path, rows(12), model=gan(one, every=3))
    both, only = DISCRIMINATOR + GENERATOR, DISCRIMINATOR
    assert flops_of_steps(run) == [both, only, only] * 4


def test_the_gan_of_lightnings_documentation_is_counted(pl: Any, tmp_path: Path) -> None:
    class Gan(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))
            self.discriminator = nn.Sequential(
                nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid()
            )

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return self.generator(z)

        def adversarial(self, scores: torch.Tensor, wanted: float) -> torch.Tensor:
            return functional.binary_cross_entropy(scores, torch.full_like(scores, wanted))

        def training_step(self, images: torch.Tensor) -> None:
            g, d = self.optimizers()
            z = torch.randn(images.shape[0], 16)
            self.toggle_optimizer(g)
            self.generated = self(z)  # to be looked at
            g_loss = self.adversarial(self.discriminator(self(z)), 1.0)
            self.log("g_loss", g_loss, prog_bar=True)
            self.manual_backward(g_loss)
            g.step()
            g.zero_grad()
            self.untoggle_optimizer(g)
            self.toggle_optimizer(d)
            real = self.adversarial(self.discriminator(images), 1.0)
            fake = self.adversarial(self.discriminator(self(z).detach()), 0.0)
            self.manual_backward((real + fake) / 2)
            d.step()
            d.zero_grad()
            self.untoggle_optimizer(d)

        def configure_optimizers(self) -> Any:
            nets = self.generator, self.discriminator
            return [torch.optim.Adam(net.parameters(), lr=1e-3) for net in nets], []

    loader = DataLoader(torch.ones(20, 16), batch_size=8)  # 8, 8 and 4 rows
    run = fitted(pl, tmp_path, loader, model=lambda clock: Gan(), max_epochs=2)
    g, d = 2 * (16 * 32 + 32 * 16), 2 * (16 * 32 + 32 * 1)  # a row's forward
    first_g, first_d = 2 * 16 * 32, 2 * 16 * 32  # whose input needs no gradient
    of_generator = 2 * g + d + d + (2 * g - first_g)  # the frozen discriminator: of its input
    of_discriminator = g + 2 * d + 2 * (2 * d - first_d)
    row = of_generator + of_discriminator
    assert flops_of_steps(run) == [8 * row, 8 * row, 4 * row] * 2
