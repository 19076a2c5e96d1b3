"""What the categories and names of events mean, and names that are safe to print."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mfu_torch.insight.trace.events import KERNEL, MEMCPY, MEMSET

Key = TypeVar("Key", bound=Hashable)

WORK: dict[str, int] = {
    "kernel": KERNEL,
    "Kernel": KERNEL,
    "gpu_memcpy": MEMCPY,
    "Memcpy": MEMCPY,
    "gpu_memset": MEMSET,
    "Memset": MEMSET,
}
"""Categories of work on a device; capitalised until torch 1.10."""
RUNTIME = frozenset(
    {"cuda_runtime", "cuda_driver", "Runtime", "hip_runtime", "hip_driver", "xpu_runtime"}
    | {"xpu_driver", "mtia_runtime", "privateuse1_runtime", "privateuse1_driver"}
)
OF_A_DEVICE = re.compile(r"mtia|privateuse|npu|tpu|hpu|xla|kernel|memcpy|memset|ccl", re.IGNORECASE)
"""Categories of the work of devices of which nothing is known here; the host has none of these."""
STARTS_WORK = re.compile(r"^(?!(cuda|hip|cu)[A-Z])|Launch|Memcpy|Memset")
"""Calls that mean that a device works; the profiler itself synchronises one that does nothing."""
OPS = frozenset({"cpu_op", "Operator"})
"""Old traces have the annotations of the user among them, see :func:`is_annotation`."""
ANNOTATION = "user_annotation"

STEP = re.compile(r"ProfilerStep#\d+")
LOADER = re.compile(r"^enumerate\(DataLoader")
"""What torch itself annotates: nothing but the wait."""
DATA = re.compile(
    LOADER.pattern + r"|data[_ -]?(load|fetch|wait|iter)|^## data|^\W*(data[_ -]?)?fetch(ing)?\W*$"
    r"|(get|next|load|fetch|read|(?<!## )wait_for)[_ -](next[_ -]|train[_ -]|val[_ -]|test[_ -])?"
    r"(mini[_ -]?)?batch(?![_ -]?norm)"
    r"|\]\.(train|val|test|predict|sanity_check)_(dataloader_)?next$",
    re.IGNORECASE,
)
"""Waits of the loop for its loader: of torch, Lightning, and as people call them.

TorchRec's ``## wait_for_batch ##`` is none: the host only tells a stream to wait for a copy.
"""
SYNC = re.compile(
    r"(Device|Stream|Event|Ctx|Context|Thread)Synchronize"
    r"|^(cuda|hip)Memcpy(2D|3D|ToSymbol|FromSymbol|DtoH|HtoD|DtoD|Peer|WithStream)?(_v\d+|_ptds)?$"
    r"|^cuMemcpy((DtoH|HtoD|DtoD|2D|3D|Peer)(Unaligned)?)?(_v\d+)?(_ptds)?$"
    r"|^ur(EventWait|QueueFinish)$|^ze(CommandQueue|EventHost|FenceHost|CommandListHost)Synchronize$"
)
ALLOC = re.compile(
    r"^(cuda|hip|cu)(Malloc|Free|Host(Alloc|Free|Register|Unregister)"
    r"|Mem(Alloc|Free|Create|Release|Map|Unmap|SetAccess|AddressReserve|AddressFree))"
    r"|^urUSM((Device|Host|Shared|Pool)Alloc|Free)|^ze(Mem(Alloc(Device|Host|Shared)|Free)|PhysicalMem)"
)
PAGEABLE = re.compile(r"pageable", re.IGNORECASE)
"""A copy from or to such memory keeps the calling thread waiting, also where it is "Async"."""
COLLECTIVE = re.compile(
    r"nccl|rccl|msccl|multimem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv",
    re.IGNORECASE,
)
HOST_COLLECTIVE = re.compile(r"(gloo|mpi|ucc):\w+", re.ASCII)
"""Marks of what torch runs on threads of its own: ``gloo:all_reduce``."""

_SPAN = re.compile(r"ProfilerStep#|enumerate\(DataLoader|Optimizer\.(step|zero_grad)#")
_OP = re.compile(r"\w+(::.*)?", re.ASCII)
_UNSAFE = re.compile(  # control characters, direction marks, halves of surrogate pairs
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]+"
)
_LONGEST = 4096


class Numbers(dict[Key, int], Generic[Key]):
    """Gives each new key the next number: ``numbers[key]``."""

    def __missing__(self, key: Key) -> int:
        number = self[key] = len(self)
        return number


def clean(name: str) -> str:
    """A name without anything that a terminal obeys, at most 4096 characters of it."""
    return _UNSAFE.sub("?", name[:_LONGEST])


def is_annotation(category: str, name: str) -> bool:
    """Whether an event among the ops is a ``record_function`` of the user or of the profiler."""
    if category == "Operator" and not _OP.fullmatch(name):
        return True
    return _SPAN.match(name) is not None


def matching(
    pattern: re.Pattern[str], names: list[str], used: npt.NDArray[np.integer], *, full: bool = False
) -> npt.NDArray[np.bool_]:
    """For each entry of ``used`` whether its name matches: each distinct name is tried once."""
    hit = np.zeros(len(names) + 1, bool)
    search = pattern.fullmatch if full else pattern.search
    for number in np.flatnonzero(np.bincount(used)).tolist():  # those used, in order
        hit[number] = search(names[number]) is not None
    found: npt.NDArray[np.bool_] = hit[used]
    return found
