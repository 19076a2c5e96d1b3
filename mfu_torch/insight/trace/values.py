"""Values that come from the trace as text: only what is understood is taken."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from mfu_torch.insight.trace.decode import plain

_LONGEST_BYTES = 1 << 20
_DEEP = b"[" * 8
_DIGITS = re.compile(r"\d{1,18}")
_DIMS = re.compile(rb'[\s\[\],"0-9-]*')
_CONCRETE = re.compile(
    rb"(?:[\s\[\],.\"0-9+-]|True|False|None|true|false|null|(?<![A-Za-z])inf(?![A-Za-z])|nan"
    rb"|(?<=\d)e(?=[+-]?\d))*"
)
_TYPES = re.compile(
    rb'[\s\[\],]*(?:"(?:|[Ff]loat|[Dd]ouble|[Ii]nt|[Ll]ong|[Ss]hort|[Bb]ool|[Bb]yte|[Cc]har'
    rb"|long int|long long|short int|(?:un)?signed char|unsigned (?:short|int|long)(?: int)?"
    rb"|u?int\d+(?:_t)?|Half|BFloat16|Scalar|Tensor|ScalarList|TensorList|GenericList|String|Str"
    rb"|Device|Stream|Generator|Layout|Dtype|None|Optional|Tuple|Dict"
    rb"|(?:c10::)?(?:Half|BFloat16|Float\d+_[a-z0-9_]{1,24}|q?u?int\d+(?:x\d)?|complex<[a-z0-9:]+>"
    rb'))"[\s\[\],]*)*',
    re.IGNORECASE,
)
_WORDS = frozenset(
    [
        "all",
        "reduce",
        "gather",
        "scatter",
        "broadcast",
        "send",
        "recv",
        "sendrecv",
        "barrier",
        "wait",
        "to",
        "base",
        "into",
        "tensor",
        "coalesced",
        "allreduce",
        "allgather",
        "alltoall",
        "reducescatter",
        "batch",
        "p2p",
        "v",
        "single",
        "sum",
        "start",
        "end",
        "default",
        "pg",
        "undefined",
        "mesh",
        "dp",
        "tp",
        "pp",
        "ep",
        "cp",
        "sp",
        "vp",
        "etp",
        "edp",
        "fsdp",
        "ddp",
        "hsdp",
        "data",
        "pipeline",
        "expert",
        "context",
        "sequence",
        "model",
        "parallel",
        "parallelism",
        "group",
        "groups",
        "embedding",
        "embd",
        "position",
        "replicate",
        "shard",
        "sharded",
        "inter",
        "intra",
        "node",
        "world",
        "with",
        "and",
        "local",
        "amax",
        "grad",
        "optimizer",
        "moe",
        "dim",
        "dense",
        "global",
        "c10d",
        "functional",
        "sync",
        "async",
    ]
)
_RANKS = re.compile(r"\[\d{1,9}(?:, ?\d{1,9})*\]")
_SPLIT = re.compile(r"[\s_.:/-]+|(?<=[a-z])(?=\d)")
_HASHED = re.compile(r"group-[0-9a-f]{8}|\d{1,8}")
_DEVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._/()+-]{0,79}")

_ELEMENT_BYTES = {
    **dict.fromkeys(("byte", "char", "bool", "int8", "uint8", "signed char", "unsigned char"), 1),
    **dict.fromkeys(("half", "bfloat16", "short", "float16"), 2),
    **dict.fromkeys(("float", "int", "float32"), 4),
    **dict.fromkeys(("double", "long", "float64", "complexfloat"), 8),
}


def dims_text(raw: bytes) -> bytes:
    """Shapes as recorded, if they are lists of whole numbers; else empty."""
    return raw if _fits(raw, _DIMS) else b""


def types_text(raw: bytes) -> bytes:
    """Types as recorded; one that is not known becomes empty."""
    return raw if _fits(raw, _TYPES) else _replaced(raw, _TYPES)


def concrete_text(raw: bytes) -> bytes:
    """Numbers and flags as recorded; any other text becomes empty: it can be anything."""
    return raw if _fits(raw, _CONCRETE) else _replaced(raw, _CONCRETE)


def _fits(raw: bytes, pattern: re.Pattern[bytes]) -> bool:
    if not raw.startswith(b"[") or len(raw) > _LONGEST_BYTES or _DEEP in raw:
        return not raw
    return pattern.fullmatch(raw) is not None


def _replaced(raw: bytes, pattern: re.Pattern[bytes]) -> bytes:
    """The list again, each entry that does not fit emptied."""
    if len(raw) > _LONGEST_BYTES or _DEEP in raw:
        return b""
    entries = plain(raw)
    if not isinstance(entries, list):
        return b""
    texts = [json.dumps(entry) for entry in entries]
    kept = [text if pattern.fullmatch(text.encode()) else '""' for text in texts]
    return f"[{','.join(kept)}]".encode()


def grid_blocks(raw: bytes) -> int:
    """``b"[8, 4, 1]"`` -> 32; -1 where it is no list of positive numbers."""
    sizes = plain(raw) if len(raw) < 100 else None
    if not isinstance(sizes, list) or not 1 <= len(sizes) <= 3:
        return -1
    blocks = 1
    for size in sizes:
        if type(size) is not int or not 0 < size < 1 << 32:
            return -1
        blocks *= size
    return blocks if blocks < 1 << 62 else -1


def first_number(value: int | str | None) -> int:
    """``7`` and ``"stream 7"`` -> 7; -1 where there is none."""
    if type(value) is int:
        return value
    digits = _DIGITS.search(value) if isinstance(value, str) else None
    return int(digits.group()) if digits else -1


def known_words(text: Any) -> str | None:
    """A text of words that describe collectives and their groups; ``None`` for any other."""
    if not isinstance(text, str) or not 0 < len(text) <= 80:
        return None
    words = [word for word in _SPLIT.split(text.lower()) if word]
    known = all(word in _WORDS or (word.isdecimal() and len(word) < 9) for word in words)
    return text if words and known and text.isascii() and text.isprintable() else None


def group_name(name: Any) -> str | None:
    """Name of a process group; one that is no plain word becomes a short, stable hash of it."""
    if isinstance(name, int):
        name = str(name)
    if not isinstance(name, str) or not name:
        return None
    if _HASHED.fullmatch(name) or known_words(name):
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    return f"group-{digest[:8]}"


def device_name(name: Any) -> str | None:
    """As the driver reports it, if it looks like the name of a device."""
    return name if isinstance(name, str) and _DEVICE_NAME.fullmatch(name) else None


def element_bytes(dtype: str | None) -> int | None:
    """``"BFloat16"`` -> 2; ``None`` for a type that is not known."""
    if dtype is None:
        return None
    name = dtype.lower().removeprefix("c10::")
    return 1 if name.startswith("float8") else _ELEMENT_BYTES.get(name)


def listed_ranks(ranks: Any) -> tuple[int, ...] | None:
    """``[0, 1]`` or ``"[0, 1]"`` -> (0, 1); ``None`` where not all of them are listed."""
    if isinstance(ranks, str) and _RANKS.fullmatch(ranks):
        ranks = json.loads(ranks)
    if not isinstance(ranks, list) or not 0 < len(ranks) <= 1 << 20:
        return None
    return tuple(ranks) if all(whole(rank) is not None for rank in ranks) else None


def whole(value: Any, least: int = 0, below: int = 1 << 40) -> int | None:
    """A whole number within bounds; ``None`` for anything else."""
    return value if type(value) is int and least <= value < below else None
