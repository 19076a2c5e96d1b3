"""The dtype that a contraction really runs in, by the names that peaks are listed under.

The dtype is read where the op is dispatched, below autocast, so a linear layer under bf16
autocast is bf16. A tensor of fp32 on an NVIDIA GPU runs in TF32 exactly when the settings under
``torch.backends`` say so, and those differ between matmuls, convolutions and recurrent layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, Literal

import torch

Kind = Literal["matmul", "conv", "rnn", "attention", "other"]
"""What a contraction is to the TF32 settings. Fused attention and ``other`` ignore them."""


def _names() -> dict[torch.dtype, str]:
    names = {
        "float64": "fp64",
        "complex128": "fp64",
        "float32": "fp32",
        "complex64": "fp32",
        "float16": "fp16",
        "complex32": "fp16",
        "bfloat16": "bf16",
        "float8_e4m3fn": "fp8",
        "float8_e5m2": "fp8",
        "float8_e4m3fnuz": "fp8",
        "float8_e5m2fnuz": "fp8",
        "int8": "int8",
        "uint8": "int8",
        "qint8": "int8",
        "quint8": "int8",
        "float4_e2m1fn_x2": "fp4",
    }
    # Not every torch has every one of them.
    return {getattr(torch, name): short for name, short in names.items() if hasattr(torch, name)}


NAMES: dict[torch.dtype, str] = _names()


def contraction_dtype(tensor: torch.Tensor | None, kind: Kind = "matmul") -> str | None:
    """The dtype in which a contraction over ``tensor`` runs.

    Returns:
        ``fp64``, ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``int8`` or ``fp4``; a complex
        tensor has the name of its parts. ``None`` for other integers: their product is no FLOP.
    """
    if tensor is None:
        return None
    name = NAMES.get(tensor.dtype)
    if name == "fp32" and tensor.device.type == "cuda" and tf32_allowed(kind):
        return "tf32" if _has_tf32(tensor.device.index) else "fp32"
    return name


def first_contraction_dtype(values: Any, kind: Kind = "matmul") -> str:
    """The dtype of the first tensor, in any nesting, that a contraction can run over.

    ``fp32`` if there is none.
    """
    for tensor in _tensors(values):
        name = contraction_dtype(tensor, kind)
        if name is not None:
            return name
    return "fp32"


def tf32_allowed(kind: Kind) -> bool:
    """Whether ``torch.backends`` allows TF32 for fp32 tensors; never raises.

    The newer ``fp32_precision`` is read where torch has it: it follows the older ``allow_tf32``,
    while reading the older one raises once a program has used both.
    """
    if kind in ("attention", "other"):
        return False
    read = getattr(torch._C, "_get_fp32_precision_getter", None)
    if read is not None:
        return bool(read("cuda", kind) == "tf32")
    if kind == "matmul":
        return torch._C._get_cublas_allow_tf32()
    return torch._C._get_cudnn_allow_tf32()


@cache
def _has_tf32(index: int | None) -> bool:
    # Before Ampere the settings are accepted and change nothing. A CUDA tensor without a CUDA
    # device is a fake one; the settings are then all there is to go by.
    if not torch.cuda.is_available():
        return True
    return torch.version.hip is not None or torch.cuda.get_device_capability(index) >= (8, 0)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        for value in values.values():
            yield from _tensors(value)
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
