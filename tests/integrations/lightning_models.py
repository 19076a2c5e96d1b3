"""Modules, data and Trainers for the tests of the Lightning callback, for either package.

The model is one Linear(16, 32) without bias on batches of 8 rows that need no gradient:

    forward  2*8*16*32 = 8192 FLOPs;  backward: dW only, 8192;  one batch = 16384

At a peak of 65536 FLOP/s its ideal time is 0.25 s; a batch takes 0.5 s of the fake clock.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from fake_clock import FakeClock
from torch.utils.data import DataLoader

from mfu_torch import Run, read_run
from mfu_torch.integrations.lightning import MFUCallback
from mfu_torch.records import FlopCount

PACKAGES = ("lightning.pytorch", "pytorch_lightning")

BATCH_FLOPS = 16384
PEAK = 65536.0
BATCH_S = 0.5


def package(name: str) -> Any:
    """``lightning.pytorch`` or ``pytorch_lightning``, which talk much."""
    for logger in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
        logging.getLogger(logger).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="(pytorch_)?lightning.*")
    return importlib.import_module(name)


def rows(batches: int, size: int = 8) -> DataLoader[Any]:
    """A loader of that many batches of random rows."""
    return DataLoader(torch.ones(batches * size, 16), batch_size=size)


def module(pl: Any, clock: FakeClock | None = None, **methods: Callable[..., Any]) -> Any:
    """A LightningModule around the Linear; ``methods`` replace or add its own."""

    class Small(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Linear(16, 32, bias=False)

        def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
            if clock is not None:
                clock.advance(BATCH_S)
            return self.net(batch).sum()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    return type("Small", (Small,), methods)()


def trainer(pl: Any, folder: Path, *callbacks: Any, **options: Any) -> Any:
    """A Trainer that shows nothing, and logs nowhere unless asked to."""
    quiet: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
        "max_epochs": 1,
        "default_root_dir": folder,
    }
    return pl.Trainer(callbacks=list(callbacks), **quiet | options)


def callback(clock: FakeClock | None = None, **options: Any) -> MFUCallback:
    """A callback with the peak of these tests, and without telemetry."""
    arguments: dict[str, Any] = {"peak": PEAK, "telemetry": False, "log_every": 2} | options
    return MFUCallback(**arguments if clock is None else arguments | {"clock": clock})


def fitted(pl: Any, folder: Path, loader: Any, **options: Any) -> Run:
    """The run of one fit on a fake clock; options of the Trainer."""
    clock = FakeClock()
    model = options.pop("model", None)
    trainer(pl, folder, callback(clock), **options).fit(
        module(pl, clock) if model is None else model(clock), loader
    )
    return read_run(folder)


def flops_of_steps(run: Run) -> list[int | str]:
    """Model FLOPs of every step, or why they are not known."""
    counts: Iterator[FlopCount | str] = (run.count_of(step) for step in run.steps)
    return [count if isinstance(count, str) else count.model for count in counts]


def pauses(run: Run, name: str) -> float:
    """Seconds of the pauses of that name."""
    return sum(pause.duration_s for pause in run.pauses if pause.name == name)
