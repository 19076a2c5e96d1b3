"""What the kernels of an op do, by the name of the op: the best evidence there is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mfu_torch.insight.breakdown.codes import ATTENTION, COMMUNICATION, CONV, GEMM, OTHER

_COMMUNICATION = re.compile(
    r"^(record_param_comms$|_?c10d(_functional)?::|\w*ccl(pp)?:|(gloo|mpi|ucc):|oneccl_bindings\w*::"
    r"|symm_mem::(?!fused_))"  # the fused ones also multiply
)
_OF_TORCH = re.compile(r"^(aten|mkldnn|quantized|onednn)::(.*)$")
_NODE = re.compile(r"Backward\d+$|^autograd::")
"""Nodes of autograd: what they run is recorded inside them as ops."""
_TORCH = (
    (OTHER, re.compile(r"^(copy_$|_foreach_|_fused_(adam|adamw|sgd|adagrad)_?$)")),
    (ATTENTION, re.compile(r"attention|sdpa(?!_choice)")),
    (CONV, re.compile(r"conv(?!ert)")),
    (GEMM, re.compile(r"^(\w*_)?(b?add)?b?mm(_\w*)?$|^(add)?mv_?$|^addr_?$|^_?(mkldnn_|q)?linear"
                      r"|^(matmul|v?dot)$|^(mkldnn|miopen|_cudnn)_rnn")),
)  # fmt: skip
_CUSTOM = (
    (
        ATTENTION,
        re.compile(
            r"attn|attention|fmha|sdpa|flash_?(fwd|bwd|mla)|(^|[^a-z])m[hl]a_", re.IGNORECASE
        ),
    ),
    (CONV, re.compile(r"(^|[^a-z])conv(?!ert)", re.IGNORECASE)),
    (
        GEMM,
        re.compile(
            r"(?<!fb)gemm|matmul|(^|[_:])b?mm(_|$)|moe_stage[12]|(^|[^a-z])fmoe", re.IGNORECASE
        ),
    ),
)


@dataclass(frozen=True)
class OpRule:
    """What an op says of the kernels that it launched.

    Attributes:
        code: Their class; ``None``: nothing.
        exact: An op of torch or a collective, which is known; else a guess from a custom name,
            which comes behind the name of the kernel.
        asks_parent: It is a wrapper, and the op around it may know more.
    """

    code: int | None
    exact: bool
    asks_parent: bool


def rule_of_op(name: str) -> OpRule:
    """``aten::addmm`` -> GEMM, exactly; ``aten::add_`` -> nothing; ``MyAttnBackward`` -> a guess.

    Ops of torch that are no matrix ops settle that the kernel's own name decides: ``aten::add_``
    in a convolution adds a bias.
    """
    if _COMMUNICATION.match(name):
        return OpRule(COMMUNICATION, exact=True, asks_parent=False)
    of_torch = _OF_TORCH.match(name)
    if of_torch:
        code = _first(_TORCH, of_torch[2])
        return OpRule(code, exact=code is not None, asks_parent=False)
    code = None if _NODE.search(name) else _first(_CUSTOM, name)
    return OpRule(code, exact=False, asks_parent=code is None)


def _first(rules: tuple[tuple[int, re.Pattern[str]], ...], name: str) -> int | None:
    return next((code for code, pattern in rules if pattern.search(name)), None)


_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
}
"""Part of a name, in lower case without ``_`` -> the collective; the first that is found."""


def collective_name(text: str) -> str | None:
    """``"ncclDevKernel_AllReduce_Sum_bf16(...)"`` -> ``"all_reduce"``; ``None``: it names none."""
    plain = text.partition("(")[0].partition("<")[0].lower().replace("_", "")
    return next((name for part, name in _COLLECTIVES.items() if part in plain), None)
