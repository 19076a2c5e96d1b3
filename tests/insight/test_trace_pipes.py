"""A trace may come through a pipe: ``zcat trace.json.gz | mfu-torch explain -``."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.insight.trace.source import is_stdin
from mfu_torch.insight.trace_files import trace_files


def text_of(kernels: int = 1) -> bytes:
    built = TraceBuilder()
    for i in range(kernels):
        built.kernel("gemm", 1_000 * i + 500, 400, launch_ns=1_000 * i)
    return json.dumps(built.to_dict()).encode()


def fed(descriptor: int, data: bytes, start: int = 1) -> threading.Thread:
    """Writes a few bytes, then the rest, and closes."""

    def feed() -> None:
        with os.fdopen(descriptor, "wb", buffering=0) as pipe:
            pipe.write(data[:start])
            pipe.write(data[start:])

    thread = threading.Thread(target=feed)
    thread.start()
    return thread


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[int]:
    """The end to write to, of a pipe that is the standard input."""
    monkeypatch.chdir(tmp_path)
    saved = os.dup(0)
    read_end, write_end = os.pipe()
    os.dup2(read_end, 0)
    os.close(read_end)
    yield write_end
    os.dup2(saved, 0)
    os.close(saved)


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_a_dash_is_the_standard_input(pack: type, stdin: int) -> None:
    feeding = fed(stdin, pack(text_of(4_000)))
    trace = read_trace("-")
    feeding.join()
    assert (trace.file, len(trace.work)) == ("stdin", 4_000)
    assert trace_files("-") == [Path("-")]


def test_an_empty_standard_input_is_said(stdin: int) -> None:
    fed(stdin, b"").join()
    with pytest.raises(TraceError, match=r"^stdin: the file is empty"):
        read_trace("-")


def test_a_file_of_that_name_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_stdin(Path("-"))
    Path("-").write_bytes(text_of())
    assert not is_stdin(Path("-"))
    assert read_trace("-").file == "-"


def test_a_named_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    feeding = threading.Thread(target=lambda: path.write_bytes(gzip.compress(text_of(4_000))))
    feeding.start()
    assert len(read_trace(path).work) == 4_000
    feeding.join()
