"""What runs beside matrix kernels, and what to try."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from mfu_torch.insight.breakdown.codes import COMMUNICATION
from mfu_torch.insight.breakdown.evidence import Evidence, listed, mean_us, times
from mfu_torch.insight.breakdown.intervals import covered
from mfu_torch.insight.trace.events import Ints
from mfu_torch.records.breakdown import Bucket
from mfu_torch.units import bytes_, percent

_FAMILIES = 3
_FUSED_SHARE = 0.3
"""Share of a bucket from which an op family decides the advice."""

_COPIES = re.compile(r"(^|_)(copy|contiguous|clone|to|cat|stack|transpose|permute)(_|$)")
_OPTIMIZER = re.compile(r"_foreach|(?<!_fused_)adam|addcdiv|addcmul|lerp")
_FUSED = re.compile(r"fused|multi_tensor|triton", re.IGNORECASE)
_NORM = re.compile(r"(layer|batch|group|instance|rms)_?norm", re.IGNORECASE)  # not of gradients
_SOFTMAX = re.compile("softmax")
_ELEMENTWISE = re.compile(
    r"^(add|sub|mul|div|pow|neg|exp|sqrt|rsqrt|tanh|sigmoid|relu|gelu|silu|clamp\w*|where|dropout"
    r"|native_dropout|threshold\w*|masked_fill|\w+_backward|_foreach_\w+)_?$"
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
        f"{of.share_of(bucket)} of the time, in {times(len(entries), noun)} of "
        f"{mean_us(time_ns.sum(), len(entries))} on average: {shown}"
    )
    advice = _optimizer(of, entries, time_ns) or _advice(by_op, bucket.time_ns)
    return f"{what}; {advice}" if advice else what


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

    def share(names: re.Pattern[str]) -> float:
        return sum(ns for name, ns in ops if names.search(name)) / time_ns

    if share(_OPTIMIZER) > _FUSED_SHARE:
        return "much of it is an optimizer's arithmetic: try fused=True"
    if share(_COPIES) > _FUSED_SHARE:
        return (
            "much of it only moves data (casts, contiguous(), layouts): avoid the copies, or let "
            "torch.compile fuse them"
        )
    if share(_SOFTMAX) > _FUSED_SHARE:
        return (
            "much of it is softmax: scaled_dot_product_attention never writes the scores to memory"
        )
    if share(_NORM) > _FUSED_SHARE:
        return (
            "much of it is normalisation: torch.compile, a fused norm, or channels_last for images"
        )
    if share(_ELEMENTWISE) > _FUSED_SHARE:
        return "elementwise ops go through memory one by one: torch.compile fuses neighbours"
    return ""


def exposed_communication(of: Evidence, bucket: Bucket) -> str:
    """How much is hidden, which collective, and how large it is."""
    total, hidden = of.breakdown.communication_ns, of.breakdown.overlapped_ns
    entries, time_ns = of.entries(bucket.name)
    if not len(entries) or not total:
        return ""
    first = int(entries[np.argmax(time_ns)])
    spans = of.spans
    low, high = of.labels.edges.bounds_ns[0], of.labels.edges.bounds_ns[-1]
    inside = (spans.start_ns < high) & (spans.end_ns > low)
    count = int(np.count_nonzero(inside & _collectives(of)))
    sizes = [
        int(size)
        for entry in entries.tolist()
        if isinstance(size := of.trace.collectives.get(entry, {}).get("bytes"), int)
    ]
    size = f" of {bytes_(float(np.mean(sizes)))} each" if sizes else ""
    what = (
        f"{of.share_of(bucket)} of the time only communication runs "
        f"({percent(hidden / total)} of {times(count, 'collective')}{size} is hidden behind "
        f"compute; most in {of.name(spans.name[first])})"
    )
    if 2 * time_ns[_between_two(of, entries)].sum() > time_ns.sum():
        return (
            f"{what}: it is sends and receives; in a pipeline, more micro-batches or interleaved "
            "stages make its bubble smaller, and even stages; give the traces of all ranks to see "
            "how large it is"
        )
    return (
        f"{what}: start collectives earlier, in buckets of another size (DDP bucket_cap_mb, FSDP "
        "prefetching), or synchronise less often (no_sync); give the traces of all ranks to see "
        "how much of it is waiting for peers"
    )


def _between_two(of: Evidence, entries: Ints) -> np.ndarray:
    """Which of them are sends and receives."""
    names = [of.trace.collectives.get(one, {}).get("collective") for one in entries.tolist()]
    return np.array([name in ("send", "recv") for name in names], bool)


def _collectives(of: Evidence) -> np.ndarray:
    """Which kernels are collectives; of ops that enclose each other, the outermost."""
    found: np.ndarray = np.equal(of.labels.work_class, COMMUNICATION)
    if not of.labels.of_ops:
        return found
    parent = of.trace.ops.parent
    inner = (parent >= 0) & found[parent]
    outermost: np.ndarray = found & ~inner
    return outermost


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
        f"({of.share(ns)}, {times(len(entries), 'copy').replace('copys', 'copies')} in all)"
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
