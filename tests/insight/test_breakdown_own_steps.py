"""Annotations that look like steps are named where none is marked, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from trace_builder import TraceBuilder

from mfu_torch.insight.breakdown.edges import find_edges
from mfu_torch.insight.trace.reading import read_trace


def note_of(builder: TraceBuilder, path: Path, step_name: str | None = None) -> str:
    trace = read_trace(builder.write(path / "trace.json"), step_name=step_name)
    return " ".join(find_edges(trace).notes)


def annotated(*names: str, length_ns: int = 900) -> TraceBuilder:
    """One annotation of ``length_ns`` in every microsecond; an op in each, and a kernel."""
    builder = TraceBuilder()
    for i, name in enumerate(names):
        builder.annotation(name, 1000 * i, length_ns)
        builder.op("aten::mm", 1000 * i + 10, 500)
        builder.kernel("sgemm", 1000 * i + 200, 100, launch_ns=1000 * i + 50)
    return builder


def test_numbered_annotations_may_be_steps(tmp_path: Path) -> None:
    # 3 x 900 ns, from 0 to 2900 ns.
    note = note_of(annotated("train_step_0", "train_step_1", "train_step_2"), tmp_path)
    assert (
        "3 annotations train_step_N fill 93.1 % of the time: if they are the steps, say so with "
        r"--step-name '^train_step_\d+$'"
    ) in note


def test_annotations_of_one_name_may_be_steps(tmp_path: Path) -> None:
    note = note_of(annotated("step (train)", "step (train)"), tmp_path)
    assert r"2 annotations step (train) fill" in note
    assert r"--step-name '^step \(train\)$'" in note


@pytest.mark.parametrize(
    "name", ["train_step_{}", "iteration {}", "Step#{}", "a.b[{}", "## run ##"]
)
def test_the_regular_expression_finds_exactly_these_steps(tmp_path: Path, name: str) -> None:
    builder = annotated(*(name.format(i) for i in range(3)))
    builder.annotation("x" + name.format(7), 50, 20)
    note = note_of(builder, tmp_path)
    regex = note.partition("--step-name ")[2].strip("'")
    found = read_trace(tmp_path / "trace.json", step_name=regex)
    assert len(found.steps) == 3


def test_of_nested_annotations_those_that_fill_most_are_named(tmp_path: Path) -> None:
    builder = annotated("forward", "forward", length_ns=800)
    for i in range(2):
        builder.annotation(f"batch {i}", 1000 * i, 950)
    assert "2 annotations batch N fill" in note_of(builder, tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        ("only_one",),
        ("Optimizer.step#AdamW.step", "Optimizer.step#AdamW.step"),
        ("DistributedDataParallel.forward", "DistributedDataParallel.forward"),
        ("gloo:all_reduce", "gloo:all_reduce"),
        ("forward", "backward", "optimizer"),
        ("a" * 60, "a" * 60),
    ],
)
def test_what_is_no_family_or_torchs_own_is_no_step(tmp_path: Path, names: tuple[str, ...]) -> None:
    assert "annotations " not in note_of(annotated(*names), tmp_path).replace(
        "step annotations", ""
    )


def test_annotations_that_are_rare_or_overlap_are_no_steps(tmp_path: Path) -> None:
    assert "--step-name" not in note_of(annotated("log", "log", length_ns=300), tmp_path)
    assert "--step-name" not in note_of(annotated("req 0", "req 1", length_ns=1500), tmp_path)


def test_annotations_on_two_threads_are_no_steps_of_one(tmp_path: Path) -> None:
    builder = annotated("stage", length_ns=900)
    builder.annotation("stage", 1000, 900, thread=2)
    assert "--step-name" not in note_of(builder, tmp_path)


def test_marked_steps_need_no_suggestion(tmp_path: Path) -> None:
    builder = annotated("batch 0", "batch 1")
    builder.step(0, 0, 1000)
    builder.step(1, 1000, 1000)
    assert "--step-name" not in note_of(builder, tmp_path)
