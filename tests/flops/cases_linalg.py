"""Transforms, decompositions and distances, which count by stated textbook formulas.

LAWN 41: LAPACK Working Note 41, appendix C. GVL: Golub and Van Loan, Matrix Computations.
"""

from __future__ import annotations

import torch
from cases import Work, op, work

N, RIGHT = 8, 3
MATRIX = torch.eye(N) + 1 / N

# Column by column: n - k quotients, and (n - k)^2 multiply-adds.
ELIMINATION = sum((N - k) + 2 * (N - k) ** 2 for k in range(1, N + 1))
FOURIER = "Fourier transforms count"
ITERATIVE = "eigenvalues and singular values"


@work
def fourier_transform() -> Work:
    # 5 N log2 N each, log2 64 = 6
    x = torch.ones(4, 64, dtype=torch.complex64)
    return op(torch.fft.fft, x, forward=4 * 5 * 64 * 6, says=FOURIER)


@work
def fourier_transform_of_real_data() -> Work:
    return op(torch.fft.rfft, torch.ones(4, 64), forward=4 * 5 * 64 * 6 // 2, says=FOURIER)


@work
def fourier_transform_in_two_dimensions() -> Work:
    # log2 (16 * 8) = 7
    x = torch.ones(4, 16, 8, dtype=torch.complex64)
    return op(torch.fft.fft2, x, forward=4 * 5 * 16 * 8 * 7, says=FOURIER)


@work
def cholesky_decomposition() -> Work:
    flops = N**3 / 3 + N**2 / 2 + N / 6  # LAWN 41
    return op(torch.linalg.cholesky, MATRIX, forward=round(flops))


@work
def linear_equations() -> Work:
    # Elimination, then for each right side n (n - 1) down and n^2 up.
    down, up = N * (N - 1), N * N
    b = torch.ones(N, RIGHT)
    return op(torch.linalg.solve, MATRIX, b, forward=ELIMINATION + RIGHT * (down + up))


@work
def triangular_equations() -> Work:
    return op(
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=True), MATRIX, torch.ones(N, RIGHT),
        forward=RIGHT * N * N,
    )  # fmt: skip


@work
def determinant() -> Work:
    return op(torch.linalg.det, MATRIX, forward=ELIMINATION)


@work
def inverse() -> Work:
    return op(torch.linalg.inv, MATRIX, forward=2 * N**3)  # LAWN 41: GETRF and GETRI


@work
def qr_decomposition() -> Work:
    m, n = 10, 6
    factors = 2 * m * n**2 - 2 * n**3 / 3 + m * n + n**2 + 14 * n / 3  # LAWN 41: GEQRF
    q = 4 * m * n * n - 2 * (m + n) * n**2 + 4 * n**3 / 3  # ORGQR
    q += 3 * n * n - m * n - n**2 - 4 * n / 3
    return op(torch.linalg.qr, torch.ones(m, n), forward=round(factors + q))


@work
def symmetric_eigenvalues_and_vectors() -> Work:
    return op(torch.linalg.eigh, MATRIX, forward=9 * N**3, says=ITERATIVE)  # GVL 8.3


@work
def singular_values_and_vectors() -> Work:
    m, n = 10, 6
    return op(
        lambda a: torch.linalg.svd(a, full_matrices=False), torch.ones(m, n),
        forward=14 * m * n**2 + 8 * n**3, says=ITERATIVE,  # GVL 5.4.5
    )  # fmt: skip


@work
def distances_through_a_product() -> Work:
    # |x - y|^2 as one product: both sides get two more columns, for the norms.
    p, r, d = 50, 60, 20
    return op(torch.cdist, torch.ones(p, d), torch.ones(r, d), forward=2 * p * r * (d + 2))


@work
def distances_one_by_one() -> Work:
    # Up to 25 rows on a side: a multiply-add per coordinate.
    p, r, d = 5, 6, 20
    return op(torch.cdist, torch.ones(p, d), torch.ones(r, d), forward=2 * p * r * d)
