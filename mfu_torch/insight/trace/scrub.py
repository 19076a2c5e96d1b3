"""A clean copy of a trace: written from what was read, so nothing else can be in it.

Kept: names of kernels, ops and calls, times, threads by number, streams, shapes, types, numbers
and flags among the arguments, the device's name, ranks and process groups. Annotations of the user
become ``annotation 1``, ``annotation 2``, ...; steps, waits for data and collectives of the host
keep their meaning. Paths in names are cut. Everything else of the file is gone.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.events import KERNEL, MEMCPY, MEMSET, Spans, Trace
from mfu_torch.insight.trace.names import (
    ANNOTATION,
    DATA,
    HOST_COLLECTIVE,
    STEP,
    Numbers,
    clean,
)
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.insight.trace.source import MAX_RAW_BYTES
from mfu_torch.insight.trace.values import element_bytes

_CATEGORY = {KERNEL: "kernel", MEMCPY: "gpu_memcpy", MEMSET: "gpu_memset"}
Call = tuple[int, int, int]
"""Start, end and thread of a launch; its number + 1 is written as its correlation."""
_LAUNCH = '"cudaLaunchKernel"'
_EXTERNAL = 1 << 40
"""Above every correlation: a number that only repeats it says nothing."""
_TEXTS = (("Input Dims", "dims"), ("Input type", "types"), ("Concrete Inputs", "concrete"))
_PATH = re.compile(r"(?<![\w>)\]])(?:[A-Za-z]:)?(?:[/\\][\w.+@~-]+){2,}[/\\]?")
_LOADER = re.compile(
    r"enumerate\(DataLoader\)#_(Multi|Single)Process(ing)?DataLoaderIter\.__next__"
)


def scrub(
    path: str | Path,
    out: str | Path,
    *,
    force: bool = False,
    step_name: str | None = None,
    max_raw_bytes: int = MAX_RAW_BYTES,
) -> Path:
    """Writes what :func:`read_trace` reads of ``path`` to ``out``, and nothing else.

    Reading the copy gives the same columns. It is gzip if ``out`` ends in ``.gz``. The copy appears
    whole or not at all.

    Args:
        path: A trace.
        out: Where to write; its folder exists.
        force: Write over a file that exists; never over ``path`` itself.
        step_name: As for :func:`read_trace`; such steps become ``ProfilerStep#0``, ``#1``, ...
        max_raw_bytes: As for :func:`read_trace`.

    Returns:
        ``out``.

    Raises:
        TraceError: ``path`` is no trace, or ``out`` cannot be written, exists, or is ``path``.
    """
    path, out = Path(path), Path(out)
    try:
        _check(path, out, force)
    except OSError as error:
        raise _unwritten(out, error) from error
    trace = read_trace(path, max_raw_bytes=max_raw_bytes, step_name=step_name)
    try:
        descriptor, part = tempfile.mkstemp(prefix=".scrub-", dir=out.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                _write(trace, file, packed=out.suffix == ".gz")
            os.chmod(part, 0o666 & ~_umask())
            _put(part, out, force)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(part)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise _unwritten(out, error) from error
    return out


def _unwritten(out: Path, error: Exception) -> TraceError:
    reason = getattr(error, "strerror", None) or "not a path"
    return TraceError(f"{_shown(out)}: cannot be written: {reason}")


def _shown(out: Path) -> str:
    """The whole path: one that cannot be written may be anywhere."""
    return clean(str(out))


def _put(part: str, out: Path, force: bool) -> None:
    if not force:
        try:
            os.link(part, out)  # unlike a rename it never replaces a file that appeared meanwhile
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            _check_free(out)
        else:
            return
    os.replace(part, out)


def _check(path: Path, out: Path, force: bool) -> None:
    name = _shown(out)
    if out.exists() and path.exists() and os.path.samefile(path, out):
        raise TraceError(f"{name}: is the trace itself; give another name for the clean copy")
    if out.is_dir():
        raise TraceError(f"{name}: a folder; give the name of a file")
    if out.exists() and not out.is_file():  # a rename would replace a device or a pipe
        raise TraceError(f"{name}: no regular file; give the name of a file to write")
    if not out.absolute().parent.is_dir():
        raise TraceError(f"{name}: cannot be written: there is no folder {_shown(out.parent)}")
    if not force:
        _check_free(out)


def _check_free(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise TraceError(
            f"{_shown(out)}: exists; give another name, or force=True to write over it"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _write(trace: Trace, file: IO[bytes], *, packed: bool) -> None:
    if packed:
        with gzip.GzipFile("", "wb", 6, file, mtime=0) as stream:  # no name, no time
            _write_json(trace, stream)
    else:
        _write_json(trace, file)


def _write_json(trace: Trace, stream: Any) -> None:
    head = json.dumps(_head(trace))
    stream.write(f'{head[:-1]}, "traceEvents": ['.encode())
    separator = b"\n"
    for line in _lines(trace):
        stream.write(separator + line.encode())
        separator = b",\n"
    stream.write(b"\n]}\n")


def _head(trace: Trace) -> dict[str, Any]:
    head: dict[str, Any] = {"schemaVersion": 1, "displayTimeUnit": "ms"}
    if len(trace.work):
        head["deviceProperties"] = [{"id": 0, "name": trace.device_name, "numSms": trace.sm_count}]
    groups = [{"pg_name": name, "ranks": ranks} for name, ranks in trace.groups.items()]
    place = {"rank": trace.rank, "world_size": trace.world_size, "pg_config": groups or None}
    head["distributedInfo"] = {key: value for key, value in place.items() if value is not None}
    kept = {} if trace.kept is None else {"keptOps": trace.kept}  # the copy has other numbers
    return {**head, **dict.fromkeys(trace.recorded_with, 1), **kept}


def _lines(trace: Trace) -> Iterator[str]:
    """Events as JSON text."""
    names = [json.dumps(_PATH.sub("<path>", name)) for name in trace.names]
    ops = trace.ops
    for i, span in enumerate(_spans(trace, ops)):
        args = f'{{"External id": {_EXTERNAL + i}'
        for key, texts in _TEXTS:
            if text := getattr(ops, texts)[i]:
                args += f', "{key}": {text.decode()}'
        yield _line("cpu_op", names[ops.name[i]], *span, args + "}")
    yield from _annotation_lines(trace)
    yield from _work_lines(trace, names)


def _annotation_lines(trace: Trace) -> Iterator[str]:
    numbers: Numbers[str] = Numbers()
    for i, span in enumerate(_spans(trace, trace.steps)):
        name = trace.names[trace.steps.name[i]]
        name = name if STEP.fullmatch(name) else f"ProfilerStep#{i}"
        yield _line(ANNOTATION, json.dumps(name), *span)
    for i, span in enumerate(_spans(trace, trace.annotations)):
        name = trace.names[trace.annotations.name[i]]
        if not _LOADER.fullmatch(name) and not HOST_COLLECTIVE.fullmatch(name):
            word = "data_load" if DATA.search(name) else "annotation"
            name = f"{word} {numbers[name] + 1}"
        yield _line(ANNOTATION, json.dumps(name), *span)


def _work_lines(trace: Trace, names: list[str]) -> Iterator[str]:
    work = trace.work
    calls: Numbers[Call] = Numbers()
    ends = work.launch_ns if work.launch_end_ns is None else work.launch_end_ns
    columns = work.launch_ns, ends, work.launch_thread
    launched = list(zip(*(column.tolist() for column in columns), strict=True))
    told = work.start_ns, work.end_ns, work.kind, work.name, work.stream, work.op, work.blocks
    rows = zip(*(column.tolist() for column in told), strict=True)
    for i, (start, end, kind, name, stream, op, blocks) in enumerate(rows):
        # Without a launch each has a key of its own, to which there is no call.
        number = 1 + calls[launched[i] if launched[i][2] >= 0 else (i, i, -1)]
        args = f'{{"device": 0, "stream": {stream}, "correlation": {number}'
        if op >= 0:
            args += f', "External id": {_EXTERNAL + op}'
        if blocks > 0:
            args += f', "grid": [{blocks}, 1, 1]'
        if i in trace.collectives:
            args += f", {json.dumps(_facts(trace.collectives[i]))[1:-1]}"
        yield _line(_CATEGORY[kind], names[name], "0", str(stream), start, end, args + "}")
    yield from _call_lines(trace, names, calls)


def _call_lines(trace: Trace, names: list[str], calls: dict[Call, int]) -> Iterator[str]:
    """Launches, and the calls that wait or allocate; one that does both stands once."""
    left = dict(calls)
    places = [_place(text) for text in trace.threads]
    for spans in (trace.syncs, trace.allocs):
        for i, span in enumerate(_spans(trace, spans)):
            number = left.pop((span[2], span[3], int(spans.thread[i])), None)
            args = "{}" if number is None else f'{{"correlation": {number + 1}}}'
            yield _line("cuda_runtime", names[spans.name[i]], *span, args)
    for (start, end, thread), number in left.items():
        if thread >= 0:
            args = f'{{"correlation": {number + 1}}}'
            yield _line("cuda_runtime", _LAUNCH, *places[thread], start, end, args)


def _facts(known: dict[str, Any]) -> dict[str, Any]:
    size = element_bytes(known.get("dtype"))
    facts = {
        "Collective name": known.get("collective", ""),
        "Process Group Name": known.get("group"),
        "Process Group Description": known.get("group_text"),
        "Group size": known.get("group_size"),
        "dtype": known.get("dtype"),
        "Process Group Ranks": known.get("ranks"),
        "Seq": known.get("seq"),
        "Src Rank": known.get("src"),
        "Dst Rank": known.get("dst"),
        "In msg nelems": known["bytes"] // size if size and "bytes" in known else None,
    }
    return {key: value for key, value in facts.items() if value is not None}


def _spans(trace: Trace, spans: Spans) -> Iterator[tuple[str, str, int, int]]:
    """Process, thread, start and end of each."""
    places = [_place(text) for text in trace.threads]
    columns = spans.thread.tolist(), spans.start_ns.tolist(), spans.end_ns.tolist()
    for thread, start, end in zip(*columns, strict=True):
        yield *places[thread], start, end


def _place(thread: str) -> tuple[str, str]:
    """Process and thread as JSON: ``"12/34"`` -> 12 and 34; ``"34"`` -> 1 and 34."""
    process, _, number = thread.rpartition("/")
    return _number(process or "1"), _number(number)


def _number(text: str) -> str:
    return text if re.fullmatch(r"0|-?[1-9][0-9]*", text) else json.dumps(text)


def _line(
    category: str,
    name: str,
    process: str,
    thread: str,
    start_ns: int,
    end_ns: int,
    args: str = "{}",
) -> str:
    """An event; name, process, thread and args are JSON."""
    what = f'"ph": "X", "cat": "{category}", "name": {name}, "pid": {process}, "tid": {thread}'
    when = f'"ts": {_us(start_ns)}, "dur": {_us(end_ns - start_ns)}'
    return f'{{{what}, {when}, "args": {args}}}'


def _us(time_ns: int) -> str:
    """Microseconds with three decimals, as the profiler writes them."""
    return f"{time_ns // 1000}.{time_ns % 1000:03d}"
