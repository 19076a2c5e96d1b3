"""Packages whose kernels run past torch's dispatcher: what they contract cannot be counted.

A kernel that is called through a C++ extension (pybind11) or launched as ``kernel[grid](..)`` is
no torch op, so no dispatch mode sees it, and a step that uses one would be counted too low
without a word. That such a package is imported says little: a library may import it in case it
is needed. What does say it is used: Python code of the package that calls into the dispatcher,
as every wrapper of a kernel does to allocate its results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FrameType

OPAQUE: dict[str, str] = {
    # module prefix: what is invisible. Read in the sources at the revision named.
    # state-spaces/mamba bc3b101 (2.3.2): selective_scan_cuda.fwd/bwd by pybind11, SSD in Triton
    "mamba_ssm.ops": "selective scans and the products of state-space duality",
    # NVIDIA/TransformerEngine d0067d0 (2.20): transformer_engine_torch (tex) by pybind11
    "transformer_engine.pytorch": "matrix products and fused attention (tex.generic_gemm, ..)",
    # linkedin/Liger-Kernel ead96b6 (0.8): the other kernels of Liger are elementwise, and its
    # fused linear losses multiply with torch's ops
    "liger_kernel.ops.fused_moe": "the experts' products",
    "liger_kernel.ops.fused_neighborhood_attention": "neighbourhood attention",
    "liger_kernel.ops.mhc": "the products of hyper-connections",
    "liger_kernel.ops.mlp": "the products of the fused MLP",
    "liger_kernel.ops.experimental.mm_int8int2": "the int8 x int2 product",
    # fla-org/flash-linear-attention (0.5.2): raw Triton launches
    "fla.ops": "linear attention and gated recurrences",
    # tgale96/grouped_gemm ebeae0b: pybind11, under every user of its Python module
    "grouped_gemm": "grouped matrix products",
    # Dao-AILab/flash-attention 0251105: flash-attn 4 is launched from autograd Functions
    "flash_attn.cute": "attention",
}


OPAQUE_WITHOUT_A_CALLER: dict[str, str] = {
    # NVIDIA/apex, as Megatron-LM's tensor_parallel/layers.py calls it with
    # gradient_accumulation_fusion: the result is added to a buffer, so nothing is allocated.
    "fused_weight_gradient_mlp_cuda": "weight gradients that are added to main_grad by a kernel",
}
"""Extensions whose use leaves no trace in the dispatcher: all that can be told is the import."""


ALLOCATES = frozenset(
    f"aten.{name}"
    for name in (
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "zeros",
        "zeros_like",
        "new_zeros",
        "full",
        "full_like",
    )
)
"""What a wrapper calls to have something that a kernel can fill."""


def opaque_packages() -> tuple[str, ...]:
    """The modules of both tables that this process has imported, used or not."""
    return tuple(name for name in (*OPAQUE, *OPAQUE_WITHOUT_A_CALLER) if name in sys.modules)


def opaque_module(module: str) -> str | None:
    """The entry of :data:`OPAQUE` that a module belongs to, or ``None``.

    Example:
        ``opaque_module("fla.ops.gla.chunk")`` is ``"fla.ops"``; ``"flax"`` belongs to none.
    """
    while module:
        if module in OPAQUE:
            return module
        module = module.rpartition(".")[0]
    return None


def opaque_caller(frame: FrameType) -> str | None:
    """Which opaque package called the torch op that is being dispatched, if one did.

    Args:
        frame: The frame of the dispatch mode. Frames of torch itself around it are skipped; the
            first other one is the caller.

    Example:
        In ``__torch_dispatch__``: ``opaque_caller(sys._getframe())``.
    """
    caller = frame.f_back
    while caller is not None:
        module = caller.f_globals.get("__name__") or ""
        if not (module == "torch" or module.startswith(("torch.", "mfu_torch."))):
            return opaque_module(module)
        caller = caller.f_back
    return None


def import_notes() -> Iterator[str]:
    """What to say of a training step for the extensions that are imported and leave no trace."""
    for name in OPAQUE_WITHOUT_A_CALLER:
        if name in sys.modules:
            yield opaque_note(name)


def opaque_note(package: str) -> str:
    """What to say of a count in which a package's kernels took part, or may have."""
    if package in OPAQUE_WITHOUT_A_CALLER:
        return (
            f"{package} is imported: {OPAQUE_WITHOUT_A_CALLER[package]} cannot be seen, so where "
            "it is used the FLOPs are too low"
        )
    return (
        f"{package} launches kernels past torch's dispatcher: {OPAQUE[package]} are not counted, "
        "so the FLOPs are too low; register_flops cannot see them, a torch.library.custom_op "
        "around the call can"
    )
