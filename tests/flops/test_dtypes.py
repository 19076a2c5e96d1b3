"""The dtype that a contraction runs in, and the settings that decide between fp32 and TF32."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from mfu_torch.flops.counter import count_flops
from mfu_torch.flops.ops.dtypes import contraction_dtype, tf32_allowed


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.float64, "fp64"),
        (torch.complex128, "fp64"),
        (torch.float32, "fp32"),
        (torch.complex64, "fp32"),
        (torch.float16, "fp16"),
        (torch.bfloat16, "bf16"),
        (torch.float8_e5m2, "fp8"),
        (torch.int8, "int8"),
        (torch.int64, None),
        (torch.bool, None),
    ],
)
def test_a_dtype_has_the_name_that_peaks_are_listed_under(
    dtype: torch.dtype, name: str | None
) -> None:
    assert contraction_dtype(torch.empty(2, dtype=dtype)) == name


def test_autocast_is_seen_where_it_takes_effect() -> None:
    layer, x = nn.Linear(16, 32), torch.randn(8, 16)
    with torch.autocast("cpu", torch.bfloat16):
        count = count_flops(layer, x)
    assert count.by_dtype == {"bf16": 2 * 8 * 16 * 32}


@pytest.fixture
def default_precision() -> Iterator[None]:
    get = getattr(torch._C, "_get_fp32_precision_getter", None)
    if get is None:
        pytest.skip("this torch has only allow_tf32")
    keys = [("generic", "all"), ("cuda", "all"), ("cuda", "matmul"), ("cuda", "conv")]
    keys.append(("cuda", "rnn"))
    before = torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cudnn.allow_tf32 = before
    torch.set_float32_matmul_precision("highest")
    for backend, op in keys[:3]:
        torch._C._set_fp32_precision_setter(backend, op, "none")
    for backend, op in keys[3:]:
        torch._C._set_fp32_precision_setter(backend, op, "tf32")


def test_tf32_is_for_convolutions_by_default_and_for_matmuls_on_demand(
    default_precision: None,
) -> None:
    assert (tf32_allowed("matmul"), tf32_allowed("conv")) == (False, True)
    torch.set_float32_matmul_precision("high")
    assert tf32_allowed("matmul")
    torch.backends.cudnn.allow_tf32 = False
    assert not tf32_allowed("conv")
    assert not tf32_allowed("attention")


def test_settings_of_both_kinds_at_once_can_still_be_read(default_precision: None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    with pytest.raises(RuntimeError):
        _ = torch.backends.cuda.matmul.allow_tf32  # what reading the older one does
    assert not tf32_allowed("matmul")
