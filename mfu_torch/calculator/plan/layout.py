"""How a model and its batch are spread over devices, and what cannot be."""

from __future__ import annotations

from typing import Literal

from mfu_torch.flops.formulas.decoder import Decoder
from mfu_torch.flops.formulas.pairs import whole
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, LatentAttention
from mfu_torch.flops.formulas.terms import Recompute
from mfu_torch.records import Record

Kernel = Literal["fused", "unfused"]
Hidden = Literal["tp", "cp", "ep", "pp", "dp"]
Order = Literal["tp-cp-dp-pp", "tp-cp-pp-dp"]

KERNELS: tuple[Kernel, ...] = ("fused", "unfused")
HIDDEN: tuple[Hidden, ...] = ("tp", "cp", "ep", "pp", "dp")
ORDERS: tuple[Order, ...] = ("tp-cp-dp-pp", "tp-cp-pp-dp")
POLICIES: tuple[Recompute, ...] = ("none", "selective", "full")


class ContradictionError(ValueError):
    """A layout that cannot be; one line says what was seen, and what is expected."""


class Layout(Record, frozen=True, kw_only=True):
    """Degrees of parallelism, micro-batches, and what is recomputed or hidden.

    Attributes:
        gpus: All of them.
        tp: Tensor parallel.
        pp: Pipeline stages.
        cp: Context parallel.
        ep: Expert parallel, of the data-parallel ranks.
        virtual_stages: Chunks of layers on each stage: v of the interleaved schedule.
        micro_batches: Of each pipeline, in a step.
        micro_batch_size: Sequences.
        seq: Tokens of a sequence.
        recompute: ``none``, ``selective`` (scores and values) or ``full`` (every layer).
        sequence_parallel: Whether what tensor parallelism does not split is split by tokens.
        zero: Which of optimizer state (1), gradients (2) and parameters (3) are spread over the
            data-parallel ranks; 0: none.
        attention: ``fused`` (FlashAttention: scores that the mask hides are not computed, none
            are stored) or ``unfused``.
        overlap: Whose communication runs beside compute.
        ends_as_layers: Whether embedding and head take the place of a layer each.
        order: Of ranks, from neighbours outwards.
    """

    gpus: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    micro_batches: int = 1
    micro_batch_size: int = 1
    seq: int = 2048
    recompute: Recompute = "none"
    sequence_parallel: bool = False
    zero: int = 0
    attention: Kernel = "fused"
    overlap: tuple[Hidden, ...] = ("dp",)
    ends_as_layers: bool = False
    order: Order = "tp-cp-dp-pp"

    def __post_init__(self) -> None:
        for name in ("gpus", "tp", "pp", "cp", "ep", "virtual_stages", "micro_batches"):
            whole(name, getattr(self, name))
        whole("micro_batch_size", self.micro_batch_size)
        whole("seq", self.seq)
        _one_of("recompute", self.recompute, POLICIES)
        _one_of("attention", self.attention, KERNELS)
        _one_of("order", self.order, ORDERS)
        _one_of("zero", self.zero, (0, 1, 2, 3))
        for one in self.overlap:
            _one_of("overlap", one, HIDDEN)

    @property
    def dp(self) -> int:
        """Data parallel: what the others leave."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def global_batch(self) -> int:
        """Sequences of a step."""
        return self.micro_batches * self.micro_batch_size * self.dp

    @property
    def tokens(self) -> int:
        """Of a micro-batch, on one rank."""
        return self.micro_batch_size * self.seq // self.cp

    def slots(self, model: Decoder) -> int:
        """Layers to spread over the stages, embedding and head among them if they count."""
        return model.layers + (2 if self.ends_as_layers else 0)

    def check(self, model: Decoder, dp: int | None = None) -> None:
        """Whether a model can be laid out so.

        Raises:
            ContradictionError: If it cannot.
        """
        self._check_gpus(dp)
        self._check_schedule(model)
        if self.seq % self.cp:
            raise ContradictionError(f"seq {self.seq} is no multiple of cp {self.cp}")
        if self.sequence_parallel and self.tp == 1:
            raise ContradictionError("sequence parallelism splits over tp ranks; tp is 1")
        parts = [part for block in model.blocks for part in block.parts]
        if self.ep > 1 and not any(isinstance(part, Experts) for part in parts):
            raise ContradictionError(f"ep {self.ep} spreads experts, and the model has none")
        for part in parts:
            self._check_part(part)

    def _check_gpus(self, dp: int | None) -> None:
        product = self.tp * self.pp * self.cp
        spelled = f"tp {self.tp} x pp {self.pp}" + (f" x cp {self.cp}" if self.cp > 1 else "")
        if self.gpus % product:
            raise ContradictionError(
                f"{spelled} is {product}, which does not divide {self.gpus} GPUs"
            )
        if dp is not None and dp != self.dp:
            raise ContradictionError(
                f"{spelled} x dp {dp} is {product * dp}, not {self.gpus} GPUs; "
                f"expected dp {self.dp}"
            )
        if self.dp % self.ep:
            raise ContradictionError(
                f"ep {self.ep} does not divide the {self.dp} data-parallel ranks"
            )

    def _check_schedule(self, model: Decoder) -> None:
        chunks, slots = self.pp * self.virtual_stages, self.slots(model)
        if slots % chunks:
            what = f"{model.layers} layers"
            if self.ends_as_layers:
                what += ", embedding and head"
            v = f" x {self.virtual_stages} virtual stages" if self.virtual_stages > 1 else ""
            raise ContradictionError(
                f"{what} cannot be spread evenly over pp {self.pp}{v}; expected a multiple of "
                f"{chunks}"
            )
        if self.virtual_stages > 1 and self.pp == 1:
            raise ContradictionError(f"{self.virtual_stages} virtual stages need pp above 1")
        if self.virtual_stages > 1 and self.micro_batches % self.pp:
            raise ContradictionError(
                f"{self.micro_batches} micro-batches over pp {self.pp}: the interleaved schedule "
                "needs a multiple of pp"
            )

    def _check_part(self, part: object) -> None:
        sizes: list[tuple[str, int]] = []
        if isinstance(part, Attention | LatentAttention):
            sizes.append(("heads", part.heads))
        if isinstance(part, MLP | Experts):
            sizes.append(("MLP width", part.width))
        for what, size in sizes:
            if size % self.tp:
                raise ContradictionError(f"{what} {size} is no multiple of tp {self.tp}")
        if isinstance(part, Experts) and part.experts % self.ep:
            raise ContradictionError(f"{part.experts} experts are no multiple of ep {self.ep}")
        if isinstance(part, Attention) and max(part.kv_heads, self.tp) % min(
            part.kv_heads, self.tp
        ):
            raise ContradictionError(
                f"tp {self.tp} and {part.kv_heads} key heads: neither divides the other"
            )


def _one_of(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        listed = ", ".join(map(str, choices))
        raise ValueError(f"{name} is {value!r}; expected one of {listed}")
