"""Words for the parts of a step, and which of its losses is the largest."""

from __future__ import annotations

import re

from mfu_torch.records.breakdown import Breakdown, Bucket, Kernel
from mfu_torch.records.losses import label, losses, printable
from mfu_torch.units import percent

EDGES: dict[str, str] = {
    "gpu": "a step begins with its first work on the GPU",
    "cpu": "a step begins with its annotation on the CPU",
    "trace": "no steps are marked: the whole trace is one",
}

_LARGE = 0.01
_SHARE = re.compile(r"[\d.]+ % of the time")


def steps_of(found: Breakdown) -> int:
    """Number of steps; a trace without any is one."""
    return max(1, len(found.step_ns))


def ms_per_step(time_ns: float, found: Breakdown) -> float:
    """Of all steps to milliseconds of a mean step."""
    return time_ns / steps_of(found) / 1e6


def bucket_of(found: Breakdown, name: str) -> Bucket | None:
    """The bucket of this name, if it is not empty."""
    return next((one for one in found.buckets if one.name == name), None)


def share_of(found: Breakdown, name: str) -> float:
    """Share of the wall time of a bucket; 0 where it is empty."""
    one = bucket_of(found, name)
    return one.time_ns / found.wall_ns if one is not None and found.wall_ns else 0.0


def mfu_of(found: Breakdown) -> float | None:
    """MFU of the traced steps; ``None`` without a peak."""
    if found.peak is None or not found.wall_ns:
        return None
    return share_of(found, "matrix/model_flops")


def large_losses(found: Breakdown) -> list[Bucket]:
    """The three largest, those of at least 1 % of the time: whose kernels are worth a line."""
    return [one for one in losses(found)[:3] if one.time_ns >= _LARGE * found.wall_ns]


def fix_first(found: Breakdown) -> str:
    """One sentence: the largest loss, how large it is, and what to try."""
    lost = losses(found)
    if not lost or not found.wall_ns:
        return (
            "Fix first: no loss was found; what the steps do beside matrix kernels takes no time."
        )
    worst = lost[0]
    text, hint = f"Fix first: {label(worst.name)}", printable(worst.hint)
    if not _SHARE.match(hint):
        text += f", {percent(worst.time_ns / found.wall_ns)} of the time"
    if hint and not hint.endswith("."):
        hint += "."
    return f"{text}. {hint} {_but(found, worst.time_ns)}".replace("  ", " ").rstrip()


def lacking(found: Breakdown) -> str:
    """What an MFU lacks, where it is not known."""
    seen = found.coverage
    if seen.matrix_ns and not seen.matrix_known_ns:
        if found.model_flops is None:
            return "shapes (record_shapes=True), or --model-flops"
        return "a peak (--peak), or a dtype that has one (--dtype)"
    if 2 * seen.matrix_known_ns < seen.matrix_ns:
        return "a peak (--peak, or --device), and FLOPs (--model-flops)"
    return "a peak (--peak, or --device)"


def _but(found: Breakdown, worst_ns: int) -> str:
    """What may be a larger loss than the largest that is known."""
    undivided = {
        "matrix": f"is not known without {lacking(found)}",
        "matrix/unknown_flops": "is not known, for their FLOPs are not",
    }
    for name, why in undivided.items():
        one = bucket_of(found, name)
        if one is not None and one.time_ns > worst_ns:
            share = percent(one.time_ns / found.wall_ns)
            return f"But {share} are matrix kernels, and how much of that is lost {why}."
    return ""


def kernel_name(kernel: Kernel, columns: int) -> str:
    """A name that fits: without return type and PyTorch's namespace, cut at its end."""
    name = printable(kernel.name).removeprefix("void ").replace("at::native::", "")
    name = name.replace("(anonymous namespace)::", "").strip() or "(no name)"
    return name if len(name) <= columns else f"{name[: columns - 3]}..."
