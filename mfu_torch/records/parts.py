"""Where the time of one step went, as marks on the run's clock tell, without any trace."""

from __future__ import annotations

import msgspec


class StepParts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Seconds of the parts of a step. What is left of its time inside is none of them.

    Attributes:
        forward_s: Calls of the models, backwards inside of them taken out; ``None`` where no call
            was seen.
        loss_s: From the end of a forward to the backward that follows it: the loss, and what else
            the loop does there. ``None`` where no forward was seen; where it was announced
            (``Meter.micro_batch``, Lightning's ``training_step``) the loss is in it.
        backward_s: The engine of autograd, what it recomputes included.
        optimizer_s: Steps of optimizers (``torch.optim.Optimizer`` and what derives from it),
            their closures taken out.
        tail_s: Between leaving the step and the next one, pauses taken out.
        lead_s: Work that was queued on the device when the loop left the step, at least; ``None``
            on the CPU.
        lead_most_s: Likewise, the most at any moment that was looked at.
    """

    forward_s: float | None
    loss_s: float | None
    backward_s: float
    optimizer_s: float
    tail_s: float
    lead_s: float | None = None
    lead_most_s: float | None = None
