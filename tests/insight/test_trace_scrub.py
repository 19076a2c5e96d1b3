"""The clean copy: the same columns, and nothing else."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest
from trace_builder import TraceBuilder
from trace_columns import columns, differing
from traces import real_trace, trace_path

from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.insight.trace.scrub import scrub

SECRET = "hunter2"


def built_with_everything() -> TraceBuilder:
    """Steps, nested ops, two streams, a graph, waits, allocations, collectives, two threads."""
    built = TraceBuilder(rank=1, world_size=2, groups={"0": [0, 1]}, base_us=1_700_000_000)
    facts = {"Collective name": "allreduce", "dtype": "Half", "In msg nelems": 8, "Seq": 4}
    for i in range(3):
        at = 100_000 * i
        built.step(i, at, 100_000)
        built.data_wait(at + 10, 500)
        built.annotation("## data_load ##", at + 600, 100)
        built.annotation("my model", at + 1_000, 90_000)
        built.op("aten::linear", at + 1_001, 5_003, dims=[[4, 8], [2, 8]], types=["float", ""])
        built.op("aten::mm", at + 1_500, 2_000, concrete=["", "3", "[1, 1]", "False"])
        built.kernel("gemm", at + 9_001, 4_000, launch_ns=at + 1_600, grid=[8, 4, 2])
        built.memcpy(at + 20_000, 50, kind="DtoH (Device -> Pageable)", launch_ns=at + 7_000)
        built.memcpy(at + 30_000, 50, launch_ns=at + 8_000, thread=2, stream=9)
        built.memset(at + 31_000, 50)
        built.runtime("cudaGraphLaunch", at + 32_000, 77, corr=900 + i)
        built.kernel("node", at + 33_000, 10, correlation=900 + i)
        built.kernel("node", at + 34_000, 10, correlation=900 + i)
        built.kernel("ncclDevKernel", at + 40_000, 10, launch_ns=at + 39_000, **facts)
        built.kernel("by number", at + 50_000, 10, **{"External id": 10**9 + i})
        built.op("custom::op", at + 49_000, 10, **{"External id": 10**9 + i})
        built.sync(at + 60_000, 3_000)
        built.alloc(at + 70_000, 1_000)
    return built


def test_the_clean_copy_has_the_same_columns(tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    clean = scrub(path, tmp_path / "clean.json.gz")
    names = ("annotations", "data_waits")
    before, after = read_trace(path), read_trace(clean)
    found = columns(before, without_names=names), columns(after, without_names=names)
    assert differing(*found) == []
    assert set(before.work.op.tolist()) != {-1}
    assert len(before.syncs) == 6
    assert before.collectives[min(before.collectives)]["bytes"] == 16


def test_scrubbing_twice_changes_nothing(tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    once = scrub(path, tmp_path / "once.json")
    twice = scrub(once, tmp_path / "twice.json")
    assert twice.read_bytes() == once.read_bytes()


@pytest.mark.parametrize(
    "name",
    [  # the small one of each kind: old and new writers, NVIDIA and AMD, with and without steps
        "hta_a100_alexnet_cuda_sync",
        "hta_sampled_recsys_128gpu_rank0",
        "kineto_v100_rn50_workers4",
        "tl_b200_vllm_step_multimem",
        "tl_h100_qwen05b_fwd",
        "tl_mi300_resnet_ddp_8gpu_recompute",
    ],
)
def test_real_traces_have_the_same_columns_when_they_are_clean(name: str, tmp_path: Path) -> None:
    path = trace_path(name)
    clean = scrub(path, tmp_path / "clean.json")
    names = ("annotations", "data_waits")
    before = columns(real_trace(name), without_names=names)
    after = columns(read_trace(clean), without_names=names)
    assert differing(before, after) == []


def test_a_secret_anywhere_is_gone(tmp_path: Path) -> None:
    built = built_with_everything()
    args = {"Call stack": f"/home/{SECRET}/a.py", "Module Hierarchy": SECRET, SECRET: SECRET}
    built.op(
        "aten::mul",
        5_000,
        10,
        types=[SECRET, "float"],
        concrete=["", SECRET, f"token={SECRET}"],
        dims=[SECRET],
        **args,
    )
    built.op("aten::item", 5_100, 10, thread=f"thread {SECRET}")
    built.annotation(f"train {SECRET}", 6_000, 10)
    built.annotation(f"data_load from {SECRET}", 6_100, 10)
    built.annotation(f"enumerate(DataLoader)#_{SECRET}", 6_200, 10)
    facts = {
        "Collective name": SECRET,
        "Process Group Name": SECRET,
        "Process Group Description": f"mesh_{SECRET}",
        "dtype": SECRET,
        "Process Group Ranks": SECRET,
    }
    built.kernel("ncclDevKernel", 7_000, 10, launch_ns=6_500, **facts)
    built.kernel(f"k<lambda at /home/{SECRET}/src/k.cu:7>(int)", 8_000, 10)
    built.event("python_function", f"/home/{SECRET}/train.py(3): main", 0, 10)
    built.event("cpu_instant_event", SECRET, 0, None, ph="i")
    built.event(None, "process_name", 0, None, ph="M", args={"name": SECRET})
    built.event("user_annotation", "with args", 9_000, 10, args={"password": SECRET})
    built.top_level |= {
        "metadata": {"env": {"TOKEN": SECRET}},
        "traceName": f"/home/{SECRET}/trace.json",
        SECRET: SECRET,
        "distributedInfo": {
            "rank": 1,
            "host": SECRET,
            "pg_config": [{"pg_name": SECRET, "pg_desc": SECRET, "ranks": [0, 1]}],
        },
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "uuid": SECRET, "numSms": 132}],
    }
    path = built.write(tmp_path / f"{SECRET}.json")
    assert path.read_text().count(SECRET) > 20
    for out in ("clean.json", "clean.json.gz"):
        data = scrub(path, tmp_path / out).read_bytes()
        assert SECRET.encode() not in data
        text = gzip.decompress(data) if out.endswith("gz") else data
        assert SECRET.encode() not in text
        assert b"aten::mul" in text
    before, after = read_trace(path), read_trace(tmp_path / "clean.json")
    assert len(before.data_waits) == len(after.data_waits) == 8
    assert after.device_name == "NVIDIA H100"


def test_threads_of_any_name_are_numbers_in_the_copy(tmp_path: Path) -> None:
    built = TraceBuilder()
    for i, thread in enumerate(["007", 7, "\u0663", "main", -1, "12/34", None]):
        built.op("aten::mm", 10 * i, 10, thread=thread)
    path = built.write(tmp_path / "t.json")
    before, after = read_trace(path), read_trace(scrub(path, tmp_path / "clean.json"))
    assert before.threads == after.threads
    assert before.ops.thread.tolist() == after.ops.thread.tolist()
    assert {"007", "7", "-1", "thread 2", "thread 3", "thread 5"} < set(before.threads)


def test_annotations_get_stable_placeholders(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 10)
    for i, name in enumerate(["forward", "loss", "forward", "data_load x"]):
        built.annotation(name, 100 * i, 10)
    built.data_wait(1_000, 10)
    trace = read_trace(scrub(built.write(tmp_path / "t.json"), tmp_path / "clean.json"))
    assert [trace.names[i] for i in trace.annotations.name] == [
        "annotation 1",
        "annotation 2",
        "annotation 1",
        "data_load 3",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    ]


def test_steps_of_the_users_own_name_stay_steps(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 10)
    built.annotation("secret step", 0, 100)
    built.annotation("secret step", 100, 100)
    path = built.write(tmp_path / "t.json")
    trace = read_trace(scrub(path, tmp_path / "clean.json", step_name="secret step"))
    assert [trace.names[i] for i in trace.steps.name] == ["ProfilerStep#0", "ProfilerStep#1"]


def test_a_file_that_exists_is_not_written_over_unless_asked(tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    out = tmp_path / "clean.json"
    out.write_text("mine")
    with pytest.raises(TraceError, match=r"/clean\.json: exists; .* force=True to write over it"):
        scrub(path, out)
    assert out.read_text() == "mine"
    scrub(path, out, force=True)
    assert json.loads(out.read_text())["traceEvents"]


@pytest.mark.parametrize("link", ["same", "hard", "symbolic"])
def test_the_trace_itself_is_never_written_over(link: str, tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    before = path.read_bytes()
    out = path if link == "same" else tmp_path / "other.json"
    if link == "hard":
        os.link(path, out)
    if link == "symbolic":
        out.symlink_to(path)
    with pytest.raises(TraceError, match="is the trace itself"):
        scrub(path, out, force=True)
    assert path.read_bytes() == before


def test_nothing_is_left_behind_when_the_trace_is_none(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("<html>")
    with pytest.raises(TraceError, match="HTML"):
        scrub(path, tmp_path / "clean.json")
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_missing_is_one_line(tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    with pytest.raises(
        TraceError, match=r"nowhere/clean\.json: cannot be written: there is no folder .*nowhere$"
    ):
        scrub(path, tmp_path / "nowhere" / "clean.json")


def test_a_pipe_or_a_device_is_never_replaced(tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    link = tmp_path / "link"
    link.symlink_to(os.devnull)
    for out in (pipe, link, Path(os.devnull)):
        with pytest.raises(TraceError, match=f"{out}: no regular file"):
            scrub(path, out, force=True)
    assert pipe.is_fifo()
    assert link.is_symlink()


def test_a_place_that_cannot_be_written_is_named_whole(tmp_path: Path) -> None:
    path = built_with_everything().write(tmp_path / "t.json")
    out = tmp_path / ("x" * 300 + ".json")
    with pytest.raises(TraceError, match=f"{out}: cannot be written: File name too long"):
        scrub(path, out)
