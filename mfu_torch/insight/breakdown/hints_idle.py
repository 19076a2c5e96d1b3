"""Why the device stands empty, from what the host did meanwhile, and what to try."""

from __future__ import annotations

from collections import Counter

import numpy as np

from mfu_torch.insight.breakdown import pauses
from mfu_torch.insight.breakdown.codes import COMMUNICATION
from mfu_torch.insight.breakdown.evidence import Evidence, trains
from mfu_torch.insight.breakdown.host_labels import main_thread
from mfu_torch.insight.breakdown.op_names import rule_of_op
from mfu_torch.insight.trace.events import Ints
from mfu_torch.records.breakdown import Bucket
from mfu_torch.units import percent, seconds

_LOOKED_AT = 100
"""Syncs whose op is looked up, those with most time."""

_SYNC_ADVICE = (
    (
        ("_local_scalar_dense", "item", "is_nonzero", "equal", "_is_all_true"),
        "an .item(), a print or an `if` on a tensor reads a value back: keep it on the device and "
        "read it every N steps",
    ),
    (
        (
            "nonzero",
            "masked_select",
            "unique",
            "_unique2",
            "index",
            "index_put_",
            "_index_put_impl_",
        ),
        "the size of its result depends on the data (nonzero, boolean indexing): use a mask or "
        "torch.where with a fixed size",
    ),
    (
        ("copy_", "_to_copy", "to", "cpu", "contiguous"),
        "a copy between host and device blocks: pin the host memory, use non_blocking=True, and "
        "read results later",
    ),
)


def data_wait(of: Evidence, bucket: Bucket) -> str:
    """Which loader, how often, and whether it has workers."""
    found = of.by_span(of.trace.data_waits, bucket.name)
    if not found:
        return ""
    names = Counter[int]()
    for span, ns in found:
        names[int(of.trace.data_waits.name[span])] += ns
    name = of.trace.names[names.most_common(1)[0][0]]
    what = (
        f"{of.share_of(bucket)} of the time the loop waits in {name[:80]} "
        f"({of.each_of(len(found), 'wait', bucket.time_ns)})"
    )
    if "SingleProcess" in name:
        return f"{what}: batches are made in the training process; try DataLoader(num_workers=4)"
    if "MultiProcess" in name:
        return (
            f"{what}: its workers do not keep up; try more num_workers, a larger prefetch_factor, "
            "persistent_workers=True, or cheaper transforms"
        )
    return f"{what}: load the next batch while this one is computed (num_workers, prefetching)"


def host_sync(of: Evidence, bucket: Bucket) -> str:
    """Which call waits, in which op."""
    spans = of.trace.syncs
    found = of.by_span(spans, bucket.name)
    if not found:
        return ""
    ops, calls = Counter[str](), Counter[str]()
    for span, ns in found[:_LOOKED_AT]:
        inside = of.op_at(int(spans.thread[span]), int(spans.start_ns[span]))
        ops[of.name(of.trace.ops.name[inside]) if inside >= 0 else ""] += ns
        calls[of.name(spans.name[span])] += ns
    op, call = ops.most_common(1)[0][0], calls.most_common(1)[0][0]
    where = f" in {op}" if op else ""
    what = (
        f"{of.share_of(bucket)} of the time the device is empty because the host waited for "
        f"it: {of.each(len(found), 'sync')}, most in {call}{where}"
    )
    return f"{what}; {_sync_advice(op)}"


def _sync_advice(op: str) -> str:
    name = op.rpartition("::")[2]
    advice = next((text for names, text in _SYNC_ADVICE if name in names), None)
    if advice:
        return advice
    if op:
        return "find out why this op waits, and call it less often"
    return "no op is around it: look for torch.cuda.synchronize(), or a library that calls it"


def alloc(of: Evidence, bucket: Bucket) -> str:
    """Which calls of the allocator."""
    spans = of.trace.allocs
    found = of.by_span(spans, bucket.name)
    if not found:
        return ""
    calls = Counter[str]()
    for span, _ in found:
        calls[of.name(spans.name[span])] += 1
    called = ", ".join(f"{count} x {name}" for name, count in calls.most_common(3))
    steps = len(of.labels.edges.names)
    called += f" in {steps} steps" if steps > 1 else ""
    return (
        f"{of.share_of(bucket)} of the time memory is reserved or freed inside the steps "
        f"({called}): record after a warm-up, do not call empty_cache(), keep shapes the same, or "
        "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    )


def launch_bound(of: Evidence, bucket: Bucket) -> str:
    """Many short kernels, or few long pauses of the host."""
    gaps, _ = of.gaps(bucket.name)
    long_ones = pauses.Pauses.in_bucket(of, bucket.name)
    share = of.share_of(bucket)
    if long_ones.time_ns > bucket.time_ns / 2:
        return f"{share} of the time nothing is launched, {pauses.sentence(long_ones)}"
    low, high = of.labels.edges.bounds_ns[0], of.labels.edges.bounds_ns[-1]
    work = of.trace.work
    inside = (work.start_ns >= low) & (work.start_ns < high)
    length = (work.end_ns - work.start_ns)[inside]
    optimizer = " fused optimizers," if trains(of.trace) else ""
    return (
        f"{share} of the time the device waits for the host to launch: "
        f"{of.each_of(len(length), 'kernel', length.sum())}, and "
        f"{of.each_of(len(gaps), 'gap', gaps.sum())}; try CUDA graphs or "
        f'torch.compile(mode="reduce-overhead"),{optimizer} or a larger batch'
    )


def _work(of: Evidence, entry: int) -> str:
    op = int(of.trace.work.op[entry])
    if op < 0:
        return of.name(of.trace.work.name[entry])
    return of.name(of.trace.ops.name[of.outer_op(op)])


def device_gap(of: Evidence, bucket: Bucket) -> str:
    """How many gaps between kernels that were launched in time."""
    gaps, _ = of.gaps(bucket.name)
    return (
        f"{of.share_of(bucket)} of the time passes between kernels that were launched in "
        f"time ({of.each_of(len(gaps), 'gap', gaps.sum())}): the device's own "
        "cost of starting a kernel; fewer, larger kernels help (fusion by torch.compile, CUDA "
        "graphs)"
    )


def queued_wait(of: Evidence, bucket: Bucket) -> str:
    """What it is, and is not."""
    gaps, enders = of.gaps(bucket.name)
    what = f"{of.share_of(bucket)} of the time work was launched and the"
    in_graph = gaps[_of_graphs(of, enders)].sum() / gaps.sum()
    if in_graph > 1 / 2:
        return (
            f"{what} device seems empty ({of.each(len(gaps), 'wait')}, {percent(in_graph)} of it "
            "before work of CUDA graphs): it may run kernels of a graph that the profiler did not "
            "record (older ones leave some out); compare with a trace without graphs, or one of a "
            "newer PyTorch and driver"
        )
    end = int(enders[np.argmax(gaps)])
    waits = f"{of.each(len(gaps), 'wait')}, the longest {seconds(int(gaps.max()) / 1e9)}"
    waits = f"1 wait of {seconds(int(gaps[0]) / 1e9)}" if len(gaps) == 1 else waits
    waits += f" before {_work(of, end)}" if end >= 0 else ""
    if end >= 0 and gaps.max() > gaps.sum() / 2 and _is_first_of_stream(of, end):
        return (
            f"{what} device seems empty ({waits}): that is the first recorded work of its stream, "
            "so what was launched before the recording began may still have run; record whole "
            "steps, with some warm-up steps before them"
        )
    streams = len(np.unique(of.trace.work.stream))
    other = f" of another stream (there are {streams})" if streams > 1 else ""
    return (
        f"{what} empty device did not start it ({waits}){_host_meanwhile(of, bucket)}; look for an "
        f"event{other} that it waits for, a host function, a late rank, or another process on the "
        "device (nvidia-smi)"
    )


def _of_graphs(of: Evidence, entries: Ints) -> np.ndarray:
    """Which work shares its launch with other work: one call launches all of a CUDA graph."""
    work = of.trace.work
    calls = work.launch_ns * (len(of.trace.threads) + 1) + work.launch_thread
    _, inverse, count = np.unique(calls, return_inverse=True, return_counts=True)
    shares = (count[inverse] > 1) & (work.launch_ns >= 0)
    found: np.ndarray = shares[entries] & (entries >= 0)
    return found


def _is_first_of_stream(of: Evidence, entry: int) -> bool:
    return int(np.argmax(of.trace.work.stream == of.trace.work.stream[entry])) == entry


def _host_meanwhile(of: Evidence, bucket: Bucket) -> str:
    """The op that the launching thread runs in the middle of the longest wait."""
    mine = of.segments(bucket.name)
    longest = int(mine[np.argmax(of.labels.length_ns[mine])])
    low, high = of.labels.bounds_ns[longest : longest + 2].tolist()
    thread = int(of.trace.work.launch_thread[of.labels.work[longest]])
    inside = of.op_at(thread, (low + high) // 2)
    if inside < 0 or of.trace.ops.end_ns[inside] - of.trace.ops.start_ns[inside] < (high - low) / 2:
        return ": not the host, and not launching"
    return f"; meanwhile the host is in {of.name(of.trace.ops.name[inside])}"


def _meanwhile(of: Evidence, bucket: Bucket) -> str:
    """Which annotation runs most of that time, on another thread: gloo marks its collectives."""
    spans = of.trace.annotations
    is_main = spans.thread == main_thread(of.trace)
    mine = of.segments(bucket.name)
    intervals = of.labels.bounds_ns[mine], of.labels.bounds_ns[mine + 1]
    name, time_ns = pauses.most_annotated(spans, np.flatnonzero(is_main), *intervals, own=True)
    if time_ns >= bucket.time_ns / 2:
        return f"; for {percent(time_ns / bucket.time_ns)} of it, it is in {of.name(name)}"
    name, time_ns = pauses.most_annotated(spans, np.flatnonzero(~is_main), *intervals)
    if time_ns < bucket.time_ns / 2:
        return f"; {pauses.where(of)}"
    text = f"; for {percent(time_ns / bucket.time_ns)} of it another thread runs {of.name(name)}"
    if rule_of_op(of.trace.names[name]).code != COMMUNICATION:
        return text
    return (
        f"{text}: communication, or the wait for a rank that is late; give the traces of all ranks"
    )


def unknown(of: Evidence, bucket: Bucket) -> str:
    """Why the cause is not known."""
    if of.labels.of_ops and of.trace.warnings:
        return (
            f"{of.share_of(bucket)} of the time the main thread runs no operator; what the "
            "device did meanwhile is not read: see the warning"
        )
    if of.labels.of_ops:
        return (
            f"{of.share_of(bucket)} of the time the main thread runs no operator: Python, or "
            f"waiting for other threads{_meanwhile(of, bucket)}"
        )
    known, total = of.breakdown.coverage.launches, of.breakdown.coverage.work
    if known == total:
        return ""
    return (
        f"{of.share_of(bucket)} of the time ends with work whose launch is not recorded "
        f"({percent((total - known) / total)} of all work): record CPU and CUDA activities "
        "together, and some warm-up steps before the recorded ones"
    )
