"""A loop of large matrix multiplies under the meter, timed a second time by events of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mfu_torch import Meter
from mfu_torch.records import FlopCount, Run

LAYERS = 8


class GemmRun(NamedTuple):
    """The same steps, as the meter has them and as the loop's own events do.

    Attributes:
        flops: Model FLOPs that the meter counted in them.
        meter_s: Their durations in the meter's run, summed.
        by_hand: FLOPs by arithmetic.
        events_s: From the event at the start of the first to the one after the last.
    """

    steps: int
    flops: int
    meter_s: float
    by_hand: int
    events_s: float
    run: Run

    @property
    def meter_flops_per_s(self) -> float:
        return self.flops / self.meter_s

    @property
    def events_flops_per_s(self) -> float:
        return self.by_hand / self.events_s


def gemm_layers(side: int, device: str) -> tuple[torch.nn.Module, torch.Tensor]:
    """Linear layers and their input, all ``(side, side)`` in bf16, that keep numbers of size 1."""
    layers = [torch.nn.Linear(side, side, bias=False, dtype=torch.bfloat16) for _ in range(LAYERS)]
    for layer in layers:
        torch.nn.init.normal_(layer.weight, std=side**-0.5)
    x = torch.randn(side, side, dtype=torch.bfloat16)
    return torch.nn.Sequential(*layers).to(device), x.to(device)


def metered_gemms(
    model: torch.nn.Module,
    x: torch.Tensor,
    steps: int,
    mark: Callable[[], Any],
    after_step: Callable[[], None] = lambda: None,
    **arguments: Any,
) -> GemmRun:
    """Run ``steps`` steps of one forward without gradients, which is multiplies and nothing else.

    Args:
        mark: Records an event behind the work that is queued.
        after_step: Called inside each step, after its multiplies.
        **arguments: Of the :class:`Meter`.
    """
    events = []
    with Meter(model, sinks=[], log_dir="", **arguments) as meter, torch.no_grad():
        for _ in range(steps):
            with meter.step():
                events.append(mark())
                model(x)
                after_step()
    return compared(meter.run, events, 2 * x.shape[0] * x.shape[1] * x.shape[1] * LAYERS)


def compared(run: Run, events: list[Any], by_hand: int) -> GemmRun:
    """The longest stretch of steady steps, without the last one, which nothing follows.

    ``by_hand`` are the FLOPs of one step.
    """
    records = list(run.steps)
    first = last = 0
    for steady, stretch in itertools.groupby(records[1:-1], key=lambda step: not step.excluded):
        indices = [step.index for step in stretch]
        if steady and len(indices) > last - first:
            first, last = indices[0], indices[-1] + 1
    chosen = records[first:last]
    assert chosen, f"no steady step among {len(records)}"
    counts = [run.count_of(step) for step in chosen]
    assert all(isinstance(count, FlopCount) for count in counts), counts
    events[last].synchronize()
    return GemmRun(
        steps=len(chosen),
        flops=sum(count.model for count in counts if isinstance(count, FlopCount)),
        meter_s=sum(step.duration_s for step in chosen),
        by_hand=by_hand * len(chosen),
        events_s=events[first].elapsed_time(events[last]) / 1e3,
        run=run,
    )


def expected_tensor_active(
    flops_per_s: float, peak_flops_per_s: float, stated_hz: float, held_hz: float
) -> float:
    """The share of cycles in which tensor pipes have to be busy for a rate, at the clock held.

    791.52 TFLOP/s of a peak of 989.4 stated at 1830 MHz, held 1600 MHz: 0.8 x 1830/1600 = 0.915.
    """
    return flops_per_s / peak_flops_per_s * stated_hz / held_hz
