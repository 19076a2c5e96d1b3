"""FLOPs of Fourier transforms, matrix decompositions and distances: stated formulas.

These count as model FLOPs like every other contraction. What is counted is the textbook
algorithm, not what a library's kernel does:

    FFT of N points           5 N log2 N, real 2.5 N log2 N     benchFFT (Frigo and Johnson)
    Cholesky, LU, QR, ..      exact sums and LAPACK's figures   LAPACK Working Note 41, appendix C
    eigenvalues, SVD          25 n^3, 9 n^3, 14 m n^2 + 8 n^3   Golub and Van Loan, 3rd edition

The last are iterative, so their true count depends on the data: the count says so in a note.
Divisions and square roots are one FLOP each, as in the sources. A complex matrix costs four
times a real one.
"""

from __future__ import annotations

from math import log2, prod
from typing import Any

import torch

from mfu_torch.flops.ops.registry import OpFlops, formula

Tensor = torch.Tensor

FFT_CONVENTION = (
    "Fourier transforms count 5 N log2 N FLOPs for complex and half of it for real data (the "
    "benchFFT convention), whatever their kernels do"
)
ITERATIVE = (
    "eigenvalues and singular values are found by iteration, which depends on the data: their "
    "FLOPs are the textbook's figure (Golub and Van Loan); where the values alone are wanted, "
    "torch computes the vectors as well while it is counted"
)
LEAST_SQUARES = (
    "least squares count as a solution by Householder QR; the drivers with singular values do more"
)
MATRIX_EXPONENTIAL = (
    "a matrix exponential counts the 5 products of its Taylor polynomial of degree 18; how many "
    "are needed, and how often the result is squared, depends on the data"
)


# --- Fourier transforms ----------------------------------------------------------------------


def _fft(flops_per_point: float, shape: torch.Size, dims: list[int]) -> OpFlops:
    points = prod(shape[dim] for dim in dims)
    # One transform over several dimensions is one over all their points: the logarithms add up.
    flops = round(flops_per_point * prod(shape) * log2(points)) if prod(shape) else 0
    return OpFlops(flops, flops, note=FFT_CONVENTION)


@formula("aten::_fft_c2c", operand=None, kind="other")
def _fft_complex(x: Tensor, dims: list[int], *_: Any, result: Any, **__: Any) -> OpFlops:
    return _fft(5, x.shape, dims)


@formula("aten::_fft_r2c", operand=None, kind="other")
def _fft_of_real(x: Tensor, dims: list[int], *_: Any, result: Any, **__: Any) -> OpFlops:
    return _fft(2.5, x.shape, dims)


@formula("aten::_fft_c2r", operand=None, kind="other")
def _fft_to_real(x: Tensor, dims: list[int], *_: Any, result: Tensor, **__: Any) -> OpFlops:
    # The input holds half of the points.
    return _fft(2.5, result.shape, dims)


# --- direct decompositions: (*, m, n), each matrix of the batch apart ------------------------


def lu_flops(m: int, n: int) -> int:
    """Gaussian elimination: the sum over columns k of (m - k) + 2 (m - k) (n - k)."""
    r = min(m, n)
    once, squares = r * (r + 1) // 2, r * (r + 1) * (2 * r + 1) // 6
    return (r * m - once) + 2 * (r * m * n - (m + n) * once + squares)


def cholesky_flops(n: int) -> int:
    """n^3 / 3 + n^2 / 2 + n / 6 (LAWN 41, POTRF)."""
    return n * (n + 1) * (2 * n + 1) // 6


def ldl_flops(n: int) -> int:
    """Symmetric elimination: for each column r divisions and r (r + 1) / 2 multiply-adds."""
    return n * (n - 1) // 2 + (n - 1) * n * (n + 1) // 3


def qr_flops(m: int, n: int) -> int:
    """Householder QR without Q (LAWN 41, GEQRF): about 2 m n^2 - 2 n^3 / 3 for m >= n."""
    if m >= n:
        return (6 * m * n * n - 2 * n**3 + 3 * m * n + 3 * n * n + 14 * n) // 3
    return (6 * n * m * m - 2 * m**3 + 9 * n * m - 3 * m * m + 14 * m) // 3


def q_flops(m: int, n: int, k: int) -> int:
    """The first n columns of the m x m product of k reflectors (LAWN 41, ORGQR)."""
    leading = 4 * m * n * k - 2 * (m + n) * k * k + 4 * (k**3 - k) // 3
    return leading + 3 * n * k - m * k - k * k


def apply_q_flops(m: int, n: int, k: int, left: bool = True) -> int:
    """The product of k reflectors and an m x n matrix (LAWN 41, ORMQR)."""
    if left:
        return 4 * m * n * k - 2 * n * k * k + 3 * n * k
    return 4 * m * n * k - 2 * m * k * k + 2 * m * k + n * k - (k * k - k) // 2


def _batch(matrix: Tensor) -> int:
    return prod(matrix.shape[:-2])


@formula("aten::linalg_cholesky_ex", "aten::cholesky", kind="other")
def _cholesky(a: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _batch(a) * cholesky_flops(a.shape[-1])


@formula("aten::linalg_lu", "aten::linalg_lu_factor_ex", "aten::_linalg_det", kind="other")
@formula("aten::_linalg_slogdet", kind="other")
def _lu(a: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # A determinant's product of the diagonal is elementwise.
    return _batch(a) * lu_flops(*a.shape[-2:])


@formula("aten::linalg_ldl_factor_ex", kind="other")
def _ldl(a: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _batch(a) * ldl_flops(a.shape[-1])


@formula("aten::geqrf", kind="other")
def _qr_factors(a: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _batch(a) * qr_flops(*a.shape[-2:])


@formula("aten::linalg_qr", kind="other")
def _qr(a: Tensor, mode: str = "reduced", *_: Any, result: Any, **__: Any) -> int:
    m, n = a.shape[-2:]
    k = min(m, n)
    q = {"r": 0, "reduced": q_flops(m, k, k), "complete": q_flops(m, m, k)}[mode]
    return _batch(a) * (qr_flops(m, n) + q)


@formula("aten::linalg_householder_product", kind="other")
def _householder(a: Tensor, tau: Tensor, *_: Any, result: Any, **__: Any) -> int:
    return _batch(a) * q_flops(a.shape[-2], a.shape[-1], tau.shape[-1])


@formula("aten::ormqr", kind="other")
def _ormqr(
    a: Tensor, tau: Tensor, other: Tensor, left: bool = True, *_: Any, result: Any, **__: Any
) -> int:
    m, n = other.shape[-2:]
    return _batch(other) * apply_q_flops(m, n, tau.shape[-1], left=left)


@formula("aten::linalg_inv_ex", kind="other")
def _inverse(a: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # LAWN 41: GETRF and GETRI, 2 n^3 / 3 and 4 n^3 / 3
    return 2 * prod(a.shape) * a.shape[-1]


@formula("aten::cholesky_inverse", kind="other")
def _cholesky_inverse(factor: Tensor, *_: Any, result: Any, **__: Any) -> int:
    n = factor.shape[-1]
    return _batch(factor) * (n * (4 * n * n + 3 * n + 5) // 6)  # LAWN 41: POTRI


# --- solutions: (*, n, n) \ (*, n, k), or from the right; prod(x.shape) is n k a matrix ---------


@formula("aten::linalg_solve_triangular", kind="other")
def _solve_triangular(
    a: Tensor, b: Tensor, *_: Any, unitriangular: bool = False, result: Tensor, **__: Any
) -> int:
    # n (n - 1) / 2 multiply-adds and, without ones on the diagonal, n divisions for each column
    return (a.shape[-1] - int(unitriangular)) * prod(result.shape)


@formula("aten::triangular_solve", kind="other")
def _triangular_solve(
    b: Tensor,
    a: Tensor,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
    *_: Any,
    result: Any,
    **__: Any,
) -> int:
    solution: Tensor = result[0]
    return (a.shape[-1] - unitriangular) * prod(solution.shape)


@formula("aten::_linalg_solve_ex", kind="other")
def _solve(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> int:
    n, solution = a.shape[-1], result[0]
    substitutions: int = (2 * n - 1) * prod(solution.shape)
    return _batch(a) * lu_flops(n, n) + substitutions


@formula("aten::linalg_lu_solve", "aten::linalg_ldl_solve", kind="other")
def _factored_solve(factors: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # Two triangles, one of them with ones on its diagonal; or two of these and a diagonal.
    return (2 * factors.shape[-1] - 1) * prod(result.shape)


@formula("aten::cholesky_solve", "aten::_cholesky_solve_helper", kind="other")
def _cholesky_solve(b: Tensor, factor: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    return 2 * factor.shape[-1] * prod(result.shape)


@formula("aten::linalg_lstsq", kind="other")
def _least_squares(a: Tensor, b: Tensor, *_: Any, result: Any, **__: Any) -> OpFlops:
    # QR, its transpose times b, one triangle; a wide matrix is transposed first.
    k, r, s = _right_sides(a, b), min(a.shape[-2:]), max(a.shape[-2:])
    flops = _batch(a) * (qr_flops(s, r) + apply_q_flops(s, k, r) + r * r * k)
    return OpFlops(flops, flops, note=LEAST_SQUARES)


def _right_sides(a: Tensor, b: Tensor) -> int:
    vectors = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    return 1 if vectors else b.shape[-1]


# --- iterations ------------------------------------------------------------------------------


def _iterative(flops: int) -> OpFlops:
    return OpFlops(flops, flops, note=ITERATIVE)


@formula("aten::_linalg_eigh", kind="other")
def _eigh(
    a: Tensor, uplo: str = "L", compute_v: bool = True, *_: Any, result: Any, **__: Any
) -> OpFlops:
    # Golub and Van Loan 8.3: 9 n^3 with the vectors, 4 n^3 / 3 without
    cubes = prod(a.shape) * a.shape[-1]
    return _iterative(9 * cubes if compute_v else 4 * cubes // 3)


@formula("aten::linalg_eig", kind="other")
def _eig(a: Tensor, *_: Any, result: Any, **__: Any) -> OpFlops:
    return _iterative(25 * prod(a.shape) * a.shape[-1])  # Golub and Van Loan 7.5.6


@formula("aten::linalg_eigvals", "aten::_linalg_eigvals", kind="other")
def _eigvals(a: Tensor, *_: Any, result: Any, **__: Any) -> OpFlops:
    return _iterative(10 * prod(a.shape) * a.shape[-1])  # Golub and Van Loan 7.5.6


def svd_flops(m: int, n: int, full: bool, vectors: bool) -> int:
    """Golub and Van Loan, table of section 5.4.5, for the Golub-Reinsch algorithm."""
    s, r = max(m, n), min(m, n)
    if not vectors:
        return (12 * s * r * r - 4 * r**3) // 3
    if full:
        return 4 * s * s * r + 8 * s * r * r + 9 * r**3
    return 14 * s * r * r + 8 * r**3


@formula("aten::_linalg_svd", kind="other")
def _svd(
    a: Tensor,
    full_matrices: bool = False,
    compute_uv: bool = True,
    *_: Any,
    result: Any,
    **__: Any,
) -> OpFlops:
    m, n = a.shape[-2:]
    return _iterative(_batch(a) * svd_flops(m, n, full_matrices, compute_uv))


@formula("aten::linalg_pinv", kind="other")
def _pinv(a: Tensor, *_: Any, hermitian: bool = False, result: Any, **__: Any) -> OpFlops:
    # The decomposition, and V @ (S^-1 U^H).
    m, n = a.shape[-2:]
    parts = 9 * n**3 if hermitian else svd_flops(m, n, full=False, vectors=True)
    return _iterative(_batch(a) * (parts + 2 * m * n * min(m, n)))


@formula("aten::linalg_matrix_exp")
def _matrix_exp(a: Tensor, *_: Any, result: Any, **__: Any) -> OpFlops:
    flops = 5 * 2 * prod(a.shape) * a.shape[-1]
    return OpFlops(flops, flops, note=MATRIX_EXPONENTIAL)


@formula("aten::_compute_linear_combination")
def _linear_combination(x: Tensor, coefficients: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # (out, terms) @ (terms, elements of a term)
    return 2 * prod(coefficients.shape) * prod(x.shape[1:])


# --- distances -------------------------------------------------------------------------------


@formula("aten::_euclidean_dist")
def _euclidean_dist(a: Tensor, b: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # (*, p, d + 2) @ (*, d + 2, r): both norms stand beside the coordinates
    return 2 * prod(result.shape) * (a.shape[-1] + 2)


@formula("aten::_cdist_forward", kind="other")
def _cdist(a: Tensor, b: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    # Each coordinate of each pair is one multiply-add; its subtraction is elementwise.
    return 2 * prod(result.shape) * a.shape[-1]


@formula("aten::_cdist_backward", kind="other")
def _cdist_backward(grad: Tensor, a: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # The gradient of one side: a sum over the other, (*, p, r) with (*, p, r, d).
    return 2 * prod(grad.shape) * a.shape[-1]


@formula("aten::_pdist_forward", kind="other")
def _pdist(x: Tensor, *_: Any, result: Tensor, **__: Any) -> int:
    return 2 * prod(result.shape) * x.shape[-1]


@formula("aten::_pdist_backward", kind="other")
def _pdist_backward(grad: Tensor, x: Tensor, *_: Any, result: Any, **__: Any) -> int:
    # Each pair reaches both of its points.
    return 2 * 2 * prod(grad.shape) * x.shape[-1]
