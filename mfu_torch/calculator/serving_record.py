"""What is known of a step of inference, set against both peaks."""

from __future__ import annotations

from typing import Literal

from mfu_torch.records import Record

Mode = Literal["prefill", "decode"]


class Serving(Record, frozen=True, kw_only=True):
    """One step of inference, and the least time it can take.

    Attributes:
        name: Of the model.
        mode: ``prefill`` or ``decode``.
        batch: Sequences.
        context: Tokens of a prompt, or keys that a new token sees.
        devices: They share the work evenly.
        flops_per_s: Peak of one device.
        bytes_per_s: Memory bandwidth of one device, ``None`` where it is not known.
        flops: Of the step.
        weight_bytes_read: Of the weights that the step's tokens meet.
        cache_bytes_moved: Of the KV cache and states, read and written.
        intensity: FLOP for a byte.
        ridge: FLOP for a byte above which compute binds.
        binds: ``compute`` or ``memory``; ``None`` without a bandwidth.
        compute_s: At the peak.
        memory_s: At the bandwidth.
        time_s: The longer of both, no step is faster; ``None`` without a bandwidth.
        per: What ``tokens`` are: tokens, or the samples of a model that is counted in them.
        tokens: Of the step, all sequences together.
        best_tokens_per_s: What ``time_s`` allows.
        roofline_batch: The smallest batch at which compute binds; ``None``: none does.
        roofline_note: Why there is none.
        needed_bytes: All weights and the cache.
        memory_bytes: Of all devices, ``None`` where it is not known.
        fits: Whether weights and cache fit; ``None`` where that is not known.
        largest_batch: That fits; 0: not even the weights do. ``None`` where that is not known, or
            no cache is kept.
        tokens_per_s: As measured, if it was.
        mfu: Of that measurement.
        mbu: Of that measurement.
        assumptions: One sentence each.
        notes: What else has to be said, likewise.
    """

    name: str
    mode: Mode
    batch: int
    context: int
    devices: int
    flops_per_s: float
    bytes_per_s: float | None
    flops: int
    weight_bytes_read: float
    cache_bytes_moved: float
    intensity: float
    ridge: float | None
    binds: Literal["compute", "memory"] | None
    compute_s: float
    memory_s: float | None
    time_s: float | None
    per: Literal["token", "sample"]
    tokens: int
    best_tokens_per_s: float | None
    roofline_batch: int | None
    roofline_note: str
    needed_bytes: float
    memory_bytes: float | None = None
    fits: bool | None = None
    largest_batch: int | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    mbu: float | None = None
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def bytes_moved(self) -> float:
        """Weights and cache."""
        return self.weight_bytes_read + self.cache_bytes_moved
