"""How a trace was recorded: options that slow the host, and ops that were thrown away."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from trace_builder import TraceBuilder
from traces import trace_path

from mfu_torch.insight.breakdown.explain import explain
from mfu_torch.insight.breakdown_table import render
from mfu_torch.insight.trace.reading import read_trace
from mfu_torch.insight.trace.scrub import scrub
from mfu_torch.records.breakdown import Breakdown

US = 1000


def recorded(ops: int = 1000, *, keep: float = 1.0, seed: int = 1) -> TraceBuilder:
    """Ops of 5 us and the kernel of each, on two threads in turn; of all, a share is kept."""
    trace = TraceBuilder()
    chance = random.Random(seed)
    trace.step(0, 0, ops * 10 * US)
    for i in range(ops):
        if i and chance.random() > keep:
            continue
        begin, thread = 10 * US * i, 1 + i // 100 % 2
        trace.op("aten::mul", begin, 5 * US, thread=thread, **{"External id": i + 1})
        trace.kernel(
            "elementwise_kernel", begin + 2 * US, 8 * US, launch_ns=begin + US, thread=thread
        )
    return trace


def explained(trace: TraceBuilder, folder: Path) -> Breakdown:
    return explain(trace.write(folder / "trace.json"))


def idle_of(found: Breakdown) -> dict[str, int]:
    return {b.name: b.time_ns for b in found.buckets if b.time_ns and b.name.startswith("idle/")}


# --- thinned out -----------------------------------------------------------------------------


def test_a_trace_of_which_few_ops_are_left_is_said_to_be_thinned_out(tmp_path: Path) -> None:
    found = explained(recorded(10_000, keep=0.02), tmp_path)
    assert found.warnings[0].startswith("only 2.")
    assert "of the ops, by their numbers, are in the file: it was thinned out" in found.warnings[0]


def test_the_holes_of_a_thinned_trace_have_no_cause(tmp_path: Path) -> None:
    thinned = explained(recorded(10_000, keep=0.02), tmp_path)
    assert list(idle_of(thinned)) == ["idle/unknown"]
    assert idle_of(thinned)["idle/unknown"] > 0.9 * thinned.wall_ns
    lines = render(thinned).splitlines()
    said = " ".join(" ".join(lines[: lines.index("")]).split())
    assert "Fix first: idle: cause unknown." in said
    assert "Record fewer steps, and keep all of them." in said
    assert not any(word in said for word in ("launch", "graphs", "event", "loader"))
    whole = explained(recorded(1000), tmp_path)
    assert "idle/unknown" not in idle_of(whole)


def test_a_whole_trace_is_not_thinned_out(tmp_path: Path) -> None:
    assert read_trace(recorded().write(tmp_path / "trace.json")).kept is None


def test_a_trace_of_half_of_the_ops_is_not_called_thinned_out(tmp_path: Path) -> None:
    # Ops that somebody filters out by name leave the time of the others as it was.
    assert read_trace(recorded(keep=0.5).write(tmp_path / "trace.json")).kept is None


def test_threads_that_number_their_ops_in_ranges_of_their_own_are_whole(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for thread in range(20):
        for i in range(200 if not thread else 3):
            trace.op("aten::mul", i * US, 500, thread=thread, **{"External id": 4096 * thread + i})
    assert read_trace(trace.write(tmp_path / "trace.json")).kept is None


def test_few_ops_say_nothing_of_the_others(tmp_path: Path) -> None:
    trace = TraceBuilder()
    for i in range(20):
        trace.op("aten::mul", i * US, 500, **{"External id": 1 + 1000 * i})
    assert read_trace(trace.write(tmp_path / "trace.json")).kept is None


@pytest.mark.parametrize("rank", [0, 1])
def test_the_sampled_traces_of_128_ranks_are_thinned_out(rank: int) -> None:
    path = trace_path(f"hta_sampled_recsys_128gpu_rank{rank}")
    assert read_trace(path).kept == pytest.approx(0.0136, abs=2e-4)
    found = explain(path)
    assert list(idle_of(found)) == ["idle/unknown"]


@pytest.mark.parametrize(
    "name", ["hta_a100_dlrm_8gpu_rank3", "kineto_v100_rn50_workers0", "tl_h100_qwen05b_fwd"]
)
def test_whole_traces_are_whole(name: str) -> None:
    assert read_trace(trace_path(name)).kept is None


def test_a_clean_copy_says_that_its_trace_was_thinned_out(tmp_path: Path) -> None:
    trace = recorded(10_000, keep=0.02).write(tmp_path / "trace.json")
    kept = read_trace(trace).kept
    assert kept is not None
    assert read_trace(scrub(trace, tmp_path / "clean.json")).kept == kept


# --- options that slow the host --------------------------------------------------------------


def with_option(folder: Path, **top_level: object) -> Breakdown:
    trace = recorded(20)
    trace.top_level |= top_level
    return explained(trace, folder)


@pytest.mark.parametrize(
    ("top_level", "said"),
    [
        ({"with_stack": 1}, "recorded with with_stack=True, which"),
        ({"profile_memory": 1}, "recorded with profile_memory=True, which"),
        (
            {"with_stack": 1, "profile_memory": 1},
            "recorded with with_stack=True and profile_memory=True, which",
        ),
    ],
)
def test_a_recording_that_slows_the_host_is_warned_of_once(
    top_level: dict[str, object], said: str, tmp_path: Path
) -> None:
    found = with_option(tmp_path, record_shapes=1, **top_level)
    (warning,) = found.warnings
    assert warning.startswith(said)
    assert "are exaggerated" in warning
    assert warning.count("with_stack") == str(top_level).count("with_stack")
    assert warning.endswith("torch.profiler.profile(record_shapes=True), with warm-up steps")


def test_calls_of_python_show_that_there_are_stacks(tmp_path: Path) -> None:
    trace = recorded(20)
    trace.event("python_function", "train.py(3): step", 0, 100 * US)
    (warning,) = explained(trace, tmp_path).warnings
    assert warning.startswith("recorded with with_stack=True, which slows the host")


@pytest.mark.parametrize("option", ["with_stack", "profile_memory"])
def test_an_option_that_is_off_slows_nothing(option: str, tmp_path: Path) -> None:
    assert with_option(tmp_path, **{option: 0}).warnings == ()


def test_shapes_alone_are_nothing_to_warn_of(tmp_path: Path) -> None:
    assert with_option(tmp_path, record_shapes=1, with_flops=1).warnings == ()


def test_the_warning_stands_above_the_table(tmp_path: Path) -> None:
    text = render(with_option(tmp_path, with_stack=1))
    assert 0 < text.index("WARNING: recorded with") < text.index("Where the time goes")


def test_a_clean_copy_says_how_its_trace_was_recorded(tmp_path: Path) -> None:
    trace = recorded(20)
    trace.top_level |= {"with_stack": 1, "profile_memory": 1}
    path = trace.write(tmp_path / "trace.json")
    clean = read_trace(scrub(path, tmp_path / "clean.json"))
    assert clean.recorded_with == ("with_stack", "profile_memory")


def test_a_clean_copy_keeps_the_collectives_of_the_host(tmp_path: Path) -> None:
    trace = TraceBuilder(device_name=None)
    trace.op("aten::mul", 0, US)
    trace.annotation("gloo:all_reduce", US, US, thread=7)
    trace.annotation("my project", US, US)
    clean = read_trace(scrub(trace.write(tmp_path / "trace.json"), tmp_path / "clean.json"))
    assert {clean.names[i] for i in clean.annotations.name} == {"gloo:all_reduce", "annotation 1"}
