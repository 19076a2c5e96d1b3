"""What the callbacks cost the host per training step, beside Lightning's own ThroughputMonitor.

Every hook of a callback is timed where its Trainer calls it, in a real fit of a tiny model.
Printed: the median over the steps of what all hooks of a step took together, and its ratio to the
step.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ThroughputMonitor
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments
from transformers import Trainer as HuggingFaceTrainer
from transformers.trainer_callback import PrinterCallback

from mfu_torch.integrations.huggingface import MFUCallback as HuggingFaceMFU
from mfu_torch.integrations.lightning import MFUCallback as LightningMFU

WARM_UP = 20
"""Steps that are left out: they count FLOPs, allocate and import."""


class Clocked:
    """Times every hook of a callback, and adds up what one step's took.

    Args:
        callback: Whose hooks are timed.
        first: Name of the hook that a step begins with.
    """

    def __init__(self, callback: Any, first: str) -> None:
        self.hooks_s: list[float] = []
        self.begun_s: list[float] = []
        for name in dir(callback):
            hook = getattr(callback, name)
            if name.startswith("on_") and callable(hook):
                setattr(callback, name, self._timed(hook, begins=name == first))

    def _timed(self, hook: Callable[..., Any], *, begins: bool) -> Callable[..., Any]:
        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            if begins:
                self.begun_s.append(start_s)
                self.hooks_s.append(0.0)
            result = hook(*args, **kwargs)
            if self.hooks_s:
                self.hooks_s[-1] += time.perf_counter() - start_s
            return result

        return timed

    def medians_s(self) -> tuple[float, float]:
        """Of what the hooks of a step took, and of the step."""
        pairs = zip(self.begun_s[WARM_UP:], self.begun_s[WARM_UP + 1 :], strict=False)
        return (
            statistics.median(self.hooks_s[WARM_UP:-1]),
            statistics.median(after - before for before, after in pairs),
        )


class Tiny(LightningModule):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss."""
        return self.net(batch[0]).square().mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


def in_lightning(callback: Callback, steps: int) -> tuple[float, float]:
    """Medians of the hooks and of the step in a fit."""
    clocked = Clocked(callback, first="on_train_batch_start")
    loader = DataLoader(TensorDataset(torch.randn(8 * steps, 32)), batch_size=8)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=CSVLogger(folder),
            log_every_n_steps=10,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
            callbacks=[callback],
        )
        trainer.fit(Tiny(), loader)
    return clocked.medians_s()


def in_hugging_face(callback: TrainerCallback, steps: int) -> tuple[float, float]:
    """Medians of the hooks and of the step in a training."""
    clocked = Clocked(callback, first="on_step_begin")
    config = LlamaConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2,
    )  # fmt: skip
    rows = [{"input_ids": torch.arange(16), "labels": torch.arange(16)} for _ in range(4 * steps)]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=steps, per_device_train_batch_size=4, logging_steps=20,
            use_cpu=True, report_to=[], save_strategy="no", disable_tqdm=True,
        )  # fmt: skip
        trainer = HuggingFaceTrainer(
            LlamaForCausalLM(config), arguments, train_dataset=rows, callbacks=[callback]
        )
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return clocked.medians_s()


def main() -> None:
    """Run the trainers in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="per fit")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)

    def monitor() -> Callback:
        return ThroughputMonitor(batch_size_fn=lambda batch: len(batch[0]), window_size=10)

    fits: dict[str, Callable[[], tuple[float, float]]] = {
        "Lightning: MFUCallback": lambda: in_lightning(
            LightningMFU(peak=1e12, telemetry=False), options.steps
        ),
        "Lightning: ThroughputMonitor": lambda: in_lightning(monitor(), options.steps),
        "Hugging Face: MFUCallback": lambda: in_hugging_face(
            HuggingFaceMFU(peak=1e12, telemetry=False), options.steps
        ),
    }
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in fits}
    for _ in range(options.rounds):
        for name, fit in fits.items():
            found[name].append(fit())
    print(f"{'host time per step':<32} {'hooks':>12} {'step':>12} {'ratio':>8}")
    for name, medians in found.items():
        hooks_s, step_s = (statistics.median(values) for values in zip(*medians, strict=True))
        print(
            f"{name:<32} {hooks_s * 1e6:>9.1f} us {step_s * 1e6:>9.1f} us {hooks_s / step_s:>8.4f}"
        )


if __name__ == "__main__":
    main()
