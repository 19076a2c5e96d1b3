"""An independent witness: a multilinear op of ones, summed up, is the number of its multiply-adds.

Every product in it is 1, so what comes out is how many there were, as torch itself ran them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from formula_calls import flops_of

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops.sparse import stored

aten = torch.ops.aten


def ones(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.float64)


def sparse(rows: int, columns: int, layout: torch.layout = torch.sparse_coo) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows + columns)
    pattern = (torch.rand(rows, columns, generator=generator) > 0.5).double()
    if layout in (torch.sparse_bsr, torch.sparse_bsc):
        # A block with one element is stored whole, with zeros; make all of a block ones.
        blocks = pattern[::2, ::2].repeat_interleave(2, 0).repeat_interleave(2, 1)
        return blocks.to_sparse(layout=layout, blocksize=(2, 2))
    return pattern.to_sparse(layout=layout)


def conv_gradients(groups: int, transposed: bool, mask: list[bool]) -> torch.Tensor:
    x = ones(2, 4, 9, 9)
    w = ones(4, 8 // groups, 3, 3) if transposed else ones(8, 4 // groups, 3, 3)
    out = [0, 0]
    y = aten.convolution(x, w, None, [2, 2], [0, 0], [1, 1], transposed, out, groups)
    grad = torch.ones_like(y)
    gradients = aten.convolution_backward(
        grad, x, w, None, [2, 2], [0, 0], [1, 1], transposed, out, groups, mask
    )
    return sum(g.sum() for g, wanted in zip(gradients, mask, strict=True) if wanted)


CASES: dict[str, Callable[[], Any]] = {
    "mm": lambda: ones(3, 4) @ ones(4, 5),
    "mv": lambda: ones(3, 4) @ ones(4),
    "dot": lambda: torch.dot(ones(7), ones(7)),
    "bmm": lambda: torch.bmm(ones(2, 3, 4), ones(2, 4, 5)),
    "matmul with both sides broadcast": lambda: ones(2, 1, 3, 4) @ ones(3, 4, 5),
    "baddbmm": lambda: torch.baddbmm(0 * ones(2, 3, 5), ones(2, 3, 4), ones(2, 4, 5)),
    "addbmm": lambda: torch.addbmm(0 * ones(3, 5), ones(2, 3, 4), ones(2, 4, 5)),
    "addmm_": lambda: (0 * ones(3, 5)).addmm_(ones(3, 4), ones(4, 5)),
    "linear": lambda: F.linear(ones(2, 3, 4), ones(5, 4)),
    "einsum": lambda: torch.einsum("abc,cbd->ad", ones(2, 3, 4), ones(4, 3, 5)),
    "tensordot": lambda: torch.tensordot(ones(2, 3, 4), ones(3, 4, 5)),
    "foreach_mm": lambda: sum(
        y.sum() for y in torch._foreach_mm([ones(2, 3), ones(4, 5)], [ones(3, 2), ones(5, 6)])
    ),
    "conv1d": lambda: F.conv1d(ones(2, 4, 9), ones(6, 4, 3), stride=2),
    "conv2d in groups": lambda: F.conv2d(ones(2, 4, 9, 9), ones(6, 2, 3, 3), groups=2),
    "conv2d, each channel apart": lambda: F.conv2d(ones(2, 4, 9, 9), ones(4, 1, 3, 3), groups=4),
    "conv3d, dilated": lambda: F.conv3d(ones(1, 2, 7, 7, 7), ones(3, 2, 3, 3, 3), dilation=2),
    "transposed conv in groups": lambda: F.conv_transpose2d(
        ones(2, 4, 5, 5), ones(4, 3, 3, 3), stride=2, groups=2
    ),
    "conv_tbc": lambda: torch.conv_tbc(ones(9, 2, 4), ones(3, 4, 8), 0 * ones(8)),
    "sparse @ sparse": lambda: torch.sparse.mm(sparse(6, 7), sparse(7, 5)).sum(),
    "csr @ csr": lambda: (sparse(6, 7, torch.sparse_csr) @ sparse(7, 5, torch.sparse_csr)).values(),
    "dense @ csr": lambda: ones(3, 6) @ sparse(6, 7, torch.sparse_csr),
    "csr @ vector": lambda: sparse(6, 7, torch.sparse_csr) @ ones(7),
    "sparse mean": lambda: 7 * torch.sparse.mm(full_csr(6, 7), ones(7, 3), "mean"),
    "sparse batch": lambda: torch.bmm(torch.stack([sparse(6, 7)] * 2), ones(2, 7, 3)),
    "sampled": lambda: torch.sparse.sampled_addmm(
        sparse(6, 7, torch.sparse_csr), ones(6, 4), ones(4, 7), beta=0
    ).values(),
    "hspmm": lambda: torch.hspmm(sparse(6, 7), ones(7, 3)).to_dense(),
    "weighted bag": lambda: F.embedding_bag(
        torch.tensor([[0, 2], [1, 1], [2, 0]]),
        ones(3, 4),
        mode="sum",
        per_sample_weights=ones(3, 2),
    ),
    "distances": lambda: aten._cdist_forward(ones(2, 4), 0 * ones(3, 4), 1.0, None),
    "coefficients": lambda: aten._compute_linear_combination(ones(3, 4, 5), ones(2, 3)),
}


def full_csr(rows: int, columns: int) -> torch.Tensor:
    return ones(rows, columns).to_sparse_csr()


@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*in beta state")
@pytest.mark.parametrize("name", CASES)
def test_an_op_of_ones_adds_up_to_its_multiply_adds(name: str) -> None:
    results: list[torch.Tensor] = []
    count = count_flops(lambda: results.append(CASES[name]()))
    assert count.model == 2 * int(results[0].sum())
    assert count.uncounted == {}


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc,
                                    torch.sparse_bsr, torch.sparse_bsc])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Sparse", "ignore:.*in beta state")
def test_a_sparse_matrix_times_a_dense_one_multiplies_what_is_stored(layout: torch.layout) -> None:
    matrix = sparse(6, 8, layout)
    if layout == torch.sparse_bsc:
        count = count_flops(lambda: ones(3, 6) @ matrix)
        assert count.model == 2 * stored(matrix) * 3
        return
    results: list[torch.Tensor] = []
    count = count_flops(lambda: results.append(matrix @ ones(8, 3)))
    assert count.model == 2 * int(results[0].sum()) == 2 * stored(matrix) * 3


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False], [True, True, False]])
def test_gradients_of_a_convolution_of_ones_add_up_to_their_multiply_adds(
    groups: int, transposed: bool, mask: list[bool]
) -> None:
    results: list[torch.Tensor] = []
    count = count_flops(lambda: results.append(conv_gradients(groups, transposed, mask)))
    assert count.by_op["aten.convolution_backward"] == 2 * int(results[0])


@pytest.mark.parametrize("reduce", ["sum", "mean"])
def test_gradients_of_a_sparse_product_are_two_products(reduce: str) -> None:
    a = sparse(6, 7, torch.sparse_csr).requires_grad_()
    b = ones(7, 3).requires_grad_()
    count = count_flops(lambda: torch.sparse.mm(a, b, reduce).sum().backward())
    assert count.forward == 2 * stored(a) * 3
    assert count.backward == 2 * count.forward


def test_gradients_of_a_weighted_bag_are_two_products() -> None:
    table, weights = ones(3, 4).requires_grad_(), ones(3, 2).requires_grad_()
    ids = torch.tensor([[0, 2], [1, 1], [2, 0]])

    def step() -> None:
        F.embedding_bag(ids, table, mode="sum", per_sample_weights=weights).sum().backward()

    count = count_flops(step)
    assert (count.forward, count.backward) == (2 * 6 * 4, 2 * 2 * 6 * 4)


def test_a_bag_without_weights_only_adds() -> None:
    ids = torch.tensor([[0, 2], [1, 1], [2, 0]])
    table = ones(3, 4).requires_grad_()
    count = count_flops(lambda: F.embedding_bag(ids, table, mode="sum").sum().backward())
    assert (count.hardware, count.uncounted) == (0, {})


@pytest.mark.parametrize(
    "name", ["mm", "bmm", "baddbmm", "conv1d", "conv2d in groups", "transposed conv in groups"]
)
def test_the_counter_of_torch_agrees_where_it_is_right(name: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as theirs:
        CASES[name]()
    assert count_flops(CASES[name]).model == theirs.get_total_flops()


@pytest.mark.parametrize("backward", [False, True])
def test_an_lstm_is_its_cells_one_after_the_other(backward: bool) -> None:
    x = torch.randn(5, 3, 6, requires_grad=True)
    layer, cell = torch.nn.LSTM(6, 7), torch.nn.LSTMCell(6, 7)

    def cells() -> torch.Tensor:
        # A first state with a gradient: the layer's kernel computes it in any case.
        state = (torch.zeros(3, 7, requires_grad=True), torch.zeros(3, 7, requires_grad=True))
        for step in x:
            state = cell(step, state)
        return state[0].sum()

    whole = count_flops(lambda: layer(x)[0].sum().backward() if backward else layer(x))
    parts = count_flops(lambda: cells().backward() if backward else cells())
    assert whole.model == parts.model > 0
    assert set(whole.by_op) != set(parts.by_op)


@pytest.mark.parametrize("ways", [1, 2])
@pytest.mark.parametrize("projected", [0, 4])
def test_the_layer_of_cudnn_counts_what_the_cpu_runs_as_products(ways: int, projected: int) -> None:
    layer = torch.nn.LSTM(6, 7, 2, bidirectional=ways == 2, proj_size=projected).double()
    x = torch.randn(5, 3, 6, dtype=torch.float64)
    on_the_cpu = count_flops(layer, x)
    weights = [weight.detach() for weight in layer._flat_weights]
    tail = (2, 7, projected, 2, False, 0.0, True, ways == 2, [], None)
    args = (x, weights, len(weights) // (2 * ways), None, None, None, *tail)
    assert flops_of(aten._cudnn_rnn.default, *args).full == on_the_cpu.model


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_counts_what_its_products_are(causal: bool) -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(2, 4, 16, 8, requires_grad=True)

    def step() -> None:
        F.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

    fused = count_flops(step)
    with sdpa_kernel(SDPBackend.MATH):
        products = count_flops(step)
    assert set(products.by_op) == {"aten.bmm"} != set(fused.by_op)
    assert (fused.forward, fused.backward) == (products.forward, products.backward)
