"""Formulas of ops that only an accelerator runs, against those of live (meta) tensors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from mfu_torch.flops.ops import formula_for
from mfu_torch.insight.breakdown.calls import NotRecordedError, OpCall, call_of
from mfu_torch.insight.breakdown.formulas import FORMULAS
from mfu_torch.insight.breakdown.formulas.attention import kept_pairs
from mfu_torch.insight.breakdown.formulas.work import Context, Work

TYPES = {
    torch.bfloat16: "c10::BFloat16",
    torch.float32: "float",
    torch.int32: "int",
    torch.uint8: "unsigned char",
}


def tensor(*sizes: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(sizes, dtype=dtype, device="meta")


def offsets(count: int) -> torch.Tensor:
    return tensor(count, dtype=torch.int32)


def recorded(name: str, args: list[Any]) -> OpCall:
    """The call as the profiler records it."""
    dims, types, concrete = [], [], []
    for value in args:
        many = isinstance(value, list) and value and isinstance(value[0], torch.Tensor)
        if many:
            dims.append([list(one.shape) for one in value])
        else:
            dims.append(list(value.shape) if isinstance(value, torch.Tensor) else [])
        types.append(_type(value, many))
        concrete.append(
            "" if value is None or types[-1] not in ("Scalar", "ScalarList") else str(value)
        )
    texts = (json.dumps(one).encode() for one in (dims, types, concrete))
    return call_of(name, *texts)


def _type(value: Any, many: bool) -> str:
    if value is None:
        return ""
    if many:
        return "TensorList"
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "ScalarList" if isinstance(value, list) else "Scalar"


def work_of(name: str, args: list[Any], context: Context | None = None) -> Work:
    return FORMULAS[name](recorded(name, args), context or Context())


def _sdpa() -> list[Any]:
    return [tensor(2, 4, 8, 16), tensor(2, 4, 6, 16), tensor(2, 4, 6, 32)]


def _flash() -> list[Any]:
    return [tensor(2, 8, 4, 16), tensor(2, 6, 4, 16), tensor(2, 6, 4, 16)]


def _packed() -> list[Any]:
    return [tensor(20, 4, 16), tensor(18, 4, 16), tensor(18, 4, 16)]


LSE, SEED = tensor(2, 4, 8, dtype=torch.float32), tensor(2, dtype=torch.int32)
GRAD, FLASH_GRAD, OUT = tensor(2, 4, 8, 32), tensor(2, 8, 4, 16), tensor(20, 4, 16)
NONE = tensor(0, dtype=torch.int32)
X, W = tensor(3, 4, 9, 8), tensor(6, 2, 3, 2)

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    *[
        (f"_scaled_dot_product_{kind}_attention", [*_sdpa(), *args], {})
        for causal in (False, True)
        for kind, args in (
            ("flash", [0.0, causal, False]),
            ("efficient", [None, True, 0.0, causal]),
            ("cudnn", [None, True, 0.0, causal, False]),
        )
    ],
    *[
        (f"_scaled_dot_product_{kind}_backward", [GRAD, *_sdpa(), *args], {})
        for causal in (False, True)
        for kind, args in (
            (
                "flash_attention",
                [GRAD, LSE, NONE, NONE, 8, 6, 0.0, causal, SEED, SEED],
            ),
            (
                "efficient_attention",
                [None, GRAD, LSE, SEED, SEED, 0.0, [True] * 4, causal],
            ),
            (
                "cudnn_attention",
                [GRAD, LSE, SEED, SEED, None, None, None, 8, 6, 0.0, causal],
            ),
            (
                "fused_attention_overrideable",
                [None, [True] * 4, GRAD, LSE, None, None, 8, 6, 0.0, causal, SEED, SEED],
            ),
        )
    ],
    ("_flash_attention_forward", [*_flash(), None, None, 8, 6, 0.0, True, False], {}),
    ("_flash_attention_forward", [*_packed(), offsets(4), offsets(4), 9, 7, 0.0, True, False], {}),
    (
        "_flash_attention_forward",
        [*_flash(), None, None, 8, 6, 0.0, False, False],
        {"scale": None, "window_size_left": 2, "window_size_right": 1},
    ),
    (
        "_flash_attention_backward",
        [FLASH_GRAD, *_flash(), FLASH_GRAD, LSE, NONE, NONE, 8, 6, 0.0, True, SEED, SEED],
        {},
    ),
    (
        "_flash_attention_backward",
        [OUT, *_packed(), OUT, LSE, offsets(4), offsets(4), 9, 7, 0.0, False, SEED, SEED],
        {},
    ),
    *[
        ("_efficient_attention_forward", [*_flash(), *[None] * 5, 0.0, mask_type], {})
        for mask_type in (0, 1, 2)
    ],
    (
        "_efficient_attention_forward",
        [*_flash(), *[None] * 5, 0.0, 1, False],
        {"scale": None, "seqlen_k": None, "window_size": 3},
    ),
    (
        "_efficient_attention_backward",
        [FLASH_GRAD, *_flash(), None, FLASH_GRAD, *[None] * 4, LSE, 0.0, SEED, SEED, 2, False],
        {},
    ),
    ("_cudnn_attention_forward", [*_sdpa(), None, None, None, 8, 6, True, 0.0, True], {}),
    (
        "_cudnn_attention_forward",
        [*_packed(), None, offsets(4), offsets(4), 9, 7, True, 0.0, True],
        {},
    ),
    (
        "_cudnn_attention_backward",
        [GRAD, *_sdpa(), GRAD, LSE, SEED, SEED, None, None, None, 8, 6, 0.0, True],
        {},
    ),
    ("_addmm_activation", [tensor(5), tensor(3, 4), tensor(4, 5)], {}),
    ("_grouped_mm", [tensor(3, 20), tensor(20, 5), offsets(4)], {}),
    ("_grouped_mm", [tensor(4, 3, 16), tensor(16, 20), offsets(4)], {}),
    ("_grouped_mm", [tensor(4, 3, 16), tensor(4, 16, 5)], {}),
    ("_scaled_grouped_mm", [tensor(10, 16), tensor(2, 16, 8), SEED, SEED, offsets(2)], {}),
    *[
        ("convolution_backward", [tensor(3, 6, 9, 4), X, W, [0], *args, [dx, dw, True]], {})
        for args in [[[1, 2], [1, 0], [1, 1], False, [0, 0], 2]]
        for dx in (False, True)
        for dw in (False, True)
    ],
    (
        "convolution_backward",
        [GRAD, X, tensor(4, 3, 3, 3), [0], [2], [0], [1], True, [0], 1, [True, True, False]],
        {},
    ),
    (
        "convolution_backward_overrideable",
        [tensor(3, 6, 9, 4), X, W, [1, 2], [1, 0], [1, 1], False, [0, 0], 2, [True, True, False]],
        {},
    ),
    (
        "_cudnn_rnn_backward",
        [
            *(tensor(7, 2, 4), [tensor(20, 4), tensor(20, 5), tensor(20), tensor(20)] * 2, 4, None),
            *(GRAD, GRAD, GRAD, GRAD, None, None, 2, 5, 0, 1, False, 0.0, True, True, []),
            *(None, SEED, [False, False, False, True]),
        ],
        {},
    ),
]


@pytest.mark.parametrize(("name", "args", "more"), CASES)
def test_an_op_of_an_accelerator_counts_as_live_tensors_do(
    name: str, args: list[Any], more: dict[str, Any]
) -> None:
    packet = getattr(torch.ops.aten, name)
    known = formula_for(packet.default)
    assert known is not None
    expected = known.fn(*args, **more, result=None)
    work = work_of(f"aten::{name}", [*_padded(packet, args, more)])
    if isinstance(expected, int):
        assert (work.flops, work.causal_flops) == (expected, expected)
        return
    assert (work.flops, work.causal_flops) == (expected.full, expected.causal)
    assert work.kernel_recompute == expected.kernel_recompute
    assert work.kernel_recompute_causal == expected.kernel_recompute_causal
    assert bool(work.note) == bool(expected.note)


def _padded(packet: Any, args: list[Any], more: dict[str, Any]) -> list[Any]:
    # The profiler records every argument of the schema, in its order.
    names = [one.name for one in packet.default._schema.arguments]
    return [*args, *(more.get(name) for name in names[len(args) :])]


CONVS: dict[str, list[Any]] = {
    # x (3, 4, 9, 8) * (6, 2, 3, 2), 2 groups, stride (2, 1), padding (1, 0) -> (3, 6, 5, 7)
    "cudnn_convolution": [X, W, [1, 0], [2, 1], [1, 1], 2, False, False, True],
    "miopen_convolution": [X, W, None, [1, 0], [2, 1], [1, 1], 2, False, False],
    "mkldnn_convolution": [X, W, None, [1, 0], [2, 1], [1, 1], 2],
    "cudnn_convolution_relu": [X, W, None, [2, 1], [1, 0], [1, 1], 2],
    "cudnn_convolution_add_relu": [X, W, tensor(3, 6, 5, 7), 1.0, None, [2, 1], [1, 0], [1], 2],
    "_convolution": [X, W, None, [2, 1], [1, 0], [1], False, [0], 2, False, False, True, True],
    "conv2d": [X, W, None, [2, 1], [1, 0], [1, 1], 2],
    "_slow_conv2d_forward": [X, W, [3, 2], None, [2, 1], [1, 0]],
    "_conv_depthwise2d": [X, W, [3, 2], None, [2, 1], [1, 0], [1, 1]],
}


@pytest.mark.parametrize("name", CONVS)
def test_a_convolution_finds_its_output_from_stride_and_padding(name: str) -> None:
    work = work_of(f"aten::{name}", CONVS[name])
    assert work.flops == 2 * 3 * (5 * 7) * (6 * 2 * 3 * 2)
    assert work.family == "conv" and work.dtype == "bf16"


def test_a_fused_backward_computes_the_scores_a_fifth_time() -> None:
    args = [FLASH_GRAD, *_flash(), FLASH_GRAD, LSE, NONE, NONE, 8, 6, 0.0, False, SEED, SEED]
    work = work_of("aten::_flash_attention_backward", args)
    pairs = 2 * 4 * 8 * 6
    assert work.flops == pairs * 4 * 2 * 16
    assert work.kernel_recompute == pairs * 2 * 16


def test_packages_of_flash_attention_count_the_same() -> None:
    args = [*_flash(), 0.0, 0.125, True, -1, -1, 0.0, None, False]
    pairs, kept = 2 * 4 * 8 * 6, 2 * 4 * kept_pairs(8, 6, -2, None, 0)
    work = work_of("flash_attn::_flash_attn_forward", args)
    assert (work.flops, work.causal_flops) == (pairs * 64, kept * 64)
    args = [FLASH_GRAD, *_flash(), FLASH_GRAD, LSE, None, None, None, 0.0, 0.1, True, -1, -1, 0.0]
    work = work_of("flash_attn::_flash_attn_backward", args)
    assert (work.flops, work.kernel_recompute_causal) == (pairs * 128, kept * 32)


def test_an_old_convolution_is_deduced_from_its_backward_or_unknown() -> None:
    call = OpCall("aten::cudnn_convolution", ((3, 4, 9, 8), (6, 2, 3, 2)), ("float",) * 2, ())
    with pytest.raises(NotRecordedError, match="old torch"):
        FORMULAS[call.name](call, Context())
    outputs = {((3, 4, 9, 8), (6, 2, 3, 2)): (3, 6, 5, 7)}
    work = FORMULAS[call.name](call, Context(conv_outputs=outputs))
    assert work.flops == 2 * 3 * (5 * 7) * (6 * 2 * 3 * 2)
    assert "those that the backward" in work.note


def test_the_gradient_of_old_filters_takes_their_shape_from_the_op_around_it() -> None:
    grad, x, weight = (3, 6, 5, 7), (3, 4, 9, 8), (6, 2, 3, 2)
    parent = OpCall("aten::cudnn_convolution_backward", (x, grad, weight), ("float",) * 3, ())
    types = ("GenericList", "float", "float")
    call = OpCall("aten::cudnn_convolution_backward_weight", ((), grad, x), types, ())
    work = FORMULAS[call.name](call, Context(parent=parent))
    assert work.flops == 2 * 3 * (5 * 7) * (6 * 2 * 3 * 2)
    with pytest.raises(NotRecordedError, match="filters"):
        FORMULAS[call.name](call, Context())


def test_a_packed_fp4_matrix_holds_two_elements_of_k_in_one() -> None:
    types = ("c10::Float4_e2m1fn_x2",) * 2
    call = OpCall("aten::_scaled_mm", ((16, 32), (32, 8)), types, ())
    work = FORMULAS[call.name](call, Context())
    assert (work.flops, work.dtype) == (2 * 16 * 64 * 8, "fp4")


def test_an_fp8_product_writes_the_dtype_that_was_asked_for() -> None:
    # (16, 32) @ (32, 16) -> bf16 (number 15) (16, 16): 512 + 512 + 2 * 256 bytes
    types = ("c10::Float8_e4m3fn",) * 2
    concrete = ("", "", "", "", "", "", "15", "False")
    work = FORMULAS["aten::_scaled_mm"](
        OpCall("aten::_scaled_mm", ((16, 32), (32, 16)), types, concrete), Context()
    )
    assert (work.flops, work.bytes, work.dtype) == (2 * 16 * 32 * 16, 1536, "fp8")
