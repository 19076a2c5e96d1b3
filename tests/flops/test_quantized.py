"""Layers with packed and quantised weights, run by the engine that this machine has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from formula_calls import flops_of, shape
from torch import nn

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops import count_call, formula_for

aten = torch.ops.aten

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")

needs_engine = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="no quantised kernels here"
)

X = torch.randn(5, 3, 6)


def dynamic(layer: nn.Module, dtype: torch.dtype = torch.qint8) -> nn.Module:
    return torch.ao.quantization.quantize_dynamic(nn.Sequential(layer), {type(layer)}, dtype)


def bytes_(*size: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.randn(size), 0.1, 0, torch.quint8)


@needs_engine
def test_a_linear_layer_that_quantises_on_the_fly_runs_in_int8() -> None:
    count = count_flops(dynamic(nn.Linear(6, 9)), X)
    assert count.by_dtype == {"int8": 2 * 15 * 6 * 9}


@needs_engine
def test_fp16_weights_are_widened_and_multiplied_in_fp32() -> None:
    count = count_flops(dynamic(nn.Linear(6, 9), torch.float16), X)
    assert count.by_dtype == {"fp32": 2 * 15 * 6 * 9}


@needs_engine
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTM, 4), (nn.GRU, 3)])
@pytest.mark.parametrize("ways", [1, 2])
def test_a_quantised_recurrent_layer_is_its_gates_over_input_and_hidden(
    kind: Any, gates: int, ways: int
) -> None:
    count = count_flops(dynamic(kind(6, 7, num_layers=2, bidirectional=ways == 2)), X)
    first, second = 6 + 7, ways * 7 + 7
    assert count.by_dtype == {"int8": 2 * 15 * ways * gates * 7 * (first + second)}
    assert count.uncounted == {}


@needs_engine
def test_a_quantised_recurrent_layer_counts_packed_sequences_as_they_are() -> None:
    packed = nn.utils.rnn.pack_padded_sequence(X, [5, 3, 1])
    count = count_flops(dynamic(nn.LSTM(6, 7)), packed)
    assert count.by_dtype == {"int8": 2 * 9 * 4 * 7 * (6 + 7)}


@needs_engine
@pytest.mark.parametrize(("kind", "gates"), [(nn.LSTMCell, 4), (nn.GRUCell, 3), (nn.RNNCell, 1)])
def test_a_quantised_cell_is_its_gates_over_input_and_hidden(kind: Any, gates: int) -> None:
    count = count_flops(dynamic(kind(6, 7)), X[0])
    assert count.by_dtype == {"int8": 2 * 3 * gates * 7 * (6 + 7)}


@needs_engine
def test_static_layers_read_their_filters_from_the_packed_weight() -> None:
    from torch.ao.nn import quantized as nnq

    image = 2 * 2 * 7 * 7 * 8 * 2 * 9
    assert count_flops(nnq.Conv2d(4, 8, 3, groups=2), bytes_(2, 4, 9, 9)).by_dtype == {
        "int8": image
    }
    transposed = count_flops(nnq.ConvTranspose2d(4, 8, 3), bytes_(2, 4, 9, 9))
    assert transposed.by_dtype == {"int8": 2 * 2 * 9 * 9 * 4 * 8 * 9}
    assert count_flops(nnq.Conv1d(4, 8, 3), bytes_(2, 4, 9)).model == 2 * 2 * 7 * 8 * 4 * 3
    assert count_flops(nnq.Linear(9, 5), bytes_(2, 9)).by_dtype == {"int8": 2 * 2 * 9 * 5}
    product = count_flops(lambda: torch.ops.quantized.matmul(bytes_(3, 4), bytes_(4, 5), 0.1, 0))
    assert product.by_dtype == {"int8": 2 * 3 * 4 * 5}


@needs_engine
def test_what_only_packs_or_moves_quantised_tensors_is_not_suspected() -> None:
    from torch.ao.nn import quantized as nnq

    def build() -> None:
        layer = nnq.Conv2d(4, 8, 3)
        layer.weight()
        torch.ops.quantized.add(bytes_(2, 2), bytes_(2, 2), 0.1, 0)
        bytes_(2, 3).dequantize().relu()

    assert count_flops(build).uncounted == {}


@pytest.mark.skipif(not hasattr(aten, "_dyn_quant_matmul_4bit"), reason="this torch lacks the op")
def test_int4_weights_with_activations_quantised_on_the_fly_run_in_int8() -> None:
    packed = torch.ops.aten._dyn_quant_pack_4bit_weight(
        torch.randint(0, 255, (16, 32), dtype=torch.uint8), torch.randn(16, 2), None, 32, 64, 16
    )
    count = count_flops(aten._dyn_quant_matmul_4bit, torch.randn(3, 64), packed, 32, 64, 16)
    assert count.by_dtype == {"int8": 2 * 3 * 64 * 16}


def test_int8_and_int4_weights_are_multiplied_in_the_dtype_of_the_activations() -> None:
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    weight, scales = torch.randint(-9, 9, (16, 32), dtype=torch.int8), torch.ones(16).bfloat16()
    count = count_flops(torch._weight_int8pack_mm, x, weight, scales)
    assert count.by_dtype == {"bf16": 2 * 3 * 32 * 16}
    result = shape(3, 16, dtype=torch.bfloat16)
    packed = shape(16, 16, dtype=torch.int32)
    for op in (aten._weight_int4pack_mm, torch.ops.quantized.int4mm_packed_weight_cpu):
        formula = formula_for(op.default)
        assert formula is not None
        counted = count_call(formula, (x, packed, 32, scales), {}, result)
        assert counted is not None
        assert (counted.dtype, counted.flops.full) == ("bf16", 2 * 3 * 32 * 16)


def test_kernels_of_the_compiler_for_the_cpu_have_their_own_argument_orders() -> None:
    x, weight, out = shape(2, 4, 9, 9), shape(8, 2, 3, 3), shape(2, 8, 7, 7)
    image = 2 * 2 * 7 * 7 * 8 * 2 * 9
    conv = torch.ops.mkldnn._convolution_pointwise
    assert flops_of(conv.default, x, weight, None, result=out).full == image
    assert flops_of(conv.binary, x, out, weight, None, result=out).full == image
    conv = torch.ops.mkldnn._convolution_pointwise_
    assert flops_of(conv.binary, out, x, weight, None, result=out).full == image
    conv = torch.ops.mkldnn._convolution_transpose_pointwise
    assert flops_of(conv.default, x, weight, None, result=out).full == 2 * 2 * 81 * 8 * 2 * 9
    x, packed, out = shape(3, 32), shape(99), shape(3, 16)
    linear = torch.ops.mkldnn._linear_pointwise
    assert flops_of(linear.default, x, packed, None, result=out).full == 2 * 3 * 32 * 16
    assert flops_of(linear.binary, x, out, packed, None, result=out).full == 2 * 3 * 32 * 16
    x, image8 = shape(3, 32, dtype=torch.uint8), shape(2, 4, 9, 9, dtype=torch.uint8)
    linear = torch.ops.onednn.qlinear_pointwise.default
    assert flops_of(linear, x, 0.1, 0, packed, result=out).full == 2 * 3 * 32 * 16
    conv = torch.ops.onednn.qconv2d_pointwise.default
    out = shape(2, 8, 7, 7)
    assert flops_of(conv, image8, 0.1, 0, weight, result=out).full == image


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="no MKL here")
def test_the_linear_layer_of_mkl_knows_its_width_from_the_result() -> None:
    op = torch.ops.mkl._mkl_linear.default
    weight = shape(16, 32)
    assert flops_of(op, shape(3, 32), shape(9), weight, None, 3, result=shape(3, 16)).full == (
        2 * 3 * 32 * 16
    )
