"""Random damage to a trace: it is read, or there is one clear line; nothing else."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from trace_builder import TraceBuilder

from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.insight.trace.scrub import scrub

_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**31, 2**63, 2**64, 10**40, 0.5, -0.5, 1e18, 1e300, -1e300),
    *("", "7", "stream 7", "nan", "1e999", "\x1b[0m", "\ud83d", "X", "B", "E", "kernel", "cpu_op"),
    *([], [[]], [[[[[[[[[1]]]]]]]]], {}, {"device": []}, ["", 5, None], "[0, 1]", "ProfilerStep#1"),
]
_BYTES = [b"{", b"}", b"[", b"]", b",", b'"', b"\\", b"\0", b"\xff", b"NaN", b"1e999", b"},{", b"-"]


def built() -> TraceBuilder:
    trace = TraceBuilder(rank=0, world_size=2, groups={"0": [0, 1]})
    for i in range(3):
        at = 20_000 * i
        trace.step(i, at, 20_000)
        trace.data_wait(at, 1_000)
        trace.op("aten::mm", at + 2_000, 500, dims=[[4, 8], [8, 2]], types=["float", "float"])
        trace.kernel("gemm", at + 3_000, 4_000, launch_ns=at + 2_100, grid=[8, 4, 2])
        trace.kernel("nccl", at + 8_000, 50, **{"Collective name": "allreduce", "dtype": "Half"})
        trace.memcpy(at + 9_000, 50, kind="DtoH (Device -> Pageable)", launch_ns=at + 8_500)
        trace.sync(at + 10_000, 100)
        trace.alloc(at + 11_000, 100)
    return trace


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every container within a JSON value, with each of its keys."""
    keys = list(value) if isinstance(value, dict) else range(len(value))
    found = [(value, key) for key in keys]
    for key in keys:
        if isinstance(value[key], (dict, list)):
            found += places(value[key])
    return found


def checked(path: Path, out: Path) -> bool:
    """Whether it could be read; columns that are read fit together, and so does their copy."""
    try:
        trace = read_trace(path, max_raw_bytes=1 << 20)
    except TraceError as error:
        assert str(error).isprintable()
        return False
    assert all(name.isprintable() for name in (*trace.names, *trace.threads, *trace.notes))
    assert ((trace.work.op < len(trace.ops)) & (trace.work.op >= -1)).all()
    assert (trace.work.end_ns >= trace.work.start_ns).all()
    assert (trace.work.start_ns >= 0).all()
    for texts in (trace.ops.dims, trace.ops.types, trace.ops.concrete):
        assert all(isinstance(json.loads(text), list) for text in texts if text)
    again = read_trace(scrub(path, out, force=True))
    assert again.work.start_ns.tolist() == trace.work.start_ns.tolist()
    assert again.work.op.tolist() == trace.work.op.tolist()
    assert again.ops.parent.tolist() == trace.ops.parent.tolist()
    assert again.collectives == trace.collectives
    return True


def test_values_of_any_kind_anywhere(tmp_path: Path) -> None:
    rng = random.Random(3)
    read = 0
    for _ in range(120):
        document = built().to_dict()
        for _ in range(rng.randint(1, 6)):
            holder, key = rng.choice(places(document))
            action = rng.random()
            if action < 0.7:
                holder[key] = rng.choice(_VALUES)
            elif isinstance(holder, dict):
                holder[rng.choice(["ts", "dur", "args", "name", "cat", "tid"])] = holder[key]
            else:
                holder.insert(rng.randint(0, len(holder)), rng.choice(_VALUES))
        path = tmp_path / "t.json"
        path.write_text(json.dumps(document))
        read += checked(path, tmp_path / "clean.json")
    assert read > 50


def test_bytes_of_any_kind_anywhere(tmp_path: Path) -> None:
    rng = random.Random(5)
    text = json.dumps(built().to_dict()).encode()
    read = 0
    for _ in range(120):
        data = bytearray(text)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data[at : at + rng.randint(0, 3)] = rng.choice(_BYTES)
        path = tmp_path / "t.json"
        path.write_bytes(data)
        read += checked(path, tmp_path / "clean.json")
    assert 0 < read < 120


def test_damaged_gzip_is_never_read_as_something_else(tmp_path: Path) -> None:
    rng = random.Random(9)
    packed = gzip.compress(json.dumps(built().to_dict()).encode(), mtime=0)
    path = tmp_path / "t.json.gz"
    path.write_bytes(packed)
    whole = read_trace(path)
    for _ in range(120):
        data = bytearray(packed)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            trace = read_trace(path)
        except TraceError:
            continue
        assert trace.work.start_ns.tolist() == whole.work.start_ns.tolist()  # a bit of the header
