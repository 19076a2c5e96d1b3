"""How many queries meet how many keys: the only part of a closed form that grows with s².

Pairs are counted twice over, so that ``half``, s²/2 for an odd s, is a whole number, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Literal

from mfu_torch.records import Record

PairRule = Literal["full", "causal", "half", "none"]
"""Which scores count.

full: every one, s² (PaLM, nanoGPT, torchtitan); causal: those that the mask keeps, s(s+1)/2;
half: s²/2, as most papers halve it (NeMo AutoModel, DeepSeek-V3); none: packed short sequences,
whose attention is left out.
"""

PAIR_RULES: tuple[PairRule, ...] = ("full", "causal", "half", "none")


class Mask(Record, frozen=True, kw_only=True):
    """Which keys a query sees.

    Attributes:
        causal: Only itself and earlier ones.
        window: With ``causal``, the last ``window`` keys, itself included; else the ``window``
            keys around it, ``window // 2`` on either side beside itself. ``None``: all.
        chunk: Instead of a window: a sequence is cut into chunks of so many tokens, which do not
            see one another (Llama 4).

    Raises:
        ValueError: If a window or a chunk is no whole number above 0.
    """

    causal: bool = True
    window: int | None = None
    chunk: int | None = None

    def __post_init__(self) -> None:
        whole_sizes(self, "window", "chunk")

    def twice_kept(self, length: int) -> int:
        """Twice the pairs that this mask keeps in one sequence of ``length`` tokens.

        Causal, 4 tokens: 2 * (1 + 2 + 3 + 4) = 20; with a window of 2: 2 * (1 + 2 + 2 + 2) = 14.
        """
        if self.chunk is not None:
            return self._of_chunks(Mask.twice_kept, length)
        if self.causal:
            w = length if self.window is None else min(self.window, length)
            return 2 * length * w - w * (w - 1)
        if self.window is None:
            return 2 * length * length
        side = min(self.window // 2, length - 1)
        return 2 * (length * (2 * side + 1) - side * (side + 1))

    def twice_halved(self, length: int) -> int:
        """Twice s²/2, or twice sw - w²/2 with a window; without a causal mask nothing is halved."""
        if self.chunk is not None:
            return self._of_chunks(Mask.twice_halved, length)
        if not self.causal:
            return self.twice_kept(length)
        w = length if self.window is None else min(self.window, length)
        return 2 * length * w - w * w

    def _of_chunks(self, twice: Callable[[Mask, int], int], length: int) -> int:
        assert self.chunk is not None
        alone = Mask(causal=self.causal)
        whole_ones, rest = divmod(length, self.chunk)
        return whole_ones * twice(alone, self.chunk) + twice(alone, rest)


class Sequences(Record, frozen=True, kw_only=True):
    """How many sequences of which length a batch holds. Padding counts as tokens do.

    Attributes:
        lengths: (how many, tokens of each), one pair for each distinct length.
    """

    lengths: tuple[tuple[int, int], ...]

    @classmethod
    def of(
        cls, batch: int = 1, seq: int | None = None, lengths: Iterable[int] | None = None
    ) -> Sequences:
        """``batch`` sequences of ``seq`` tokens, or one for each of ``lengths``.

        Raises:
            ValueError: If neither or both of ``seq`` and ``lengths`` are given, or one is no whole
                number above 0.
        """
        if (seq is None) == (lengths is None):
            raise ValueError("give either seq, the tokens of a sequence, or lengths, one for each")
        if lengths is None:
            assert seq is not None
            return cls(lengths=((whole("batch", batch), whole("seq", seq)),))
        counted = Counter(whole("lengths", length) for length in lengths)
        if not counted:
            raise ValueError("lengths is empty; expected the tokens of at least one sequence")
        return cls(lengths=tuple((count, length) for length, count in sorted(counted.items())))

    @property
    def batch(self) -> int:
        """Sequences."""
        return sum(count for count, _ in self.lengths)

    @property
    def tokens(self) -> int:
        """Of all sequences together."""
        return sum(count * length for count, length in self.lengths)

    def twice_pairs(self, rule: PairRule, mask: Mask) -> int:
        """Twice the pairs of query and key in all sequences: each with itself, never others."""
        if rule not in PAIR_RULES:
            raise ValueError(f"attention is {rule!r}; expected one of {', '.join(PAIR_RULES)}")
        if rule == "none":
            return 0
        if rule == "full":
            return sum(count * 2 * length * length for count, length in self.lengths)
        twice = mask.twice_kept if rule == "causal" else mask.twice_halved
        return sum(count * twice(length) for count, length in self.lengths)


def whole(name: str, value: int) -> int:
    """The value, if it is a whole number above 0.

    Raises:
        ValueError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; expected a whole number above 0")
    return value


def whole_sizes(record: Record, *names: str) -> None:
    """Nothing, where each of these fields is a whole number above 0, or ``None``.

    Raises:
        ValueError: If one is not.
    """
    for name in names:
        if getattr(record, name) is not None:
            whole(name, getattr(record, name))
