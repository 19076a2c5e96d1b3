"""What a closed form consists of: terms that know their forward, their backward and their layer.

A product (m, k) @ (k, n) is 2mkn FLOPs. Its backward has two such products, one for the gradient
of each operand; an operand that needs none leaves out its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, get_args

import msgspec

from mfu_torch.records import Record
from mfu_torch.units import percent, scaled

Role = Literal["linear", "attention", "head", "router", "convolution", "scan", "interaction"]
"""What a term is: a product with weights (in a layer; the head; a router of experts), attention
(scores and values), a convolution, a scan over states, or a product of features."""

Recompute = Literal["none", "selective", "full", "checkpoint"]
"""What the backward computes again.

none: nothing. selective: the scores and values of attention, once (Korthikanti et al. 2022,
section 4, describes it; their equation 8 adds three times that, see the convention
``korthikanti-selective``). full: every layer, once; not the head (Megatron-LM). checkpoint: as
``torch.utils.checkpoint`` around each layer does it, which stops before the layer's last product.
"""

RECOMPUTE: tuple[Recompute, ...] = ("none", "selective", "full", "checkpoint")


ROLES: tuple[Role, ...] = get_args(Role)


class Linear(Record, frozen=True, kw_only=True):
    """Weights that tokens are multiplied with: (tokens, inputs) @ (inputs, outputs).

    Attributes:
        name: ``q``, ``k``, ``v``, ``o``, ``gate``, ``up``, ``down``, ...
        inputs: Columns of the weight.
        outputs: Rows of the weight.
        uses: How many such products a token takes part in: the experts chosen for it.
        stored: How many such weights the model holds: all experts.
        role: ``linear``, ``head`` or ``router``.
    """

    name: str
    inputs: int
    outputs: int
    uses: int = 1
    stored: int = 1
    role: Role = "linear"

    @property
    def weights(self) -> int:
        """Weights that the model holds."""
        return self.inputs * self.outputs * self.stored

    @property
    def weights_used(self) -> int:
        """Weights that one token meets."""
        return self.inputs * self.outputs * self.uses

    def term(self, tokens: int, *, in_layer: bool = True, input_gradient: bool = True) -> Term:
        """Its FLOPs for ``tokens`` tokens: 2 · tokens · inputs · outputs · uses.

        Args:
            tokens: Rows of the input.
            in_layer: Whether a recomputed layer runs it again.
            input_gradient: Whether the input needs a gradient; pixels do not.
        """
        forward = 2 * tokens * self.weights_used
        return Term(
            name=self.name,
            role=self.role,
            forward=forward,
            backward=2 * forward if input_gradient else forward,
            in_layer=in_layer,
        )


class Term(Record, frozen=True, kw_only=True):
    """Contractions of one kind, of all layers together.

    Attributes:
        name: As in :class:`Linear`, or ``scores``, ``values``, ...
        role: What it is.
        forward: FLOPs.
        backward: FLOPs.
        in_layer: Whether recomputing layers runs it again; false for the head.
        is_last: Whether it is the last product of its layer, which a checkpoint does not repeat.
    """

    name: str
    role: Role
    forward: int
    backward: int
    in_layer: bool = True
    is_last: bool = False

    def repeats(self, policy: Recompute) -> bool:
        """Whether the backward computes it again."""
        if policy == "selective":
            return self.role == "attention"
        return self.in_layer and (policy == "full" or (policy == "checkpoint" and not self.is_last))


class ClosedForm(Record, frozen=True, kw_only=True):
    """FLOPs of a batch, term by term.

    Attributes:
        terms: In the order in which they run, those of equal layers added up.
    """

    terms: tuple[Term, ...]

    @property
    def forward(self) -> int:
        """FLOPs of a forward."""
        return sum(term.forward for term in self.terms)

    @property
    def backward(self) -> int:
        """FLOPs of a backward, without what is computed again."""
        return sum(term.backward for term in self.terms)

    @property
    def training(self) -> int:
        """Model FLOPs of a forward and its backward."""
        return self.forward + self.backward

    def recompute(self, policy: Recompute) -> int:
        """FLOPs that the backward computes again.

        Raises:
            ValueError: If there is no such policy.
        """
        if policy not in RECOMPUTE:
            raise ValueError(f"recompute is {policy!r}; expected one of {', '.join(RECOMPUTE)}")
        return sum(term.forward for term in self.terms if term.repeats(policy))

    def hardware(self, policy: Recompute) -> int:
        """Hardware FLOPs of a training step: model FLOPs and what is computed again."""
        return self.training + self.recompute(policy)

    def only(self, *roles: Role) -> ClosedForm:
        """Its terms of these roles.

        Raises:
            ValueError: If there is no such role; one that has no terms gives none.
        """
        _check_roles(roles)
        return ClosedForm(terms=tuple(term for term in self.terms if term.role in roles))

    def without(self, *roles: Role) -> ClosedForm:
        """Its terms of all other roles.

        Raises:
            ValueError: If there is no such role.
        """
        _check_roles(roles)
        return ClosedForm(terms=tuple(term for term in self.terms if term.role not in roles))

    def __str__(self) -> str:
        if not self.terms:
            return "no contraction: 0 FLOP"
        sums = {"forward": self.forward, "backward": self.backward, "training": self.training}
        head = ", ".join(f"{name} {scaled(flops, 'FLOP', 4)}" for name, flops in sums.items())
        width = max(len(term.name) for term in self.terms)
        roles = max(len(term.role) for term in self.terms)
        lines = [
            f"{term.name:{width}}  {term.role:{roles}}  {scaled(term.forward, 'FLOP', 4):>11}  "
            f"{percent(term.forward / self.forward if self.forward else 0):>7}"
            for term in self.terms
        ]
        return "\n  ".join([f"{head}; of the forward:", *lines])


def _check_roles(roles: tuple[str, ...]) -> None:
    for role in roles:
        if role not in ROLES:
            raise ValueError(f"role is {role!r}; expected one of {', '.join(ROLES)}")


def times(count: int, terms: Iterable[Term]) -> tuple[Term, ...]:
    """The terms of ``count`` equal layers."""
    return tuple(
        msgspec.structs.replace(term, forward=count * term.forward, backward=count * term.backward)
        for term in terms
    )


def added(terms: Iterable[Term]) -> tuple[Term, ...]:
    """Terms of the same kind as one, in the order in which each first came."""
    sums: dict[tuple[str, Role, bool, bool], list[int]] = {}
    for term in terms:
        pair = sums.setdefault((term.name, term.role, term.in_layer, term.is_last), [0, 0])
        pair[0] += term.forward
        pair[1] += term.backward
    return tuple(
        Term(name=n, role=r, forward=f, backward=b, in_layer=i, is_last=last)
        for (n, r, i, last), (f, b) in sums.items()
    )
