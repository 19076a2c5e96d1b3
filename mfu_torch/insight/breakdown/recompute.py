"""Which matrix ops of a trace compute a forward once more, for activation checkpointing.

Checkpointing runs the forward again inside the backward: its ops lie inside a node of autograd.
What a backward itself multiplies lies there too, so the rule asks for what only a forward calls:

- all below ``CheckpointFunctionBackward`` (the nested backward has its own nodes);
- ``linear``, ``conv*``, ``scaled_dot_product_attention`` and recurrent layers below any node;
- ``matmul``, ``einsum``, ``addmm`` and forward kernels of attention and convolution below a node
  that torch generated (its name ends in a number), whose formulas use ``mm`` and ``bmm`` alone. A
  node of the user's own may well call ``matmul`` for a gradient.

- ``mm`` and ``bmm`` below a node whose formula multiplies nothing (``ReluBackward0``).

A product that the user calls as ``mm`` or ``bmm`` below another node cannot be told from one of the
backward, nor can those of a backward that torch.compile made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from mfu_torch.insight.breakdown.shapes import OpWork
from mfu_torch.insight.trace.events import Trace

COMPILED = (
    "a backward that torch.compile made holds matrix ops: what of it is recompute cannot be told "
    "from a trace, so all of it counts as model FLOPs; give the model FLOPs of a step "
    "(--model-flops)"
)

_ENGINE = "autograd::engine::evaluate_function: "
_NODE = re.compile(r"Backward\d*$")
_GENERATED = re.compile(r"Backward\d+$")
_CHECKPOINT = re.compile(r"Checkpoint\w*Backward$")
# Their formulas call matmul; a double backward calls convolutions.
_USES_FORWARD_OPS = re.compile(
    r"^(Linalg|Cholesky|Svd|Eig|Qr|Lu|Triangular|Ormqr|Householder)|BackwardBackward"
)
_FORWARD = re.compile(
    r"^aten::(linear|conv[123]d|conv_transpose[123]d|scaled_dot_product_attention|lstm|gru"
    r"|rnn_tanh|rnn_relu)$"
)
_FORWARD_OF_TORCH = re.compile(
    r"^aten::(matmul|einsum|tensordot|addmm|_addmm_activation|_?convolution"
    r"|(cudnn|miopen|mkldnn)_convolution\w*|_scaled_dot_product_\w+_attention(_for_cpu)?"
    r"|_(flash|efficient|cudnn)_attention_forward|_cudnn_rnn|miopen_rnn)$"
)
_PRODUCT = re.compile(r"^aten::(mm|bmm|baddbmm|mv|addmv|dot|_scaled_mm|_grouped_mm)$")
# Where checkpointing starts: the node whose saved tensor is missing is often one of these.
_MULTIPLIES_NOTHING = re.compile(
    r"^(Relu|Gelu|Silu|Tanh|Sigmoid|Elu|LeakyRelu|Hardtanh|Threshold|Softplus|Mish|Glu"
    r"|Mul|Div|Pow|Exp|Log|Sqrt|Rsqrt|Where|Mean|Sum|Softmax|LogSoftmax|SafeSoftmax"
    r"|NativeLayerNorm|NativeGroupNorm|(Native|Cudnn|Miopen)BatchNorm|FusedRmsNorm|NativeDropout"
    r"|Embedding|Index|Gather|NllLoss|MseLoss|Norm|LinalgVectorNorm|MaxPool\w*)Backward\d+$"
)


def is_recomputed(trace: Trace, work: OpWork, op: int) -> bool:
    """Whether an op repeats a forward.

    Args:
        trace: It.
        work: Of its ops.
        op: Index into ``trace.ops``.
    """
    seen: set[str] = set()
    for around in work.around(op):
        name = work.name(around).removeprefix(_ENGINE)
        kind = _kind(name)
        if kind == "node":
            return _inside(name, seen)
        seen.add(kind)
    return False


def in_compiled_backward(trace: Trace, work: OpWork, ops: Iterable[int]) -> bool:
    """Whether any of these ops lies in a backward that torch.compile made."""
    nodes = [i for i, name in enumerate(trace.names) if "CompiledFunctionBackward" in name]
    if not nodes:
        return False
    inside = np.isin(trace.ops.name, nodes)
    return any(inside[around] for op in ops for around in work.around(op))


def _inside(node: str, seen: set[str]) -> bool:
    """Whether ops of these kinds, inside a node, repeat a forward."""
    if _CHECKPOINT.search(node):
        return True
    if _USES_FORWARD_OPS.search(node):
        return False
    if "forward" in seen:
        return True
    if "forward of torch" in seen:
        return bool(_GENERATED.search(node))
    return "product" in seen and bool(_MULTIPLIES_NOTHING.search(node))


@lru_cache(maxsize=4096)
def _kind(name: str) -> str:
    if _NODE.search(name):
        return "node"
    if _FORWARD.match(name):
        return "forward"
    if _FORWARD_OF_TORCH.match(name):
        return "forward of torch"
    return "product" if _PRODUCT.match(name) else ""
