"""The forms in which profilers of many years have written the same facts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.trace import pieces, source
from mfu_torch.insight.trace.events import KERNEL, MEMCPY, MEMSET
from mfu_torch.insight.trace.reading import read_trace


def write(path: Path, document: Any, text: str | None = None) -> Path:
    path.write_text(json.dumps(document) if text is None else text)
    return path


def event(category: str, name: str, ts: Any, dur: Any = 1, **more: Any) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 1,
        "tid": 1,
        "ts": ts,
        "dur": dur,
    } | more


def test_the_old_schema_with_capitals_and_threads_as_text(tmp_path: Path) -> None:
    args = {"device": 0, "stream": 7, "correlation": 5, "external id": 2}
    events = [
        event("Operator", "ProfilerStep#5", 100, 50, tid="25"),
        event("Operator", "enumerate(DataLoader)#_It.__next__", 101, 9, tid="25"),
        event("Operator", "aten::mm", 110, 20, tid="25", args={"Input dims": [[2, 3], [3, 4]]}),
        event("Runtime", "cudaLaunchKernel", 112, 3, tid=25, args={"correlation": 5}),
        event("Kernel", "gemm", 120, 10, pid=0, tid="stream 7", args=args),
        event("Memcpy", "Memcpy", 140, 1, pid=0, tid="stream 7", args={"device": 0}),
        event("Memset", "Memset", 150, 1, pid=0, tid="stream 9", args={"device": 0}),
    ]
    trace = read_trace(write(tmp_path / "old.json", {"traceEvents": events}))
    assert [trace.names[i] for i in trace.steps.name] == ["ProfilerStep#5"]
    assert trace.data_waits.start_ns.tolist() == [1_000]
    assert [trace.names[i] for i in trace.ops.name] == ["aten::mm"]
    assert trace.ops.dims == [b"[[2, 3], [3, 4]]"]
    assert trace.work.kind.tolist() == [KERNEL, MEMCPY, MEMSET]
    assert trace.work.stream.tolist() == [7, 7, 9]
    assert trace.work.op.tolist() == [0, -1, -1]
    assert trace.threads == ["25"]


def test_an_old_record_function_is_an_annotation_and_no_op(tmp_path: Path) -> None:
    names = ["## forward ##", "Optimizer.step#SGD.step", "AddmmBackward", "aten::add", "detach_"]
    events = [event("Operator", name, 10 * i) for i, name in enumerate(names)]
    trace = read_trace(write(tmp_path / "old.json", {"traceEvents": events}))
    assert [trace.names[i] for i in trace.annotations.name] == names[:2]
    assert [trace.names[i] for i in trace.ops.name] == names[2:]


def test_rocm_has_its_own_names_for_the_same(tmp_path: Path) -> None:
    work = {"device": 2, "stream": 0, "correlation": 9, "kind": "DtoD"}
    events = [
        event("cpu_op", "aten::mm", 0, 10),
        event("cuda_runtime", "hipLaunchKernel", 2, 1, args={"cid": 3, "correlation": 9}),
        event("cuda_runtime", "hipDeviceSynchronize", 5, 4, args={"correlation": 10}),
        event("kernel", "Cijk_Ailk", 4, 3, pid=2, tid=0, args={**work, "grid": [304, 1, 1]}),
    ]
    devices = [{"id": 2, "name": "AMD Instinct MI300X", "numSms": 304}]
    document = {"deviceProperties": devices, "traceEvents": events}
    trace = read_trace(write(tmp_path / "rocm.json", document))
    assert trace.work.launch_ns.tolist() == [2_000]
    assert trace.work.blocks.tolist() == [304]
    assert trace.syncs.end_ns.tolist() == [9_000]
    assert (trace.device_name, trace.sm_count) == ("AMD Instinct MI300X", 304)


def test_other_categories_are_not_read(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.kernel("gemm", 1_000, 10)
    for category in ("python_function", "cuda_sync", "overhead", "gpu_user_annotation", "Trace"):
        built.event(category, f"ignored {category}", 0, 5_000)
    built.event("ac2g", "ac2g", 0, None, ph="s", id=3)
    trace = read_trace(built.write(tmp_path / "t.json"))
    assert trace.names == ["gemm"]
    assert (trace.work.start_ns.tolist(), len(trace.ops)) == ([0], 0)


def test_three_decimals_of_microseconds_are_whole_nanoseconds(tmp_path: Path) -> None:
    stamps = ["4458676522690.655", "4458676522690.656", "4458676522691.001", "8796093022207.999"]
    text = ", ".join(
        json.dumps(event("cpu_op", "aten::add", 0, 0.001)).replace('"ts": 0', f'"ts": {stamp}')
        for stamp in stamps[:3]
    )
    trace = read_trace(write(tmp_path / "t.json", None, f'{{"traceEvents": [{text}]}}'))
    assert trace.ops.start_ns.tolist() == [0, 1, 346]
    assert trace.ops.end_ns.tolist() == [1, 2, 347]


def test_nanoseconds_survive_in_microseconds_since_1970(tmp_path: Path) -> None:
    # As floats they lie 0.25 us apart: .101, .102 and .103 would be one moment.
    stamps = ["1712195495505543.101", "1712195495505543.102", "1712195495505543.103"]
    text = ", ".join(
        json.dumps(event("cpu_op", "aten::add", 0, 0.001)).replace('"ts": 0', f'"ts": {stamp}')
        for stamp in stamps
    )
    for name, form in (("object", '{{"traceEvents": [{}]}}'), ("list", "[{}]")):
        trace = read_trace(write(tmp_path / f"{name}.json", None, form.format(text)))
        assert trace.ops.start_ns.tolist() == [0, 1, 2]


def test_whole_microseconds_since_1970_are_exact(tmp_path: Path) -> None:
    built = TraceBuilder(base_us=1_695_835_542_514_261)
    built.op("aten::add", 0, 1_000)
    built.kernel("k", 104_000, 1_000)
    trace = read_trace(built.write(tmp_path / "t.json"))
    assert trace.work.start_ns.tolist() == [104_000]


def test_time_stamps_and_numbers_as_text(tmp_path: Path) -> None:
    args = {"device": "0", "stream": "stream 7", "correlation": "5"}
    events = [
        event("cuda_runtime", "cudaLaunchKernel", "1.5", "1", args={"correlation": 5}),
        event("kernel", "k", "3.25", "0.5", args=args),
    ]
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": events}))
    assert trace.work.start_ns.tolist() == [1_750]
    assert trace.work.launch_ns.tolist() == [0]
    assert trace.work.stream.tolist() == [7]


def test_an_event_without_a_duration_takes_no_time(tmp_path: Path) -> None:
    one = event("cpu_op", "aten::add", 3)
    del one["dur"]
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": [one]}))
    assert trace.ops.end_ns.tolist() == trace.ops.start_ns.tolist() == [0]


def test_begins_and_ends_are_joined(tmp_path: Path) -> None:
    def half(ph: str, ts: int, **more: Any) -> dict[str, Any]:
        return {"ph": ph, "pid": 1, "tid": 1, "ts": ts, **more}

    events = [
        half("B", 10, cat="cpu_op", name="aten::linear"),
        half("B", 12, cat="cpu_op", name="aten::mm", args={"Input Dims": [[1, 2]]}),
        half("E", 15),
        half("E", 20),
        half("B", 30, cat="cpu_op", name="aten::never_ends"),
    ]
    trace = read_trace(write(tmp_path / "t.json", {"traceEvents": events}))
    assert trace.ops.start_ns.tolist() == [0, 2_000]
    assert trace.ops.end_ns.tolist() == [10_000, 5_000]
    assert trace.ops.parent.tolist() == [-1, 0]
    assert trace.ops.dims == [b"", b"[[1, 2]]"]
    assert trace.notes == ("1 begin or end of an event without the other was left out",)


def test_begins_and_ends_of_kernels_alone_are_joined(tmp_path: Path) -> None:
    edges = [
        {"ph": ph, "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": ts, "args": {}}
        for ph, ts in (("B", 5), ("E", 9), ("B", 10), ("E", 16))
    ]
    trace = read_trace(write(tmp_path / "t.json", None, json.dumps({"traceEvents": edges})))
    assert trace.work.start_ns.tolist() == [0, 5_000]
    assert trace.work.end_ns.tolist() == [4_000, 11_000]


@pytest.mark.parametrize("members", [1, 2, 5])
def test_gzip_of_several_members_is_one_trace(members: int, tmp_path: Path) -> None:
    built = TraceBuilder()
    for i in range(50):
        built.kernel("gemm", 10 * i, 5)
    text = json.dumps(built.to_dict()).encode()
    size = -(-len(text) // members)
    parts = [gzip.compress(text[i : i + size]) for i in range(0, len(text), size)]
    path = tmp_path / "t.json.gz"
    path.write_bytes(b"".join(parts) + b"\0" * 512)  # as tar pads it
    trace = read_trace(path)
    assert len(trace.work) == 50
    assert trace.raw_bytes == len(text)


def test_the_name_need_not_say_that_it_is_gzip(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.kernel("gemm", 0, 5)
    path = tmp_path / "trace"
    path.write_bytes(gzip.compress(json.dumps(built.to_dict()).encode()))
    assert len(read_trace(path).work) == 1


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 60, 700, 4_000, 1 << 22])
def test_pieces_of_any_size_give_the_same_trace(
    size: int, indent: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = TraceBuilder(rank=1, world_size=2, groups={"0": [0, 1]})
    built.top_level["metadata"] = {"traceEvents": [{"ph": "X"}], "text": '"traceEvents": [{'}
    for i in range(30):
        name = f"void k<lambda{i}>(int)::{{lambda(float)#1}}, {{ {i} }}, {{"
        built.op("aten::mm", 100 * i, 90, dims=[[i, 2], [2, 3]])
        built.kernel(name, 100 * i, 50, launch_ns=100 * i, list=[{"a": 1}, {"b": [{}, {}]}])
    document = built.to_dict()
    document["tail"] = [{"x": {}}, {"y": '}, {"ph": "X"}'}]
    path = write(tmp_path / "t.json", None, json.dumps(document, indent=indent))
    whole = read_trace(path)
    monkeypatch.setattr(pieces, "PIECE_BYTES", size)
    monkeypatch.setattr(source, "_CHUNK_BYTES", size)
    cut = read_trace(path)
    assert len(whole.work) == len(whole.ops) == 30
    assert cut.names == whole.names
    assert cut.ops.dims == whole.ops.dims
    assert cut.work.op.tolist() == whole.work.op.tolist() == list(range(30))
    assert (cut.rank, cut.groups, cut.device_name) == (1, {"0": (0, 1)}, whole.device_name)


def test_a_bare_list_of_events_is_a_trace(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.kernel("gemm", 0, 5)
    assert len(read_trace(write(tmp_path / "t.json", built.events)).work) == 1


def test_a_file_of_two_processes_is_said_to_be_one(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 100)
    built.event("cpu_op", "aten::add", 50, 20, pid=200)
    trace = read_trace(built.write(tmp_path / "t.json"))
    assert trace.threads == ["100/1", "200/1"]
    assert trace.ops.parent.tolist() == [-1, -1]
    assert "2 processes" in trace.notes[0]


def test_a_trace_of_this_torch_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "trace.json"
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=2)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=cpu,
        schedule=schedule,
        record_shapes=True,
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
    ) as profiler:
        for _ in range(3):
            torch.mm(torch.ones(4, 8), torch.ones(8, 2))
            profiler.step()
    trace = read_trace(path)
    assert [trace.names[i] for i in trace.steps.name] == ["ProfilerStep#1", "ProfilerStep#2"]
    mm = trace.names.index("aten::mm")
    shapes = [json.loads(d) for d, n in zip(trace.ops.dims, trace.ops.name, strict=True) if n == mm]
    assert shapes == [[[4, 8], [8, 2]]] * 2
    assert len(trace.work) == 0
