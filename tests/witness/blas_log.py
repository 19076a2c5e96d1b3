"""Reads what oneDNN and MKL log of the products that they run.

    MKL_VERBOSE SGEMM(N,N,43,37,41,..)                   2 * 43 * 37 * 41
    onednn_verbose,v1,primitive,exec,cpu,matmul,..,37x41:41x43,0.01
    onednn_verbose,..,convolution,..,g8mb2_ic8oc8_ih16oh14kh3..,0.02

Each is one product, one convolution or one recurrent layer, with the sizes that it ran at. MKL
prints only addresses for batched products: these are counted as calls. A line that may be a
contraction and cannot be read is kept as unknown, so that no work goes missing unseen.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod
from typing import NamedTuple


class Log(NamedTuple):
    """What a log holds.

    Attributes:
        flops: Of everything whose sizes are printed, by kind.
        batches: Batched products of MKL, whose sizes are not printed.
        unknown: Lines that could not be read.
    """

    flops: dict[str, int]
    batches: int
    unknown: list[str]

    @property
    def total(self) -> int:
        return sum(self.flops.values())


def read(lines: Iterable[str]) -> Log:
    flops: dict[str, int] = {}
    batches, unknown = 0, []
    for line in lines:
        if line.startswith("MKL_VERBOSE ") and "(" in line and " oneMKL " not in line:
            kind, found = _mkl(line)
        elif line.startswith("onednn_verbose,") and ",exec,cpu," in line:
            kind, found = _onednn(line)
        else:
            continue
        if kind == "batch":
            batches += 1
        elif found is None:
            unknown.append(line.strip())
        elif found:
            flops[kind] = flops.get(kind, 0) + found
    return Log(flops, batches, unknown)


# --- MKL: the routine's name, then its arguments ---------------------------------------------

_NAME = re.compile(r"MKL_VERBOSE (?:cblas_)?(\w+)\(")
_GEMM = re.compile(r"([SDCZ]GEMM|GEMM_BF16BF16F32|GEMM_F16F16F32)\(\w,\w,(\d+),(\d+),(\d+),")
_GEMV = re.compile(r"([SDCZ])GEMV\(\w,(\d+),(\d+),")
_DOT = re.compile(r"([SD])DOT\((\d+),")
_TRSM = re.compile(r"[SD]TRSM\(([LR]),\w,\w,([UN]),(\d+),(\d+),")
_HARMLESS_MKL = re.compile(r"(MKL_)?[SDCZ]?(OMATCOPY|IMATCOPY|AXPBY|AXPY|SCAL|COPY|GER)")


def _mkl(line: str) -> tuple[str, int | None]:
    name = _NAME.match(line)
    if name and name[1].upper().endswith("GEMM_BATCH"):
        return "batch", None
    if name and _HARMLESS_MKL.fullmatch(name[1].upper()):
        return "", 0
    for pattern in (_GEMM, _GEMV, _DOT):
        if found := pattern.search(line):
            complex_numbers = found[1][0] in "CZ"
            return "blas", (8 if complex_numbers else 2) * prod(map(int, found.groups()[1:]))
    if found := _TRSM.search(line):
        # A triangle and m x n unknowns; with ones on its diagonal nothing is divided.
        m, n = int(found[3]), int(found[4])
        triangle = m if found[1] == "L" else n
        return "solve", (triangle - (found[2] == "U")) * m * n
    return "", None


# --- oneDNN: kind, implementation, direction, .., details, sizes, time -----------------------

_HARMLESS_ONEDNN = re.compile(
    "reorder|eltwise|sum|binary|softmax|pooling|concat|resampling|shuffle|prelu|reduction"
    "|layer_normalization|batch_normalization"
)
_GATES = {"vanilla_lstm": 4, "vanilla_gru": 3, "lbr_gru": 3, "vanilla_rnn": 1}


def _onednn(line: str) -> tuple[str, int | None]:
    kind, _, direction, *fields = line.strip().partition(",exec,cpu,")[2].split(",")
    details, sizes = fields[-3], fields[-2]
    if _HARMLESS_ONEDNN.fullmatch(kind):
        return "", 0
    if kind in ("matmul", "gemm_api"):
        return "matmul", _matmul(sizes)
    named = {name: int(size) for name, size in re.findall(r"([a-z]+)(\d+)", sizes)}
    if kind in ("convolution", "deconvolution"):
        return kind, _convolution(named, transposed=kind == "deconvolution")
    if kind == "inner_product":
        spatial = [named.get(f"i{axis}", 1) for axis in "dhw"]
        return kind, 2 * named["mb"] * named["ic"] * named["oc"] * prod(spatial)
    if kind == "rnn":
        return kind, _rnn(named, details, backward=direction == "backward")
    return "", None


def _matmul(sizes: str) -> int:
    left, right = ([int(n) for n in side.split("x")] for side in sizes.split(":")[:2])
    batch = [max(a, b) for a, b in zip(left[:-2], right[:-2], strict=True)]
    return 2 * prod(batch) * left[-2] * left[-1] * right[-1]


def _convolution(named: dict[str, int], transposed: bool) -> int:
    # Forward, gradient of the data and of the weights: each position meets every weight once.
    positions = prod(named.get(("i" if transposed else "o") + axis, 1) for axis in "dhw")
    kernel = prod(named.get(f"k{axis}", 1) for axis in "dhw")
    weights = named["ic"] * named["oc"] // named.get("g", 1) * kernel
    return 2 * named["mb"] * positions * weights


def _rnn(named: dict[str, int], details: str, backward: bool) -> int:
    # slc: width of the input, sic: of the state, dhc: of the gates. The backward has the gradient
    # of the input as well, wanted or not.
    gates = _GATES[re.search(r"alg:(\w+)", details)[1]]  # type: ignore[index]
    directions = 2 if "bidirectional" in details else 1
    forward = 2 * named["l"] * named["t"] * named["mb"] * directions
    forward *= gates * named["dhc"] * (named["slc"] + named["sic"])
    return 2 * forward if backward else forward
