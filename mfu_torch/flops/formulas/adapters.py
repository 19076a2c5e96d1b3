"""LoRA (Hu et al. 2021, arXiv:2106.09685, section 4.1): frozen weights, and trained detours.

    of a linear layer (i, o), tokens t, rank r: x W + x A B, A (i, r), B (r, o)
    forward       2 t (i o + i r + r o)
    backward      2 t i o                 frozen: the gradient of its input alone
                  4 t (i r + r o)         both gradients
    attention     its backward is whole: four products for two

A gradient flows back to the first detour, no further. So in the first layer with q and v adapted
the frozen q, k and v have no backward, the A of q and v have that of their weights alone, and of
the scores only that of q. Where activations are checkpointed, ``peft`` lets the embeddings'
output need a gradient (``enable_input_require_grads``): then the first layer is as any other.

Llama 3 8B, r = 16 on q and v, 4096 tokens: 6815744 trained parameters, and 149.2 TFLOP of 210.8.

NeMo counts 4 N for a token, and two thirds of attention: a shortcut, see the convention ``lora``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from mfu_torch.flops.formulas.architecture import Architecture
from mfu_torch.flops.formulas.configs.described import undescribed
from mfu_torch.flops.formulas.decoder import Block, Decoder, Parameters
from mfu_torch.flops.formulas.pairs import PairRule, Sequences, whole
from mfu_torch.flops.formulas.parts import MLP, Attention, Experts, LatentAttention, Part
from mfu_torch.flops.formulas.terms import ClosedForm, Linear, Term, added, times
from mfu_torch.records import Record

QUERIES = ("q", "q_down", "q_up")
KEYS = ("k", "kv_down", "kv_up")
VALUES = ("v", "kv_down", "kv_up")


class LoRA(Record, frozen=True, kw_only=True):
    """The training of a decoder's adapters.

    Attributes:
        model: The frozen model, a :class:`Decoder` of attention, MLPs and experts; also one that is
            described.
        rank: r.
        targets: Names of the linear layers that have a detour: ``q``, ``k``, ``v``, ``o``,
            ``gate``, ``up``, ``down``, ... Experts and their router stay frozen.
        input_gradient: Whether the embeddings' output needs a gradient.

    Raises:
        ValueError: If the rank is no whole number above 0, no layer that can be adapted has such a
            name, or the model is no decoder, has other parts (state spaces), or layers that
            predict further tokens.
    """

    model: Architecture
    rank: int
    targets: tuple[str, ...] = ("q", "v")
    input_gradient: bool = False

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "model", undescribed(self.model))
        whole("rank", self.rank)
        if not isinstance(self.input_gradient, bool):
            raise TypeError(f"input_gradient is {self.input_gradient!r}; expected true or false")
        if isinstance(self.targets, str):
            raise ValueError(f"targets is {self.targets!r}; expected a tuple of names")
        names = {w.name for _, w in self.decoder.linears() if w.role == "linear" and w.stored == 1}
        if not self.targets or (unknown := set(self.targets) - names):
            seen = ", ".join(sorted(unknown)) if self.targets else "empty"
            raise ValueError(f"targets: {seen}; expected some of {', '.join(sorted(names))}")
        for block in self.decoder.blocks:
            for part in block.parts:
                if not isinstance(part, Attention | LatentAttention | MLP | Experts):
                    raise ValueError(
                        f"the model has {type(part).__name__}; expected attention, MLPs and experts"
                    )
        if self.decoder.mtp:
            raise ValueError("the model predicts further tokens; expected one without mtp")

    @property
    def decoder(self) -> Decoder:
        """The frozen model.

        Raises:
            ValueError: If it is another architecture.
        """
        if not isinstance(self.model, Decoder):
            raise ValueError(f"model is of kind {type(self.model).__name__}; expected a Decoder")
        return self.model

    @property
    def per(self) -> Literal["token"]:
        """What its throughput is counted in."""
        return "token"

    @property
    def trained(self) -> int:
        """Parameters of the adapters: r (i + o) of each."""
        return sum(
            count * self.rank * (linear.inputs + linear.outputs)
            for count, linear in self.decoder.linears()
            if linear.name in self.targets
        )

    @property
    def parameters(self) -> Parameters:
        """Of the model and its adapters."""
        of_model = self.model.parameters
        return msgspec.structs.replace(
            of_model, weights=of_model.weights + self.trained, used=of_model.used + self.trained
        )

    def flops(
        self,
        batch: int = 1,
        seq: int | None = None,
        *,
        lengths: Iterable[int] | None = None,
        attention: PairRule = "full",
    ) -> ClosedForm:
        """FLOPs of a batch of ``batch`` sequences of ``seq`` tokens, or of these ``lengths``.

        Raises:
            ValueError: If the sizes are no whole numbers above 0.
        """
        sequences = Sequences.of(batch, seq, lengths)
        terms: list[Term] = []
        is_live = self.input_gradient
        for block in self.decoder.blocks:
            left = block.count
            while left:
                layer, after = self._layer(block, sequences, attention, is_live)
                # All layers behind the first adapter are alike.
                equal = left if after == is_live else 1
                terms += times(equal, layer)
                left, is_live = left - equal, after
        if self.decoder.has_head:
            # Frozen, behind an adapter in any case: one product backward, its input's gradient.
            head = self.decoder.head.term(sequences.tokens, in_layer=False, input_gradient=False)
            terms.append(head)
        return ClosedForm(terms=added(terms))

    def _layer(
        self, block: Block, sequences: Sequences, rule: PairRule, is_live: bool
    ) -> tuple[list[Term], bool]:
        layer: list[Term] = []
        for part in block.parts:
            terms, adapted = self._part(part, sequences, rule, is_live)
            layer += terms
            is_live = is_live or adapted
        if not block.repeats_last:
            layer[-1] = msgspec.structs.replace(layer[-1], is_last=True)
        return layer, is_live

    def _part(
        self, part: Part, sequences: Sequences, rule: PairRule, is_live: bool
    ) -> tuple[list[Term], bool]:
        """The terms of a part whose input needs a gradient or not; whether it has an adapter."""
        linears = part.linears(self.decoder.hidden)
        adapted = {linear.name for linear in linears}.intersection(self.targets)
        live = [
            is_live or bool(adapted.intersection(_before(linear, linears))) for linear in linears
        ]
        *first, last = [
            self._linear(linear, sequences.tokens, needed)
            for linear, needed in zip(linears, live, strict=True)
        ]
        cores = [_attended(core, adapted, is_live) for core in part.cores(sequences, rule)]
        return [*(term for terms in first for term in terms), *cores, *last], bool(adapted)

    def _linear(self, linear: Linear, tokens: int, is_live: bool) -> list[Term]:
        frozen = linear.term(tokens, input_gradient=False)
        terms = [frozen if is_live else msgspec.structs.replace(frozen, backward=0)]
        if linear.name in self.targets:
            down = Linear(name=f"{linear.name}_a", inputs=linear.inputs, outputs=self.rank)
            up = Linear(name=f"{linear.name}_b", inputs=self.rank, outputs=linear.outputs)
            terms += [down.term(tokens, input_gradient=is_live), up.term(tokens)]
        return terms


def lora(
    model: Architecture,
    *,
    rank: int = 16,
    targets: Iterable[str] = ("q", "v"),
    input_gradient: bool = False,
) -> LoRA:
    """The training of adapters of a decoder: ``lora(model_of("llama-3-8b"), rank=16)``.

    Args:
        model: The frozen model: a :class:`Decoder`, or one that is described.
        rank: r.
        targets: As in :class:`LoRA`.
        input_gradient: As in :class:`LoRA`.

    Raises:
        ValueError: As :class:`LoRA` does.
    """
    names = targets if isinstance(targets, str) else tuple(targets)
    return LoRA(model=model, rank=rank, targets=names, input_gradient=input_gradient)  # type: ignore[arg-type]


def _before(linear: Linear, linears: tuple[Linear, ...]) -> set[str]:
    """Names of the layers of a part whose outputs lead to the input of this one."""
    if linear.name == "o":
        return {each.name for each in linears if each.name != "o"}
    for prefix in ("", "shared_"):
        if linear.name == f"{prefix}down":
            return {f"{prefix}gate", f"{prefix}up"}
    return {"q_up": {"q_down"}, "kv_up": {"kv_down"}}.get(linear.name, set())


def _attended(core: Term, adapted: set[str], is_live: bool) -> Term:
    """Scores and values with a backward of the products whose gradients lead to an adapter."""
    query = is_live or bool(adapted.intersection(QUERIES))
    key = is_live or bool(adapted.intersection(KEYS))
    value = is_live or bool(adapted.intersection(VALUES))
    wanted = query + key if core.name == "scores" else (query or key) + value
    return msgspec.structs.replace(core, backward=wanted * core.forward)
