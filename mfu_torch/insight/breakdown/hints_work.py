"""What runs beside matrix kernels, and what to try."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from mfu_torch.insight.breakdown.evidence import Evidence, listed
from mfu_torch.insight.breakdown.intervals import covered
from mfu_torch.insight.trace.events import Ints
from mfu_torch.records.breakdown import Bucket
from mfu_torch.units import percent

_FAMILIES = 3
_FUSED_SHARE = 0.3
"""Share of a bucket from which an op family decides the advice."""

_RUNS_HOOKS = re.compile(r"^autograd::engine::evaluate_function|^torch::autograd::AccumulateGrad$")
_LEAST_HOOK_NS = 20_000  # autograd itself needs some microseconds for a node
_COPIES = re.compile(r"(^|_)(copy|contiguous|clone|to|cat|stack|transpose|permute)(_|$)")
_OPTIMIZER = re.compile(r"_foreach|(?<!_fused_)adam|addcdiv|addcmul|lerp")
_FUSED = re.compile(r"fused|multi_tensor|triton", re.IGNORECASE)
_NORM = re.compile(r"(layer|batch|group|instance|rms)_?norm", re.IGNORECASE)  # not of gradients
_SOFTMAX = re.compile("softmax")
_RANDOM = re.compile(r"^(uniform|normal|random|bernoulli|rand\w*|trunc_normal)_?$")
_ELEMENTWISE = re.compile(
    r"^(add|sub|mul|div|pow|neg|exp|sqrt|rsqrt|tanh|sigmoid|relu|gelu|silu|clamp\w*|where|dropout"
    r"|native_dropout|threshold\w*|masked_fill|\w+_backward|_foreach_\w+)_?$"
)

_MOST = 0.5
_FAMILY_ADVICE = (
    (_OPTIMIZER, "much of it is an optimizer's arithmetic: try fused=True"),
    (
        _COPIES,
        "much of it only moves data (casts, contiguous(), layouts): avoid the copies, or let "
        "torch.compile fuse them",
    ),
    (
        _SOFTMAX,
        "much of it is softmax: scaled_dot_product_attention never writes the scores to memory",
    ),
    (
        _NORM,
        "much of it is normalisation: torch.compile, a fused norm, or channels_last for images",
    ),
    (
        _RANDOM,
        "much of it makes random numbers: weights that are initialised or inputs that are made "
        "inside what was recorded; record the steps alone",
    ),
    (_ELEMENTWISE, "elementwise ops go through memory one by one: torch.compile fuses neighbours"),
)


def other_compute(of: Evidence, bucket: Bucket) -> str:
    """The ops with most time."""
    entries, time_ns = of.entries(bucket.name)
    if not len(entries):
        return ""
    ops = entries if of.labels.of_ops else of.trace.work.op[entries]
    names = np.append(of.trace.ops.name, -1)[ops]  # an op of -1 has the name -1
    distinct, place = np.unique(names, return_inverse=True)
    by_op = Counter[str]()
    for name, ns in zip(distinct.tolist(), np.bincount(place, time_ns).tolist(), strict=True):
        by_op[of.name(name) if name >= 0 else "kernels without an op"] += int(ns)
    shown = listed(f"{name} {of.share(ns)}" for name, ns in by_op.most_common(_FAMILIES) if ns)
    noun = "op" if of.labels.of_ops else "kernel"
    what = (
        f"{of.share_of(bucket)} of the time, in "
        f"{of.each_of(len(entries), noun, time_ns.sum())}: {shown}"
    )
    advice = (
        _in_autograd(of, entries, time_ns)
        or _optimizer(of, entries, time_ns)
        or _advice(by_op, bucket.time_ns)
    )
    return f"{what}; {advice}" if advice else what


def _in_autograd(of: Evidence, entries: Ints, time_ns: Ints) -> str:
    """How much of it passes in nodes of autograd, but in no op: there hooks run."""
    if not of.labels.of_ops:
        return ""
    is_node = np.array([bool(_RUNS_HOOKS.search(name)) for name in of.trace.names], bool)
    mine = is_node[of.trace.ops.name[entries]]
    held_ns = time_ns[mine]
    if held_ns.sum() <= _FUSED_SHARE * time_ns.sum() or held_ns.mean() < _LEAST_HOOK_NS:
        return ""
    return (
        f"{percent(held_ns.sum() / time_ns.sum())} of it passes in autograd outside of ops "
        f"({of.each_of(len(held_ns), 'node', held_ns.sum())}): hooks on gradients (register_hook, "
        "register_post_accumulate_grad_hook), or DDP's reducer; make them faster, or call them "
        "less often"
    )


def _optimizer(of: Evidence, entries: Ints, time_ns: Ints) -> str:
    """How much of it an optimizer's step launches, of ops that are not fused already."""
    trace = of.trace
    names = [name.startswith("Optimizer.step") for name in trace.names]
    spans = np.flatnonzero(np.array(names, bool)[trace.annotations.name])
    ops = entries if of.labels.of_ops else trace.work.op[entries]
    moment = trace.ops.start_ns[ops] if of.labels.of_ops else trace.work.launch_ns[entries]
    start, end = trace.annotations.start_ns[spans], trace.annotations.end_ns[spans]
    fused = np.array([*(bool(_FUSED.search(name)) for name in trace.names), False], bool)
    is_fused = fused[np.append(trace.ops.name, -1)[ops]] | fused[of.spans.name[entries]]
    inside = covered(start, end, moment) & ~is_fused
    share = time_ns[inside].sum() / time_ns.sum()
    if share <= _FUSED_SHARE:
        return ""
    return f"{percent(share)} of it is in the optimizer's step: try fused=True"


def _advice(by_op: Counter[str], time_ns: int) -> str:
    # Kernels that torch.compile made are named after all ops in them: nothing is left to fuse.
    ops = [(name.rpartition("::")[2], ns) for name, ns in by_op.items() if "triton_" not in name]

    first = max(by_op, key=lambda name: by_op[name]).rpartition("::")[2]
    for names, advice in _FAMILY_ADVICE:
        share = sum(ns for name, ns in ops if names.search(name)) / time_ns
        # What is neither most of it nor has its largest op is not what to look at.
        if share > _FUSED_SHARE and (share > _MOST or names.search(first)):
            return advice
    return ""


def exposed_memcpy(of: Evidence, bucket: Bucket) -> str:
    """Which direction, and from which memory."""
    entries, time_ns = of.entries(bucket.name)
    if not len(entries):
        return ""
    by_name = Counter[str]()
    for entry, ns in zip(entries.tolist(), time_ns.tolist(), strict=True):
        by_name[of.name(of.spans.name[entry])] += ns
    name, ns = by_name.most_common(1)[0]
    what = (
        f"{of.share_of(bucket)} of the time only copies run, most of it {name} "
        f"({of.share(ns)}; {of.each(len(entries), 'copy')})"
    )
    return f"{what}; {_copy_advice(name)}"


def _copy_advice(name: str) -> str:
    text = name.casefold()
    if "pageable" in text and "dtoh" not in text:
        return (
            "the host memory is pageable: DataLoader(pin_memory=True) and "
            ".to(device, non_blocking=True)"
        )
    if "htod" in text or "hosttodevice" in text:
        return "copy the next batch on a stream of its own while this one is computed"
    if "dtoh" in text or "devicetohost" in text:
        return "read results back less often, into pinned memory with non_blocking=True"
    if "ptop" in text or "peertopeer" in text:
        return "copies between GPUs: keep tensors on the device that uses them"
    if "memset" in text:
        return "zero fewer buffers: zero_grad(set_to_none=True)"
    return "copies within the device: avoid clone(), contiguous() and concatenation"
