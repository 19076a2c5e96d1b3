"""The calculator from Python: the same inputs as on the command line, as texts or numbers."""

from __future__ import annotations

from typing import Any

from mfu_torch.calculator.answer import Answer
from mfu_torch.calculator.question import Number, read_question
from mfu_torch.calculator.solve import solve


def calculate(
    *,
    model_flops_per_step: Number | None = None,
    params: Number | None = None,
    model: Any = None,
    mode: str | None = None,
    seq: Number | None = None,
    image_size: Number | None = None,
    batch: Number | None = None,
    convention: str | None = None,
    recompute: str | None = None,
    step_s: Number | None = None,
    tokens_per_s: Number | None = None,
    tokens_per_s_per_device: Number | None = None,
    achieved_flops_per_s: Number | None = None,
    samples_per_s: Number | None = None,
    tokens_per_step: Number | None = None,
    samples_per_step: Number | None = None,
    devices: Number | None = None,
    peak_flops_per_s: Number | None = None,
    device: str | None = None,
    dtype: str | None = None,
    mfu: Number | None = None,
    hfu: Number | None = None,
    token_budget: Number | None = None,
    within_s: Number | None = None,
    device_hours: Number | None = None,
    price_per_device_hour: Number | None = None,
) -> Answer:
    """MFU = FLOPs x rate / (devices x peak), solved for the one that is not given.

    The arguments are the fields of :class:`Question`, as numbers in SI units or as texts with
    theirs: ``"70B"``, ``"1.2 s"``, ``"989 TFLOP/s"``, ``"40 %"``.

        >>> from mfu_torch.calculator import calculate
        >>> answer = calculate(
        ...     params="70B", mode="inference", tokens_per_s=2000, peak_flops_per_s="989 TFLOP/s"
        ... )
        >>> round(answer.mfu, 4)
        0.2831

    Of an MFU and no throughput it finds the throughput:

        >>> planned = calculate(params=70e9, mfu="40 %", devices=1024, peak_flops_per_s=989e12)
        >>> round(planned.tokens_per_s_per_device)
        942

    Raises:
        InputError: If an argument is malformed, superfluous or missing, or two contradict each
            other. It is a ValueError.
    """
    return solve(read_question(dict(locals())))
