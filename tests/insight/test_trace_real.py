"""Real traces: counts of what is in them, from the tables of other tools and the JSON itself."""

from __future__ import annotations

import gzip
import json
from collections import Counter

import numpy as np
import pytest
from traces import NAMES, real_trace, trace_path

from mfu_torch.insight.trace.events import KERNEL

_COUNTED = (  # one of each kind: counting them by hand means reading them with json
    "hta_a100_ddp_launchbound_2gpu_rank0",
    "hta_sampled_recsys_128gpu_rank0",
    "kineto_v100_rn50_workers4",
    "tl_b200_vllm_step_multimem",
    "tl_h100_qwen05b_fwd",
    "tl_mi300_resnet_ddp_8gpu_recompute",
)


@pytest.mark.parametrize(
    ("name", "work", "without_launch"),
    [
        ("tl_h100_qwen05b_fwd", 1_707, 509),
        ("tl_mi300_resnet_ddp_8gpu_recompute", 3_653, 968),
        ("hta_a100_recsys_16gpu_cudagraph_rank0", 7_747, 872),
        ("tl_h100_owlv2_fwd_dataloader", 5_165, 0),
        ("kineto_v100_rn50_workers0", 9_096, 0),
        ("hta_a100_dlrm_8gpu_rank3", 9_450, 0),
    ],
)
def test_launches_that_are_recorded(name: str, work: int, without_launch: int) -> None:
    trace = real_trace(name)
    assert len(trace.work) == work
    assert int((trace.work.launch_ns < 0).sum()) == without_launch


@pytest.mark.parametrize(
    ("name", "device", "sm_count", "steps", "data_waits"),
    [
        ("tl_h100_qwen05b_fwd", "NVIDIA H100 80GB HBM3", 132, 1, 0),
        ("tl_h100_owlv2_fwd_dataloader", "NVIDIA H100 80GB HBM3", 132, 1, 6),
        ("tl_mi300_resnet_ddp_8gpu_recompute", "AMD Instinct MI300X", 304, 3, 0),
        ("tl_b200_vllm_step_multimem", "NVIDIA B200", 148, 0, 0),
        ("kineto_v100_rn50_workers4", "Tesla V100-DGXS-32GB", 80, 6, 6),
        ("hta_a100_dlrm_8gpu_rank3", "NVIDIA A100-PG509-200", 108, 6, 6),
        ("hta_sampled_recsys_128gpu_rank1", None, None, 2, 2),
        ("hta_a100_alexnet_cuda_sync", "NVIDIA A100-PG509-200", 108, 0, 0),
    ],
)
def test_device_steps_and_waits_for_data(
    name: str, device: str | None, sm_count: int | None, steps: int, data_waits: int
) -> None:
    trace = real_trace(name)
    assert (trace.device_name, trace.sm_count) == (device, sm_count)
    assert (len(trace.steps), len(trace.data_waits)) == (steps, data_waits)


@pytest.mark.parametrize("name", _COUNTED)
def test_no_event_of_work_or_op_is_lost(name: str) -> None:
    document = json.loads(gzip.decompress(trace_path(name).read_bytes()))
    work = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
    events = [event for event in document["traceEvents"] if event["ph"] == "X"]
    trace = real_trace(name)
    found = [event for event in events if event["cat"] in work]
    assert len(trace.work) == len(found)
    busy_us = sum(event["dur"] for event in found)
    busy_ns = int((trace.work.end_ns - trace.work.start_ns).sum())
    assert busy_ns == pytest.approx(1_000 * busy_us, rel=1e-12)
    host = [event for event in events if event["cat"] in {"cpu_op", "Operator", "user_annotation"}]
    assert len(trace.ops) + len(trace.annotations) + len(trace.steps) == len(host)
    assert trace.notes == ()


@pytest.mark.parametrize("name", NAMES)
def test_columns_fit_together(name: str) -> None:
    trace = real_trace(name)
    work, ops = trace.work, trace.ops
    for spans in (ops, trace.steps, trace.syncs, trace.allocs, trace.annotations):
        assert (np.diff(spans.start_ns) >= 0).all()
        assert (spans.start_ns >= 0).all()
        assert (spans.end_ns >= spans.start_ns).all()
        assert (spans.name < len(trace.names)).all()
        assert (spans.thread < len(trace.threads)).all()
    assert (np.diff(work.start_ns) >= 0).all()
    inner = np.flatnonzero((work.op >= 0) & (work.launch_ns >= 0))
    op = work.op[inner]
    assert (ops.thread[op] == work.launch_thread[inner]).all()
    assert (ops.start_ns[op] <= work.launch_ns[inner]).all()
    assert (ops.end_ns[op] >= work.launch_ns[inner]).all()
    child = np.flatnonzero(ops.parent >= 0)
    assert (ops.start_ns[ops.parent[child]] <= ops.start_ns[child]).all()
    assert (ops.thread[ops.parent[child]] == ops.thread[child]).all()
    starts = [c.start_ns for c in (work, ops, trace.steps) if len(c)]
    assert min(int(column.min()) for column in [*starts, *([work.launch_ns[inner]])]) >= 0


def test_collectives_of_the_mi300_trace() -> None:
    trace = real_trace("tl_mi300_resnet_ddp_8gpu_recompute")
    assert len(trace.collectives) == 12
    sizes = Counter((fact["collective"], fact["bytes"]) for fact in trace.collectives.values())
    assert sizes == {  # of three steps
        ("broadcast", 19_200): 3,
        ("broadcast", 160): 3,
        ("allreduce", 5_746_640): 3,
        ("allreduce", 17_632_384): 3,
    }
    assert {fact["ranks"] for fact in trace.collectives.values()} == {tuple(range(8))}
    assert trace.groups == {"0": tuple(range(8))}


@pytest.mark.parametrize("name", ["tl_h100_qwen05b_fwd", "tl_b200_vllm_step_multimem"])
def test_ops_by_the_profilers_own_link_are_those_by_nesting(name: str) -> None:
    # Kineto links a kernel to its op by a number; here it is the time of the launch that decides.
    events = json.loads(gzip.decompress(trace_path(name).read_bytes()))["traceEvents"]
    ops = {e["args"]["External id"]: e["name"] for e in events if e.get("cat") == "cpu_op"}
    linked = (ops.get(e["args"].get("External id")) for e in events if e.get("cat") == "kernel")
    theirs = sorted(op for op in linked if op is not None)
    trace = real_trace(name)
    kernels = (trace.work.kind == KERNEL) & (trace.work.op >= 0)
    ours = sorted(trace.names[trace.ops.name[op]] for op in trace.work.op[kernels])
    assert len(ours) > 500
    assert ours == theirs
