"""Two processes on the CPU, started by Lightning itself: run as a program, with a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "integrations")]


def main(folder: Path) -> None:
    from fake_clock import FakeClock
    from lightning_models import BATCH_S, PACKAGES, callback, module, package, rows, trainer
    from torch.distributed.fsdp import fully_shard

    pl = package(PACKAGES[0])

    def configure_model(self: Any) -> None:
        fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    shards = pl.strategies.ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "ddp": ("ddp", {}),
        "fsdp2": (shards, {"configure_model": configure_model}),
    }
    for name, (strategy, methods) in cases.items():
        clock = FakeClock()

        def training_step(self: Any, batch: Any, batch_idx: int, clock: FakeClock = clock) -> Any:
            # The second rank takes half the time: figures are of each rank's own device.
            clock.advance(BATCH_S / (1 + self.global_rank))
            return self.net(batch).sum()

        fit = trainer(
            pl,
            folder / name,
            callback(clock),
            logger=pl.loggers.CSVLogger(folder / name),
            strategy=strategy,
            devices=2,
            accumulate_grad_batches=2,
        )
        fit.fit(module(pl, training_step=training_step, **methods), rows(16))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
