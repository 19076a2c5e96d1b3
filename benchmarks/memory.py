"""Memory of a long run: what Python holds after 20,000 steps and after 100,000 of the same run."""

from __future__ import annotations

import gc
import tempfile
import tracemalloc

import torch

from mfu_torch import Meter


class Silent:
    """A sink that writes nothing."""

    def write(self, record: object) -> None:
        """Drop the record."""

    def close(self) -> None:
        """Nothing to close."""


def main() -> None:
    """Run the steps and print what Python holds."""
    model = torch.nn.Linear(8, 8)
    x = torch.ones(4, 8)
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter(model, peak=1e12, log_dir=folder, sinks=[Silent()])
        held = []
        for _ in range(1000):  # imports, caches and pools are full after this
            with meter.step(tokens=32):
                model(x)
        tracemalloc.start()
        for steps in (20_000, 80_000):
            for _ in range(steps):
                with meter.step(tokens=32):
                    model(x)
            meter._recorder.flush()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        meter.close()
    early, late = held
    print(f"held after  20,000 steps: {early / 1e3:8.1f} kB")
    print(f"held after 100,000 steps: {late / 1e3:8.1f} kB ({late / early:.2f} times)")


if __name__ == "__main__":
    main()
