"""What a kernel does, by its name: the fallback where no op says it.

Only the head of a name decides, the text before its first ``<`` or ``(``: template arguments name
types (``cutlass::bfloat16_t``, ``vllm::_typeConvert``) and not the work. The exceptions are generic
wrappers such as ``cutlass::device_kernel<...>``, whose argument is the kernel.
"""

from __future__ import annotations

import re

from mfu_torch.insight.breakdown.codes import (
    ATTENTION,
    COMMUNICATION,
    CONV,
    COPY,
    GEMM,
    OTHER,
)

_LONGEST = 1024
"""Characters of a name that are looked at; those of real kernels that matter come early."""

_WRAPPER = re.compile(r"^(cutlass\w*::(device_kernel|Kernel2?)|ck_tile::kentry)$")
_MANGLED = re.compile(r"^_ZN?K?(?=\d)")
_PART = re.compile(r"(\d+)")
_ANONYMOUS = ("(anonymous namespace)::", "_GLOBAL__N_1::")

_COMMUNICATION = re.compile(
    r"nccl|rccl|msccl|(^|[^a-z])(one)?ccl[_:]|nvshmem|(deep|hybrid)_?ep|dpsk::ep|mori::"
    r"|(^|[^a-z])(inter|intra)_?node|(^|[^a-z])Ep(Dispatch|Combine)|multimem|symm_mem"
    r"|symmetric_memory|all_?reduce|all_?gather|reduce_?scatter|all_?(to|2)_?all|moe_?a2a"
    r"|(one|two)_shot_|cross_device_reduce|userbuffers|(put|wait|get)_signal"
    r"|(^|:)barrier_(kernel|on_stream)",
    re.IGNORECASE,
)
# No matrix work even under a matrix op: layout changes, biases, reductions, norms. Triton kernels
# that the compiler generates are named after all ops fused into them, "convolution" included; only
# its templates (triton_tem_) multiply. What only prepares an attention (its schedule) is none.
_OTHER = re.compile(
    r"elem(ent)?wise|layer_?norm|rms_?norm|batch_?norm|(^|::)bn_[fb]w|(^|::)reduce_kernel|softmax"
    r"|multi_tensor|CatArray|index(?!ed)|nchwToNhwc|nhwcToNchw|NCHW2CNHW|CNHW2NCHW"
    r"|(^|[_:])(cast|copy|fill)(_|$)|(?<!conv_)transpose|scalePackedTensor|SubTensorOp|OpTensor"
    r"|(reshape|concat)_and_cache|rotary|_quant_kernel|quantize(?!.*(gemm|mul_mat))"
    r"|metadata|prepare_varlen|triton_(poi|red|per|for|split_scan)_|triton_(?!tem_)(\w+_)?fused_",
    re.IGNORECASE,
)
_COPY = re.compile(r"amd_rocclr_(copy|fill)Buffer")  # AMD copies and fills with kernels
_MATRIX = (
    (ATTENTION, r"fmha|flash(?!infer)|attn|attention|sdpa|(^|[^a-z])m[hl]a_|sage_fwd"
                r"|(Batch|Single)(Prefill|Decode)|_fwd_(grouped_)?kernel_stage\d|bwd_preprocess"),
    (CONV, r"(?<![a-z])conv(?!ert)|_conv|convol|wgrad|dgrad|fprop|implicit_?gemm|winograd|scudnn"
           r"|igemm|miopenSp3"),
    (GEMM, r"(?<!fb)gemm|cublas|cutlass|cijk_|nvjet|matmul|(^|[_:])b?mm(_|$)|xmma|splitK|gemv"
           r"|hmma|marlin|fused_moe_kernel|(^|[^a-z])fmoe_|moe_stage[12]|mul_mat_|triton_tem_"),
)  # fmt: skip
_MATRIX_PATTERNS = tuple((code, re.compile(text, re.IGNORECASE)) for code, text in _MATRIX)


def class_of_kernel(name: str) -> int | None:
    """Class of a kernel; ``None`` where its name says nothing.

    ``"void vllm::rms_norm_kernel<c10::BFloat16, vllm::_typeConvert>"`` -> ``OTHER``, although a
    template argument holds "conv".
    """
    name = name[:_LONGEST]
    head = head_of(name)
    if _COMMUNICATION.search(head):
        return COMMUNICATION
    if _COPY.search(head):
        return COPY
    if _OTHER.search(head):
        return OTHER
    text = name if _WRAPPER.match(head) else head
    return next((code for code, pattern in _MATRIX_PATTERNS if pattern.search(text)), None)


def head_of(name: str) -> str:
    """The name without its return type, its template and its arguments.

    ``"std::enable_if<(8 > 0), void>::type vllm::rms_norm_kernel<int>(int*)"`` ->
    ``"vllm::rms_norm_kernel"``; ``"_ZN7cutlass13device_kernelI3fooE"`` ->
    ``"cutlass::device_kernel"``.
    """
    if _MANGLED.match(name):
        name = _demangled_head(name)
    for anonymous in _ANONYMOUS:
        name = name.replace(anonymous, "")
    if name.startswith("std::enable_if<"):
        name = name[_end_of_template(name, len("std::enable_if")) :].removeprefix("::type ")
    return re.split(r"[<(]", name.removeprefix("void "), maxsplit=1)[0]


def _end_of_template(name: str, begin: int) -> int:
    """Behind the bracket that closes the one at ``begin``; those in parentheses are operators."""
    angles = rounds = 0
    for at in range(begin, len(name)):
        letter = name[at]
        rounds += (letter == "(") - (letter == ")")
        if rounds == 0:
            angles += (letter == "<") - (letter == ">")
            if angles == 0:
                return at + 1
    return len(name)


def _demangled_head(name: str) -> str:
    """Itanium names: ``_ZN`` and then length and text of each part, up to the template."""
    at = _MANGLED.match(name).end()  # type: ignore[union-attr]
    parts = []
    while (length := _PART.match(name, at)) is not None:
        begin, at = length.end(), length.end() + int(length[1])
        parts.append(name[begin:at])
    return "::".join(parts)
