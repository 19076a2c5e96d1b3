"""Pairs of query and key in closed form, held against masks that are counted score by score."""

from __future__ import annotations

import pytest

from mfu_torch.flops.formulas import Mask, Sequences


def kept(length: int, mask: Mask) -> int:
    """Counts the scores of one sequence that a mask keeps, one by one."""
    seen = 0
    for query in range(length):
        for key in range(length):
            distance = query - key
            if mask.causal:
                seen += 0 <= distance < (mask.window or length)
            else:
                seen += mask.window is None or abs(distance) <= mask.window // 2
    return seen


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 2, 3, 4, 7, 8, 100])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_the_pairs_that_a_mask_keeps(length: int, window: int | None, causal: bool) -> None:
    mask = Mask(causal=causal, window=window)
    assert mask.twice_kept(length) == 2 * kept(length, mask)


def test_half_is_a_half_of_the_square_also_of_an_odd_length() -> None:
    assert Mask().twice_halved(7) == 49
    # Of a window, what is below the diagonal of the band: 7 * 3 - 3 * 3 / 2 = 16.5
    assert Mask(window=3).twice_halved(7) == 33


def test_nothing_is_halved_where_every_key_is_seen() -> None:
    assert Mask(causal=False).twice_halved(7) == 2 * 49


def test_sequences_are_counted_each_with_itself_alone() -> None:
    ragged = Sequences.of(lengths=[3, 5, 3])
    assert (ragged.batch, ragged.tokens) == (3, 11)
    assert ragged.twice_pairs("full", Mask()) == 2 * (9 + 25 + 9)
    assert ragged.twice_pairs("causal", Mask()) == 2 * (6 + 15 + 6)
    assert ragged.twice_pairs("half", Mask()) == 9 + 25 + 9
    assert ragged.twice_pairs("none", Mask()) == 0


def test_equal_lengths_and_a_batch_of_them_are_the_same() -> None:
    assert Sequences.of(2, 5) == Sequences.of(lengths=[5, 5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "give either seq"),
        ({"seq": 4, "lengths": [4]}, "give either seq"),
        ({"seq": 0}, "seq is 0; expected a whole number above 0"),
        ({"seq": -3}, "seq is -3"),
        ({"seq": 2.5}, "seq is 2.5"),
        ({"seq": True}, "seq is True"),
        ({"seq": 4, "batch": 0}, "batch is 0"),
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": [4, 0]}, "lengths is 0"),
    ],
)
def test_sizes_that_are_none(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sequences.of(**arguments)  # type: ignore[arg-type]


def test_a_rule_that_is_none() -> None:
    with pytest.raises(ValueError, match="attention is 'sparse'; expected one of full, causal"):
        Sequences.of(1, 4).twice_pairs("sparse", Mask())  # type: ignore[arg-type]
