"""What a breakdown says first: its parts as shares that add up, and the loss to fix first.

The table shows losses by their size; what to fix first is decided by what can be gained::

    idle time, exposed communication and copies    all of it: it can go to zero
    other compute, recompute, optimizer, work      half: it can be fused, or done less often or in
      beside the model, slower dtypes                a faster dtype, and some of it stays
    matrix below peak                              half of what a rate of 75 % of the peak saves
    the dtype of all matrix work                   half of what the fastest dtype saves at its peak

75 % is what the best kernels reach: FlashAttention-3 740 of 989 TFLOP/s (Shah et al. 2024,
abstract). So of 100 ns of products at 60 % of the peak, 20 could be saved, and 10 count.
"""

from __future__ import annotations

from mfu_torch.records.breakdown import Breakdown, BreakdownEntry, Bucket

LABELS: dict[str, str] = {
    "matrix": "matrix kernels",
    "matrix/model_flops": "model FLOPs at peak (MFU)",
    "matrix/recompute": "recompute at peak",
    "matrix/optimizer": "optimizer's products at peak",
    "matrix/beside_model": "beside the model, at peak",
    "matrix/low_rate_dtype": "slower dtype",
    "matrix/unknown_flops": "matrix, FLOPs unknown",
    "matrix/below_peak": "matrix below peak",
    "other_compute": "other compute",
    "exposed_communication": "exposed communication",
    "exposed_memcpy": "exposed copies",
    "idle/data_wait": "idle: data wait",
    "idle/host_sync": "idle: host sync",
    "idle/alloc": "idle: allocator",
    "idle/launch_bound": "idle: launch-bound",
    "idle/device_gap": "idle: device gaps",
    "idle/queued_wait": "idle: queued, not begun",
    "idle/unknown": "idle: cause unknown",
    "precision": "mixed precision",
}
"""Bucket -> how it is called on paper."""

NO_LOSS = ("matrix", "matrix/model_flops", "matrix/unknown_flops")
"""What cannot be called a loss: the goal, and time whose FLOPs nobody knows."""

LARGE = 0.01
"""Share of the time from which a loss is worth a line."""

GOOD_RATE = 0.75
"""Share of the peak that good kernels reach, and few exceed: nothing to fix there."""

_SHRINKS = 0.5  # of work that can become less, and does not vanish
_AT_PEAK = (
    *("matrix/model_flops", "matrix/recompute", "matrix/optimizer", "matrix/beside_model"),
    "matrix/low_rate_dtype",
)
_FAR = 10  # times as large: what is not known comes before what is

_UNITS = 2**20
"""Of a share. TensorBoard keeps 24 bits of a number: sums of these shares are exact there, too."""


def shares(found: Breakdown) -> dict[str, float]:
    """Share of the wall time by bucket, in multiples of 2**-20 that sum to exactly 1.

    Largest remainder: each is rounded down, and those that lost most are rounded up. Empty where
    there is no wall time.
    """
    if found.wall_ns <= 0:
        return {}
    pairs = [divmod(bucket.time_ns * _UNITS, found.wall_ns) for bucket in found.buckets]
    whole = [units for units, _ in pairs]
    by_loss = sorted(range(len(pairs)), key=lambda at: -pairs[at][1])
    for at in by_loss[: _UNITS - sum(whole)]:
        whole[at] += 1
    return {bucket.name: units / _UNITS for bucket, units in zip(found.buckets, whole, strict=True)}


def label(name: str) -> str:
    """``idle/data_wait`` -> ``idle: data wait``."""
    return LABELS.get(name, name)


def losses(found: Breakdown) -> list[Bucket]:
    """What is not the goal, the largest first."""
    lost = [bucket for bucket in found.buckets if bucket.name not in NO_LOSS and bucket.time_ns > 0]
    return sorted(lost, key=lambda bucket: -bucket.time_ns)


def undivided(found: Breakdown) -> Bucket | None:
    """Matrix time that may be lost, as nobody can say how much of it is."""
    named = {bucket.name: bucket for bucket in found.buckets if bucket.time_ns > 0}
    return named.get("matrix") or named.get("matrix/unknown_flops")


def gain_ns(found: Breakdown, loss: Bucket) -> float:
    """Time that fixing a loss can be expected to save, by the rule of this module."""
    kind = loss.name.partition("/")[0]
    if kind == "idle" or kind.startswith("exposed_"):
        return loss.time_ns
    if loss.name != "matrix/below_peak":
        return _SHRINKS * loss.time_ns
    ideal_ns = sum(one.time_ns for one in found.buckets if one.name in _AT_PEAK)
    return _SHRINKS * max(0.0, loss.time_ns - ideal_ns * (1 / GOOD_RATE - 1))


def first_loss(found: Breakdown) -> Bucket | None:
    """The loss to fix first: the one that most can be gained from.

    ``None`` where that is next to nothing, or little beside what nobody knows. It can be
    ``found.precision``, which is none of the buckets.
    """
    lost = [*losses(found), *([found.precision] if found.precision else [])]
    worst = max(lost, key=lambda loss: gain_ns(found, loss), default=None)
    if worst is None or gain_ns(found, worst) < LARGE * found.wall_ns:
        return None
    unknown = undivided(found)
    return worst if unknown is None or _FAR * worst.time_ns >= unknown.time_ns else None


def steps_text(steps: tuple[int, ...]) -> str:
    """``(101, 102, 103)`` -> ``"steps 101-103"``."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"steps {steps[0]}-{steps[-1]}"


def dilation_text(entry: BreakdownEntry) -> str:
    """By how much tracing slowed the steps down: ``"traced steps took 1.12x as long"``."""
    if entry.dilation is None:
        return "no steady step was near to compare the traced ones with"
    return f"traced steps took {entry.dilation:.2f}x as long as the steady ones around them"


def printable(text: str) -> str:
    """Without what could move a cursor or break a line: there are names of kernels in it."""
    return "".join(char if char.isprintable() else "?" for char in text)
