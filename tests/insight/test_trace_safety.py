"""Files that are no traces, or mean harm: one clear line, and no more memory than needed."""

from __future__ import annotations

import gc
import gzip
import json
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.trace import columns, pairs, pieces, source
from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.pieces import LIMIT_BYTES
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.records.facts import MFUError

GOOD = TraceBuilder()
GOOD.step(0, 0, 10_000)
GOOD.op("aten::mm", 100, 500, dims=[[4, 8], [8, 2]])
GOOD.kernel("gemm", 1_000, 4_000, launch_ns=200)
TEXT = json.dumps(GOOD.to_dict()).encode()


DEEP = b"[" * 90_000 + b"]" * 90_000


def kernel(**changes: Any) -> dict[str, Any]:
    """A kernel of device 0 at 2 us; ``changes`` as keys of the event."""
    args = {"device": 0, "stream": 7, "correlation": 99}
    one = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 2, "dur": 1}
    return one | {"args": args} | changes


def with_event(**changes: Any) -> bytes:
    return json.dumps({"traceEvents": [*GOOD.events, kernel(**changes)]}).encode()


def error(path: Path, data: bytes, **options: Any) -> str:
    """The message about such a file: a single line of printable text, not too long."""
    path.write_bytes(data)
    with pytest.raises(TraceError) as caught:
        read_trace(path, **options)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 250
    assert text.startswith(path.name)
    return text


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the file is empty"),
        (b" \n ", "no JSON object"),
        (b"<!doctype html><html>", "HTML"),
        (b"12", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b"\0" * 64, "no JSON object"),
        (b"PK\x03\x04rest", "a zip archive"),
        (b"\xff\xfe{\0", "UTF-16"),
        (b"{", 'no "traceEvents"'),
        (b'{"hidden_size": 768}', 'no "traceEvents"'),
        (b'{"traceEvents": "x"}', 'no "traceEvents"'),
        (b'{"a": {"traceEvents": []}}', 'no "traceEvents"'),
        (b'{"traceEvents": []}', "no kernels and no ops"),
        (b"[]", "no kernels and no ops"),
        (b"[1, 2, 3]", "no events"),
        (b'[{"id": 1}, {"id": 2}]', "no events"),
        (b'{"traceEvents": [{"id": 1}]}', "no events"),
        (TEXT[:-40], "cut or damaged"),
        (TEXT[: len(TEXT) // 2], "cut or damaged"),
        (TEXT + b"rest", "cut or damaged"),
        (TEXT + TEXT, "cut or damaged"),
        (TEXT[:-1] + b', "traceEvents": []}', "twice"),
        (b"[" * 200_000, "nested too deeply"),
        (b'{"a":' * 100_000, 'no "traceEvents"'),
        (b'{"traceEvents": [' + b"[" * 90_000 + b"]" * 90_000 + b"]}", "nested too deeply"),
        (b'{"m": ' + DEEP + b', "traceEvents": []}', "nested too deeply"),
        (TEXT[:-1] + b', "m": ' + DEEP + b"}", "nested too deeply"),
        (b"[" + b'{"ph": "X", "args": {"m": ' + DEEP + b"}}," * 9, "nested too deeply"),
        (TEXT.decode().encode("utf-16-le"), "text in UTF-16"),
        (TEXT.decode().encode("utf-16-be"), "text in UTF-16"),
        (TEXT.decode().encode("utf-32-le"), "text in UTF-32"),
        (TEXT.decode().encode("utf-32-be"), "text in UTF-32"),
        (TEXT.decode().encode("utf-32"), "text in UTF-32"),
        (gzip.compress(TEXT.decode().encode("utf-16-le")), "text in UTF-16"),
        (b'{"schema": "1.1.1-chakra.0.0.4", "pid": 1,\n "nodes": [ {', "an execution trace"),
        (gzip.compress(b'{\n "schema": "1.0.1", "nodes": ['), "an execution trace"),
        (gzip.compress(b"t.json".ljust(257, b"\0") + b"ustar\x0000" + b"\0" * 248), "tar archive"),
        (b"t.json".ljust(257, b"\0") + b"ustar\x0000" + b"\0" * 248, "tar archive"),
        (gzip.compress(gzip.compress(TEXT)), "gzip inside gzip"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 50, "zstd"),
        (b"SQLite format 3\0" + b"x" * 50, "Nsight Systems"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1", "git lfs pull"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name", "ts": 0}]}', "prof.step()"),
        (b"\x1f\x8b\x08" + b"x" * 50, "damaged gzip"),
        (gzip.compress(TEXT)[:-10], "ends too early"),
        (gzip.compress(TEXT)[:-8] + b"12345678", "damaged gzip"),
        (gzip.compress(TEXT) + b"rest", "damaged gzip"),
        (gzip.compress(b""), "no JSON object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "file",  # gzip has the time in it
)
def test_what_is_no_trace_is_said_in_one_line(data: bytes, words: str, tmp_path: Path) -> None:
    assert words in error(tmp_path / "t.json", data)


def test_every_cut_of_a_trace_is_an_error(tmp_path: Path) -> None:
    for end in range(0, len(TEXT), 3):
        error(tmp_path / "t.json", TEXT[:end])


def test_an_error_of_a_trace_is_an_error_of_the_package() -> None:
    assert issubclass(TraceError, MFUError)


def test_the_collector_is_as_it_was_after_an_error(tmp_path: Path) -> None:
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            error(tmp_path / "t.json", b"{")
            assert gc.isenabled() == enabled
        finally:
            gc.enable()


def test_what_is_no_file_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(source, "_PIPE_WAIT_S", 0.01)
    for path, words in (
        (tmp_path, "a folder"),
        (tmp_path / "nowhere.json", "No such file"),
        (pipe, "a pipe that nobody writes to"),
        (Path("/dev/zero"), "not a file or a pipe"),
        (tmp_path / "a\0b", "not a path"),
        (tmp_path / "x\x1b[2J.json", "No such file"),
    ):
        with pytest.raises(TraceError, match=words) as caught:
            read_trace(path)
        assert str(caught.value).isprintable()


def test_a_limit_says_how_to_raise_it(tmp_path: Path) -> None:
    text = error(tmp_path / "t.json", gzip.compress(TEXT), max_raw_bytes=100)
    assert "more than 100 bytes of JSON" in text
    assert "raise max_raw_bytes" in text
    assert len(read_trace(tmp_path / "t.json", max_raw_bytes=len(TEXT)).work) == 1


@pytest.mark.parametrize(
    ("begin", "again", "words"),
    [
        (b"", b"\0", "no JSON object"),
        (b"", b" ", "no JSON object"),
        (b'{"traceEvents": [', b" ", "no end of an event"),
        (b'{"traceEvents": [{"name": "', b"{", "no end of an event"),
        (b'{"a": "', b"x", "no end of an event"),
        (b"[", b"[],", "no end of an event"),
        (TEXT[:-2], b' , {"ph": "B", "ts": 1}', "more than"),
    ],
)
def test_a_gzip_bomb_takes_little_memory(
    begin: bytes, again: bytes, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "LIMIT_BYTES", 2 << 20)
    monkeypatch.setattr(pieces, "PIECE_BYTES", 1 << 19)
    monkeypatch.setattr(pairs, "MOST", 10_000)
    count = (12 << 20) // len(again)
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", 1) as file:
        file.write(begin)
        file.write(again * count)
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=words):
            read_trace(path, max_raw_bytes=5 << 20)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert LIMIT_BYTES == 64 << 20
    assert peak < 30 << 20


def test_a_long_trace_is_never_whole_in_memory(tmp_path: Path) -> None:
    def lines() -> Iterator[bytes]:
        yield b'{"traceEvents": [\n'
        filler = json.dumps({"Call stack": "x" * 4_000})
        for i in range(12_000):
            head = f'"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": {i}'
            yield f'{"," if i else ""}{{{head}, "dur": 1, "args": {filler}}}\n'.encode()
        yield b"]}"

    path = tmp_path / "t.json"
    with path.open("wb") as file:
        file.writelines(lines())
    assert path.stat().st_size > 40 << 20
    tracemalloc.start()
    try:
        trace = read_trace(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(trace.ops) == 12_000
    assert peak < 24 << 20


def test_more_events_than_any_step_has_are_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns, "MOST_ROWS", 3)
    assert "more than 3 events" in error(tmp_path / "t.json", with_event())


IMPOSSIBLE: dict[str, list[Any]] = {
    "ts": [1e300, -1e300, "abc", None, [1], {}, True and "nan", "inf", 10**30],
    "dur": [-5, -1e-9, 1e300, "x", None, [], 10**30],
}


@pytest.mark.parametrize(
    ("key", "value"), [(key, value) for key, values in IMPOSSIBLE.items() for value in values]
)
def test_impossible_times_are_left_out_and_said(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(with_event(**{key: value}))
    trace = read_trace(path)
    assert [trace.names[i] for i in trace.work.name] == ["gemm"]
    assert trace.notes == ("1 event with an impossible time or duration was left out",)


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity", b"1e400"])
def test_what_is_no_number_in_json_is_left_out(word: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(with_event().replace(b'"ts": 2,', b'"ts": ' + word + b","))
    trace = read_trace(path)
    assert len(trace.work) == 1
    assert trace.notes == ("1 event with an impossible time or duration was left out",)


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "-nan", "NaN", "Infinity"])
def test_a_number_that_is_none_where_nothing_is_read_changes_nothing(
    word: str, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    text = with_event(name="k<inf, nan>").decode()
    more = f'"correlation": 99, "memory bandwidth (GB/s)": {word}'
    path.write_text(text.replace('"correlation": 99', more))
    trace = read_trace(path)
    assert [trace.names[i] for i in trace.work.name] == ["gemm", "k<inf, nan>"]
    assert trace.notes == ()


@pytest.mark.parametrize("key", ["ph", "cat", "name", "pid", "tid"])
@pytest.mark.parametrize("value", [[1], {"a": 1}, 1.5, True])
def test_an_event_of_wrong_types_is_left_out(key: str, value: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(with_event(**{key: value}))
    trace = read_trace(path)
    assert "gemm" in [trace.names[i] for i in trace.work.name]
    assert len(trace.ops) == 1


@pytest.mark.parametrize("value", [["x"], {"a": 1}, 1.5, "text", None, True, 2**200, -5])
def test_arguments_of_wrong_types_count_as_absent(value: Any, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    keys = ("correlation", "grid", "External id", "Process Group Name", "dtype", "Group size")
    args = dict.fromkeys((*keys, "Seq", "Process Group Ranks", "In msg nelems"), value)
    path.write_bytes(with_event(args={**args, "Collective name": "allreduce"}))
    trace = read_trace(path)
    assert len(trace.work) == 2
    assert trace.work.launch_ns.tolist() == [200, -1]
    assert trace.work.blocks.tolist() == [-1, -1]


def test_an_event_far_from_the_others_is_left_out_and_said(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = [kernel(ts=ts) for ts in (1.7e15, 1.7e15 + 5, 1.7e15 + 9, 0)]
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    assert trace.work.start_ns.tolist() == [0, 5_000, 9_000]
    assert trace.notes == ("1 event more than a day away from the others was left out",)


def test_a_name_cannot_steer_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    names = ["\x1b[31mred\x07", "a\nb\rc", "\u202egnp", "\ud800x", "\x9b2J", "z" * 10_000]
    events = [kernel(name=name, ts=i) for i, name in enumerate(names)]
    path.write_text(json.dumps({"traceEvents": events}))
    trace = read_trace(path)
    found = [trace.names[i] for i in trace.work.name]
    assert found == ["?[31mred?", "a?b?c", "?gnp", "?x", "?2J", "z" * 4_096]


@pytest.mark.parametrize("raw", [b'"k\xff\xfe"', b'"k\x01"', b'"k\x1b"'])
def test_bad_text_is_read_and_made_safe(raw: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_bytes(with_event().replace(b'"name": "k"', b'"name": ' + raw))
    trace = read_trace(path)
    assert len(trace.work) == 2
    assert all(name.isprintable() for name in trace.names)


def test_what_stands_beside_the_events_may_be_anything(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    for devices in (None, "x", 5, [1, None], [{"id": 0, "name": 7, "numSms": "x"}], {"a": 1}):
        for info in (None, [1], {"rank": -1, "world_size": 1e300, "pg_config": [1, {"ranks": {}}]}):
            head = {"deviceProperties": devices, "distributedInfo": info}
            path.write_text(json.dumps({**head, "traceEvents": GOOD.events}))
            trace = read_trace(path)
            assert (trace.device_name, trace.sm_count) == (None, None)
            assert (trace.rank, trace.world_size, trace.groups) == (None, None, {})
