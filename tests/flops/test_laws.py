"""Laws in the sizes: what fits, what is foretold, and what is not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mfu_torch.flops.shapes.domain import Domain
from mfu_torch.flops.shapes.laws import Point, fitting_laws, foretold
from mfu_torch.flops.shapes.totals import Polynomial

LENGTHS = [(4, 32), (4, 48), (3, 80), (8, 57), (2, 111), (5, 64), (7, 99), (1, 20)]
IMAGES = [(65, 97), (80, 113), (131, 70), (97, 158), (202, 177), (111, 64), (90, 200), (173, 83)]


def values_at(points: list[Point], law: Callable[..., int]) -> list[int]:
    return [law(*point) for point in points]


@pytest.mark.parametrize(
    "law",
    [
        lambda b, s: 2 * b * s * 64 * 64,
        lambda b, s: 4 * b * s * s * 16,
        lambda b, s: 4 * b * (s * (s + 1) // 2) * 16,
        lambda b, s: 2 * 64 * 64,
        lambda b, s: 6 * b * (s - 1) * 100,  # the last token has no label
        lambda b, s: 2 * b * s * (s + 10) * 16,  # ten virtual tokens in front
        lambda b, s: 2 * b * (40 * s - 780) * 16,  # pairs that a window of 40 keeps
    ],
)
def test_a_law_in_batch_and_length_is_found_and_foretells(law: Callable[..., int]) -> None:
    laws = fitting_laws(LENGTHS, values_at(LENGTHS, law))
    assert foretold(laws, (6, 71)) == law(6, 71)


def chunked(b: int, s: int) -> int:
    """Scores in overlapping chunks of 32, as the length is padded to a multiple of 32."""
    padded = -(-s // 32) * 32
    return b * (padded // 16 - 1) * 32 * 32 * 16


def test_a_law_in_chunks_of_a_padded_length_is_found() -> None:
    lengths = (31, 64, 97, 130, 200, 222, 290, 301)
    points = list(zip((4, 2, 3, 5, 4, 1, 2, 6), lengths, strict=True))
    laws = fitting_laws(points, values_at(points, chunked))
    assert foretold(laws, (3, 128)) == chunked(3, 128)


def strided(h: int, w: int) -> int:
    for _ in range(2):  # 3 x 3, stride 2, padding 1
        h, w = (h - 1) // 2 + 1, (w - 1) // 2 + 1
    return 2 * h * w * 9 * 16 * 32


def test_a_convolution_after_strides_is_found_for_images_of_any_size() -> None:
    laws = fitting_laws(IMAGES, values_at(IMAGES, strided))
    for image in ((100, 101), (102, 103), (77, 190)):
        assert foretold(laws, image) in (strided(*image), None)
    assert foretold(laws, (100, 101)) == strided(100, 101)


def test_laws_that_fit_alike_foretell_only_what_they_agree_on() -> None:
    squares = [(32, 32), (48, 48), (80, 80), (57, 57)]
    laws = fitting_laws(squares, [2 * h * w * 64 for h, w in squares])
    assert foretold(laws, (64, 64)) == 2 * 64 * 64 * 64
    assert foretold(laws, (64, 32)) is None


def test_figures_without_a_law_have_none() -> None:
    assert fitting_laws(LENGTHS, [2, 3, 5, 7, 11, 13, 17, 19]) == []
    assert foretold([], (1, 2)) is None


def test_a_law_that_is_a_fraction_of_a_figure_foretells_the_fraction() -> None:
    # In lowest terms over even lengths; an odd one is half of it, and stays exact.
    laws = fitting_laws([(6,), (10,), (14,)], [3, 5, 7])
    assert foretold(laws, (7,)) == pytest.approx(3.5, abs=0)


def test_totals_foretell_what_observations_imply_and_nothing_else() -> None:
    def total(b: int, s: int) -> int:
        return 3 * b * s * s + 100 * b * s + 7

    polynomial = Polynomial(2)
    key = ("forward", "aten.mm", "fp32")
    points = [(1, 10), (1, 20), (1, 30), (2, 10), (2, 20), (2, 30), (3, 10), (3, 20)]
    for b, s in points:
        polynomial.add((b, s), {key: total(b, s)})
    assert polynomial.foretold((2, 17)) == {key: total(2, 17)}
    assert polynomial.foretold((3, 17)) is None  # of three there are two lengths, not three
    polynomial.add((3, 30), {key: total(3, 30)})
    assert polynomial.foretold((3, 17)) == {key: total(3, 17)}
    polynomial.add((4, 40), {key: total(4, 40) + 1})
    assert polynomial.refuted


def test_sizes_that_were_always_equal_are_one_until_they_part() -> None:
    domain = Domain(((4, 32, 4, 32), (4, 48, 4, 48)))
    assert domain.variables == (1,)
    assert domain.contains((4, 48, 4, 48))
    assert not domain.contains((4, 48, 4, 32))
    assert not domain.contains((3, 48, 3, 48))
    assert domain.extended((3, 48, 3, 48)).variables == (0, 1)


def test_a_domain_ends_at_the_sizes_observed_and_keeps_their_steps() -> None:
    domain = Domain(((64,), (128,), (32,)))
    assert [size for size in range(200) if domain.contains((size,))] == [32, 64, 96, 128]
    assert domain.extended((33,)).contains((100,))
