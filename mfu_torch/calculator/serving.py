"""Inference against two peaks: FLOP/s and memory bandwidth, and which of them binds.

    compute time  FLOPs of a step / (devices x FLOP/s)
    memory time   bytes of a step / (devices x bytes/s)
    roofline      the longer of both: no step is faster (Williams et al. 2009)

A step is a prefill of the whole batch, or one more token for each of its sequences.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol

from mfu_torch.calculator.serving_record import Mode, Serving
from mfu_torch.calculator.serving_table import render
from mfu_torch.flops.formulas import inference
from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.decoder import Decoder, Parameters
from mfu_torch.flops.formulas.inference import Latent, Work
from mfu_torch.flops.formulas.pairs import PairRule
from mfu_torch.flops.formulas.parts import Experts, LatentAttention
from mfu_torch.utilization import mbu, utilization

__all__ = ["Described", "Mode", "Serving", "render", "serve"]

_LARGEST_BATCH = 1 << 40
"""No batch above this is looked for: it is more tokens than any device holds."""


_LATENT_TEXT: dict[Latent, str] = {
    "absorbed": "the cache holds latents, the up-projection is applied to query and result",
    "expanded": "the cache holds the keys and values of all heads",
    "recomputed": "the cache holds latents, all keys and values are computed from them each step",
}


class Described(Protocol):
    """A model with its name."""

    @property
    def name(self) -> str:
        """As it is known."""
        ...

    @property
    def model(self) -> Architecture:
        """Its sizes."""
        ...


def serve(
    model: Described,
    *,
    mode: Mode,
    batch: int,
    context: int,
    devices: int = 1,
    flops_per_s: float,
    bytes_per_s: float | None,
    weight_bytes: float = 2,
    kv_bytes: float = 2,
    tokens_per_s: float | None = None,
    memory_bytes: float | None = None,
    attention: PairRule = "full",
    latent: Latent = "absorbed",
) -> Serving:
    """A step of inference: its FLOPs and bytes, what binds, and what was reached of it.

    Args:
        model: With its name.
        mode: ``prefill``: the batch of prompts at once; ``decode``: one more token for each.
        batch: Sequences.
        context: Tokens of a prompt; of ``decode``, keys that the token sees, itself among them.
        devices: They share weights, cache and work evenly.
        flops_per_s: Peak of one device.
        bytes_per_s: Memory bandwidth of one device; ``None``: nothing is said about memory.
        weight_bytes: Of one weight: 2 for bf16, 1 for fp8 or int8, 0.5 for 4 bits.
        kv_bytes: Of one cached number.
        tokens_per_s: Measured, of all sequences and devices together; of a prefill, tokens of
            prompts.
        memory_bytes: Of one device.
        attention: Which scores of a prefill count.
        latent: How multi-head latent attention decodes.

    Raises:
        ValueError: If an argument is not valid, or the model cannot decode.
    """
    if mode not in ("prefill", "decode"):
        raise ValueError(f"mode is {mode!r}; expected prefill or decode")
    _check_above_0(
        devices=devices,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        tokens_per_s=tokens_per_s,
        memory_bytes=memory_bytes,
    )
    sizes = model.model
    work_of = _work_of(model.name, sizes, mode, context, attention, latent)
    work = work_of(batch)

    def bytes_of(one: Work) -> float:
        return one.weights_read * weight_bytes + one.cache_moved * kv_bytes

    ridge = None if bytes_per_s is None else flops_per_s / bytes_per_s
    numbers = f"bytes of a weight: {weight_bytes:g}, of a cached number: {kv_bytes:g}"
    memory = None if memory_bytes is None else devices * memory_bytes
    at, note = _roofline_batch(work_of, bytes_of, ridge)
    times = _times(work, bytes_of(work), devices, flops_per_s, bytes_per_s)
    return Serving(
        name=model.name,
        mode=mode,
        batch=batch,
        context=context,
        devices=devices,
        flops_per_s=flops_per_s,
        bytes_per_s=bytes_per_s,
        ridge=ridge,
        per=sizes.per,
        roofline_batch=at,
        roofline_note=note,
        assumptions=(numbers, *_assumptions(sizes, mode, batch, devices, attention, latent)),
        **_moved(work, weight_bytes, kv_bytes),
        **_reached(work, bytes_of(work), times[0], devices, bytes_per_s, tokens_per_s),
        **_pace(work, *times),
        **_room(_stored(sizes) * weight_bytes, work.cache_held * kv_bytes, batch, memory),
    )


def _moved(work: Work, weight_bytes: float, kv_bytes: float) -> dict[str, Any]:
    """What a step computes and moves."""
    read, moved = work.weights_read * weight_bytes, work.cache_moved * kv_bytes
    return {
        "flops": work.flops,
        "weight_bytes_read": read,
        "cache_bytes_moved": moved,
        "intensity": work.flops / (read + moved),
        "tokens": work.tokens,
    }


def _reached(
    work: Work,
    moved_bytes: float,
    compute_s: float,
    devices: int,
    bytes_per_s: float | None,
    tokens_per_s: float | None,
) -> dict[str, Any]:
    """What was measured, as shares of the peak and of the bandwidth."""
    step_s = None if tokens_per_s is None else work.tokens / tokens_per_s
    return {
        "tokens_per_s": tokens_per_s,
        "mfu": None if step_s is None else utilization(compute_s, step_s),
        "mbu": _mbu(moved_bytes, step_s, devices, bytes_per_s),
    }


def _pace(work: Work, compute_s: float, memory_s: float | None) -> dict[str, Any]:
    """What a step takes at best, and what binds it."""
    time_s = None if memory_s is None else max(compute_s, memory_s)
    return {
        "compute_s": compute_s,
        "memory_s": memory_s,
        "time_s": time_s,
        "binds": None if memory_s is None else "compute" if compute_s >= memory_s else "memory",
        "best_tokens_per_s": None if time_s is None else work.tokens / time_s,
    }


def _room(held: float, cache: float, batch: int, total: float | None) -> dict[str, Any]:
    """Whether weights and cache fit the memory of all devices."""
    needed = held + cache
    return {
        "needed_bytes": needed,
        "memory_bytes": total,
        "fits": None if total is None else needed <= total,
        "largest_batch": _largest_batch(held, cache / batch, total),
    }


def _check_above_0(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ValueError(f"{name} is {value}; expected a finite number above 0")


def _times(
    work: Work, moved: float, devices: int, flops_per_s: float, bytes_per_s: float | None
) -> tuple[float, float | None]:
    """Seconds of the FLOPs, and of the bytes where the bandwidth is known."""
    memory_s = None if bytes_per_s is None else moved / (devices * bytes_per_s)
    return work.flops / (devices * flops_per_s), memory_s


def _largest_batch(held: float, cache_of_one: float, total: float | None) -> int | None:
    """Sequences whose cache fits beside the weights."""
    if total is None or (cache_of_one == 0 and held <= total):
        return None
    return max(0, math.floor((total - held) / cache_of_one)) if held <= total else 0


def _mbu(
    moved: float, step_s: float | None, devices: int, bytes_per_s: float | None
) -> float | None:
    if step_s is None or bytes_per_s is None:
        return None
    return mbu(moved, step_s, devices * bytes_per_s)


WorkOf = Callable[[int], Work]


def _work_of(
    name: str,
    sizes: Architecture,
    mode: Mode,
    context: int,
    attention: PairRule,
    latent: Latent,
) -> WorkOf:
    if mode == "prefill":
        return lambda batch: inference.prefill(
            sizes, batch=batch, context=context, attention=attention
        )
    if not isinstance(sizes, Decoder):
        raise ValueError(
            f"{name} is no decoder ({type(sizes).__name__}), and only of decoders it is known here "
            "what one more token costs; expected mode prefill, which is its forward"
        )
    return lambda batch: inference.decode(sizes, batch=batch, context=context, latent=latent)


def _stored(sizes: Architecture) -> int:
    """Parameters that inference keeps in memory."""
    held: Parameters = sizes.parameters
    if isinstance(sizes, Decoder):
        held = inference.without_mtp(sizes).parameters
    return held.total


def _roofline_batch(
    work_of: WorkOf, bytes_of: Callable[[Work], float], ridge: float | None
) -> tuple[int | None, str]:
    """The smallest batch at which compute binds; else why there is none.

    Weights are read once whatever the batch, so intensity grows with it until what each sequence
    reads for itself outweighs them.
    """
    if ridge is None:
        return None, "the memory bandwidth is not known"

    def binds(batch: int) -> bool:
        work = work_of(batch)
        return work.flops >= ridge * bytes_of(work)

    if binds(1):
        return 1, ""
    above = 2
    while not binds(above):
        above *= 2
        if above > _LARGEST_BATCH:
            return None, _why_never(work_of(1), work_of(above), bytes_of, ridge)
    below = above // 2
    while above - below > 1:
        middle = (above + below) // 2
        below, above = (below, middle) if binds(middle) else (middle, above)
    return above, ""


def _why_never(one: Work, many: Work, bytes_of: Callable[[Work], float], ridge: float) -> str:
    limit = many.flops / bytes_of(many)
    return (
        f"memory-bound at any batch: even with the weights read for nothing, a sequence moves so "
        f"much cache ({one.cache_moved:.4g} numbers) that there are {limit:.3g} FLOP for a byte, "
        f"below the {ridge:.3g} of the device"
    )


def _assumptions(
    sizes: Architecture,
    mode: Mode,
    batch: int,
    devices: int,
    attention: PairRule,
    latent: Latent,
) -> list[str]:
    parts = (
        [part for block in sizes.blocks for part in block.parts]
        if isinstance(sizes, Decoder)
        else []
    )
    found = ["weights are read once a step, the cache once; activations stay on the chip"]
    if any(isinstance(part, Experts) for part in parts) and (mode == "prefill" or batch > 1):
        found.append("experts: tokens are routed evenly and independently, E(1 - (1 - k/E)^B) met")
    if any(isinstance(part, LatentAttention) for part in parts) and mode == "decode":
        found.append(f"multi-head latent attention, {latent}: {_LATENT_TEXT[latent]}")
    if sizes.per == "sample":
        found.append("a sample is computed whole, so the context changes nothing")
    elif mode == "prefill":
        found.append(f"attention {attention}; the head runs for every token of a prompt")
    if isinstance(sizes, Decoder) and sizes.mtp:
        found.append("layers for further tokens (MTP) do not run and are not loaded")
    if devices > 1:
        found.append("devices share weights, cache and work evenly; their traffic costs nothing")
    return found
