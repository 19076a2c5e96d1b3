"""Which ops without a formula are worth telling the user about.

An op that contracts and has no formula makes every figure too low, silently. So an op counts as
suspicious unless there is a reason why it cannot contract: it is elementwise, a reduction or a
view, it only communicates or does bookkeeping, or its name is in the table below. Wrongly
suspecting an op costs one line in a report; wrongly trusting one costs the number.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload

from mfu_torch.flops.ops.dtypes import NAMES

NO_ARITHMETIC = frozenset(
    {
        "prim",
        "prims",
        "debugprims",
        "rngprims",
        "c10d",
        "c10d_functional",
        "_c10d_functional",
        "_c10d_functional_autograd",
        "_dtensor",
        "fsdp",
        "symm_mem",  # its fused products have formulas
        "inductor",
        "profiler",
        "streams",
    }
)
"""Namespaces that move data or keep books."""

ELEMENTWISE_TAGS = frozenset(
    getattr(torch.Tag, tag) for tag in ("pointwise", "reduction") if hasattr(torch.Tag, tag)
)
"""Not every torch has the second."""

CANNOT_CONTRACT: dict[str, str] = {
    "normalisation and statistics": r"""
        .*norm.* batch_norm.* (std|var)(_mean)? histc? histogram.* bincount aminmax cdf trace
        (nan)?(mean|sum|median) prod all any is_(all|any)_true dist equal allclose count_nonzero
        min max amin amax argmin argmax""",
    "softmax and losses": r"""
        .*softmax.* log(cum)?sumexp log_sigmoid .*_loss.* binary_cross_entropy.*""",
    "pooling and resampling": r"""
        .*pool[123]d.* .*upsample.* .*grid_sampler.* .*_pad[123]d max_unpool.*
        (pixel|channel)_(un)?shuffle segment_reduce""",
    "look-ups, indexing and order": r"""
        embedding.* .*index.* .*gather .*scatter.* select.* slice.* take put where nonzero.*
        masked_(fill|select|scatter|scale) searchsorted bucketize isin sort topk kthvalue mode
        unique.* cum(sum|prod|max|min).* (un)?fold unfold im2col col2im diag.* block_diag
        tri[lu].* roll flip rot90 repeat.* renorm""",
    "copies and layouts": r"""
        cat stack chunk_cat clone lazy_clone copy.* .*_copy.* .*pad_nd contiguous resize.* set
        lift.* to .*to_dense to_mkldnn to_padded.* pin_memory .*view.* unsafe_split.* as_strided.*
        detach (un)?squeeze transpose t conj.* complex polar .*coalesce.* .*jagged.*
        nested_.* to_sparse.* sparse_(sum|mask|resize|coo|csr|compressed).*
        lu_unpack local_scalar_dense pack_padded_sequence mkldnn_re(order|shape).* mkldnn_transpose
        select diagonal expand.* cudnn_rnn_flatten_weight .*compress spdiags""",
    "factories and random numbers": r"""
        .*_like new_.* zeros? ones empty.* full fill.* arange range linspace logspace eye
        scalar_tensor rand.* bernoulli multinomial poisson binomial exponential uniform cauchy
        geometric random .*dropout.* .*_window philox.* .*dirichlet.* standard_gamma.* from_file
        efficientzerotensor cudnn_init_dropout_state""",
    "elementwise, in torch without a tag or under a name of its own": r"""
        ((add|leaky)_)?relu gelu [cs]?elu glu.* mish silu hard(swish|tanh|sigmoid|shrink) softshrink
        softplus threshold prelu.* rrelu.* .*fused_(lstm|gru)_cell.* add sub mul div rsub pow
        remainder floor_divide clamp.* bitwise_.* .*shift linalg_cross transform_bias_rescale_qkv
        isnan isinf xlogy (fake_)?quantize_.* dequantize.* make_per_\w+_quantized_tensor
        empty_\w*quantized quantized_(batch_norm|max_pool[123]d) dyn_quant_pack_\w+
        convert_weight_to.* .*qparams.* int_repr sparse_semi_structured_(tile|apply(_dense)?)""",
    "bookkeeping": r"""
        is_.* has_.* .*assert.* (functional_)?sym_.* amp_.* record_stream q_.* qscheme nnz dim[IV]
        .*_dim hash_tensor validate_compressed.* use_(cudnn|miopen)_.* linalg_check_errors
        stride size numel storage_offset .*_sdp_choice convert_indices.* make_dep_token print
        fft_r?fftfreq foobar test_.*""",
}
"""Patterns of ATen names, without leading and trailing underscores and ``_backward``, by reason."""

CANNOT_CONTRACT_ELSEWHERE: dict[str, str] = {
    "packing, unpacking and what a packed weight knows of itself": r"""
        .*::\w*(pre)?pack\w* .*::\w*unpack\w* .*::make_quantized_cell_params.* mkl.*::_?\w*reorder.*
        quantized::conv.*_(stride|padding|output_padding|dilation|groups|transpose)
        mkldnn::(_nbytes|data_ptr|_is_mkldnn_.*|_get_mkldnn_serialized_md)""",
    "elementwise work, look-ups and pooling on quantised tensors": r"""
        _?(quantized|onednn)::q?(add|mul|cat|clamp|celu|elu|leaky_relu|relu6|hardswish|prelu|sigmoid
        |softmax|threshold|dropout|max_pool[12]d|((batch|group|instance|layer)_norm))([123]d)?(_\w+)?
        quantized::embedding_.* quantization::.*""",
    "copies and views": r"""
        static_runtime::.* flex_lib::zeros_and_scatter export::access_subclass_inner_tensor""",
}
"""Patterns of the full names of ops that torch registers outside ``aten``, by reason."""


def _patterns(table: dict[str, str]) -> re.Pattern[str]:
    # A line that starts with | goes on with the pattern before it.
    words = re.sub(r"\s+\|", "|", " ".join(table.values())).split()
    return re.compile("|".join(f"(?:{word})" for word in words))


_ALLOWED = _patterns(CANNOT_CONTRACT)
_ALLOWED_ELSEWHERE = _patterns(CANNOT_CONTRACT_ELSEWHERE)

# Foreach kernels run one elementwise op over many tensors, but for products; fused ones are
# optimizer updates, and few others.
_MULTI_TENSOR = re.compile(
    r"_?foreach_(?!\w*(mm|matmul)(_|$))|_?fused_(ada|sgd|dropout|rms_norm|moving_avg|sdp_choice)"
)

_VISION = re.compile(r"torchvision::_?(nms|(ps_)?roi_(align|pool))(_backward)?")


def looks_like_contraction(
    func: OpOverload[..., Any] | HigherOrderOperator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
) -> bool:
    """Whether this call of an op without a formula may have contracted tensors."""
    return may_contract(func) and _has_factor((*args, *(kwargs or {}).values()))


@cache
def may_contract(func: OpOverload[..., Any] | HigherOrderOperator) -> bool:
    """Whether an op could contract, as far as its name, tags and schema tell."""
    if isinstance(func, HigherOrderOperator):
        return True
    name = func._schema.name.split("::")[-1]
    if func.namespace in NO_ARITHMETIC or _is_view(func) or is_elementwise(func):
        return False
    if func.namespace != "aten":
        name = func._schema.name
        return not (_VISION.fullmatch(name) or _ALLOWED_ELSEWHERE.fullmatch(name))
    if _MULTI_TENSOR.match(name) or is_composite(func):
        return False
    base = re.sub(r"_(backward|forward)(_\w+)?$", "", name.strip("_"))
    return not (_ALLOWED.fullmatch(base) or _is_elementwise_name(base))


def is_elementwise(func: OpOverload[..., Any]) -> bool:
    """Whether torch says that an op works element by element, or reduces."""
    return not ELEMENTWISE_TAGS.isdisjoint(func.tags)


def is_composite(func: OpOverload[..., Any]) -> bool:
    """Whether an op is made of other ops, which are then seen instead of it."""
    if func.namespace == "prim":  # answered in Python; the dispatcher does not know their names
        return False
    key = torch._C.DispatchKey.CompositeImplicitAutograd
    return torch._C._dispatch_has_kernel_for_dispatch_key(func._name, key)


def _is_view(func: OpOverload[..., Any]) -> bool:
    returns = func._schema.returns
    return any(r.alias_info is not None and not r.alias_info.is_write for r in returns)


def _is_elementwise_name(name: str) -> bool:
    # So that softplus_backward is judged like softplus.
    packet = getattr(torch.ops.aten, name, None)
    if packet is None:
        return False
    return any(is_elementwise(getattr(packet, overload)) for overload in packet.overloads())


def _has_factor(values: Any) -> bool:
    # Bytes are masks and images; int8 is also a matmul operand.
    for value in values:
        if isinstance(value, dict):
            value = tuple(value.values())
        if isinstance(value, torch.Tensor):
            if value.dtype in NAMES and value.dtype != torch.uint8:
                return True
        elif isinstance(value, tuple | list) and _has_factor(value):
            return True
    return False
