"""Collectives get the advice of their kind, with their size and rate where the trace has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from matmuls import analysed
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.rank_hints import hint_of

ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
SEND_RECV = "ncclDevKernel_SendRecv"


def hint(trace: TraceBuilder, folder: Path) -> str:
    found = analysed(trace, folder).breakdown
    return {one.name: one.hint for one in found.buckets}["exposed_communication"]


def of(
    kernel: str = ALL_REDUCE,
    *,
    count: int = 1,
    each_ns: int = 1_000_000,
    trains: bool = True,
    op: str = "record_param_comms",
    **facts: object,
) -> TraceBuilder:
    """A step with collectives one after another, each after 10 us of other work."""
    trace = TraceBuilder(world_size=8, rank=0)
    if trains:
        trace.op("autograd::engine::evaluate_function: MmBackward0", 0, 50)
    for at in range(count):
        start = 10_000 + at * (each_ns + 10_000)
        trace.op(op, start - 900, 500)
        trace.kernel(kernel, start, each_ns, launch_ns=start - 700, stream=20, **facts)
        trace.op("aten::relu", start - 300, 100)
        trace.kernel("relu", start + each_ns, 10_000, launch_ns=start - 250)
    return trace


def message(name: str, elements: int, ranks: int = 8) -> dict[str, object]:
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements,
        "dtype": "BFloat16",
        "Group size": ranks,
    }


@pytest.mark.parametrize(
    ("kernel", "op", "advice"),
    [
        (SEND_RECV, "c10d::alltoall_base_", "an all-to-all exchanges embeddings or tokens"),
        (SEND_RECV, "nccl:recv 1<-0", "in a pipeline, more micro-batches"),
        (SEND_RECV, "mine::thing", "in a pipeline, more micro-batches"),
        ("ncclDevKernel_AllGather_RING_LL", "x::y", "are those of FSDP or ZeRO"),
        ("ncclDevKernel_ReduceScatter_Sum_f32", "x::y", "are those of FSDP or ZeRO"),
        ("ncclDevKernel_Broadcast_RING_LL", "x::y", "broadcast_buffers=False"),
        (ALL_REDUCE, "x::y", "bucket_cap_mb), communicate in bf16"),
        ("mori::EpDispatchIntraNode", "x::y", "an all-to-all exchanges embeddings or tokens"),
        ("ncclDevKernel_Generic_4", "c10d::_reduce_scatter_base_", "are those of FSDP or ZeRO"),
        ("ncclDevKernel_Generic_4", "mine::thing", "start collectives earlier, beside compute"),
    ],
)
def test_each_kind_has_its_own_advice(kernel: str, op: str, advice: str, tmp_path: Path) -> None:
    text = hint(of(kernel, op=op), tmp_path)
    assert advice in text
    assert ("bucket_cap_mb" in text) == (kernel == ALL_REDUCE)
    assert text.endswith(
        "; give the traces of all ranks to see how much of it is waiting for peers"
    )


def test_in_inference_nothing_is_said_of_gradients(tmp_path: Path) -> None:
    trace = of("multimem_all_reduce_kernel", trains=False)
    assert "no_sync" in hint(trace, tmp_path)  # with so few ops, no backward says nothing
    for at in range(100):
        trace.op("aten::view", at * 100, 50)
    text = hint(trace, tmp_path)
    assert "there is no backward in the trace" in text
    assert "no_sync" not in text and "DDP" not in text


@pytest.mark.parametrize(
    ("name", "kernel", "rate"),
    [
        # 100 MB in 1 ms, as nccl-tests have it for 8 ranks
        ("allreduce", ALL_REDUCE, "175 GB/s"),  # 2 * 7 / 8
        ("_allgather_base", "ncclDevKernel_AllGather_RING_LL", "87.5 GB/s"),  # 7 / 8
        ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter", "87.5 GB/s"),
        ("all_to_all", SEND_RECV, "87.5 GB/s"),
        ("broadcast", "ncclDevKernel_Broadcast", "100 GB/s"),
    ],
)
def test_the_rate_is_the_bus_bandwidth(name: str, kernel: str, rate: str, tmp_path: Path) -> None:
    text = hint(of(kernel, **message(name, 50_000_000)), tmp_path)
    assert f", 100 MB in 1.00 ms each: {rate} of bus bandwidth)" in text
    assert "so slow" not in text


def test_a_rate_that_no_link_is_that_slow_for_is_waiting(tmp_path: Path) -> None:
    # 17.6 MB in 8.9 ms: 1.98 GB/s, times 2 * 7 / 8
    slow = of(each_ns=8_900_000, **message("allreduce", 8_800_000))
    text = hint(slow, tmp_path)
    assert "3.46 GB/s of bus bandwidth): so slow that most of it is waiting for a rank" in text
    small = of(each_ns=8_900_000, **message("allreduce", 8_800))
    assert "so slow" not in hint(small, tmp_path)


@pytest.mark.parametrize("facts", [{}, message("allreduce", 10_000)])
def test_many_small_all_reduces_are_to_be_joined(facts: dict[str, object], tmp_path: Path) -> None:
    text = hint(of(count=60, each_ns=100_000, **facts), tmp_path)
    assert "of 60 collectives is hidden" in text
    assert "they are many and small: join them" in text
    assert "join them" not in hint(of(count=40, each_ns=100_000, **facts), tmp_path)


def test_many_large_ones_are_not(tmp_path: Path) -> None:
    facts = message("allreduce", 10_000_000)
    assert "join them" not in hint(of(count=60, each_ns=300_000, **facts), tmp_path)
    assert "join them" not in hint(of(count=60, each_ns=300_000), tmp_path)


def test_of_several_kinds_the_one_with_most_time_is_advised_on(tmp_path: Path) -> None:
    trace = of(ALL_REDUCE)
    trace.kernel("ncclDevKernel_AllGather", 3_000_000, 2_000_000, launch_ns=5_000, stream=21)
    text = hint(trace, tmp_path)
    assert "most in ncclDevKernel_AllGather" in text and "FSDP or ZeRO" in text


def test_where_all_ranks_are_given_nobody_asks_for_them(tmp_path: Path) -> None:
    found = analysed(of(), tmp_path).breakdown
    (one,) = (part for part in found.buckets if part.name == "exposed_communication")
    assert "give the traces" in one.hint and "give the traces" not in hint_of([(found, one)], 1)
