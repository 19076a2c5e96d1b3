"""What a file is that was given for a trace and is none, by its first bytes; and what to do."""

from __future__ import annotations

import re

PROBED_BYTES = 1024

_MAGIC = {
    b"PK": "a zip archive; unpack it (unzip) and give the trace in it",
    b"\x28\xb5\x2f\xfd": "compressed with zstd; unpack it (unzstd): a trace is JSON, plain or gzip",
    b"BZh": "compressed with bzip2; unpack it (bunzip2): a trace is JSON, plain or gzip",
    b"\xfd7zXZ": "compressed with xz; unpack it (unxz): a trace is JSON, plain or gzip",
    b"\x04\x22\x4d\x18": "compressed with lz4; unpack it (lz4 -d): a trace is JSON, plain or gzip",
    b"7z\xbc\xaf\x27\x1c": "a 7z archive; unpack it (7z x) and give the trace in it",
    b"\x1f\x8b": "gzip inside gzip; unpack it once (gunzip)",
    b"SQLite format 3\0": "an SQLite database, as Nsight Systems exports; give the JSON that "
    "torch.profiler writes (export_chrome_trace)",
    b"\x80\x02": "a pickle; give the JSON that torch.profiler writes (export_chrome_trace)",
    b"\x80\x04": "a pickle, as memory snapshots are; give the JSON that torch.profiler writes "
    "(export_chrome_trace)",
    b"version https://git-lfs": "a pointer of Git LFS, not the file itself; get it with git lfs "
    "pull",
    b"<": "HTML or XML; a trace of torch.profiler is a JSON object",
}
_TAR_AT, _TAR = 257, b"ustar"
_BOMS = {  # the longer ones first
    b"\xff\xfe\0\0": "UTF-32",
    b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
_NULS = {"x0x0": "UTF-16", "0x0x": "UTF-16", "x000": "UTF-32", "000x": "UTF-32"}
"""Which of the first four bytes of JSON are 0: its first two characters are ASCII."""
_EXECUTION_TRACE = re.compile(rb'\s*\{\s*"schema"\s*:[^\[\]{}]*"nodes"\s*:\s*\[')


def other_file(first: bytes) -> str:
    """What the file is, and what to do; empty where it may be a trace.

    Args:
        first: Some hundred bytes of it, unpacked if it is gzip.
    """
    encoding = next((name for bom, name in _BOMS.items() if first.startswith(bom)), None)
    encoding = encoding or _NULS.get("".join("x" if byte else "0" for byte in first[:4]))
    if encoding:
        return f"text in {encoding}; a trace is JSON in UTF-8: write it so (iconv -t UTF-8)"
    if first[_TAR_AT:].startswith(_TAR):
        return "a tar archive; unpack it (tar -xf) and give the trace in it"
    if _EXECUTION_TRACE.match(first):
        return (
            "an execution trace (ExecutionTraceObserver, Chakra), which has no times of the "
            "device; give the trace that torch.profiler wrote of the same run"
        )
    start = first.lstrip(b" \t\r\n")
    return next((what for magic, what in _MAGIC.items() if start.startswith(magic)), "")
