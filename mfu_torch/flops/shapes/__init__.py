"""The same step at other shapes, without counting it again.

A step's FLOPs follow from the sizes of its inputs, for most models by simple laws. The first few
distinct shapes are counted as they come. Once the laws that fit them have foretold enough further
shapes, new ones are evaluated: in microseconds, and equal to what counting them would give.

    counted    counted    counted      counted          counted            evaluated ...
    S = 32     S = 48     S = 80       S = 64           S = 40
                          (laws fit)   (foretold: yes)  (foretold: yes)

Where no law holds for all, several may, each for a piece: attention whose window is longer than
the shorter texts. Nothing is evaluated outside of the sizes that a law was observed for: beyond the
smallest and largest a window may end or a fast path begin, and multiples of 32 say nothing of other
sizes. A few more shapes are counted although they could be evaluated, ever fewer of them; if one
differs, no law is believed from then on. Then each new shape is counted, until enough were for an
estimate (:mod:`mfu_torch.flops.shapes.estimate`), if they scatter little around one.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Hashable, Sequence

from mfu_torch.flops.shapes.columns import CountedCall, Terms
from mfu_torch.flops.shapes.domain import Sizes
from mfu_torch.flops.shapes.estimate import Estimate
from mfu_torch.flops.shapes.fit import Fit, Observation, Pieces, flops_of, is_right
from mfu_torch.flops.shapes.signature import template
from mfu_torch.records import FlopCount, FlopTerm

logger = logging.getLogger(__name__)

PIECES_FROM = 8
"""Observations before pieces are looked for."""

GIVE_UP_AFTER = 48
"""Shapes counted in vain: there is no law, or too much varies."""

BUDGET_S = 3.0
"""Seconds that are spent on finding a law, in all."""

FIRST_CHECK = 8
"""Evaluated shapes before the first that is counted all the same; then four times as many."""

LAWS_LIMIT = 200
"""Kinds of inputs, their sizes apart, for which laws are kept; then the oldest is forgotten."""

MASKS_DIFFER = (
    "causal FLOPs of attention follow its masks, which are data: where new shapes are evaluated "
    "they count all scores, so they are an upper bound"
)

NO_LAW = (
    "the FLOPs follow no simple law in the sizes of the inputs: new shapes are counted, which "
    "slows the steps that they come in, unless an estimate proves good; and a shape that comes "
    "again has the count that it had at first, from which drifting data can lead away"
)

CHECK_EVERY = 16
"""Estimated shapes before one is counted to check them: data can drift, so that checks go on."""

REMEMBERED = 64
"""Counted shapes that an estimate is made from, at most: the last ones."""


class ShapeLaws:
    """A law for each kind of inputs: for equal signatures, sizes apart."""

    def __init__(self) -> None:
        self._laws: dict[Hashable, ShapeLaw] = {}
        self._evaluated: dict[Hashable, list[Hashable]] = {}  # by kind, what was evaluated
        self._off: list[tuple[Hashable, float]] = []  # estimates, and how far off they may be
        self._warned = False

    def observe(
        self,
        inputs: Hashable,
        key: Hashable,
        count: FlopCount,
        calls: Sequence[CountedCall],
    ) -> list[Hashable]:
        """Inputs were counted.

        Args:
            inputs: Their signature.
            key: What the caller knows them by.
            count: Their FLOPs.
            calls: The op calls that the count is the sum of, in order.

        Returns:
            The keys of what was evaluated by a law that this contradicts.
        """
        kind, sizes = template(inputs)
        law = self._laws.pop(kind, None) or ShapeLaw()
        self._laws[kind] = law  # the last used one last
        if len(self._laws) > LAWS_LIMIT:
            oldest = next(iter(self._laws))
            del self._laws[oldest]
            self._evaluated.pop(oldest, None)
        was_estimated = law.refuted
        try:
            right = law.observe(sizes, count, calls)
        except Exception:
            # Ctrl-C can have left it half changed; and a fault here must not end the counting.
            if not self._warned:
                logger.warning(
                    "a law in the sizes of the inputs is dropped: new shapes are counted",
                    exc_info=True,
                )
            self._warned = True
            self._laws[kind] = law = ShapeLaw()
            law.refuted = right = True
        if was_estimated:
            self._check_estimates(kind, law)
        return [] if right else [k for k in self._evaluated.pop(kind, []) if k != key]

    def _check_estimates(self, kind: Hashable, law: ShapeLaw) -> None:
        """What was estimated since the last check may be as far off as this one was."""
        estimated = self._evaluated.pop(kind, [])
        if law.found_off:
            self._off += [(key, law.found_off) for key in estimated]

    def take_off(self) -> list[tuple[Hashable, float]]:
        """Keys of estimates that proved to be further off than they say, and how far."""
        off, self._off = self._off, []
        return off

    def margin(self, inputs: Hashable) -> float:
        """How far the FLOPs of these inputs scatter, where they are estimated; else 0."""
        law = self._laws.get(template(inputs)[0])
        return law.margin if law is not None else 0.0

    def evaluate(self, inputs: Hashable, key: Hashable, *, checks: bool = True) -> FlopCount | None:
        """The FLOPs of inputs with this signature, or ``None``: they have to be counted.

        Args:
            inputs: The signature.
            key: What the caller knows them by.
            checks: Let a few shapes be counted that could be evaluated.
        """
        kind, sizes = template(inputs)
        law = self._laws.get(kind)
        if law is None or (checks and law.is_due()):
            return None
        count = law.evaluate(sizes)
        if count is not None:
            self._evaluated.setdefault(kind, []).append(key)
        return count

    def is_lawless(self, inputs: Hashable) -> bool:
        """Whether a law was looked for in vain."""
        law = self._laws.get(template(inputs)[0])
        return law is not None and law.refuted

    def forget(self) -> None:
        """Forget all: the model was changed."""
        self._laws.clear()
        self._evaluated.clear()


class ShapeLaw:
    """The FLOPs of inputs that differ in nothing but their sizes.

    Attributes:
        refuted: It was contradicted after it had been believed, or never found.
        found_off: How far off an estimate was that was checked last; 0 if it was within its margin.
    """

    def __init__(self) -> None:
        self.refuted = False
        self._observed: dict[Sizes, Observation] = {}
        self._whole = Fit(strides=True)
        self._pieces = Pieces()
        self.found_off = 0.0
        self._seen: deque[tuple[Sizes, FlopCount]] = deque(maxlen=REMEMBERED)
        self._estimate: Estimate | None = None
        self._last = FlopCount()
        self._evaluated = 0
        self._check_at = FIRST_CHECK
        self._spent_s = 0.0
        self._pool: dict[CountedCall, CountedCall] = {}

    @property
    def is_trusted(self) -> bool:
        """Whether enough shapes were foretold right for some to be evaluated."""
        return not self.refuted and (self._whole.is_trusted or self._pieces.is_trusted)

    def observe(self, sizes: Sizes, count: FlopCount, calls: Sequence[CountedCall]) -> bool:
        """Inputs of these sizes were counted.

        Args:
            sizes: All sizes of the inputs, in a fixed order.
            count: Their FLOPs.
            calls: The op calls that the count is the sum of, in order.

        Returns:
            ``False`` if this contradicts a law by which shapes were evaluated.
        """
        if self.refuted:
            self._check_estimate(sizes, count)
            return True
        self._seen.append((sizes, count))
        if self.is_due():
            self._check_at *= 4
        if sizes in self._observed:
            return self._is_as_before(sizes, count)
        expected = self._terms(sizes) if self._evaluated else None
        contradicted = expected is not None and not is_right(expected, flops_of(count))
        other_ops = bool(self._observed) and count.uncounted != self._last.uncounted
        in_vain = len(self._observed) >= GIVE_UP_AFTER and not self._evaluated
        in_vain = in_vain or self._spent_s > BUDGET_S
        if contradicted or other_ops or in_vain:
            self._refute()
            return not contradicted
        start_s = time.perf_counter()
        self._last = count
        calls = [self._pool.setdefault(call, call) for call in calls]  # most are equal: kept once
        self._observed[sizes] = Observation(sizes, count, calls)
        self._whole.add(self._observed[sizes])
        if not self._whole.explains and len(self._observed) >= PIECES_FROM:
            self._pieces.add(list(self._observed.values()))
        self._spent_s += time.perf_counter() - start_s
        return True

    @property
    def margin(self) -> float:
        """Of the estimate, if there is one; else 0."""
        return 0.0 if self._estimate is None else self._estimate.margin or 0.0

    def _check_estimate(self, sizes: Sizes, count: FlopCount) -> None:
        about = self._estimate.evaluate(sizes) if self._estimate is not None else None
        self.found_off = 0.0
        if about is not None and about.model:
            off = abs(count.model - about.model) / about.model
            if off > about.uncertainty:
                # What data is like has changed: what was counted before says nothing any more.
                self.found_off = off
                self._seen.clear()
        self._seen.append((sizes, count))
        self._estimate = Estimate(tuple(self._seen))
        self._check_at = self._evaluated + CHECK_EVERY

    def is_due(self) -> bool:
        """Whether the next shape is to be counted, to see if it would have been foretold right."""
        return self._evaluated >= self._check_at

    def _is_as_before(self, sizes: Sizes, count: FlopCount) -> bool:
        # Causal FLOPs may differ: they follow masks.
        before, now = flops_of(self._observed[sizes].total), flops_of(count)
        if {key: full for key, (full, _) in before.items()} == {
            key: full for key, (full, _) in now.items()
        }:
            return True
        self._refute()
        return False

    def evaluate(self, sizes: Sizes) -> FlopCount | None:
        """The FLOPs of inputs of these sizes, or ``None``: they have to be counted.

        How many elements are worked on beside is not evaluated (``elementwise`` is ``None``).
        """
        if self.refuted:
            about = self._estimate.evaluate(sizes) if self._estimate is not None else None
            self._evaluated += about is not None
            return about
        terms = self._terms(sizes)
        if terms is None:
            return None
        self._evaluated += 1
        known = all([causal is not None for _, causal, _ in terms.values()])
        return FlopCount(
            terms=tuple(
                [
                    FlopTerm(
                        phase=phase,
                        op=op,
                        dtype=dtype,
                        flops=full,
                        causal_flops=full if causal is None else causal,
                        calls=calls,
                    )
                    for (phase, op, dtype), (full, causal, calls) in terms.items()
                ]
            ),
            uncounted=self._last.uncounted,
            elementwise=None,
            notes=self._last.notes if known else (*self._last.notes, MASKS_DIFFER),
            method=f"evaluated from {len(self._observed)} shapes that were counted",
        )

    def _terms(self, sizes: Sizes) -> Terms | None:
        pieces = None if self._whole.explains else self._pieces.evaluate(sizes)
        return self._whole.evaluate(sizes) if pieces is None else pieces

    def _refute(self) -> None:
        self.refuted = True
        self._observed.clear()
        self._pool.clear()
        self._whole, self._pieces = Fit(strides=True), Pieces()
        self._evaluated, self._check_at = 0, CHECK_EVERY
        self._estimate = Estimate(tuple(self._seen))
