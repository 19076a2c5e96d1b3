"""Words for the parts of a step, and which of its losses is the largest."""

from __future__ import annotations

from mfu_torch.insight.breakdown.printed import hint_beside, says_share, short_share
from mfu_torch.insight.breakdown.totals import PEAKS_DIFFER
from mfu_torch.records.breakdown import Breakdown, Bucket, Kernel
from mfu_torch.records.losses import (
    GOOD_RATE,
    LARGE,
    first_loss,
    gain_ns,
    label,
    losses,
    printable,
    undivided,
)

EDGES: dict[str, str] = {
    "gpu": "a step begins with its first work on the GPU",
    "cpu": "a step begins with its annotation on the CPU",
    "trace": "no steps are marked: the whole trace is one",
}

_ENGINE = "autograd::engine::evaluate_function: "
_BELOW_PEAK = "matrix/below_peak"
_SHOWN = 3
_UNKNOWN = "matrix kernels, and how much of that is lost"


def steps_of(found: Breakdown) -> int:
    """Number of steps; a trace without any is one."""
    return max(1, len(found.step_ns))


def ms_per_step(time_ns: float, found: Breakdown) -> float:
    """Of all steps to milliseconds of a mean step."""
    return time_ns / steps_of(found) / 1e6


def bucket_of(found: Breakdown, name: str) -> Bucket | None:
    """The bucket of this name, if it is not empty."""
    return next((one for one in found.buckets if one.name == name), None)


def hfu_of(found: Breakdown) -> float | None:
    """HFU of the traced steps: MFU, recompute and products of the optimizer."""
    mfu = mfu_of(found)
    beyond = sum(share_of(found, name) for name in ("matrix/recompute", "matrix/optimizer"))
    return None if mfu is None else mfu + beyond


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
    """The three largest and the one to fix first, of at least 1 % of the time."""
    first, every = first_loss(found), losses(found)
    shown = [one for at, one in enumerate(every) if at < _SHOWN or one is first]
    return [one for one in shown if one.time_ns >= LARGE * found.wall_ns]


def fix_first(found: Breakdown) -> str:
    """One sentence: the loss that most can be gained from, how large it is, and what to try."""
    worst, unknown = first_loss(found), _undivided(found)
    if worst is None:
        return _no_first(found, unknown)
    text = f"Fix first: {label(worst.name)}"
    hint = printable(hint_beside(found, worst.name, worst.hint))
    is_part = bucket_of(found, worst.name) is not None
    if not says_share(hint) and is_part:
        text += f", {short_share(found, worst.name)} of the time"
    if hint and not hint.endswith("."):
        hint += "."
    but = ""
    if is_part and unknown is not None and unknown[0].time_ns > worst.time_ns:
        but = f"But {short_share(found, unknown[0].name)} are {_UNKNOWN} {unknown[1]}."
    return f"{text}. {hint} {but}".replace("  ", " ").rstrip()


def _no_first(found: Breakdown, unknown: tuple[Bucket, str] | None) -> str:
    worst = next(iter(losses(found)), None)
    largest = ""
    if worst is not None:
        largest = f"{label(worst.name)}, {short_share(found, worst.name)} of the time"
    if unknown is not None:
        share = short_share(found, unknown[0].name)
        text = f"Fix first: not known. {share} of the time is in {_UNKNOWN} {unknown[1]}."
        return f"{text} Of the rest most is {largest}." if largest else text
    if worst is not None and worst.name == _BELOW_PEAK and not gain_ns(found, worst):
        return (
            f"Fix first: nothing stands out. The largest loss is {largest}: these kernels reach "
            f"{100 * GOOD_RATE:.0f} % of the peak or more, as good ones do."
        )
    if largest:
        return f"Fix first: nothing stands out; the largest loss is {largest}."
    return "Fix first: no loss was found; what the steps do beside matrix kernels takes no time."


def _undivided(found: Breakdown) -> tuple[Bucket, str] | None:
    """Matrix time that may be lost, as nobody can say how much of it is; and why not."""
    one = undivided(found)
    if one is None:
        return None
    if one.name == "matrix":
        return one, f"is not known without {lacking(found)}"
    return one, "is not known, for their FLOPs are not"


def lacking(found: Breakdown) -> str:
    """What an MFU lacks, where it is not known."""
    seen = found.coverage
    if PEAKS_DIFFER in found.warnings:
        return "one peak: those of the ranks differ (explain a rank alone, or give --peak)"
    if seen.matrix_ns and not seen.matrix_known_ns:
        if found.model_flops is None:
            return "shapes (record_shapes=True), or --model-flops"
        return "a peak (--peak), or a dtype that has one (--dtype)"
    if 2 * seen.matrix_known_ns < seen.matrix_ns:
        return "a peak (--peak, or --device), and FLOPs (--model-flops)"
    return "a peak (--peak, or --device)"


def kernel_name(kernel: Kernel, columns: int) -> str:
    """A name that fits: without return type and PyTorch's namespace, cut at its end."""
    name = printable(kernel.name).removeprefix("void ").replace("at::native::", "")
    name = name.removeprefix(_ENGINE).removeprefix("torch::autograd::")
    name = name.replace("(anonymous namespace)::", "").strip() or "(no name)"
    return name if len(name) <= columns else f"{name[: columns - 3]}..."
