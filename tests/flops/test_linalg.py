"""Decompositions and transforms against algorithms that count their own operations."""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops import linalg
from mfu_torch.flops.ops.linalg import FFT_CONVENTION, ITERATIVE

LA = torch.linalg


class Number:
    """A number that counts what is done with it: every operation is one FLOP."""

    done = 0

    def __init__(self, value: float) -> None:
        self.value = value

    def _new(self, value: float) -> Number:
        Number.done += 1
        return Number(value)

    def __add__(self, other: Number) -> Number:
        return self._new(self.value + other.value)

    def __sub__(self, other: Number) -> Number:
        return self._new(self.value - other.value)

    def __mul__(self, other: Number) -> Number:
        return self._new(self.value * other.value)

    def __truediv__(self, other: Number) -> Number:
        return self._new(self.value / other.value)

    def sqrt(self) -> Number:
        return self._new(math.sqrt(self.value))


Matrix = list[list[Number]]


def matrix(m: int, n: int, seed: int = 0) -> Matrix:
    values = torch.rand(m, n, generator=torch.Generator().manual_seed(seed)) + 4 * torch.eye(m, n)
    return [[Number(float(v)) for v in row] for row in values]


def done(algorithm: Callable[[], Any]) -> int:
    Number.done = 0
    algorithm()
    return Number.done


def eliminate(a: Matrix) -> None:
    m, n = len(a), len(a[0])
    for k in range(min(m, n)):
        for i in range(k + 1, m):
            a[i][k] = a[i][k] / a[k][k]
            for j in range(k + 1, n):
                a[i][j] = a[i][j] - a[i][k] * a[k][j]


def cholesky(a: Matrix) -> None:
    n = len(a)
    for j in range(n):
        for k in range(j):
            for i in range(j, n):
                a[i][j] = a[i][j] - a[i][k] * a[j][k]
        a[j][j] = a[j][j].sqrt()
        for i in range(j + 1, n):
            a[i][j] = a[i][j] / a[j][j]


def ldl(a: Matrix) -> None:
    n = len(a)
    for k in range(n):
        for i in range(k + 1, n):
            factor = a[i][k] / a[k][k]
            for j in range(k + 1, i + 1):
                a[i][j] = a[i][j] - factor * a[j][k]


def substitute(a: Matrix, b: Matrix, unit: bool) -> None:
    n = len(a)
    for column in range(len(b[0])):
        for i in range(n):
            for j in range(i):
                b[i][column] = b[i][column] - a[i][j] * b[j][column]
            if not unit:
                b[i][column] = b[i][column] / a[i][i]


def reflect(a: Matrix) -> None:
    """Householder QR: each column's reflector, applied to the columns behind it."""
    m, n = len(a), len(a[0])
    for k in range(min(m, n)):
        v = [a[i][k] for i in range(k, m)]
        norm = v[0] * v[0]
        for x in v[1:]:
            norm = norm + x * x
        v[0] = v[0] + norm.sqrt()
        for j in range(k + 1, n):
            along = v[0] * a[k][j]
            for x, i in zip(v[1:], range(k + 1, m), strict=True):
                along = along + x * a[i][j]
            along = along / norm
            for x, i in zip(v, range(k, m), strict=True):
                a[i][j] = a[i][j] - along * x


@pytest.mark.parametrize(("m", "n"), [(1, 1), (4, 4), (6, 3), (3, 6)])
def test_elimination_is_counted_to_the_last_operation(m: int, n: int) -> None:
    expected = done(lambda: eliminate(matrix(m, n)))
    a = torch.randn(3, m, n)
    assert count_flops(LA.lu_factor, a).model == 3 * expected
    assert count_flops(LA.lu, a).model == 3 * expected
    if m == n:
        assert count_flops(LA.det, a).model == 3 * expected
        assert count_flops(LA.slogdet, a).model == 3 * expected


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_symmetric_factors_are_counted_to_the_last_operation(n: int) -> None:
    a = torch.eye(n).expand(2, n, n)
    assert count_flops(LA.cholesky, a).model == 2 * done(lambda: cholesky(matrix(n, n)))
    assert count_flops(torch.cholesky, a).model == 2 * done(lambda: cholesky(matrix(n, n)))
    assert count_flops(LA.ldl_factor, a).model == 2 * done(lambda: ldl(matrix(n, n)))


@pytest.mark.parametrize("unit", [False, True])
def test_triangles_are_solved_to_the_last_operation(unit: bool) -> None:
    expected = done(lambda: substitute(matrix(5, 5), matrix(5, 3), unit))
    a, b = torch.eye(5), torch.randn(5, 3)
    solve = LA.solve_triangular
    assert count_flops(solve, a, b, upper=False, unitriangular=unit).model == expected
    right = count_flops(solve, a, b.T, upper=False, left=False, unitriangular=unit)
    assert right.model == expected
    old = count_flops(torch.triangular_solve, b, a, upper=False, unitriangular=unit)
    assert old.model == expected


def test_systems_are_their_factors_and_two_triangles() -> None:
    a, b, vector = torch.eye(5).expand(2, 5, 5), torch.randn(2, 5, 3), torch.randn(2, 5)
    factors = done(lambda: eliminate(matrix(5, 5)))
    unit = done(lambda: substitute(matrix(5, 5), matrix(5, 3), unit=True))
    plain = done(lambda: substitute(matrix(5, 5), matrix(5, 3), unit=False))
    assert count_flops(LA.solve, a, b).model == 2 * (factors + unit + plain)
    assert count_flops(LA.solve, a, b.mT, left=False).model == 2 * (factors + unit + plain)
    assert count_flops(LA.solve, a, vector).model == 2 * (factors + (unit + plain) // 3)
    lu, pivots = LA.lu_factor(a)
    assert count_flops(LA.lu_solve, lu, pivots, b).model == 2 * (unit + plain)
    assert count_flops(torch.cholesky_solve, b, a).model == 2 * 2 * plain
    ld, pivots = LA.ldl_factor(a)
    assert count_flops(LA.ldl_solve, ld, pivots, b).model == 2 * (2 * unit + 5 * 3)


def test_householder_qr_has_the_textbook_leading_term() -> None:
    # A cubic's third difference is six times its leading coefficient, whatever the rest is.
    def third_difference(cost: Callable[[int], int]) -> int:
        a, b, c, d = (cost(n) for n in (4, 5, 6, 7))
        return d - 3 * c + 3 * b - a

    for tall in (1, 2, 3):
        counted = third_difference(lambda n: done(lambda: reflect(matrix(tall * n, n))))  # noqa: B023
        assert counted == third_difference(lambda n: linalg.qr_flops(tall * n, n))  # noqa: B023
    # Q is as much again for a square matrix, and both are what 4 n^3 / 3 says.
    assert third_difference(lambda n: linalg.q_flops(n, n, n)) == 6 * 4 / 3
    assert third_difference(lambda n: linalg.qr_flops(n, n)) == 6 * 4 / 3
    # A product with Q is 2 n^3 beside Q's own way of being one.
    assert third_difference(lambda n: linalg.apply_q_flops(n, n, n)) == 6 * 2


def test_qr_counts_the_part_of_q_that_it_forms() -> None:
    a = torch.randn(2, 6, 4)
    r, k = linalg.qr_flops(6, 4), 4
    assert count_flops(LA.qr, a, mode="r").model == 2 * r
    assert count_flops(LA.qr, a).model == 2 * (r + linalg.q_flops(6, k, k))
    assert count_flops(LA.qr, a, mode="complete").model == 2 * (r + linalg.q_flops(6, 6, k))
    factors, tau = torch.geqrf(a)
    assert count_flops(torch.geqrf, a).model == 2 * r
    q = count_flops(LA.householder_product, factors, tau)
    assert q.model == 2 * linalg.q_flops(6, 4, 4)
    applied = count_flops(torch.ormqr, factors, tau, torch.randn(2, 6, 5))
    assert applied.model == 2 * (4 * 6 * 5 * 4 - 2 * 5 * 16 + 3 * 5 * 4)
    right = count_flops(torch.ormqr, factors, tau, torch.randn(2, 5, 6), left=False)
    assert right.model == 2 * (4 * 5 * 6 * 4 - 2 * 5 * 16 + 2 * 5 * 4 + 6 * 4 - 6)


def test_inverses_are_the_figures_of_lapack() -> None:
    a = torch.eye(6).expand(2, 6, 6)
    assert count_flops(LA.inv, a).model == 2 * 2 * 6**3
    # 2 n^3 / 3 + n^2 / 2 + 5 n / 6 = 144 + 18 + 5
    assert count_flops(torch.cholesky_inverse, a).model == 2 * (144 + 18 + 5)


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda a: LA.eigh(a), 9 * 6**3),
        (lambda a: LA.eig(a), 25 * 6**3),
        (lambda a: LA.svd(a[:, :4], full_matrices=False), 14 * 6 * 16 + 8 * 64),
        (lambda a: LA.svd(a[:4], full_matrices=False), 14 * 6 * 16 + 8 * 64),
        (lambda a: LA.svd(a[:, :4]), 4 * 36 * 4 + 8 * 6 * 16 + 9 * 64),
        (lambda a: LA.pinv(a[:, :4]), 14 * 6 * 16 + 8 * 64 + 2 * 6 * 4 * 4),
        (lambda a: LA.pinv(a, hermitian=True), 9 * 6**3 + 2 * 6**3),
        (lambda a: torch.ops.aten._linalg_eigh(a, "L", False), 4 * 6**3 // 3),
        (lambda a: torch.ops.aten._linalg_eigvals(a), 10 * 6**3),
        (
            lambda a: torch.ops.aten._linalg_svd(a[:, :4], False, False),
            4 * 6 * 16 - 4 * 64 // 3 - 1,
        ),
    ],
)
def test_iterations_count_the_textbook_figure_and_say_so(call: Any, expected: int) -> None:
    count = count_flops(call, torch.eye(6))
    assert (count.model, count.uncounted) == (expected, {})
    assert count.notes == (ITERATIVE,)


def test_least_squares_are_qr_its_transpose_and_a_triangle() -> None:
    a, b = torch.randn(6, 4), torch.randn(6, 2)
    expected = linalg.qr_flops(6, 4) + (4 * 6 * 2 * 4 - 2 * 2 * 16 + 3 * 2 * 4) + 16 * 2
    count = count_flops(LA.lstsq, a, b)
    assert (count.model, len(count.notes)) == (expected, 1)
    wide = count_flops(LA.lstsq, a.T, b[:4])
    assert wide.model == expected


def test_a_matrix_exponential_is_five_products_and_says_so() -> None:
    count = count_flops(LA.matrix_exp, torch.randn(6, 6))
    assert (count.model, len(count.notes)) == (5 * 2 * 6**3, 1)


def test_a_complex_decomposition_is_four_real_ones() -> None:
    real = count_flops(LA.lu_factor, torch.eye(6)).model
    assert count_flops(LA.lu_factor, torch.eye(6, dtype=torch.complex64)).model == 4 * real


# --- Fourier transforms ----------------------------------------------------------------------


def butterflies(x: list[complex]) -> tuple[list[complex], int]:
    """Radix 2: a complex product (6 FLOPs) and two complex sums (2 each) a butterfly."""
    n = len(x)
    if n == 1:
        return x, 0
    (even, a), (odd, b) = butterflies(x[::2]), butterflies(x[1::2])
    turned = [cmath.exp(-2j * cmath.pi * k / n) * odd[k] for k in range(n // 2)]
    front = [e + t for e, t in zip(even, turned, strict=True)]
    back = [e - t for e, t in zip(even, turned, strict=True)]
    return front + back, a + b + (n // 2) * (6 + 2 + 2)


def test_a_transform_of_a_power_of_two_is_its_butterflies() -> None:
    x = torch.randn(3, 16, dtype=torch.complex64)
    transformed, flops = butterflies([complex(v) for v in x[0]])
    assert torch.allclose(torch.fft.fft(x)[0], torch.tensor(transformed), atol=1e-4)
    count = count_flops(torch.fft.fft, x)
    assert count.by_dtype == {"fp32": 3 * flops}
    assert count.model == 3 * 5 * 16 * 4
    assert count.notes == (FFT_CONVENTION,)


def test_a_real_transform_is_half_of_a_complex_one_both_ways() -> None:
    x = torch.randn(3, 16)
    assert count_flops(torch.fft.rfft, x).model == 3 * 5 * 16 * 4 // 2
    assert count_flops(torch.fft.irfft, torch.fft.rfft(x)).model == 3 * 5 * 16 * 4 // 2


def test_a_transform_over_two_dimensions_is_one_over_rows_and_one_over_columns() -> None:
    x = torch.randn(8, 16, dtype=torch.complex64)
    rows, columns = 8 * 5 * 16 * 4, 16 * 5 * 8 * 3
    assert count_flops(torch.fft.fft2, x).model == rows + columns
    assert count_flops(torch.fft.ifftn, x).model == rows + columns


def test_a_transform_of_any_length_is_a_whole_number() -> None:
    count = count_flops(torch.fft.fft, torch.randn(7, dtype=torch.complex64))
    assert count.model == round(5 * 7 * math.log2(7)) == 98


def test_a_spectral_convolution_counts_its_transforms_forward_and_backward() -> None:
    x = torch.randn(2, 16, requires_grad=True)
    count = count_flops(lambda: torch.fft.irfft(torch.fft.rfft(x) * 2).sum().backward())
    one = 2 * 5 * 16 * 4 // 2
    assert count.forward == 2 * one
    # The gradient of rfft is a complex transform in torch, that of irfft a real one.
    assert count.backward in (2 * one, 3 * one)


# --- distances -------------------------------------------------------------------------------


def test_a_distance_is_a_multiply_add_for_each_coordinate() -> None:
    a, b = torch.randn(2, 8, 6, requires_grad=True), torch.randn(2, 9, 6)
    count = count_flops(lambda: torch.cdist(a, b).sum().backward())
    assert (count.forward, count.backward) == (2 * 2 * 8 * 9 * 6, 2 * 2 * 8 * 9 * 6)


def test_distances_of_many_points_are_a_product() -> None:
    a, b = torch.randn(30, 6, requires_grad=True), torch.randn(40, 6)
    count = count_flops(lambda: torch.cdist(a, b).sum().backward())
    # With both norms beside the coordinates: (30, 6 + 2) @ (6 + 2, 40). Backward, torch computes
    # the gradients of both sides, wanted or not.
    assert (count.forward, count.backward) == (2 * 30 * 8 * 40, 2 * 2 * 30 * 6 * 40)
    assert count.uncounted == {}


def test_distances_of_all_pairs_reach_both_points_backward() -> None:
    a = torch.randn(5, 3, requires_grad=True)
    count = count_flops(lambda: torch.pdist(a).sum().backward())
    assert (count.forward, count.backward) == (2 * 10 * 3, 2 * 2 * 10 * 3)
