"""Columns of small traces, computed by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.trace.errors import TraceError
from mfu_torch.insight.trace.events import KERNEL, MEMCPY, MEMSET, Spans, Trace
from mfu_torch.insight.trace.reading import read_trace


def read(builder: TraceBuilder, folder: Path, **options: str) -> Trace:
    return read_trace(builder.write(folder / "trace.json.gz"), **options)


def named(trace: Trace, spans: Spans) -> list[tuple[str, int, int]]:
    rows = zip(spans.name, spans.start_ns, spans.end_ns, strict=True)
    return [(trace.names[name], int(start), int(end)) for name, start, end in rows]


def step_of_two_kernels() -> TraceBuilder:
    """Step 1_000..11_000: mm launches at 1_200, add at 2_200; a wait at 5_000."""
    built = TraceBuilder()
    built.step(3, 1_000, 10_000)
    built.op("aten::linear", 1_050, 900, dims=[[4, 8], [2, 8]])
    built.op("aten::mm", 1_100, 500, dims=[[4, 8], [8, 2]], types=["float", "float"])
    built.op("aten::add", 2_100, 500, dims=[[4, 2], [4, 2], []], concrete=["", "", "1"])
    built.kernel("gemm", 3_000, 4_000, launch_ns=1_200, grid=[8, 4, 2])
    built.kernel("elementwise", 7_500, 250, launch_ns=2_200, stream=9)
    built.sync(5_000, 2_000)
    return built


def test_times_are_nanoseconds_since_the_earliest_event(tmp_path: Path) -> None:
    trace = read(step_of_two_kernels(), tmp_path)
    assert named(trace, trace.steps) == [("ProfilerStep#3", 0, 10_000)]
    assert trace.work.start_ns.tolist() == [2_000, 6_500]
    assert trace.work.end_ns.tolist() == [6_000, 6_750]
    assert trace.work.launch_ns.tolist() == [200, 1_200]
    assert trace.work.launch_end_ns is not None
    assert trace.work.launch_end_ns.tolist() == [300, 1_300]
    assert named(trace, trace.syncs) == [("cudaStreamSynchronize", 4_000, 6_000)]


def test_work_has_its_name_stream_kind_and_blocks(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.memcpy(8_000, 100, stream=11)
    built.memset(9_000, 100)
    trace = read(built, tmp_path)
    assert [trace.names[i] for i in trace.work.name] == [
        "gemm",
        "elementwise",
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
    ]
    assert trace.work.kind.tolist() == [KERNEL, KERNEL, MEMCPY, MEMSET]
    assert trace.work.stream.tolist() == [7, 9, 11, 7]
    assert trace.work.blocks.tolist() == [64, -1, -1, -1]


def test_work_belongs_to_the_innermost_op_around_its_launch(tmp_path: Path) -> None:
    trace = read(step_of_two_kernels(), tmp_path)
    ops = [trace.names[trace.ops.name[i]] for i in trace.work.op]
    assert ops == ["aten::mm", "aten::add"]
    assert [trace.names[i] for i in trace.ops.name] == ["aten::linear", "aten::mm", "aten::add"]
    assert trace.ops.parent.tolist() == [-1, 0, -1]


def test_shapes_types_and_arguments_stay_as_they_are_recorded(tmp_path: Path) -> None:
    trace = read(step_of_two_kernels(), tmp_path)
    assert trace.ops.dims[1:] == [b"[[4, 8], [8, 2]]", b"[[4, 2], [4, 2], []]"]
    assert trace.ops.types == [b"", b'["float", "float"]', b""]
    assert trace.ops.concrete == [b"", b"", b'["", "", "1"]']


def test_work_launched_before_the_trace_began_has_no_launch(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.kernel("early", 1_010, 500)
    trace = read(built, tmp_path)
    assert trace.work.launch_ns.tolist() == [-1, 200, 1_200]
    assert trace.work.launch_thread.tolist() == [-1, 0, 0]
    assert trace.work.op.tolist() == [-1, 1, 2]


def test_work_without_a_launch_record_finds_its_op_by_number(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 500, **{"External id": 77})
    built.kernel("gemm", 1_000, 100, **{"External id": 77})
    trace = read(built, tmp_path)
    assert trace.work.launch_ns.tolist() == [-1]
    assert trace.work.op.tolist() == [0]


def test_a_number_that_repeats_the_correlation_names_no_op(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 500, **{"External id": 5})
    built.kernel("gemm", 1_000, 100, correlation=5, **{"External id": 5})
    assert read(built, tmp_path).work.op.tolist() == [-1]


def test_all_kernels_of_a_cuda_graph_have_its_one_launch(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.runtime("cudaGraphLaunch", 500, 50, corr=9)
    for start in (1_000, 2_000, 3_000):
        built.kernel("node", start, 900, correlation=9)
    trace = read(built, tmp_path)
    assert trace.work.launch_ns.tolist() == [0, 0, 0]
    assert trace.work.start_ns.tolist() == [500, 1_500, 2_500]


def test_a_launch_on_another_thread_is_no_part_of_the_op(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.op("aten::mm", 0, 1_000, thread=1)
    built.op("MmBackward0", 100, 1_000, thread=2)
    built.kernel("gemm", 2_000, 100, launch_ns=500, thread=2)
    trace = read(built, tmp_path)
    assert trace.names[trace.ops.name[trace.work.op[0]]] == "MmBackward0"
    assert trace.threads[trace.work.launch_thread[0]] == "2"
    assert trace.ops.parent.tolist() == [-1, -1]


def test_events_in_any_order_give_the_same_columns(tmp_path: Path) -> None:
    forward = read(step_of_two_kernels(), tmp_path)
    built = step_of_two_kernels()
    built.events.reverse()
    backward = read(built, tmp_path)
    for column in ("start_ns", "end_ns", "launch_ns", "op", "name", "stream", "blocks"):
        assert getattr(backward.work, column).tolist() == getattr(forward.work, column).tolist()
    assert backward.ops.parent.tolist() == forward.ops.parent.tolist()


def test_work_recorded_twice_is_taken_once_and_said(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.events.append(next(event for event in built.events if event["name"] == "gemm"))
    trace = read(built, tmp_path)
    assert len(trace.work) == 2
    assert trace.notes == ("1 record of work that was recorded before was left out",)


def test_a_blocking_copy_is_a_wait_and_a_pinned_one_is_none(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.memcpy(
        1_000, 400, kind="DtoH (Device -> Pageable)", launch_ns=0, launch_duration_ns=1_500
    )
    built.memcpy(3_000, 400, kind="DtoH (Device -> Pinned)", launch_ns=2_000)
    trace = read(built, tmp_path)
    assert named(trace, trace.syncs) == [("cudaMemcpyAsync", 0, 1_500)]


@pytest.mark.parametrize(
    "call",
    [
        "cudaDeviceSynchronize",
        "cudaEventSynchronize",
        "hipStreamSynchronize",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cudaMemcpy",
        "hipMemcpyWithStream",
        "cuMemcpyDtoH_v2",
        "urEventWait",
        "urQueueFinish",
        "zeCommandQueueSynchronize",
        "zeEventHostSynchronize",
        "zeFenceHostSynchronize",
    ],
)
def test_calls_that_wait(call: str, tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.runtime(call, 100, 10)
    trace = read(built, tmp_path)
    assert (call, 0, 10) in named(trace, trace.syncs)


@pytest.mark.parametrize(
    "call", ["cudaMemcpyAsync", "cudaStreamWaitEvent", "cudaLaunchKernel", "cudaEventRecord"]
)
def test_calls_that_do_not_wait(call: str, tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.runtime(call, 100, 10)
    assert len(read(built, tmp_path).syncs) == 1


@pytest.mark.parametrize(
    "call",
    [
        *("cudaMalloc", "cudaFree", "hipMalloc", "cudaHostAlloc", "cuMemCreate", "cuMemMap"),
        *("urUSMDeviceAlloc", "urUSMHostAlloc", "urUSMSharedAlloc", "urUSMFree"),
        *("zeMemAllocDevice", "zeMemAllocHost", "zeMemFree"),
    ],
)
def test_calls_that_reserve_or_free_memory(call: str, tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.runtime(call, 100, 10)
    trace = read(built, tmp_path)
    assert named(trace, trace.allocs) == [(call, 0, 10)]


def test_waits_for_data_are_annotations_of_the_loader(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.data_wait(1_000, 300)
    built.annotation("## get_batch ##", 1_400, 100)
    built.annotation("forward", 1_600, 100)
    trace = read(built, tmp_path)
    waits = [name for name, _, _ in named(trace, trace.data_waits)]
    assert waits == [
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "## get_batch ##",
    ]
    assert [name for name, _, _ in named(trace, trace.annotations)] == [*waits, "forward"]


@pytest.mark.parametrize(
    "name",
    [
        *(
            "load_batch",
            "fetch_batch",
            "fetching",
            "data-wait",
            "data wait",
            "dataiter",
            "data_fetch",
        ),
        *("wait_for_batch", "get_train_batch", "next_batch", "## load_batch ##", "read_minibatch"),
        *("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "[_TrainEpoch].train_next"),
    ],
)
def test_names_that_people_give_to_the_wait_for_data(name: str, tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.annotation(name, 1_000, 300)
    trace = read(built, tmp_path)
    assert [found for found, _, _ in named(trace, trace.data_waits)] == [name]


@pytest.mark.parametrize(
    "name", ["## wait_for_batch ##", "next_batch_norm", "batch", "prefetched_forward", "update"]
)
def test_names_that_are_no_wait_for_data(name: str, tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.annotation(name, 1_000, 300)
    assert len(read(built, tmp_path).data_waits) == 0


def test_of_an_annotation_around_the_loaders_own_the_inner_is_the_wait(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.annotation("## load_batch ##", 1_000, 900)
    built.annotation("data_load", 1_050, 800)
    built.data_wait(1_100, 70)
    built.annotation("## load_batch ##", 2_000, 500, thread=2)
    trace = read(built, tmp_path)
    assert [end - start for _, start, end in named(trace, trace.data_waits)] == [70, 500]


def test_steps_may_be_annotations_of_the_user(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.annotation("train_step 1", 1_000, 4_000)
    built.annotation("train_step 2", 5_000, 4_000)
    built.annotation("train_step 2", 5_500, 100)  # inside: no step of its own
    trace = read(built, tmp_path, step_name=r"^train_step")
    assert named(trace, trace.steps) == [
        ("train_step 1", 0, 4_000),
        ("train_step 2", 4_000, 8_000),
    ]


def test_a_step_name_that_is_found_nowhere_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="step_name is found in none of its 1 annotations"):
        read(step_of_two_kernels(), tmp_path, step_name="nowhere")
    with pytest.raises(ValueError, match="no regular expression"):
        read(step_of_two_kernels(), tmp_path, step_name="(")


def test_a_trace_may_have_no_steps(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.kernel("gemm", 0, 10)
    assert len(read(built, tmp_path).steps) == 0


def test_the_device_with_most_work_is_taken_and_the_other_said(tmp_path: Path) -> None:
    built = TraceBuilder(devices=2)
    built.kernel("many", 0, 10, device=0)
    built.kernel("many", 20, 10, device=0)
    built.kernel("long", 5, 500, device=1)
    trace = read(built, tmp_path)
    assert [trace.names[i] for i in trace.work.name] == ["long"]
    assert trace.notes == (
        "the trace has work on 2 devices; device 1, with most of it, is shown; 2 kernels and "
        "copies of device 0 were left out",
    )


def test_the_device_and_the_place_in_the_job_are_read(tmp_path: Path) -> None:
    groups = {"0": [0, 1, 2, 3], "1": [0, 2]}
    built = TraceBuilder("NVIDIA B200", 148, rank=2, world_size=4, groups=groups)
    built.kernel("gemm", 0, 10)
    trace = read(built, tmp_path)
    assert (trace.device_name, trace.sm_count) == ("NVIDIA B200", 148)
    assert (trace.rank, trace.world_size) == (2, 4)
    assert trace.groups == {"0": (0, 1, 2, 3), "1": (0, 2)}


def test_facts_of_a_collective_on_its_kernel(tmp_path: Path) -> None:
    built = TraceBuilder()
    facts = {
        "Collective name": "allreduce",
        "Process Group Name": "3",
        "Process Group Description": "mesh_tp",
        "Group size": 4,
        "dtype": "BFloat16",
        "In msg nelems": 1_000,
        "Out msg nelems": 1_000,
        "Seq": 12,
        "Process Group Ranks": "[0, 2, 4, 6]",
    }
    built.kernel("ncclDevKernel_AllReduce", 0, 10, **facts)
    trace = read(built, tmp_path)
    assert trace.groups == {"3": (0, 2, 4, 6)}
    assert trace.collectives == {
        0: {
            "collective": "allreduce",
            "group": "3",
            "group_text": "mesh_tp",
            "group_size": 4,
            "dtype": "BFloat16",
            "bytes": 2_000,
            "seq": 12,
            "ranks": (0, 2, 4, 6),
        }
    }


def test_facts_of_a_collective_on_the_op_that_called_it(tmp_path: Path) -> None:
    built = TraceBuilder()
    facts = {"Collective name": "_allgather_base", "Out msg nelems": 50, "dtype": "Float"}
    built.op("record_param_comms", 0, 1_000, **facts)
    built.op("aten::inner", 100, 500)
    built.kernel("ncclKernel_AllGather", 2_000, 10, launch_ns=200)
    built.kernel("elementwise", 3_000, 10, launch_ns=300)
    assert read(built, tmp_path).collectives == {
        0: {"collective": "_allgather_base", "dtype": "Float", "bytes": 200}
    }


def test_a_trace_of_a_cpu_alone_has_ops_and_no_work(tmp_path: Path) -> None:
    built = TraceBuilder()
    built.step(0, 0, 1_000)
    built.op("aten::mm", 100, 500)
    trace = read(built, tmp_path)
    assert len(trace.work) == 0
    assert len(trace.ops) == 1
    assert trace.device_name is None
    assert trace.sm_count is None


def test_names_are_kept_once_and_only_if_they_are_used(tmp_path: Path) -> None:
    built = step_of_two_kernels()
    built.op("aten::add", 3_100, 500)
    trace = read(built, tmp_path)
    assert len(set(trace.names)) == len(trace.names)
    assert "cudaLaunchKernel" not in trace.names
    assert trace.names.count("aten::add") == 1
