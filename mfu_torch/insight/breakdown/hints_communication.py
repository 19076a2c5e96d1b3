"""Communication while nothing computes: which collectives, how fast, and what to try for those."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mfu_torch.insight.breakdown.codes import COMMUNICATION
from mfu_torch.insight.breakdown.evidence import Evidence, mean_us, trains
from mfu_torch.insight.trace.events import Ints
from mfu_torch.records.breakdown import Bucket
from mfu_torch.units import bytes_, percent, scaled

_ALL_TO_ALL, _GATHER, _SCATTER = "all-to-all", "all-gather", "reduce-scatter"
_REDUCE, _BROADCAST, _PEERS, _OTHER = "all-reduce", "broadcast", "send and receive", "collective"
_KINDS = (
    (_ALL_TO_ALL, re.compile(r"all_?(to|2)_?all|a2a|(deep|hybrid)_?ep|Ep(Dispatch|Combine)", re.I)),
    (_GATHER, re.compile(r"all_?gather", re.I)),
    (_SCATTER, re.compile(r"reduce_?scatter", re.I)),
    (_REDUCE, re.compile(r"all_?reduce|cross_device_reduce|(one|two)_shot", re.I)),
    (_BROADCAST, re.compile(r"broadcast", re.I)),
    (_PEERS, re.compile(r"send_?recv|(^|[:_.])i?(send|recv)(_|$)", re.I)),
)
_SAYS_LITTLE = (_PEERS, _OTHER)  # NCCL's kernel of an all-to-all is called SendRecv

# Part of the bytes that crosses the busiest link, by ranks n: busbw of nccl-tests.
_FACTORS: dict[str, Callable[[int], float]] = {
    _REDUCE: lambda n: 2 * (n - 1) / n,
    _GATHER: lambda n: (n - 1) / n,
    _SCATTER: lambda n: (n - 1) / n,
    _ALL_TO_ALL: lambda n: (n - 1) / n,
    _BROADCAST: lambda n: 1.0,
    _PEERS: lambda n: 1.0,
}

_SLOW = 5e9
"""Bytes per second that links within a node exceed (PCIe 3.0 x16 has 16e9)."""

_LARGE_BYTES = 1_000_000
"""From which the rate is that of the link; smaller messages take the time to start."""

_ENOUGH_OPS = 100

_MANY = 50
"""Small collectives a step that are worth joining."""

_SMALL_NS = 250_000
"""Where the size of the messages is not recorded."""

_PEERS_TOO = "; give the traces of all ranks to see how much of it is waiting for peers"

_TRAINING = {
    _ALL_TO_ALL: (
        "an all-to-all exchanges embeddings or tokens of experts: start it earlier, beside work "
        "that does not need it (the next batch's lookup), send fewer bytes (bf16, int8), or even "
        "out the parts"
    ),
    _GATHER: (
        "all-gathers and reduce-scatters are those of FSDP or ZeRO: prefetch the next layers, "
        "wrap larger units, communicate in bf16, or shard within a node only (HYBRID_SHARD)"
    ),
    _BROADCAST: (
        "DDP broadcasts buffers before each forward, such as the statistics of batch norms: "
        "broadcast_buffers=False if they need not be the same"
    ),
    _PEERS: (
        "it is sends and receives; in a pipeline, more micro-batches or interleaved stages make "
        "its bubble smaller, and even stages"
    ),
    _REDUCE: (
        "start all-reduces earlier, beside the backward, in buckets of another size (DDP "
        "bucket_cap_mb), communicate in bf16 (bf16_compress_hook), or less often (no_sync)"
    ),
    _OTHER: "start collectives earlier, beside compute, or call them less often",
}
_TRAINING[_SCATTER] = _TRAINING[_GATHER]
_COALESCE = (
    "they are many and small: join them (one flat tensor, larger buckets: DDP bucket_cap_mb), as "
    "each takes the time to start"
)
_INFERENCE = (
    "there is no backward in the trace, beside which they could run: fewer ranks per model "
    "(tensor parallel), a kernel for small messages (symmetric memory), or fewer bytes"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Calls:
    """The exposed collectives of one kind.

    Attributes:
        kind: Of them.
        entries: Indices into the work (the ops, on a CPU).
        time_ns: Exposed time of each.
        facts: What the trace says of each.
    """

    kind: str
    entries: Ints
    time_ns: Ints
    facts: tuple[dict[str, Any], ...]


def exposed_communication(of: Evidence, bucket: Bucket) -> str:
    """How much is hidden, which collective, how large and how fast it is."""
    total, hidden = of.breakdown.communication_ns, of.breakdown.overlapped_ns
    entries, time_ns = of.entries(bucket.name)
    if not total:
        return ""
    if not len(entries):  # on a CPU: no op asked for them
        return (
            f"{of.share_of(bucket)} of the time the main thread runs no operator, and another one "
            f"a collective: {_TRAINING[_OTHER]}{_PEERS_TOO}"
        )
    spans = of.spans
    low, high = of.labels.edges.bounds_ns[0], of.labels.edges.bounds_ns[-1]
    inside = (spans.start_ns < high) & (spans.end_ns > low)
    mine = np.flatnonzero(inside & _collectives(of))
    most = _most(of, entries, time_ns)
    same = _kinds(of, mine) == most.kind
    first = int(most.entries[np.argmax(most.time_ns)])
    what = (
        f"{of.share_of(bucket)} of the time only communication runs "
        f"({percent(hidden / total)} of {of.each(len(mine), 'collective')} is hidden behind "
        f"compute; most in {of.name(spans.name[first])}{_sizes(of, most)})"
    )
    return f"{what}: {_advice(of, most, mine[same])}{_PEERS_TOO}"


def _advice(of: Evidence, most: _Calls, same: Ints) -> str:
    # Where hardly any op is recorded, no backward is no sign.
    is_training = trains(of.trace) or len(of.trace.ops) < _ENOUGH_OPS
    text = _TRAINING[most.kind] if is_training or most.kind in _SAYS_LITTLE else _INFERENCE
    steps = 1 if of.labels.edges.mode == "trace" else len(of.labels.edges.names)
    is_many = len(same) >= _MANY * steps and _is_small(of, most)
    if most.kind == _REDUCE and is_training and is_many:
        text = _COALESCE
    rate, size = _rate(of, most), _mean_bytes(most)
    if rate and rate < _SLOW and size >= _LARGE_BYTES:
        return (
            "so slow that most of it is waiting for a rank that comes late, or a slow network "
            f"between nodes; {text}"
        )
    return text


def _is_small(of: Evidence, most: _Calls) -> bool:
    size = _mean_bytes(most)
    if size:
        return size < _LARGE_BYTES
    took = (of.spans.end_ns - of.spans.start_ns)[most.entries]
    return float(np.mean(took)) < _SMALL_NS


# --- what they are -------------------------------------------------------------------------------


def _most(of: Evidence, entries: Ints, time_ns: Ints) -> _Calls:
    """Those of the kind with most exposed time."""
    kinds = _kinds(of, entries)
    by_kind = Counter[str]()
    for kind, ns in zip(kinds.tolist(), time_ns.tolist(), strict=True):
        by_kind[kind] += ns
    most = by_kind.most_common(1)[0][0]
    mine = kinds == most
    facts = tuple(_facts(of, entry) for entry in entries[mine].tolist())
    return _Calls(kind=most, entries=entries[mine], time_ns=time_ns[mine], facts=facts)


def _kinds(of: Evidence, entries: Ints) -> np.ndarray:
    return np.array([_kind(of, entry) for entry in entries.tolist()], np.str_)


def _kind(of: Evidence, entry: int) -> str:
    """By what the trace says, the name of the kernel, and the ops around its launch."""
    kind = _by_name(str(_facts(of, entry).get("collective") or ""))
    if kind not in _SAYS_LITTLE or _facts(of, entry).get("collective"):
        return kind
    kind = _by_name(of.trace.names[int(of.spans.name[entry])])
    if kind not in _SAYS_LITTLE or of.labels.of_ops:
        return kind
    op, parent = int(of.trace.work.op[entry]), of.trace.ops.parent
    for _ in range(64):
        if op < 0:
            break
        around = _by_name(of.trace.names[int(of.trace.ops.name[op])])
        if around != _OTHER:
            return around
        op = int(parent[op])
    return kind


def _by_name(name: str) -> str:
    return next((kind for kind, rule in _KINDS if rule.search(name)), _OTHER)


def _facts(of: Evidence, entry: int) -> dict[str, Any]:
    return {} if of.labels.of_ops else of.trace.collectives.get(entry, {})


def _collectives(of: Evidence) -> np.ndarray:
    """Which kernels are collectives; of ops that enclose each other, the outermost."""
    found: np.ndarray = np.equal(of.labels.work_class, COMMUNICATION)
    if not of.labels.of_ops:
        return found
    parent = of.trace.ops.parent
    inner = (parent >= 0) & found[parent]
    outermost: np.ndarray = found & ~inner
    return outermost


# --- how large, how fast -------------------------------------------------------------------------


def _sizes(of: Evidence, most: _Calls) -> str:
    """``", 17.6 MB in 8.90 ms each: 2.00 GB/s of bus bandwidth"``."""
    size = _mean_bytes(most)
    if not size:
        return ""
    took = (of.spans.end_ns - of.spans.start_ns)[most.entries]
    text = f", {bytes_(size)} in {mean_us(float(took.sum()), len(took))} each"
    rate = _rate(of, most)
    return f"{text}: {scaled(rate, 'B/s')} of bus bandwidth" if rate else text


def _mean_bytes(most: _Calls) -> float:
    sizes = [size for one in most.facts if (size := _bytes(one))]
    return float(np.mean(sizes)) if sizes else 0.0


def _rate(of: Evidence, most: _Calls) -> float:
    """Bytes per second over the busiest link, as nccl-tests have it; 0 where not known.

    8 ranks all-reduce 17.6 MB in 8.9 ms: 17.6e6 x 2 x 7 / 8 / 8.9e-3 = 3.46 GB/s.
    """
    factor = _FACTORS.get(most.kind)
    took = (of.spans.end_ns - of.spans.start_ns)[most.entries].tolist()
    moved = [(_bytes(one), _ranks(of, one), ns) for one, ns in zip(most.facts, took, strict=True)]
    known = [(size, n, ns) for size, n, ns in moved if size and n > 1 and ns > 0]
    if factor is None or not known:
        return 0.0
    seconds_ = sum(ns for *_, ns in known) / 1e9
    return float(sum(size * factor(n) for size, n, _ in known) / seconds_)


def _bytes(facts: dict[str, Any]) -> int:
    size = facts.get("bytes")
    return size if isinstance(size, int) else 0


def _ranks(of: Evidence, facts: dict[str, Any]) -> int:
    """Of the group of a collective; 0 where that is not known."""
    size, listed = facts.get("group_size"), facts.get("ranks")
    if isinstance(size, int):
        return size
    if isinstance(listed, Sequence) and listed:
        return len(listed)
    members = of.trace.groups.get(str(facts.get("group")), ())
    return len(members) or of.trace.world_size or 0
